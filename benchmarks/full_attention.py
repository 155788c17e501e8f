"""Time of full attention's CUDA kernels against how much of the past they keep in shared memory.

    python benchmarks/full_attention.py                                             # on a machine with a GPU
    python benchmarks/full_attention.py --json benchmarks/results/kernels-h200.json     kept; then benchmarks/tables.py

What shared memory takes, the first-level cache has less, from which the matrices of small layers come
(`ClusterLayout._resident`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from mnemoscope.kernels._cuda import full_attention
from tables import Table, machine, save
from timing import forward_backward, make_layer

RUNS = 3
KERNELS = "full_attention_forward", "full_attention_backward"


def kernel_milliseconds(name: str, hidden_size: int, T: int, batch: int) -> tuple[float, ...]:
    """Return the time of each of the two kernels, the mean of some runs."""
    call = forward_backward(make_layer(name, hidden_size, "cuda"), T, batch, "cuda")
    call()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(RUNS):
            call()
        torch.cuda.synchronize()
    events = {event.key: event.device_time_total / RUNS / 1e3 for event in found.key_averages()}
    return tuple(events[kernel] for kernel in KERNELS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", default=["MemRNN"], choices=["MemRNN", "MemLSTM"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[128])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--T", nargs="+", type=int, default=[128, 512, 2020])
    parser.add_argument("--groups", nargs="+", type=int, default=[0, 1, 3])
    parser.add_argument("--json", type=Path, help="a file for the table; other tables in it are kept")
    options = parser.parse_args()

    table = Table("layer", "n", "batch", "T", "groups in shared memory", "forward ms", "backward ms")
    for name in options.layers:
        for n in options.sizes:
            for T in options.T:
                for groups in options.groups:
                    with mock.patch.object(full_attention.ClusterLayout, "most_resident", groups):
                        times = kernel_milliseconds(name, n, T, options.batch)
                    table.add(name, n, options.batch, T, groups, *times)
    if options.json:
        save(options.json, machine("cuda", 1), {"full_attention": table})


if __name__ == "__main__":
    main()
