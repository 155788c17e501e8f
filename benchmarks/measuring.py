"""Time and memory of forward + backward of a layer, on the CPU and on CUDA: what the benchmarks of layers share."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mnemoscope import kernels
from mnemoscope.layers import LAYERS

INPUTS = 10
PEERS: dict[str, Callable[..., nn.Module]] = {"nn.LSTM": nn.LSTM, "nn.RNN": nn.RNN, "nn.GRU": nn.GRU}


def make(name: str, hidden: int) -> nn.Module:
    torch.manual_seed(0)
    return (PEERS | LAYERS)[name](INPUTS, hidden)


def chosen(backend: str) -> contextlib.AbstractContextManager[object]:
    return kernels.backend(backend)


def work(layer: nn.Module, T: int, batch: int, device: str = "cpu") -> Callable[[], None]:
    """A call that runs forward and backward once; the gradient that comes in is dense, as a loss would give it."""
    x = torch.randn(T, batch, INPUTS, device=device)
    outer = torch.randn(T, batch, layer.hidden_size, device=device)

    def once() -> None:
        layer.zero_grad(set_to_none=True)
        layer(x)[0].backward(outer)

    return once


def seconds(once: Callable[[], None]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    once()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def by_turns(*calls: Callable[[], None], repeats: int, warm_up: int = 2) -> list[float]:
    """Median seconds of each, timed by turns: a machine that slows down slows all of them down."""
    return [statistics.median(times) for times in zip(*_rounds(calls, repeats, warm_up), strict=True)]


def compared(ours: Callable[[], None], theirs: Callable[[], None], repeats: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median of their ratio in one turn: a machine may change its speed in between."""
    rounds = _rounds((ours, theirs), repeats, 2)
    medians = (statistics.median(times) for times in zip(*rounds, strict=True))
    return *medians, statistics.median(one / other for one, other in rounds)


def _rounds(calls: Sequence[Callable[[], None]], repeats: int, warm_up: int) -> list[list[float]]:
    for _ in range(warm_up):
        for call in calls:
            call()
    return [[seconds(call) for call in calls] for _ in range(repeats)]


def peak_megabytes(name: str, T: int, batch: int, hidden: int, backend: str, device: str) -> float:
    """What forward + backward adds at its peak: of a fresh process on the CPU, of torch's allocator on CUDA."""
    if device == "cuda":
        return _grown_on_cuda(name, T, batch, hidden, backend)
    code = f"import measuring; print(measuring.grown({name!r}, {T}, {batch}, {hidden}, {backend!r}))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    return float(done.stdout) if done.returncode == 0 else float("nan")


def _highest() -> float:
    """The most memory this process has held, in MB; rusage would count what the parent held when it forked."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def grown(name: str, T: int, batch: int, hidden: int, backend: str) -> float:
    layer = make(name, hidden)
    with chosen(backend):
        work(layer, 4, batch)()
        once, before = work(layer, T, batch), _highest()
        once()
    return _highest() - before


def _grown_on_cuda(name: str, T: int, batch: int, hidden: int, backend: str) -> float:
    once = work(make(name, hidden).cuda(), T, batch, "cuda")
    with chosen(backend):
        once()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        once()
        torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


class CellLoop(nn.Module):
    """What a user writes by hand: nn.LSTMCell or nn.RNNCell in a loop over time."""

    def __init__(self, kind: str, hidden: int) -> None:
        super().__init__()
        self.hidden_size, self.cell = hidden, getattr(nn, kind)(INPUTS, hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state, outputs = None, []
        for step in x.unbind(0):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs), None


class CompiledSteps(nn.Module):
    """A layer's own step under torch.compile, in a loop over time."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.hidden_size, self.layer, self.step = layer.hidden_size, layer, torch.compile(layer.step, dynamic=False)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state, outputs = self.layer.initial_state(x.shape[1]), []
        for step in x.unbind(0):
            output, state = self.step(step, state)
            outputs.append(output)
        return torch.stack(outputs), None
