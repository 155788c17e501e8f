"""What torch's users do with a layer besides calling it: pickle, save and copy it, or run it in mixed precision."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from table import BATCH, HIDDEN, INPUT, ROWS, TIME, Row
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils import _pytree as pytree

import mnemoscope
from mnemoscope import kernels
from mnemoscope.layers import AttentiveState, stable
from mnemoscope.layers._memory_layer import MemoryLayer
from mnemoscope.recurrence import leaves

every_row = pytest.mark.parametrize("row", ROWS, ids=str)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("row", [row for row in ROWS if row.layer is not mnemoscope.ExpRNN], ids=str)
def test_pickle(row: Row) -> None:  # ExpRNN is not: torch refuses parametrized modules
    layer, x = row.make(), draw(TIME, BATCH, INPUT)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x)[0], layer(x)[0])


@every_row
def test_state_is_saved_and_loaded(row: Row, tmp_path) -> None:
    layer, x = row.make(), draw(TIME, BATCH, INPUT)
    state = mnemoscope.detach(layer(x)[1])
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert type(loaded) is type(state)
    assert torch.equal(layer(x, loaded)[0], layer(x, state)[0])


@every_row
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_autocast_in_pieces(row: Row, backend: str) -> None:
    layer, x = row.make(dtype=torch.float32), draw(TIME, BATCH, INPUT, dtype=torch.float32)
    expected = layer(x)[0]
    with kernels.backend(backend), torch.autocast("cpu", torch.bfloat16):
        first, state = layer(x[:4])
        second, _ = layer(x[4:], state)
    output = torch.cat([first, second]).float()
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)
    if row.layer is not mnemoscope.SAB:  # which of its states are attended hangs on the last bits of their scores
        torch.testing.assert_close(output, expected, rtol=0.1, atol=0.2)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("row", [row for row in ROWS if issubclass(row.layer, MemoryLayer)], ids=str)
def test_memory_dtype_after_autocast(row: Row, grad: bool) -> None:
    layer, x = row.make(dtype=torch.float32), draw(2 * TIME, BATCH, INPUT, dtype=torch.float32)
    with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
        _, state = layer(x)  # long enough for every slot to be a new one
    assert {t.dtype for t in state.memory if t.is_floating_point()} == {torch.float32}
    layer(x, mnemoscope.to(state, torch.float32))


@every_row
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("time", [1, TIME])
def test_inplace_write_to_the_output_leaves_the_state_alone(row: Row, grad: bool, time: int) -> None:  # as with nn.LSTM
    with torch.set_grad_enabled(grad):
        output, state = row.make()(draw(time, BATCH, INPUT))
    before = [t.detach().clone() for t in leaves(state)]
    with torch.no_grad():
        output.fill_(7)
    assert all(torch.equal(a, b) for a, b in zip(before, leaves(state), strict=True))


@pytest.mark.parametrize("grad", [False, True])
@every_row
def test_make_fx_trace_does_not_depend_on_values(row: Row, grad: bool) -> None:
    layer, x = row.make(dtype=torch.float32).requires_grad_(grad), draw(2 * TIME, BATCH, INPUT, dtype=torch.float32)
    state = layer(x)[1]
    if isinstance(layer, mnemoscope.RelRNN | mnemoscope.RelLSTM):
        state.memory.relevance.add_(100)  # what is carried now stays
    shape = pytree.tree_structure(state)

    def run(x: torch.Tensor, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output, final = layer(x, pytree.tree_unflatten(list(parts), shape))
        return output, *leaves(final)

    empty = leaves(layer.initial_state(BATCH))
    carried = leaves(state) if [t.shape for t in empty] != [t.shape for t in leaves(state)] else empty
    traced = make_fx(run)(x, *carried)
    for found, expected in zip(traced(x, *leaves(state)), run(x, *leaves(state)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@every_row
def test_vmap_over_models(row: Row) -> None:
    models = [copy.deepcopy(row.make()).requires_grad_(False) for _ in range(2)]
    for parameter in models[1].parameters():
        parameter.mul_(0.9)
    names = [name for name, _ in models[0].named_parameters()]
    stacked = {name: torch.stack([m.get_parameter(name) for m in models]) for name in names}
    skeleton, x = copy.deepcopy(models[0]), draw(TIME, BATCH, INPUT)
    run = torch.vmap(lambda weights: torch.func.functional_call(skeleton, weights, (x,))[0])
    torch.testing.assert_close(run(stacked), torch.stack([m(x)[0] for m in models]))


@every_row
def test_vmap_over_states(row: Row) -> None:
    layer, x = row.make().requires_grad_(False), draw(2, TIME, BATCH, INPUT)
    states = [layer(x_k[:3])[1] for x_k in x]

    def run(x: torch.Tensor, state) -> torch.Tensor:
        outputs = []
        for x_t in x:
            output, state = layer.step(x_t, state)
            outputs.append(output)
        return torch.stack(outputs)

    together = pytree.tree_map(lambda *tensors: torch.stack(tensors), *states)
    expected = torch.stack([layer(x_k[3:], state)[0] for x_k, state in zip(x, states, strict=True)])
    torch.testing.assert_close(torch.vmap(run)(x[:, 3:], together), expected)


@every_row
def test_empty_batch(row: Row) -> None:
    layer = row.make(num_layers=2)
    for starts in (None, torch.zeros(TIME, 0, dtype=torch.bool)):
        output, state = layer(draw(TIME, 0, INPUT), starts=starts)
        assert output.shape == (TIME, 0, layer.output_size)
        assert all(t.shape[:2] == (2, 0) for t in leaves(state))
        layer(draw(TIME, 0, INPUT), state, starts=starts)


@every_row
@pytest.mark.parametrize("one_step", [False, True])
def test_a_weight_that_was_not_loaded_error(row: Row, one_step: bool) -> None:
    """A model made on the meta device, and loaded in part: a kernel would read from nowhere."""
    layer = row.make()
    state, x = layer.initial_state(BATCH), draw(TIME, BATCH, INPUT)
    name = list(layer._parameters)[-1]
    layer._parameters[name] = torch.nn.Parameter(layer._parameters[name].to("meta"))
    with torch.no_grad(), pytest.raises(mnemoscope.MnemoscopeError, match=rf"{name} must be .* on cpu.* on meta: was"):
        layer.step(x[0], state) if one_step else layer(x, state)


@every_row
def test_shapes_on_the_meta_device(row: Row) -> None:
    layer = row.make(num_layers=2, dtype=torch.float32)
    output, state = layer(draw(TIME, BATCH, INPUT, dtype=torch.float32))
    found, after = layer.to("meta")(torch.empty(TIME, BATCH, INPUT, device="meta"))
    assert (found.shape, found.device.type) == (output.shape, "meta")
    assert leaves(after)[0].shape == leaves(state)[0].shape


def test_data_parallel_replica() -> None:
    layer, x = mnemoscope.RelLSTM(INPUT, HIDDEN), draw(TIME, BATCH, INPUT, dtype=torch.float32)
    replica = layer._replicate_for_data_parallel()  # what nn.DataParallel does: no parameters, plain tensors
    for name, parameter in layer.named_parameters():
        setattr(replica, name, parameter.detach().clone())
    assert torch.equal(replica(x)[0], layer(x)[0])
    assert leaves(replica.initial_state(BATCH))[0].dtype is layer.weight_hh_l0.dtype


@every_row
@pytest.mark.parametrize("layout", ["unbatched", "packed"])
def test_wrong_state_error_in_every_layout(row: Row, layout: str) -> None:
    layer, x = row.make(), draw(TIME, BATCH, INPUT)
    packed = pack_padded_sequence(x, torch.tensor([3, TIME, 1]), enforce_sorted=False)
    for stranger in ("state", 3, {"h": x}, (x, None), layer(draw(TIME, BATCH + 2, INPUT))[1]):
        with pytest.raises(mnemoscope.MnemoscopeError, match="state"):
            layer(x[:, 0] if layout == "unbatched" else packed, stranger)


def test_state_dtype_and_device_error() -> None:
    layer, x = mnemoscope.RelLSTM(INPUT, HIDDEN), draw(TIME, BATCH, INPUT, dtype=torch.float32)
    state = layer(x)[1]
    h, c = state
    for wrong in ((h, c.double()), AttentiveState(state, state.s.double(), state.memory)):
        with pytest.raises(mnemoscope.MnemoscopeError, match=r"a state of torch\.float64: convert it"):
            layer(x, wrong)
    for wrong in ((h.to("meta"), c), mnemoscope.to(state, "meta")):
        with pytest.raises(mnemoscope.MnemoscopeError, match="input on cpu and a state on meta"):
            layer(x, wrong)


@pytest.mark.parametrize("name", ["bias", "batch_first", "bidirectional"])
def test_bool_argument_error(name: str) -> None:
    with pytest.raises(mnemoscope.MnemoscopeError, match=f"{name} should be of type bool, got: str"):
        mnemoscope.RNN(INPUT, HIDDEN, **{name: "relu"})
    with pytest.raises(mnemoscope.MnemoscopeError, match="bias should be of type bool"):
        mnemoscope.LSTM(INPUT, HIDDEN, 1, "relu")  # nn.RNN's order, which is not nn.LSTM's


@every_row
def test_proj_size_error(row: Row) -> None:
    row.make(proj_size=0)  # nn.LSTM's default, which scripts may pass on
    if row.layer.has_projection:
        assert row.make(proj_size=2).state_sizes == (2, HIDDEN)
        with pytest.raises(mnemoscope.MnemoscopeError, match=r"proj_size has to be smaller than hidden_size, 4; got 4"):
            row.make(proj_size=HIDDEN)
    else:
        with pytest.raises(mnemoscope.MnemoscopeError, match=r"proj_size argument is only supported for LSTM.*; got 2"):
            row.make(proj_size=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: stable(mnemoscope.RNN(INPUT, HIDDEN)),
        lambda: stable(mnemoscope.LSTM(INPUT, HIDDEN)),
        lambda: parametrizations.weight_norm(mnemoscope.LSTM(INPUT, HIDDEN), "weight_hh_l0"),
        lambda: mnemoscope.ExpRNN(INPUT, HIDDEN),
        lambda: mnemoscope.ExpRNN(INPUT, HIDDEN, trivialization="dynamic"),
    ],
    ids=["stable-RNN", "stable-LSTM", "weight-norm", "ExpRNN", "ExpRNN-dynamic"],
)
def test_reset_parameters_of_parametrized_weights(make) -> None:
    layer = make()
    torch.manual_seed(0)
    layer.reset_parameters()
    first = layer.weight_hh_l0.detach().clone()
    layer.reset_parameters()
    assert parametrize.is_parametrized(layer, "weight_hh_l0")
    assert not torch.allclose(layer.weight_hh_l0, first)
    torch.manual_seed(0)
    layer.reset_parameters()
    torch.testing.assert_close(layer.weight_hh_l0.detach(), first)


def test_weights_are_computed_once_a_run(monkeypatch) -> None:
    layer, asked = mnemoscope.GORU(INPUT, HIDDEN, num_layers=2), []
    weights = mnemoscope.GORU.weights
    monkeypatch.setattr(mnemoscope.GORU, "weights", lambda self, index: asked.append(index) or weights(self, index))
    layer(torch.randn(TIME, BATCH, INPUT))
    assert asked == [0, 1]


def test_overridden_initial_state() -> None:
    class Warm(mnemoscope.RNN):
        def initial_state(self, batch: int) -> torch.Tensor:
            return torch.ones(1, batch, self.hidden_size)

    layer, x = Warm(INPUT, HIDDEN), torch.randn(TIME, BATCH, INPUT)
    torch.testing.assert_close(layer(x)[0], layer(x, torch.ones(1, BATCH, HIDDEN))[0])


@every_row
def test_is_grads_batched(row: Row) -> None:
    """is_grads_batched, of which jacobian(vectorize=True) is made: torch batches what it can, and loops else."""
    layer, x = row.make(), draw(TIME, BATCH, INPUT).requires_grad_()
    y, _ = layer(x)
    vectors, by = torch.randn(3, *y.shape, dtype=torch.float64), [x, *layer.parameters()]
    found = torch.autograd.grad(y, by, vectors, True, is_grads_batched=True, allow_unused=True)
    one_by_one = [torch.autograd.grad(y, by, vector, True, allow_unused=True) for vector in vectors]
    for batched, *each in zip(found, *one_by_one, strict=True):
        assert (batched is None) == (each[0] is None)
        if batched is not None:
            torch.testing.assert_close(batched, torch.stack(each))
