"""Time and memory of a layer's forward + backward, on the CPU and on CUDA: what the benchmarks of layers share."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mnemoscope import kernels
from mnemoscope.layers import LAYERS

INPUT_SIZE = 10
Clock = Callable[[], float]
TORCH_LAYERS: dict[str, Callable[..., nn.Module]] = {"nn.LSTM": nn.LSTM, "nn.RNN": nn.RNN, "nn.GRU": nn.GRU}


def make_layer(
    name: str, hidden_size: int, device: str = "cpu", input_size: int = INPUT_SIZE, **options: int
) -> nn.Module:
    """Return one of our layers, or nn.LSTM, nn.RNN or nn.GRU, with seeded weights."""
    torch.manual_seed(0)
    return (TORCH_LAYERS | LAYERS)[name](input_size, hidden_size, **options).to(device)


def forward_backward(layer: nn.Module, T: int, batch: int, device: str = "cpu") -> Callable[[], None]:
    """Return a call that runs forward and backward once, with a dense gradient at every output, as a loss gives it."""
    weight = next(layer.parameters())
    x = torch.randn(T, batch, getattr(layer, "input_size", INPUT_SIZE), device=device, dtype=weight.dtype)
    grad_output = torch.randn_like(layer(x)[0])

    def call() -> None:
        layer.zero_grad(set_to_none=True)
        layer(x)[0].backward(grad_output)

    return call


def without_tf32(call: Callable[[], None]) -> Callable[[], None]:
    """Return a call for which cuDNN computes in plain float32, as our kernels do."""

    def exact() -> None:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False):
            call()

    return exact


def seconds(call: Callable[[], None], clock: Clock = time.perf_counter) -> float:
    """Return how long one call takes by this clock, until the device has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = clock()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


def median_seconds(*calls: Callable[[], None], repeats: int, warm_up: int = 2) -> list[float]:
    """Return each call's median time. The calls are interleaved: a machine that slows down slows all of them."""
    rounds = _interleaved(calls, repeats, warm_up)
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


class Comparison(NamedTuple):
    """Median seconds of ours and theirs, and the median of ours / theirs."""

    ours: float
    theirs: float
    ratio: float


def compare(
    ours: Callable[[], None], theirs: Callable[[], None], repeats: int, clock: Clock = time.perf_counter
) -> Comparison:
    """Time two calls interleaved. Each ratio is of neighboring calls: the machine's speed may drift over the run."""
    rounds = _interleaved((ours, theirs), repeats, warm_up=2, clock=clock)
    medians = (statistics.median(times) for times in zip(*rounds, strict=True))
    return Comparison(*medians, statistics.median(one / other for one, other in rounds))


def _interleaved(
    calls: Sequence[Callable[[], None]], repeats: int, warm_up: int, clock: Clock = time.perf_counter
) -> list[list[float]]:
    for _ in range(warm_up):
        for call in calls:
            call()
    return [[seconds(call, clock) for call in calls] for _ in range(repeats)]


def peak_megabytes(name: str, T: int, batch: int, hidden_size: int, backend: str, device: str) -> float:
    """Return what forward + backward adds at its peak: to a fresh process on the CPU, to torch's allocator on CUDA."""
    if device == "cuda":
        return _peak_on_cuda(name, T, batch, hidden_size, backend)
    call = f"peak_of_this_process({name!r}, {T}, {batch}, {hidden_size}, {backend!r})"
    code = f"import timing; print(timing.{call})"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    return float(done.stdout) if done.returncode == 0 else float("nan")


def peak_of_this_process(name: str, T: int, batch: int, hidden_size: int, backend: str) -> float:
    """Return the megabytes that forward + backward adds to this process's peak."""
    layer = make_layer(name, hidden_size)
    with kernels.backend(backend):
        forward_backward(layer, 4, batch)()
        call = forward_backward(layer, T, batch)
        before = _peak_resident_megabytes()
        call()
    return _peak_resident_megabytes() - before


def _peak_resident_megabytes() -> float:
    """From /proc: rusage would count what the parent process held when it forked."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _peak_on_cuda(name: str, T: int, batch: int, hidden_size: int, backend: str) -> float:
    call = forward_backward(make_layer(name, hidden_size, "cuda"), T, batch, "cuda")
    with kernels.backend(backend):
        call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def first_call(name: str, hidden_size: str, device: str) -> float:
    """Return the seconds of this process's first forward + backward, torch's own start apart."""
    torch.randn(4, 4, device=device) @ torch.randn(4, 4, device=device)
    return seconds(forward_backward(make_layer(name, int(hidden_size), device), 16, 4, device))


class CellLoop(nn.Module):
    """What a user writes by hand: nn.LSTMCell, nn.GRUCell or nn.RNNCell in a loop over time."""

    def __init__(self, cell: str, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.cell = getattr(nn, cell)(INPUT_SIZE, hidden_size)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state = None
        outputs = []
        for step in x.unbind(0):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs), None


class CompiledSteps(nn.Module):
    """A layer's own step under torch.compile, in a loop over time."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.hidden_size = layer.hidden_size
        self.layer = layer
        self.step = torch.compile(layer.step, dynamic=False)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state = self.layer.initial_state(x.shape[1])
        outputs = []
        for step in x.unbind(0):
            output, state = self.step(step, state)
            outputs.append(output)
        return torch.stack(outputs), None
