"""Packed sequences of which one is long and many are short: they run in groups, and padding is not computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope import kernels
from mnemoscope.layers import _base, _run
from mnemoscope.recurrence import leaves, select

LENGTHS = [3, 1, 130, *[1 + k % 6 for k in range(30)]]
CELLS = ["LinearSystem", "RNN", "LSTM", "GRU", "OrthRNN", "ExpRNN", "GORU", "RAC"]
MEMORIES = ["MemRNN", "MemLSTM", "SAB", "RelRNN", "RelLSTM"]
OPTIONS: list[dict[str, Any]] = [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}]


def make(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    layer = getattr(mnemoscope, name)(2, 4, dtype=torch.float64, **options)
    with torch.no_grad():
        for key, weight in layer.named_parameters():
            if name == "RAC" and "weight_ih" in key:  # its products overflow over so many steps
                weight.mul_(0.3)
    return layer


def draw() -> list[torch.Tensor]:
    return [torch.randn(length, 2, dtype=torch.float64) for length in LENGTHS]


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """The steps of all sequences that each layer and direction ran over, with their padding."""
    seen: list[int] = []

    def run(layer: Any, w: Any, x: torch.Tensor, *arguments: Any) -> Any:
        seen.append(x.shape[0] * x.shape[1])
        return _run.run(layer, w, x, *arguments)

    monkeypatch.setattr(_base, "run", run)
    return seen


@pytest.mark.parametrize("name", CELLS + MEMORIES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("carried", [False, True], ids=["from the start", "from a state"])
def test_outputs_states_and_gradients_are_those_of_each_sequence_alone(name, options, carried, steps) -> None:
    layer, x = make(name, **options), draw()
    before = None
    if carried:
        both = torch.randn(5, len(x), 2, dtype=torch.float64)
        before = layer(both.transpose(0, 1) if layer.batch_first else both)[1]
    steps.clear()
    output, final = layer(nn.utils.rnn.pack_sequence(x, enforce_sorted=False), before)
    assert sum(steps) < 130 * len(LENGTHS) * layer.num_layers * layer.num_directions / 4
    together = nn.utils.rnn.unpack_sequence(output)
    sum((y.square().sum() for y in together), output.data.new_zeros(())).backward(retain_graph=carried)
    found = [p.grad.clone() for p in layer.parameters()]

    layer.zero_grad()
    for row, sequence in enumerate(x):
        alone = sequence.unsqueeze(0 if layer.batch_first else 1)
        y, last = layer(alone, None if before is None else select(before, row))
        torch.testing.assert_close(together[row], y.squeeze(0 if layer.batch_first else 1))
        y.square().sum().backward(retain_graph=carried)
        visible = 2 if isinstance(last, tuple) else 1
        for a, b in zip(leaves(select(final, row))[:visible], leaves(last)[:visible], strict=True):
            torch.testing.assert_close(a, b)
    for a, parameter in zip(found, layer.parameters(), strict=True):
        torch.testing.assert_close(a, parameter.grad)


@pytest.mark.parametrize("name", MEMORIES)
def test_the_memory_goes_on(name) -> None:
    layer, x = make(name), draw()
    _, state = layer(nn.utils.rnn.pack_sequence(x, enforce_sorted=False))
    more = torch.randn(7, len(x), 2, dtype=torch.float64)
    found, _ = layer(more, state)
    for row, sequence in enumerate(x):
        expected, _ = layer(torch.cat([sequence, more[:, row]]))
        torch.testing.assert_close(found[:, row], expected[-7:])


def test_a_recorded_run_stays_one(steps) -> None:
    layer = make("LSTM")
    with kernels.recording():
        layer(nn.utils.rnn.pack_sequence(draw(), enforce_sorted=False))
    assert steps == [130 * len(LENGTHS)]
