"""The total gradient of every state, from one fused backward pass, is that of a loop nudged at that state."""

from contextlib import nullcontext

import pytest
import torch
from table import BATCH, INPUT, ROWS

import mnemoscope
from mnemoscope import kernels
from mnemoscope.kernels._cpu.library import available
from mnemoscope.scopes import horizon


def sequences(layer):
    steps = 40 if isinstance(layer, mnemoscope.LinearSystem) else 12  # of three rows, 40 steps run by chunks
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(steps, BATCH, INPUT, dtype=torch.float64, generator=generator)
    outer = torch.randn(steps, BATCH, layer.output_size, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), outer


def nudged(layer, x, outer, monkeypatch):
    """d sum(outer * output) / d nudge, with nudge_t added to each h_t as soon as its equations have made it."""
    nudges, name = [], "advance" if hasattr(layer, "advance") else "cell"
    original = getattr(layer, name)

    def moved(*arguments):
        h, *rest = original(*arguments)
        nudges.append(torch.zeros_like(h, requires_grad=True))
        h = h + nudges[-1]
        return (h, *rest) if name == "advance" else (h, h)

    with monkeypatch.context() as patch, kernels.backend("eager"):
        patch.setattr(layer, name, moved)
        y, _ = layer(x)
    return torch.stack(torch.autograd.grad((outer * y).sum(), nudges)).unflatten(0, (layer.num_layers, len(x)))


def totals(layer, x, outer):
    with kernels.recording() as runs:
        y, _ = layer(x)
    by = [tensor for run in runs for tensor in run.inputs]
    found = iter(torch.autograd.grad((outer * y).sum(), by, allow_unused=True, materialize_grads=True))
    return torch.stack([run.total_gradient(*(next(found) for _ in run.inputs)) for run in runs]), runs


def error(found, wanted):
    """The largest relative error of one layer's gradient by one step's state."""
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


@pytest.mark.parametrize("backend", ["auto", "portable"])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_total_gradient_equals_that_of_a_perturbation(row, num_layers, backend, monkeypatch):
    layer = row.make(num_layers=num_layers)
    x, outer = sequences(layer)
    wanted = nudged(layer, x, outer, monkeypatch)
    with kernels.backend(backend):
        found, runs = totals(layer, x, outer)
    assert error(found, wanted) < 1e-9
    assert len(runs) == num_layers
    assert {len(run.states) for run in runs} == {len(x)}


FUSED = ["LinearSystem", "RNN", "LSTM", "OrthRNN", "ExpRNN", "GORU", "MemRNN", "MemLSTM", "SAB", "RelRNN", "RelLSTM"]


@pytest.mark.skipif(not available(torch.float64), reason="no compiled CPU kernels here")
@pytest.mark.parametrize("name", [*FUSED, "RAC"])
def test_fused_run_asks_for_few_gradients(name):
    """Not for one a step: otherwise the comparison above would be one of the loop with itself."""
    layer = getattr(mnemoscope, name)(INPUT, 4, dtype=torch.float64)
    _, (run,) = totals(layer, *sequences(layer))
    assert len(run.inputs) <= 5


def test_dead_units_receive_a_gradient(monkeypatch):
    """Half of these units are shut: their state's gradient cannot be had from that of their input."""
    layer = mnemoscope.RNN(INPUT, 6, nonlinearity="relu", dtype=torch.float64)
    x, outer = sequences(layer)
    found, (run,) = totals(layer, x, outer)
    shut = run.states[None] == 0
    assert 0.2 < shut.double().mean() < 0.8
    assert bool((found[shut] != 0).all())
    assert error(found, nudged(layer, x, outer, monkeypatch)) < 1e-9


@pytest.mark.parametrize("name", ["RNN", "LSTM", "RelRNN"])
def test_total_gradient_with_checkpoint(name):
    torch.manual_seed(0)
    whole = getattr(mnemoscope, name)(INPUT, 5, 2, dtype=torch.float64)
    pieces = getattr(mnemoscope, name)(INPUT, 5, 2, checkpoint=True, dtype=torch.float64)
    pieces.load_state_dict(whole.state_dict())
    x = torch.randn(30, BATCH, INPUT, dtype=torch.float64)
    one, other = (horizon(layer, x, directions=2).series["state_gradient"] for layer in (whole, pieces))
    torch.testing.assert_close(torch.tensor(other), torch.tensor(one), rtol=1e-9, atol=0)


WAYS = {"recording": kernels.recording, "eager": lambda: kernels.backend("eager"), "as usual": nullcontext}


@pytest.mark.parametrize("name", ["RNN", "LSTM", "RelRNN"])
@pytest.mark.parametrize("there", WAYS)
@pytest.mark.parametrize("back", WAYS)
def test_checkpoint_recomputes_with_the_same_backend(name, there, back):
    """Whatever backend is open in the backward pass, which runs twice."""
    torch.manual_seed(0)
    layer = getattr(mnemoscope, name)(INPUT, 5, checkpoint=True, dtype=torch.float64)
    x = torch.randn(10, BATCH, INPUT, dtype=torch.float64)
    wanted = torch.autograd.grad(layer(x)[0].square().sum(), layer.weight_ih_l0)
    with WAYS[there]():
        loss = layer(x)[0].square().sum()
    with WAYS[back]():
        first = torch.autograd.grad(loss, layer.weight_ih_l0, retain_graph=True)
        second = torch.autograd.grad(loss, layer.weight_ih_l0)
    torch.testing.assert_close((first, second), (wanted, wanted), rtol=1e-9, atol=0)


def test_nothing_is_recorded_outside_nor_of_packed_sequences():
    layer = mnemoscope.LSTM(INPUT, 4)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(6, 2, INPUT), [6, 4])
    with kernels.recording() as runs:
        layer(packed)
    layer(torch.randn(6, 2, INPUT))
    assert not runs
    assert not kernels.is_recording()


def test_recording_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), kernels.recording():
        1 / 0  # noqa: B018
    assert not kernels.is_recording()


def test_total_gradient_of_a_subclass_with_its_own_equations(monkeypatch):
    class Leaky(mnemoscope.RNN):
        def advance(self, w, u, h):
            return (0.5 * h + 0.5 * super().advance(w, u, h)[0],)

    torch.manual_seed(0)
    layer = Leaky(INPUT, 4, dtype=torch.float64)
    x, outer = sequences(layer)
    found, _ = totals(layer, x, outer)
    assert error(found, nudged(layer, x, outer, monkeypatch)) < 1e-9
