"""Attention in torch's own operations gives what the readable loop gives, and keeps less of it."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import mnemoscope
from mnemoscope import kernels
from mnemoscope.recurrence import leaves

LAYERS = {
    "RelRNN": (mnemoscope.RelRNN, dict(buffer=3, relevant=2)),
    "RelRNN-modrelu": (mnemoscope.RelRNN, dict(buffer=2, relevant=2, nonlinearity="modrelu", decay=0.7, refresh=True)),
    "RelRNN-relu": (mnemoscope.RelRNN, dict(buffer=2, relevant=0, nonlinearity="relu", mix="mean", output="s")),
    "RelRNN-unbuffered": (mnemoscope.RelRNN, dict(buffer=0, relevant=3, nonlinearity="identity")),
    "RelRNN-nothing": (mnemoscope.RelRNN, dict(buffer=0, relevant=0)),
    "RelLSTM": (mnemoscope.RelLSTM, dict(buffer=3, relevant=2, mix="mean")),
    "MemRNN": (mnemoscope.MemRNN, dict(output="s")),
    "MemLSTM": (mnemoscope.MemLSTM, {}),
}


@pytest.mark.parametrize(("packed", "carried"), list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_states_and_gradients_are_the_loops(name: str, packed: bool, carried: bool) -> None:
    torch.manual_seed(0)
    kind, options = LAYERS[name]
    layer = kind(3, 5, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(1.5 if "hh" not in name else 0.8)
    x = torch.randn(9, 4, 3, dtype=torch.float64, requires_grad=True)
    before = torch.randn(4, 4, 3, dtype=torch.float64)
    found = []
    for backend in ("eager", "portable"):
        with kernels.backend(backend):
            state = layer(before)[1] if carried else None
            given = pack_padded_sequence(x, torch.tensor([9, 6, 6, 2])) if packed else x
            output, final = layer(given, state)
            output = output.data if packed else output
            smooth = [*final, final.s, final.memory.values, final.memory.keys]
            weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output)
            cost = (output * weights).sum() + sum(t.square().sum() for t in smooth)
            grads = torch.autograd.grad(cost, [x, *layer.parameters()], materialize_grads=True)
            found.append([output, *leaves(final), *grads])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("weight", ["weight_query_l0", "weight_key_l0", "weight_score_l0"])
@pytest.mark.parametrize("kind", [mnemoscope.MemRNN, mnemoscope.RelLSTM])
def test_nan_in_the_attention_weights_reaches_the_outputs(kind: type, weight: str) -> None:
    layer = kind(3, 4)
    with torch.no_grad():
        layer.get_parameter(weight).fill_(torch.nan)
        with kernels.backend("portable"):
            output, _ = layer(torch.randn(4, 2, 3))
    assert output[1:].isnan().all()  # h_0 was made before the first attention


@pytest.mark.parametrize("slots", [dict(buffer=2, relevant=1), dict(buffer=0, relevant=0)], ids=str)
def test_gradients_of_gradients_fall_back_to_the_loop(slots: dict) -> None:
    torch.manual_seed(0)
    layer, x = mnemoscope.RelRNN(2, 3, **slots, dtype=torch.float64), torch.randn(6, 2, 2).double()
    found = []
    for backend in ("eager", "portable"):
        with kernels.backend(backend):
            weights = list(layer.parameters())
            given = dict(create_graph=True, materialize_grads=True)
            grads = torch.autograd.grad(layer(x)[0].square().sum(), weights, **given)
            size = sum(g.square().sum() for g in grads)
            found.append(torch.autograd.grad(size, weights, materialize_grads=True))
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=1e-10)


def test_full_attention_keeps_a_number_a_step_and_not_a_state_a_pair() -> None:
    """What is saved for the backward pass grows with T, not with T squared."""

    def kept(steps: int, backend: str) -> int:
        sizes: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        layer, held = mnemoscope.MemRNN(2, 8), []  # held, so that no storage is freed and counted twice
        keep = torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or note(t), lambda t: t)
        with kernels.backend(backend), keep:
            layer(torch.randn(steps, 2, 2))
        return sum(sizes.values())

    assert kept(80, "portable") < 2.3 * kept(40, "portable")
    assert kept(80, "eager") > 3 * kept(40, "eager")
