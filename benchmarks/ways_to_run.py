"""Each layer beside itself, run otherwise: tables of `python benchmarks/kernels.py`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from mnemoscope.kernels import backend
from tables import Table
from timing import (
    CellLoop,
    CompiledSteps,
    compare,
    forward_backward,
    make_layer,
    median_seconds,
    peak_megabytes,
    seconds,
)

GROWING_MEMORY = ("MemRNN", "MemLSTM", "SAB")


def first(options: argparse.Namespace) -> Table:
    """The first call of a process, with an empty cache of compiled kernels and with a full one."""
    table = Table("layer", "first call ever, s", "first call of the next process, s")
    code = "import sys, timing; print(timing.first_call(*sys.argv[1:]))"
    for name in options.layers:
        with tempfile.TemporaryDirectory() as cache:
            os.chmod(cache, 0o700)
            command = [sys.executable, "-c", code, name, str(options.hidden), options.device]
            runs = [
                subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    check=True,
                    cwd=Path(__file__).parent,
                    env=os.environ | {"MNEMOSCOPE_KERNEL_CACHE": cache},
                )
                for _ in range(2)
            ]
        table.add(name, *[float(run.stdout) for run in runs])
    return table


def bfloat16(options: argparse.Namespace) -> Table:
    """Wide layers under autocast to bfloat16 beside themselves in float32."""
    n, B, T = (512, 64, 1020) if options.device == "cuda" else (512, 32, 220)
    table = Table(f"n = {n}, batch {B}, T = {T}", "bfloat16 ms", "float32 ms", "ratio", "asked for")
    for name in [name for name in ("LSTM", "RelRNN", "RelLSTM") if name in options.layers]:
        call = forward_backward(make_layer(name, n, options.device), T, B, options.device)

        def autocast_call(call: Callable[[], None] = call) -> None:
            with torch.autocast(options.device, torch.bfloat16):
                call()

        ours, theirs, ratio = compare(autocast_call, call, repeats=options.repeats)
        table.add(name, 1e3 * ours, 1e3 * theirs, ratio, 0.6 if name == "RelRNN" else None)
    return table


def eager(options: argparse.Namespace) -> Table:
    """Each layer's kernel beside its own eager loop, and loops over torch's cells."""
    T, B, n, device = 220, options.batch, options.hidden, options.device
    headings = "fused ms", "eager ms", "times faster", "eager / nn.LSTM", "eager peak MB"
    table = Table(f"n = {n}, batch {B}, T = {T}", *headings)
    lstm = forward_backward(make_layer("nn.LSTM", n, device), T, B, device)
    for name in options.layers:
        fused = forward_backward(make_layer(name, n, device), T, B, device)

        def eager_call(fused: Callable[[], None] = fused) -> None:
            with backend("eager"):
                fused()

        fused_time, eager_time, lstm_time = median_seconds(fused, eager_call, lstm, repeats=3, warm_up=1)
        memory = peak_megabytes(name, T, B, n, "eager", device)
        table.add(name, 1e3 * fused_time, 1e3 * eager_time, eager_time / fused_time, eager_time / lstm_time, memory)
    for cell in ("LSTMCell", "GRUCell", "RNNCell"):
        loop = forward_backward(CellLoop(cell, n).to(device), T, B, device)
        loop_time, lstm_time = median_seconds(loop, lstm, repeats=3, warm_up=1)
        table.add(f"a loop over nn.{cell}", None, 1e3 * loop_time, None, loop_time / lstm_time, None)
    return table


def compiled(options: argparse.Namespace) -> Table:
    """Each layer's step under torch.compile; where the memory grows every step would be compiled anew."""
    T, B, n, device = 220, options.batch, options.hidden, options.device
    table = Table(f"n = {n}, batch {B}, T = {T}", "fused ms", "compiled step ms", "times faster", "first call s")
    for name in options.layers:
        if name in GROWING_MEMORY:
            table.add(name, None, "its memory grows", None, None)
            continue
        torch._dynamo.reset()
        compiled_call = forward_backward(CompiledSteps(make_layer(name, n, device)), T, B, device)
        try:
            first_time = seconds(compiled_call)
        except Exception as error:  # the compiler may fail for one layer and work for the next
            table.add(name, None, type(error).__name__, None, None)
            continue
        fused = forward_backward(make_layer(name, n, device), T, B, device)
        fused_time, compiled_time = median_seconds(fused, compiled_call, repeats=3, warm_up=1)
        table.add(name, 1e3 * fused_time, 1e3 * compiled_time, compiled_time / fused_time, first_time)
    return table
