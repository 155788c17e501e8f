"""Every layer beside nn.LSTM: time and peak memory of forward + backward, one table.

    python benchmarks/layers.py [--backend eager|auto] [--lengths 220 1020] [--threads 2]

Ratios are to nn.LSTM in the same run: the two are timed by turns, and medians are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from mnemoscope import kernels
from mnemoscope.layers import LAYERS

INPUT, HIDDEN, BATCH = 10, 128, 32


def once(layer: nn.Module, x: torch.Tensor) -> float:
    layer.zero_grad()
    start = time.perf_counter()
    layer(x)[0].sum().backward()
    return time.perf_counter() - start


def seconds(layer: nn.Module, peer: nn.Module, x: torch.Tensor, repeats: int) -> tuple[float, float]:
    """Median seconds of both, timed by turns after one run each to warm up."""
    once(layer, x), once(peer, x)
    pairs = [(once(layer, x), once(peer, x)) for _ in range(repeats)]
    ours, theirs = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(theirs)


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.LSTM(INPUT, HIDDEN) if name == "nn.LSTM" else LAYERS[name](INPUT, HIDDEN)


def chosen(backend: str) -> contextlib.AbstractContextManager[object]:
    return kernels.backend("eager") if backend == "eager" else contextlib.nullcontext()


def peak_megabytes(name: str, length: int, backend: str) -> float:
    """What forward + backward adds to a fresh process, in MB."""
    code = f"import layers; print(layers.grown({name!r}, {length}, {backend!r}))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=sys.path[0] or ".")
    return float(done.stdout) if done.returncode == 0 else float("nan")


def highest() -> float:
    """The most memory this process has held, in MB; rusage would count what the parent held when it forked."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def grown(name: str, length: int, backend: str) -> float:
    layer, x = make(name), torch.randn(length, BATCH, INPUT)
    with chosen(backend):
        once(layer, x[:4])
        before = highest()
        once(layer, x)
    return highest() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["eager", "auto"], default="eager", help="by steps, or as layers choose")
    parser.add_argument("--lengths", type=int, nargs="+", default=[220, 1020])
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"float32, batch {BATCH}, input {INPUT}, hidden {HIDDEN}, {options.threads} threads, {options.backend} path")
    for length in options.lengths:
        print(f"\n{'T = ' + str(length):14} {'ms':>9} {'us a step':>10} {'ratio':>7} {'peak MB':>9} {'ratio':>7}")
        theirs_memory = peak_megabytes("nn.LSTM", length, "auto")
        for name in options.layers:
            with chosen(options.backend):
                ours, theirs = seconds(make(name), make("nn.LSTM"), torch.randn(length, BATCH, INPUT), options.repeats)
            memory = peak_megabytes(name, length, options.backend)
            print(
                f"{name:14} {1e3 * ours:9.1f} {1e6 * ours / length:10.1f} {ours / theirs:7.2f} "
                f"{memory:9.0f} {memory / theirs_memory:7.2f}", flush=True,
            )
        per_step = 1e6 * theirs / length
        print(f"{'nn.LSTM':14} {1e3 * theirs:9.1f} {per_step:10.1f} {1:7.2f} {theirs_memory:9.0f} {1:7.2f}")


if __name__ == "__main__":
    main()
