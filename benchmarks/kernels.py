"""Every layer's fused kernel beside torch's (oneDNN or cuDNN), its own eager loop, torch.compile and a loop over cells.

    python benchmarks/kernels.py                        on a CUDA device if there is one, else on the CPU
    python benchmarks/kernels.py --parts peers growth   some of its tables
    python benchmarks/kernels.py --parts one_thread --threads 1    on a CPU that others use, too
    python benchmarks/kernels.py --json benchmarks/results/kernels-cpu.json     kept; then python benchmarks/tables.py
    compute-sanitizer --tool racecheck python benchmarks/kernels.py --parts small     every CUDA kernel once

Forward and backward in float32, medians; calls that are compared are interleaved in one run. cuDNN runs as torch sets
it up, which allows it TF32; the kernels here compute in plain float32. Where a table has "without TF32", cuDNN does so,
too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from every_kernel import small
from mnemoscope import State
from mnemoscope.layers import LAYERS
from tables import Table, machine, save
from timing import Comparison, compare, forward_backward, make_layer, median_seconds, peak_megabytes, without_tf32
from ways_to_run import bfloat16, compiled, eager, first

# The largest ratio to the peer that was asked for, at n = 128 and the usual T.
CPU_TARGETS = {"LSTM": 0.7, "RNN": 0.35, "GRU": 0.7, "RelRNN": 0.4, "RelLSTM": 0.65, "MemRNN": 0.9}
CUDA_TARGETS = {
    "RNN": 1.0,
    "LSTM": 1.0,
    "GRU": 0.8,
    "LinearSystem": 0.6,
    "OrthRNN": 1.5,
    "ExpRNN": 1.5,
    "RAC": 1.5,
    "RelRNN": 0.5,
    "RelLSTM": 0.9,
    "MemRNN": 6,
    "GORU": 2.5,
    "SAB": 8,
    "MemLSTM": 7,
}
PEERS = dict.fromkeys(("RNN", "LinearSystem", "OrthRNN", "ExpRNN", "RAC"), "nn.RNN") | {"GRU": "nn.GRU"}
"""The torch layer that a layer is compared with; the others with nn.LSTM."""
# Layer, n, batch, T, and the largest ratio that was asked for.
CUDA_SHAPES = (
    ("RelRNN", 256, 64, 1020, None),
    ("RelRNN", 512, 64, 1020, 0.9),
    ("RelLSTM", 512, 64, 1020, None),
    ("RelRNN", 1024, 128, 150, 2.5),
    ("RelLSTM", 1024, 128, 150, 4.0),
    ("RelRNN", 2048, 64, 100, None),
    ("LSTM", 384, 64, 220, 1.0),
    ("LSTM", 1500, 20, 65, 1.0),
    ("GRU", 1024, 64, 220, 1.0),
    ("RNN", 1024, 64, 220, 1.0),
    ("RelRNN", 128, 1, 2020, None),
    ("RelRNN", 128, 256, 2020, None),
)
CPU_SHAPES = (
    ("RelRNN", 64, 32, 220, None),
    ("RelRNN", 256, 32, 220, None),
    ("RelRNN", 512, 32, 220, None),
    ("RelRNN", 1024, 32, 220, None),
    ("RelRNN", 128, 128, 220, None),
    ("LSTM", 1500, 20, 65, 1.0),
)
# Layer, inputs, n, batch and type: next to the limits of the CPU's kernels.
CPU_CORNERS = (
    ("LSTM", 10, 200, 32, torch.float32),
    ("LSTM", 10, 257, 32, torch.float32),
    ("LSTM", 10, 650, 20, torch.float32),
    ("LSTM", 128, 128, 8, torch.float32),
    ("LSTM", 129, 128, 8, torch.float32),
    ("LSTM", 1000, 128, 8, torch.float32),
    ("RelLSTM", 10, 257, 20, torch.float32),
    ("LSTM", 10, 128, 8, torch.bfloat16),
    ("RelRNN", 10, 128, 8, torch.bfloat16),
    ("RelLSTM", 10, 128, 8, torch.float16),
)
SLOTS = ((10, 10), (16, 16), (17, 16), (25, 15), (32, 32), (64, 64), (100, 100))
LENGTHS = (256, 1024, 4096, 16384, 65536)
WITHOUT_TF32 = "peer's ms without TF32"


def peers(options: argparse.Namespace) -> Table:
    """Each layer as it chooses to run, beside torch's."""
    T, B, n, device = options.T, options.batch, options.hidden, options.device
    targets = CPU_TARGETS if device == "cpu" else CUDA_TARGETS
    usual = (n, T) == (128, options.usual_T)
    peer_memory = {name: peak_megabytes(name, T, B, n, "auto", device) for name in ("nn.LSTM", "nn.GRU", "nn.RNN")}
    headings = "ms", "us a step", "peer", "peer's ms", "ratio", "asked for", WITHOUT_TF32, "peak MB", "/ nn.LSTM's"
    table = Table(f"n = {n}, batch {B}, T = {T}", *headings)
    for name in options.layers:
        repeats = 3 if "Mem" in name and T > 1000 else options.repeats
        ours, theirs, ratio = _beside_peer(name, n, B, T, device, repeats)
        exact = _peer_without_tf32(name, n, B, T, device, repeats)
        memory = peak_megabytes(name, T, B, n, "auto", device)
        target = targets.get(name) if usual else None
        times = (1e3 * ours, 1e6 * ours / T, _peer(name), 1e3 * theirs, ratio)
        table.add(name, *times, target, exact, memory, memory / peer_memory["nn.LSTM"])
    for name, memory in peer_memory.items():
        (alone,) = median_seconds(forward_backward(make_layer(name, n, device), T, B, device), repeats=options.repeats)
        times = (1e3 * alone, 1e6 * alone / T)
        table.add(name, *times, None, None, None, None, None, memory, memory / peer_memory["nn.LSTM"])
    return table


def short(options: argparse.Namespace) -> Table:
    """Calls on short sequences, in which the host's time shows."""
    table = Table("layer", "batch", "T", "ms", "peer", "peer's ms", "ratio", "asked for")
    names = [name for name in ("RNN", "LSTM", "GRU", "RelRNN", "RelLSTM", "MemRNN") if name in options.layers]
    for B in (1, 32) if options.device == "cpu" else (16, 64):
        for T in (16, 64, 128, 220) if options.device == "cpu" else (16, 64, 128, 256, 512):
            for name in names:
                ours, theirs, ratio = _beside_peer(name, options.hidden, B, T, options.device, options.repeats)
                asked = _asked_short(name, T, B, options.device)
                table.add(name, B, T, 1e3 * ours, _peer(name), 1e3 * theirs, ratio, asked)
    return table


def _asked_short(name: str, T: int, B: int, device: str) -> float | None:
    if device == "cpu":
        return 0.4 if (name, B, T) == ("RelRNN", 1, 220) else None
    if name in ("RNN", "LSTM"):
        return 1.0
    return {128: 1.2, 512: 1.0}.get(T) if name.startswith("Rel") else None


def one_thread(options: argparse.Namespace) -> Table:
    """CPU time of one thread beside nn.LSTM's, T = 220: what other processes do disturbs it little."""
    table = Table("layer", "batch", "ms", "nn.LSTM's ms", "ratio")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for B in (32, 1):
        for name in [name for name in ("LSTM", "RelRNN", "RelLSTM", "MemRNN") if name in options.layers]:
            calls = [forward_backward(make_layer(each, options.hidden), 220, B) for each in (name, "nn.LSTM")]
            ours, theirs, ratio = compare(*calls, repeats=options.repeats, clock=time.process_time)
            table.add(name, B, 1e3 * ours, 1e3 * theirs, ratio)
    torch.set_num_threads(threads)
    return table


def corners(options: argparse.Namespace) -> Table:
    """CPU time of one thread next to the limits of the CPU's kernels, T = 60."""
    table = Table("layer", "inputs", "n", "batch", "type", "ms", "nn.LSTM's ms", "ratio")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, inputs, n, B, dtype in CPU_CORNERS:
        layers = [make_layer(each, n, input_size=inputs).to(dtype) for each in (name, "nn.LSTM")]
        calls = [forward_backward(layer, 60, B) for layer in layers]
        ours, theirs, ratio = compare(*calls, repeats=options.repeats, clock=time.process_time)
        table.add(name, inputs, n, B, str(dtype).removeprefix("torch."), 1e3 * ours, 1e3 * theirs, ratio)
    torch.set_num_threads(threads)
    return table


def sizes(options: argparse.Namespace) -> Table:
    """Other widths and batches, beside torch's layer of that size."""
    table = Table("layer", "n", "batch", "T", "ms", "peer", "peer's ms", "ratio", "asked for", WITHOUT_TF32)
    for name, n, B, T, asked in CUDA_SHAPES if options.device == "cuda" else CPU_SHAPES:
        ours, theirs, ratio = _beside_peer(name, n, B, T, options.device, options.repeats)
        exact = _peer_without_tf32(name, n, B, T, options.device, options.repeats)
        table.add(name, n, B, T, 1e3 * ours, _peer(name), 1e3 * theirs, ratio, asked, exact)
    return table


def slots(options: argparse.Namespace) -> Table:
    """RelRNN and RelLSTM that keep more and more states, beside nn.LSTM."""
    T, B, n, device = 1020 if options.device == "cuda" else 220, options.batch, options.hidden, options.device
    table = Table(f"n = {n}, batch {B}, T = {T}", "buffer", "relevant", "ms", "nn.LSTM's ms", "ratio")
    for name in [name for name in ("RelRNN", "RelLSTM") if name in options.layers]:
        for buffer, relevant in SLOTS:
            layer = make_layer(name, n, device, buffer=buffer, relevant=relevant)
            calls = [forward_backward(each, T, B, device) for each in (layer, make_layer("nn.LSTM", n, device))]
            ours, theirs, ratio = compare(*calls, repeats=options.repeats)
            table.add(name, buffer, relevant, 1e3 * ours, 1e3 * theirs, ratio)
    return table


def step(options: argparse.Namespace) -> Table:
    """One step without gradients, batch 16, beside nn.LSTMCell."""
    B, n, device, many = 16, options.hidden, options.device, 100  # many: one step is shorter than the clock's noise
    x = torch.randn(B, n, device=device)
    cell = nn.LSTMCell(n, n).to(device)

    def cell_steps() -> None:
        for _ in range(many):
            cell(x, (x, x))

    asked = {"LSTM": "0.1 ms", "RelRNN": "0.25 ms", "RelLSTM": "0.25 ms"} if device == "cuda" else {}
    table = Table(f"n = {n}, batch {B}", "ms", "nn.LSTMCell's ms", "ratio", "asked for")
    for name in [name for name in ("RNN", "LSTM", "GRU", "RelRNN", "RelLSTM") if name in options.layers]:
        layer = LAYERS[name](n, n).to(device)
        with torch.no_grad():
            state = layer(torch.randn(30, B, n, device=device))[1]  # a memory that is full

            def steps(layer: nn.Module = layer, state: State = state) -> None:
                for _ in range(many):
                    layer.step(x, state)

            ours, theirs, ratio = compare(steps, cell_steps, repeats=options.repeats)
        table.add(
            name, 1e3 * ours / many, 1e3 * theirs / many, ratio, asked.get(name, 2.5 if device == "cpu" else None)
        )
    return table


def _peer(name: str) -> str:
    return PEERS.get(name, "nn.LSTM")


def _beside_peer(name: str, n: int, B: int, T: int, device: str, repeats: int) -> Comparison:
    calls = [forward_backward(make_layer(each, n, device), T, B, device) for each in (name, _peer(name))]
    return compare(*calls, repeats=repeats)


def _peer_without_tf32(name: str, n: int, B: int, T: int, device: str, repeats: int) -> float | None:
    """Return the peer's milliseconds in plain float32; None on the CPU, where it knows nothing else."""
    if device == "cpu":
        return None
    call = without_tf32(forward_backward(make_layer(_peer(name), n, device), T, B, device))
    return 1e3 * median_seconds(call, repeats=repeats)[0]


def growth(options: argparse.Namespace) -> Table:
    """Time and memory against T."""
    n, device = options.hidden, options.device
    B = options.batch if device == "cuda" else 8  # nn.LSTM takes 16 GB for 65,536 steps of 32 rows
    table = Table(f"growth, n = {n}, batch {B}", "T", "us a step", "peak MB")
    for name in ("nn.LSTM", "RelRNN", "RelLSTM", "MemRNN"):
        for T in _lengths(name, options):
            if name == "nn.LSTM" and device == "cuda" and T * B > 2**21:
                continue  # cuDNN refuses
            call = forward_backward(make_layer(name, n, device), T, B, device)
            (time_taken,) = median_seconds(call, repeats=3, warm_up=1)
            memory = peak_megabytes(name, T, B, n, "auto", device)
            table.add(name, T, 1e6 * time_taken / T, memory)
    return table


def _lengths(name: str, options: argparse.Namespace) -> Iterator[int]:
    """Full attention's time grows with T squared: up to 4,096 steps of it on the CPU, 16,384 on CUDA."""
    longest = 65536
    if "Mem" in name:
        longest = 4096 if options.device == "cpu" else 16384
    return (T for T in options.lengths if longest >= T)


PARTS = {
    part.__name__: part
    for part in (peers, short, one_thread, corners, sizes, slots, step, first, bfloat16, eager, compiled, growth)
}


def read_options() -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default=device)
    parts = "; ".join(f"{name}: {part.__doc__}" for name, part in PARTS.items())
    parser.add_argument(
        "--parts", nargs="+", choices=[*PARTS, "small"], default=list(PARTS), help=f"{parts}; small: {small.__doc__}"
    )
    parser.add_argument("--json", type=Path, help="a file for the tables; those not measured now are kept")
    parser.add_argument("--layers", nargs="+", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--hidden", type=int, default=128, help="units of a layer")
    parser.add_argument("--batch", type=int, help="sequences; by default 32 on the CPU, 64 on CUDA")
    parser.add_argument("--T", type=int, help="steps; by default 220 on the CPU, 2,020 on CUDA")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="steps in the table of growth")
    parser.add_argument("--repeats", type=int, help="calls per median; by default 25 on the CPU, 9 on CUDA")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    options.usual_T = 220 if on_cpu else 2020
    options.T = options.T or options.usual_T
    options.batch = options.batch or (32 if on_cpu else 64)
    options.repeats = options.repeats or (25 if on_cpu else 9)
    return options


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    where = machine(options.device, options.threads)
    print(f"{where['machine']}, torch {where['torch']}, {where['date']}, float32, input of 10")
    if options.parts == ["small"]:
        small(options)
        return
    for part in options.parts:
        table = PARTS[part](options)
        if options.json:
            save(options.json, where, {part: table})  # part by part: a later one may fail


if __name__ == "__main__":
    main()
