"""Host time of a layer's call on CUDA, measured without a GPU: Python, torch's dispatch, allocations and launches.

    python benchmarks/host.py                          # microseconds and numbers of operations
    python benchmarks/host.py --profile RelRNN forward # and where one call's time goes
    python benchmarks/host.py --cudnn                  # layers that cuDNN runs, beside torch's own

A GPU waits for its host where a call is short. Here layers take their way to CUDA with tensors on the CPU, so small
that computing takes no time, and with a driver that launches nothing. On a machine with a GPU each launch costs 2 to
4 us more. With --cudnn, wide layers are measured: cuDNN's operators compute nothing then (`pretended_cudnn.py`).
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import pstats
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import mnemoscope
from mnemoscope.kernels import _dispatch
from mnemoscope.kernels._cuda import compiler, layout, support
from mnemoscope.layers import LAYERS, Layer
from pretended_cudnn import PEERS, pretend_cudnn

STEPS, BATCH, UNITS, INPUTS = 4, 2, 64, 10
H200 = layout.Limits(clusters=(1, 2, 4, 8, 16), multiprocessors=132, shared_floats=232448 // 4)
# What launches nothing, and what only calls other operations.
VIEWS = frozenset(
    """alias as_strided detach expand lift_fresh narrow permute resolve_conj resolve_neg select slice squeeze t
    transpose unbind unsqueeze view _reshape_alias _unsafe_view view_as numpy_T split split_with_sizes expand_as
    """.split()  # noqa: SIM905
)
ALLOCATIONS = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"])
COMPOSED = frozenset(
    """linear matmul contiguous clone to _to_copy reshape flatten zeros zeros_like new_zeros full full_like ones
    new_ones new_full chunk item
    """.split()  # noqa: SIM905
)


class Launcher:
    """Stands for a kernel on a device: arguments are packed and a C function is called that does nothing."""

    count = 0

    def __init__(self, formats: str) -> None:
        self._layout = struct.Struct(f"@{formats}")
        self._buffer = ctypes.create_string_buffer(self._layout.size)
        self._call = ctypes.CDLL(None).abs
        self._call.argtypes = (ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)

    def launch(self, blocks: int, stream: int, values: Sequence[int | float]) -> None:
        Launcher.count += 1
        self._layout.pack_into(self._buffer, 0, *values)
        self._call(None, blocks, 1, 1, 256, 1, 1, 0, stream, None, None)

    def varying(self, position: int, blocks: int, stream: int, values: Sequence[int | float]) -> Callable[[int], None]:
        varied = ctypes.c_int.from_buffer(self._buffer)

        def run(value: int) -> None:
            Launcher.count += 1
            varied.value = value
            self._call(None, blocks, 1, 1, 256, 1, 1, 0, stream, None, None)

        return run


def pretend_cuda() -> None:
    """Send every layer of this process on its way to CUDA, with tensors on the CPU."""
    launchers: dict[str, Launcher] = {}

    def function(name: str, *_: Any) -> Launcher:
        if name not in launchers:
            launchers[name] = Launcher("".join(parameter.format for parameter in compiler.parameters(name)))
        return launchers[name]

    @cache  # as `_dispatch.backend_supports` is
    def supports(device: Any, dtype: Any, family: str, n: int, cell: str, buffer: int, relevant: int) -> bool:
        sizes = {"n": n, "cell": cell, "buffer": buffer, "relevant": relevant}
        return support.supports(family, dtype=dtype, device=device, **sizes)

    replaced = {
        (compiler, "_function"): function,
        (compiler, "_ensure_context"): lambda index: None,
        (compiler, "cuda_stream"): lambda index: 0,
        (torch.cuda, "current_device"): lambda: -1,
        (torch.cuda, "is_current_stream_capturing"): lambda: False,
        (layout, "limits"): lambda device: H200,
        (support, "cuda_compiler"): lambda: compiler,
        (_dispatch, "backend_supports"): supports,
        (torch.autograd, "_profiler_enabled"): lambda: False,  # else operators go by torch's dispatcher, to the CPU's
        (Tensor, "is_cuda"): True,
        (Tensor, "is_cpu"): False,
    }
    for (owner, name), value in replaced.items():
        mock.patch.object(owner, name, value, create=True).start()


class Cost(NamedTuple):
    """Microseconds on the host, and what one call makes: calls of Python, launches, allocations and views."""

    microseconds: float
    python_calls: int
    launches: int
    allocations: int
    views: int


def measure(call: Callable[[], Any], repeats: int) -> Cost:
    """Return a call's time on this thread, as if the machine were at its best, and its operations."""
    for _ in range(20):
        call()
    rounds = [(_microseconds(call), _microseconds(_reference)) for _ in range(repeats)]
    unloaded = min(reference for _, reference in rounds)
    microseconds = unloaded * statistics.median(time / reference for time, reference in rounds)

    counter = cProfile.Profile()
    counter.runcall(call)
    python_calls = sum(entry.callcount for entry in counter.getstats())

    Launcher.count = 0
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    names = [name for event in profiler.events() if event.cpu_parent is None for name in _operations(event)]
    allocations = sum(name in ALLOCATIONS for name in names)
    views = sum(name in VIEWS for name in names)
    computing = len(names) - allocations - views
    return Cost(microseconds, python_calls, Launcher.count + computing, allocations, views)


def _microseconds(call: Callable[[], Any], count: int = 20) -> float:
    start = time.thread_time_ns()
    for _ in range(count):
        call()
    return (time.thread_time_ns() - start) / (1e3 * count)


_a = torch.zeros(4, 4)


def _reference() -> None:
    """Some Python and some operations of torch: what the machine's speed of this moment is read from."""
    for index in range(10):
        values = {"a": _a, "b": index}
        torch.add(values["a"], _a)
        _a.new_empty(4, 4).data_ptr()


def _operations(event: Any) -> list[str]:
    """Return the operations of torch in an event of a profile that do something themselves."""
    name = event.name.removeprefix("aten::")
    if event.name.startswith("aten::") and name not in COMPOSED:
        return [name]  # what it calls is its own matter
    return [operation for child in event.cpu_children for operation in _operations(child)]


def sequence_calls(layer: nn.Module) -> dict[str, Callable[[], Any]]:
    """Return what is measured of any layer, ours or torch's."""
    x = torch.randn(STEPS, BATCH, INPUTS)
    gradient = torch.randn(STEPS, BATCH, UNITS)
    parameters = list(layer.parameters())

    def train() -> None:
        for parameter in parameters:
            parameter.grad = None
        layer(x)[0].backward(gradient)

    return {"forward": lambda: layer(x), "with backward": train}


def calls_of(layer: Layer) -> dict[str, Callable[[], Any]]:
    """Return what is measured of a layer of ours."""
    x = torch.randn(STEPS, BATCH, INPUTS)
    one = torch.randn(BATCH, INPUTS)
    state = layer.initial_state(BATCH)
    ended = torch.tensor([True, False])
    starts = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    starts[2, 1] = True

    @torch.no_grad()
    def step() -> None:
        nonlocal state
        _, state = layer.step(one, state, inplace=True)

    return {
        **sequence_calls(layer),
        "step": step,
        "reset": lambda: mnemoscope.reset(state, ended),
        "with starts": lambda: layer(x, starts=starts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", default=["RNN", "LSTM", "GRU", "RelRNN", "RelLSTM"], choices=[*LAYERS])
    parser.add_argument("--repeats", type=int, default=30, help="timings, of 20 calls each")
    parser.add_argument("--profile", nargs=2, metavar=("LAYER", "CALL"), help="show where one call's time goes")
    parser.add_argument("--cudnn", action="store_true", help="RNN, LSTM and GRU by cuDNN, and torch's own")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pretend_cuda()
    if args.cudnn:
        pretend_cudnn()
    if args.profile:
        name, what = args.profile
        show_profile(calls_of(LAYERS[name](INPUTS, UNITS))[what])
        return
    print(f"{'':8} {'call':14} {'host us':>8} {'Python calls':>13} {'launches':>9} {'allocations':>12} {'views':>6}")
    for name in args.layers:
        if not args.cudnn:
            show(name, calls_of(LAYERS[name](INPUTS, UNITS)), args.repeats)
        elif name in PEERS:
            show(name, sequence_calls(LAYERS[name](INPUTS, UNITS)), args.repeats)
            show(f"nn.{name}", sequence_calls(PEERS[name](INPUTS, UNITS)), args.repeats)


def show(name: str, calls: dict[str, Callable[[], Any]], repeats: int) -> None:
    for what, call in calls.items():
        cost = measure(call, repeats)
        print(
            f"{name:8} {what:14} {cost.microseconds:8.0f} {cost.python_calls:13} {cost.launches:9} "
            f"{cost.allocations:12} {cost.views:6}",
            flush=True,
        )


def show_profile(call: Callable[[], Any]) -> None:
    for _ in range(20):
        call()
    profiler = cProfile.Profile(time.thread_time)
    profiler.enable()
    for _ in range(1000):
        call()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
