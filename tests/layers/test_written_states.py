"""What writing in place into a state, or into the output of one step, changes, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch

from mnemoscope import layers
from mnemoscope.recurrence import leaves, map_state


@pytest.mark.filterwarnings("ignore:.*without its memory")
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("part", ["h", "c", "s", "values", "relevance"])
@pytest.mark.parametrize("name", ["RelRNN", "RelLSTM", "MemLSTM"])
def test_a_write_into_a_state_is_seen_by_the_next_call(name: str, part: str, num_layers: int) -> None:
    """As by a state that was made of the written tensors."""
    layer, x = getattr(layers, name)(3, 5, num_layers=num_layers), torch.randn(6, 2, 3)
    if part == "c" and "c" not in layer.state_names:
        pytest.skip("it has no c")
    with torch.no_grad():
        state = layer(x)[1]
        h, *c = state if isinstance(state, tuple) else (state,)
        if part in ("h", "c"):
            (h if part == "h" else c[0]).zero_()
        else:
            {"s": h.s, **h.memory._asdict()}[part].zero_()
        found = layer(x, state)[0]
        if part == "h":  # its memory is not that of this h any more
            alone = h.plain.clone()
            written = (alone, *c) if c else alone
        else:
            written = map_state(torch.clone, state)
        assert torch.equal(found, layer(x, written)[0])


ONE_STEP = ["RNN", "LSTM", "GRU", "GORU", "RAC", "RelRNN", "RelLSTM", "MemRNN", "SAB"]


@pytest.mark.parametrize("name", ONE_STEP)
def test_a_write_into_the_state_of_one_step_leaves_its_backward_pass_alone(name: str) -> None:
    layer, x = getattr(layers, name)(3, 4), torch.randn(1, 2, 3)

    def gradients(write: bool) -> tuple[torch.Tensor, ...]:
        output, state = layer(x)
        if write:
            h = state[0] if isinstance(state, tuple) else state
            h[:, [0]] = 0  # an episode ends
        return torch.autograd.grad(output.square().sum(), list(layer.parameters()), allow_unused=True)

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        assert (found is None and expected is None) or torch.equal(found, expected)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", ONE_STEP)
def test_a_write_into_the_output_of_one_step_does_not_change_the_state(name: str, grad: bool) -> None:
    layer, x = getattr(layers, name)(3, 4), torch.randn(1, 2, 3)
    with torch.set_grad_enabled(grad):
        output, state = layer(x)
        before = [t.detach().clone() for t in leaves(state)]
        output.mul_(2)
        assert all(torch.equal(t, first) for t, first in zip(leaves(state), before, strict=True))
        assert layer(x, state)[0].shape == output.shape


@pytest.mark.parametrize("name", ["RelRNN", "RelLSTM", "MemRNN", "MemLSTM"])
def test_a_write_into_the_output_does_not_change_what_is_made_of_the_run_later(name: str) -> None:
    """s and the memory are made when they are asked for, as if the call had made them."""
    torch.manual_seed(0)
    layer = getattr(layers, name)(2, 3)
    x = torch.randn(5, 2, 2)
    with torch.no_grad():
        expected = leaves(layer(x)[1])
    output, state = layer(x)
    carrier = state[0] if isinstance(state, tuple) else state
    assert carrier.unstacked.state._done is not None  # nobody has asked
    with torch.inference_mode():
        output.zero_()
        found = leaves(state)
    assert carrier.unstacked is None
    for before, now in zip(expected, found, strict=True):
        assert before.equal(now)
        assert not now.is_inference()
    assert carrier.s.requires_grad
    assert carrier.memory.values.requires_grad
