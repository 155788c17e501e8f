"""`backend` and `recording` hold for the thread that opened them, and a checkpoint restores them in any other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mnemoscope import kernels, layers
from mnemoscope.kernels._settings import settings


def in_another_thread(function: Callable[[], Any]) -> Any:
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_backend_of_one_thread_does_not_change_another() -> None:
    with kernels.backend("eager"):
        assert in_another_thread(lambda: settings.backend) == "auto"
        assert settings.backend == "eager"


def test_recording_in_one_thread_does_not_record_another() -> None:
    layer, x = layers.RNN(2, 3), torch.randn(4, 1, 2)

    def run() -> bool:
        layer(x)
        return kernels.is_recording()

    with kernels.recording() as runs:
        assert in_another_thread(run) is False
        assert not runs
        layer(x)
    assert len(runs) == 1


def test_captured_dispatch_takes_its_settings_to_another_thread() -> None:
    with kernels.backend("portable"), kernels.recording():
        captured = kernels.CapturedDispatch()

    def inside() -> tuple[str, bool]:
        with captured:
            return settings.backend, kernels.is_recording()

    assert in_another_thread(inside) == ("portable", True)
    assert settings.backend == "auto"
    assert not kernels.is_recording()


def test_a_checkpoint_is_recomputed_in_another_thread_as_it_was_run() -> None:
    """The backward pass of a CUDA device runs in a thread of autograd's; here it is one of our own."""
    torch.manual_seed(0)
    layer = layers.LSTM(2, 3, checkpoint=True)
    x = torch.randn(9, 2, 2, requires_grad=True)
    with kernels.backend("eager"):
        loss = layer(x)[0].square().sum()
    seen = []
    cell = layer.cell

    def observed(*arguments: Any) -> Any:
        seen.append(settings.backend)
        return cell(*arguments)

    layer.cell = observed  # type: ignore[method-assign]
    in_another_thread(loss.backward)
    assert set(seen) == {"eager"}
    assert x.grad is not None


@pytest.mark.parametrize("name", ["RNN", "LSTM", "RelRNN", "RelLSTM"])
@pytest.mark.parametrize("seen", ["forward", "backward"])
@pytest.mark.parametrize("mode", ["profile", "flops"])
def test_a_checkpoint_is_recomputed_as_it_was_run_where_one_pass_alone_is_watched(
    name: str, seen: str, mode: str
) -> None:
    """A profile or a mode of torch sees every operator; without one, kernels are called with other arguments."""
    torch.manual_seed(0)
    layer = getattr(layers, name)(2, 3, checkpoint=True)
    x = torch.randn(9, 2, 2, requires_grad=True)
    (truth,) = torch.autograd.grad(layer(x)[0].square().sum(), x)

    def watched() -> Any:
        return FlopCounterMode(display=False) if mode == "flops" else torch.autograd.profiler.profile()

    with watched() if seen == "forward" else nullcontext():
        loss = layer(x)[0].square().sum()
    with watched() if seen == "backward" else nullcontext():
        loss.backward()
    torch.testing.assert_close(x.grad, truth)


def test_torch_compile_sees_a_changed_backend() -> None:
    layer, x = layers.RNN(2, 3), torch.randn(2, 1, 2)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    truth = layer(x)[0]
    torch.testing.assert_close(compiled(x)[0], truth)
    with kernels.backend("eager"):
        torch.testing.assert_close(compiled(x)[0], truth)
    assert torch.equal(compiled(x)[0], truth)
