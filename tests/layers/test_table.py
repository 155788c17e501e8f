"""The table that every layer passes: two precisions, with and without bias, one and three layers, both directions."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from safetensors.torch import load_file, save_file
from table import BATCH, HIDDEN, INPUT, ROWS, TIME, Row
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import mnemoscope
from mnemoscope.recurrence import leaves, map_state

TOLERANCE = {torch.float32: dict(rtol=1e-4, atol=1e-5), torch.float64: dict(rtol=1e-9, atol=1e-10)}


def shapes(directions: tuple[bool, ...] = (False, True), depths: tuple[int, ...] = (1, 3)) -> list:
    return [
        pytest.param(dict(bias=bias, num_layers=depth, bidirectional=both), id=f"bias={bias:d}-{depth}-both={both:d}")
        for bias, depth, both in itertools.product((True, False), depths, directions)
    ]


every_row = pytest.mark.parametrize("row", ROWS, ids=str)
every_shape = pytest.mark.parametrize("shape", shapes())
both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def same(a: object, b: object, dtype: torch.dtype = torch.float64) -> None:
    torch.testing.assert_close(leaves(a), leaves(b), **TOLERANCE[dtype])


def gradients(layer: torch.nn.Module, outputs: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)  # no symmetry hides an error
    return list(torch.autograd.grad((outputs * weights).sum(), [x, *layer.parameters()], materialize_grads=True))


@every_row
@every_shape
@both_precisions
def test_steps_equal_the_whole_sequence(row: Row, shape: dict, dtype: torch.dtype) -> None:
    layer, x = row.make(**shape, dtype=dtype), draw(TIME, BATCH, INPUT, dtype=dtype)
    output, final = layer(x)
    assert output.shape == (TIME, BATCH, layer.output_size)
    assert all(t.shape[:2] == (layer.num_layers * layer.num_directions, BATCH) for t in leaves(final))
    if layer.bidirectional:
        with pytest.raises(mnemoscope.MnemoscopeError, match="has no step"):
            layer.step(x[0], layer.initial_state(BATCH))
        return
    state, outputs = layer.initial_state(BATCH), []
    for x_t in x:
        y, state = layer.step(x_t, state)
        outputs.append(y)
    same(torch.stack(outputs), output, dtype)
    same(state, final, dtype)


@every_row
@pytest.mark.parametrize("shape", shapes(directions=(True,), depths=(1,)))
@both_precisions
def test_reverse_direction_is_forward_on_the_reversed_sequence(row: Row, shape: dict, dtype: torch.dtype) -> None:
    layer, x = row.make(**shape, dtype=dtype), draw(TIME, BATCH, INPUT, dtype=dtype)
    one_way = row.make(**{**shape, "bidirectional": False}, dtype=dtype)
    one_way.load_state_dict(
        {name.replace("_reverse", ""): value for name, value in layer.state_dict().items() if "_reverse" in name}
    )
    expected, final = one_way(x.flip(0))
    output, state = layer(x)
    same(output[..., output.shape[-1] // 2 :], expected.flip(0), dtype)
    same(map_state(lambda t: t[1:], state), final, dtype)


@every_row
@pytest.mark.parametrize("shape", shapes(directions=(False,)))  # the backward direction needs the sequence's end
@both_precisions
def test_sequence_in_pieces_equals_the_whole(row: Row, shape: dict, dtype: torch.dtype) -> None:
    layer = row.make(**shape, dtype=dtype)
    x = draw(TIME, BATCH, INPUT, dtype=dtype).requires_grad_()
    whole, final = layer(x)
    for cuts in ((3, 5), (1, 1, 6), (5, 2, 1)):
        state, outputs = None, []
        for piece in x.split(cuts):
            y, state = layer(piece, state)
            outputs.append(y)
        same(torch.cat(outputs), whole, dtype)
        same(state, final, dtype)
        for a, b in zip(gradients(layer, torch.cat(outputs), x), gradients(layer, layer(x)[0], x), strict=True):
            same(a, b, dtype)


@every_row
@every_shape
@both_precisions
def test_packed_sequences_equal_single_ones(row: Row, shape: dict, dtype: torch.dtype) -> None:
    layer, lengths = row.make(**shape, dtype=dtype), [4, TIME, 1, 4]
    x = draw(TIME, len(lengths), INPUT, dtype=dtype).requires_grad_()
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    output, final = layer(packed)
    assert torch.equal(output.batch_sizes, packed.batch_sizes)
    padded, _ = pad_packed_sequence(output, total_length=TIME)
    alone = [layer(x[:length, k : k + 1]) for k, length in enumerate(lengths)]
    expected = torch.zeros_like(padded)
    for k, (y, state) in enumerate(alone):
        expected[: lengths[k], k] = y[:, 0]
        same(leaves(mnemoscope.select(final, k))[0], leaves(state)[0], dtype)
    same(padded, expected, dtype)
    for a, b in zip(gradients(layer, padded, x), gradients(layer, expected, x), strict=True):
        same(a, b, dtype)


@every_row
@every_shape
def test_batch_rows_are_independent(row: Row, shape: dict) -> None:
    layer, x, order = row.make(**shape), draw(TIME, BATCH, INPUT), [2, 0, 1]
    output, final = layer(x)
    turned, state = layer(x[:, order])
    same(turned, output[:, order])
    same(state, mnemoscope.select(final, order))
    same(layer(x[:, :1])[0], output[:, :1])


@pytest.mark.parametrize("row", [row for row in ROWS if row.options.get("truncation") != 3], ids=str)  # cut on purpose
@every_shape
def test_gradcheck(row: Row, shape: dict) -> None:
    layer, x = row.make(**shape), draw(5, 2, INPUT).requires_grad_()
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output, state = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        return output, *(t for t in leaves(state) if t.requires_grad)

    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)


@every_row
@every_shape
def test_state_dict_is_saved_and_loaded(row: Row, shape: dict, tmp_path) -> None:
    layer, other, x = row.make(**shape), row.make(**shape), draw(TIME, BATCH, INPUT)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0.9)
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    assert not torch.allclose(other(x)[0], layer(x)[0])
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(other(x)[0], layer(x)[0])


@every_row
def test_deepcopy_is_independent(row: Row) -> None:
    layer, x = row.make(), draw(TIME, BATCH, INPUT)
    before = layer(x)[0].detach()
    other = copy.deepcopy(layer)
    assert torch.equal(other(x)[0], before)
    with torch.no_grad():
        other.weight_ih_l0.mul_(2)
    assert torch.equal(layer(x)[0], before)
    same(copy.deepcopy(mnemoscope.detach(layer(x)[1])), layer(x)[1])


@every_row
def test_dtype_can_be_changed(row: Row) -> None:
    layer, x = row.make(), draw(TIME, BATCH, INPUT)
    expected = layer(x)[0].float()
    torch.testing.assert_close(layer.to(torch.float32)(x.float())[0], expected, rtol=1e-4, atol=1e-4)
    output, final = layer.to(torch.bfloat16)(x.bfloat16())
    assert output.dtype == torch.bfloat16
    assert output.isfinite().all()
    output.sum().backward()
    assert all(t.dtype == torch.bfloat16 for t in leaves(final) if t.is_floating_point())


@every_row
@every_shape
def test_unbatched_input_and_one_step(row: Row, shape: dict) -> None:
    layer, x = row.make(**shape), draw(TIME, 1, INPUT)
    unbatched, state = layer(x[:, 0])
    batched, final = layer(x)
    same(unbatched, batched[:, 0])
    same(state, map_state(lambda t: t[:, 0], final))
    same(layer(x[:1, 0], None)[0], layer(x[:1])[0][:, 0])
    if not layer.bidirectional:
        again, _ = layer(x[4:, 0], layer(x[:4, 0])[1])  # an unbatched state is taken back
        same(again, batched[4:, 0])


@every_row
def test_batch_first_only_transposes(row: Row) -> None:
    layer, turned, x = row.make(), row.make(batch_first=True), draw(TIME, BATCH, INPUT)
    output, final = layer(x)
    other, state = turned(x.transpose(0, 1))
    same(other, output.transpose(0, 1))
    same(state, final)
    packed = pack_padded_sequence(x, torch.tensor([TIME, 5, 2]))
    same(turned(packed)[0].data, layer(packed)[0].data)


@every_row
def test_dropout_between_layers_in_training_only(row: Row) -> None:
    layer, x = row.make(num_layers=2, dropout=1.0), draw(TIME, BATCH, INPUT)
    upper = row.build(layer.output_size, **{key: value for key, value in row.options.items() if key != "feature"})
    upper.load_state_dict({k.replace("_l1", "_l0"): value for k, value in layer.state_dict().items() if "_l1" in k})
    same(layer(x)[0], upper(torch.zeros(TIME, BATCH, layer.output_size, dtype=torch.float64))[0])
    same(layer.eval()(x)[0], row.make(num_layers=2)(x)[0])


@every_row
def test_state_detach_to_and_select(row: Row) -> None:
    layer, x = row.make(), draw(TIME, BATCH, INPUT)
    state = layer(x)[1]
    assert not any(t.requires_grad for t in leaves(mnemoscope.detach(state)))
    single = mnemoscope.to(state, torch.float32)
    assert type(single) is type(state)
    for a, b in zip(leaves(single), leaves(state), strict=True):
        assert a.dtype == (torch.float32 if b.is_floating_point() else b.dtype)
    assert all(t.device.type == "meta" for t in leaves(mnemoscope.to(state, "meta")))
    same(layer(x[:, 1:2], mnemoscope.select(state, 1))[0], layer(x, state)[0][:, 1:2])
    same(layer(x[:, 1:], mnemoscope.select(state, slice(1, None)))[0], layer(x, state)[0][:, 1:])


@every_row
def test_bad_input_error(row: Row) -> None:
    layer, x = row.make(), draw(TIME, BATCH, INPUT)
    cases = {
        "Expected sequence length to be larger than 0 in RNN": x[:0],
        f"must be equal to input_size. Expected {INPUT}, got 2: input \\[{TIME}, {BATCH}, 2\\]": x[..., :2],
        "got 4D, \\[8, 3, 3, 1\\]": x[..., None],
        "input dtype .torch.float32. does not match weight dtype .torch.float64.": x.float(),
        "expects a tensor or a PackedSequence; got a list": x.tolist(),
    }
    for message, wrong in cases.items():
        with pytest.raises(mnemoscope.MnemoscopeError, match=message):
            layer(wrong)


@every_row
def test_foreign_state_error(row: Row) -> None:
    layer, x = row.make(), draw(TIME, BATCH, INPUT)
    own = layer(x)[1]
    strangers = [
        mnemoscope.select(own, slice(0, 2)),  # for another batch
        row.make(num_layers=2)(x)[1],  # of another depth
        row.build(INPUT, 2 * HIDDEN, **row.options)(x)[1],  # of another size
        "state",
        draw(1, BATCH, HIDDEN) if len(layer.state_names) == 2 else (draw(1, BATCH, HIDDEN), draw(1, BATCH, HIDDEN)),
    ]
    for stranger in strangers:
        with pytest.raises(mnemoscope.MnemoscopeError, match=f"{row.layer.__name__} expects a state of"):
            layer(x, stranger)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(input_size=0, hidden_size=4), "input_size must be"),
        (dict(input_size=3, hidden_size=2.5), "hidden_size should be of type int"),
        (dict(input_size=3, hidden_size=4, num_layers=0), "num_layers must be"),
        (dict(input_size=3, hidden_size=4, dropout=1.5), r"dropout should be a number in range \[0, 1\].*; got 1.5"),
    ],
)
@every_row
def test_bad_arguments_error(row: Row, arguments: dict, message: str) -> None:
    with pytest.raises(mnemoscope.MnemoscopeError, match=message):
        row.layer(**arguments)
