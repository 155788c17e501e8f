"""Memories that are bounded between the chunks of a stream."""

from __future__ import annotations

import pytest
import torch

from mnemoscope import kernels
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import LAYERS, trim_memory
from mnemoscope.recurrence import leaves

ATTENTIVE = ["MemRNN", "MemLSTM", "SAB", "RelRNN", "RelLSTM"]


def after(name: str, steps: int = 9):
    torch.manual_seed(0)
    options = {"buffer": 3, "relevant": 2} if name.startswith("Rel") else {}
    layer = LAYERS[name](3, 4, 2, **options)
    with torch.no_grad():
        return layer, layer(torch.randn(steps, 2, 3))[1]


@pytest.mark.parametrize("keep", [0, 1, 3, 50])
@pytest.mark.parametrize("name", ATTENTIVE)
def test_newest_states_are_kept_and_h_is_left_alone(name: str, keep: int) -> None:
    _, state = after(name)
    trimmed = trim_memory(state, keep)
    for one, other in zip(state.visible, trimmed.visible, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(state.s, trimmed.s)
    before, now = state.memory.origin, trimmed.memory.origin
    for row in range(2):
        for layer in range(2):
            newest = sorted(origin for origin in before[layer, row].tolist() if origin >= 0)
            newest = newest[max(len(newest) - keep, 0) :]
            assert sorted(origin for origin in now[layer, row].tolist() if origin >= 0) == newest
    if name.startswith("Rel"):
        assert now.shape == before.shape  # slots have a meaning
    else:
        assert now.shape[-1] == min(keep, before.shape[-1])


@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize("name", ATTENTIVE)
def test_kernel_goes_on_from_a_trimmed_memory_as_the_equations_do(name: str, keep: int) -> None:
    layer, state = after(name)
    x = torch.randn(5, 2, 3)
    with torch.no_grad():
        output, final = layer(x, trim_memory(state, keep))
        with kernels.backend("eager"):
            expected, expected_final = layer(x, trim_memory(state, keep))
    torch.testing.assert_close(output, expected)
    for one, other in zip(leaves(final), leaves(expected_final), strict=True):
        torch.testing.assert_close(one, other)


def test_states_without_a_memory_are_returned_as_they_are() -> None:
    _, state = after("LSTM")
    assert all(one is other for one, other in zip(trim_memory(state, 0), state, strict=True))
    nested = trim_memory((after("MemRNN")[1], state), 2)
    assert nested[0].memory.origin.shape[-1] == 2
    with pytest.raises(MnemoscopeError, match="keep must be a whole number of at least 0; got -1"):
        trim_memory(state, -1)
