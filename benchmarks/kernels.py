"""Every layer's fused kernel beside torch's (oneDNN or cuDNN), its own eager loop, torch.compile and a loop over cells.

    python benchmarks/kernels.py                        on a CUDA device if there is one, else on the CPU
    python benchmarks/kernels.py --parts peers growth   some of its tables
    compute-sanitizer --tool racecheck python benchmarks/kernels.py --parts small     every CUDA kernel once

Forward and backward in float32, medians; calls that are compared are interleaved in one run. cuDNN runs as torch sets
it up, which allows it TF32; the kernels here compute in plain float32.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

import mnemoscope as ms
from mnemoscope.kernels import backend
from mnemoscope.layers import LAYERS
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

# The largest ratio to the peer that was asked for, at n = 128 and the usual T.
CPU_TARGETS = {"LSTM": 0.7, "RNN": 0.35, "RelRNN": 0.6, "RelLSTM": 0.9, "MemRNN": 1.3}
CUDA_TARGETS = {
    "RNN": 1.5,
    "OrthRNN": 1.5,
    "ExpRNN": 1.5,
    "RAC": 1.5,
    "RelRNN": 1.2,
    "RelLSTM": 1.8,
    "MemRNN": 20,
    "GORU": 2.5,
    "SAB": 8,
    "MemLSTM": 22,
}
PEERS = dict.fromkeys(("RNN", "LinearSystem", "OrthRNN", "ExpRNN", "RAC"), "nn.RNN") | {"GRU": "nn.GRU"}
"""The torch layer that a layer is compared with; the others with nn.LSTM."""
LENGTHS = (256, 1024, 4096, 16384, 65536)
GROWING_MEMORY = ("MemRNN", "MemLSTM", "SAB")


def print_header(*headings: str) -> None:
    print("\n| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|", flush=True)


def print_row(*cells: str | float) -> None:
    print("| " + " | ".join(c if isinstance(c, str) else f"{c:.2f}" for c in cells) + " |", flush=True)


def peers(options: argparse.Namespace) -> None:
    """Each layer as it chooses to run, beside torch's."""
    T, B, n, device = options.T, options.batch, options.hidden, options.device
    targets = CPU_TARGETS if device == "cpu" else CUDA_TARGETS
    usual = (n, T) == (128, options.usual_T)
    peer_memory = {name: peak_megabytes(name, T, B, n, "auto", device) for name in ("nn.LSTM", "nn.GRU", "nn.RNN")}
    headings = "ms", "us a step", "peer", "peer's ms", "ratio", "asked for", "peak MB", "/ nn.LSTM's"
    print_header(f"n = {n}, batch {B}, T = {T}", *headings)
    for name in options.layers:
        peer = PEERS.get(name, "nn.LSTM")
        calls = [forward_backward(make_layer(each, n, device), T, B, device) for each in (name, peer)]
        repeats = 3 if "Mem" in name and T > 1000 else options.repeats
        ours, theirs, ratio = compare(*calls, repeats=repeats)
        memory = peak_megabytes(name, T, B, n, "auto", device)
        target = str(targets.get(name, "")) if usual else ""
        times = (1e3 * ours, 1e6 * ours / T, peer, 1e3 * theirs, ratio)
        print_row(name, *times, target, f"{memory:.0f}", memory / peer_memory["nn.LSTM"])
    for name, memory in peer_memory.items():
        (alone,) = median_seconds(forward_backward(make_layer(name, n, device), T, B, device), repeats=options.repeats)
        times = (1e3 * alone, 1e6 * alone / T)
        print_row(name, *times, "", "", "", "", f"{memory:.0f}", memory / peer_memory["nn.LSTM"])


def sizes(options: argparse.Namespace) -> None:
    """RelRNN beside nn.LSTM at other widths and batches."""
    device = options.device
    if device == "cuda":
        shapes = ((256, 64, 1020), (512, 64, 1020), (128, 1, 2020), (128, 256, 2020))
    else:
        shapes = ((64, 32, 220), (256, 32, 220), (512, 32, 220), (128, 1, 220), (128, 128, 220))
    print_header("RelRNN / nn.LSTM", "n", "batch", "T", "ms", "nn.LSTM's ms", "ratio")
    for n, B, T in shapes:
        calls = [forward_backward(make_layer(name, n, device), T, B, device) for name in ("RelRNN", "nn.LSTM")]
        ours, theirs, ratio = compare(*calls, repeats=options.repeats)
        print_row("", str(n), str(B), str(T), 1e3 * ours, 1e3 * theirs, ratio)


def eager(options: argparse.Namespace) -> None:
    """Each layer's kernel beside its own eager loop, and loops over torch's cells."""
    T, B, n, device = 220, options.batch, options.hidden, options.device
    headings = "fused ms", "eager ms", "times faster", "eager / nn.LSTM", "eager peak MB"
    print_header(f"n = {n}, batch {B}, T = {T}", *headings)
    lstm = forward_backward(make_layer("nn.LSTM", n, device), T, B, device)
    for name in options.layers:
        fused = forward_backward(make_layer(name, n, device), T, B, device)

        def eager_call(fused: Callable[[], None] = fused) -> None:
            with backend("eager"):
                fused()

        fused_time, eager_time, lstm_time = median_seconds(fused, eager_call, lstm, repeats=3, warm_up=1)
        memory = peak_megabytes(name, T, B, n, "eager", device)
        ratios = (eager_time / fused_time, eager_time / lstm_time)
        print_row(name, 1e3 * fused_time, 1e3 * eager_time, *ratios, f"{memory:.0f}")
    for cell in ("LSTMCell", "GRUCell", "RNNCell"):
        loop = forward_backward(CellLoop(cell, n).to(device), T, B, device)
        loop_time, lstm_time = median_seconds(loop, lstm, repeats=3, warm_up=1)
        print_row(f"a loop over nn.{cell}", "", 1e3 * loop_time, "", loop_time / lstm_time, "")


def compiled(options: argparse.Namespace) -> None:
    """Each layer's step under torch.compile; where the memory grows every step would be compiled anew."""
    T, B, n, device = 220, options.batch, options.hidden, options.device
    print_header(f"n = {n}, batch {B}, T = {T}", "fused ms", "compiled step ms", "times faster", "first call s")
    for name in options.layers:
        if name in GROWING_MEMORY:
            print_row(name, "", "its memory grows", "", "")
            continue
        torch._dynamo.reset()
        compiled_call = forward_backward(CompiledSteps(make_layer(name, n, device)), T, B, device)
        try:
            first = seconds(compiled_call)
        except Exception as error:  # the compiler may fail for one layer and work for the next
            print_row(name, "", type(error).__name__, "", "")
            continue
        fused = forward_backward(make_layer(name, n, device), T, B, device)
        fused_time, compiled_time = median_seconds(fused, compiled_call, repeats=3, warm_up=1)
        print_row(name, 1e3 * fused_time, 1e3 * compiled_time, compiled_time / fused_time, first)


def growth(options: argparse.Namespace) -> None:
    """Time and memory against T."""
    n, device = options.hidden, options.device
    B = options.batch if device == "cuda" else 8  # nn.LSTM takes 16 GB for 65,536 steps of 32 rows
    print_header(f"growth, n = {n}, batch {B}", "T", "us a step", "peak MB")
    for name in ("nn.LSTM", "RelRNN", "RelLSTM", "MemRNN"):
        for T in _lengths(name, options):
            if name == "nn.LSTM" and device == "cuda" and T * B > 2**21:
                continue  # cuDNN refuses
            call = forward_backward(make_layer(name, n, device), T, B, device)
            (time_taken,) = median_seconds(call, repeats=3, warm_up=1)
            memory = peak_megabytes(name, T, B, n, "auto", device)
            print_row(name, f"{T:,}", 1e6 * time_taken / T, f"{memory:.0f}")


def _lengths(name: str, options: argparse.Namespace) -> Iterator[int]:
    """Full attention's time grows with T squared: up to 4,096 steps of it on the CPU, 16,384 on CUDA."""
    longest = 65536
    if "Mem" in name:
        longest = 4096 if options.device == "cpu" else 16384
    return (T for T in options.lengths if longest >= T)


def small(options: argparse.Namespace) -> None:
    """Every kernel once, on one block and over a cluster, with carried states and sequences of different lengths."""
    screened = {"buffer": 3, "relevant": 2}
    layers = [
        ms.RNN(3, 128),
        ms.RNN(3, 200, nonlinearity="modrelu"),
        ms.LSTM(3, 100),
        ms.GRU(3, 100),
        ms.GORU(3, 128),
        ms.RAC(3, 60),
        ms.RelRNN(3, 128, **screened),
        ms.RelRNN(3, 60, buffer=0, relevant=3),
        ms.RelLSTM(3, 128, output="s", **screened),
        ms.MemRNN(3, 100),
        ms.MemLSTM(3, 60, output="s"),
        ms.SAB(3, 128, top=3, output="both"),
    ]
    for layer in layers:
        if type(layer).__name__ not in options.layers:
            continue
        layer = layer.to(options.device)
        state = ms.detach(layer(torch.randn(4, 2, 3, device=options.device))[1])
        padded = torch.randn(9, 2, 3, device=options.device)
        packed = nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([9, 5]), enforce_sorted=False)
        layer(packed, state)[0].data.square().sum().backward()
        print("ran", layer, flush=True)


PARTS = {part.__name__: part for part in (peers, sizes, eager, compiled, growth, small)}


def read_options() -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default=device)
    parts = "; ".join(f"{name}: {part.__doc__}" for name, part in PARTS.items())
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=[p for p in PARTS if p != "small"], help=parts
    )
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
    machine = f"{platform.machine()}, {options.threads} threads"
    if options.device == "cuda":
        machine = torch.cuda.get_device_name()
    print(f"{machine}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, float32, input of 10")
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
