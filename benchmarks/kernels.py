"""Every layer's fused kernel beside nn.LSTM (oneDNN or cuDNN), its own eager loop, torch.compile and a loop over cells.

    python benchmarks/kernels.py                        on a CUDA device where there is one, else on the CPU
    python benchmarks/kernels.py --parts peers growth   some of its tables: peers, eager, compiled, growth
    compute-sanitizer --tool racecheck python benchmarks/kernels.py --parts small     every CUDA kernel once

Forward and backward in float32, medians; what is compared is timed by turns in one run. cuDNN runs as torch sets it up,
which allows it TF32; the kernels here compute in plain float32.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

import mnemoscope as ms
from measuring import CellLoop, CompiledSteps, by_turns, chosen, compared, make, peak_megabytes, seconds, work
from mnemoscope.layers import LAYERS

CPU_ASKED = {"LSTM": 0.7, "RNN": 0.35, "RelRNN": 0.6, "RelLSTM": 0.9, "MemRNN": 1.3}
CUDA_ASKED = {
    "RNN": 1.5, "OrthRNN": 1.5, "ExpRNN": 1.5, "RAC": 1.5, "RelRNN": 1.2, "RelLSTM": 1.8, "MemRNN": 20, "GORU": 2.5,
    "SAB": 8, "MemLSTM": 22,
}  # fmt: skip
BESIDE_RNN = ("RNN", "LinearSystem", "OrthRNN", "ExpRNN", "RAC")
LENGTHS = (256, 1024, 4096, 16384, 65536)


def table(*heads: str) -> None:
    print("\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)


def row(*cells: str | float) -> None:
    print("| " + " | ".join(c if isinstance(c, str) else f"{c:.2f}" for c in cells) + " |", flush=True)


def peers(given: argparse.Namespace) -> None:
    """Each layer as it chooses to run, beside torch's."""
    T, B, n, device = given.T, given.batch, given.hidden, given.device
    asked = CPU_ASKED if device == "cpu" else CUDA_ASKED
    memory = {name: peak_megabytes(name, T, B, n, "auto", device) for name in ("nn.LSTM", "nn.RNN")}
    heads = "ms", "us a step", "peer", "peer's ms", "ratio", "asked for", "peak MB", "/ nn.LSTM's"
    table(f"n = {n}, batch {B}, T = {T}", *heads)
    for name in given.layers:
        peer = "nn.RNN" if name in BESIDE_RNN else "nn.LSTM"
        calls = [work(make(each, n).to(device), T, B, device) for each in (name, peer)]
        ours, theirs, ratio = compared(*calls, repeats=3 if "Mem" in name and T > 1000 else given.repeats)
        grown = peak_megabytes(name, T, B, n, "auto", device)
        limit = str(asked.get(name, "")) if (n, T) == (128, given.usual_T) else ""
        figures = 1e3 * ours, 1e6 * ours / T, peer, 1e3 * theirs, ratio, limit
        row(name, *figures, f"{grown:.0f}", grown / memory["nn.LSTM"])
    for name, grown in memory.items():
        (alone,) = by_turns(work(make(name, n).to(device), T, B, device), repeats=given.repeats)
        row(name, 1e3 * alone, 1e6 * alone / T, "", "", "", "", f"{grown:.0f}", grown / memory["nn.LSTM"])


def eager(given: argparse.Namespace) -> None:
    """Each layer's kernel against its own readable loop, and against a loop over torch's cells."""
    T, B, n, device = 220, given.batch, given.hidden, given.device
    table(f"n = {n}, batch {B}, T = {T}", "fused ms", "eager ms", "times faster", "eager / nn.LSTM", "eager peak MB")
    lstm = work(make("nn.LSTM", n).to(device), T, B, device)
    for name in given.layers:
        fused = work(make(name, n).to(device), T, B, device)

        def slow(fused: Callable[[], None] = fused) -> None:
            with chosen("eager"):
                fused()

        quick, slowly, peer = by_turns(fused, slow, lstm, repeats=3, warm_up=1)
        grown = peak_megabytes(name, T, B, n, "eager", device)
        row(name, 1e3 * quick, 1e3 * slowly, slowly / quick, slowly / peer, f"{grown:.0f}")
    for kind in ("LSTMCell", "RNNCell"):
        slowly, peer = by_turns(work(CellLoop(kind, n).to(device), T, B, device), lstm, repeats=3, warm_up=1)
        row(f"a loop over nn.{kind}", "", 1e3 * slowly, "", slowly / peer, "")


def compiled(given: argparse.Namespace) -> None:
    """Each layer's step under torch.compile. Full attention grows by a slot a step, for which it compiles anew."""
    T, B, n, device = 220, given.batch, given.hidden, given.device
    table(f"n = {n}, batch {B}, T = {T}", "fused ms", "compiled step ms", "times faster", "first call s")
    for name in given.layers:
        if name in ("MemRNN", "MemLSTM", "SAB"):
            row(name, "", "its memory grows", "", "")
            continue
        torch._dynamo.reset()
        once = work(CompiledSteps(make(name, n).to(device)), T, B, device)
        try:
            first = seconds(once)
        except Exception as error:  # whatever the compiler cannot do, the next layer may
            row(name, "", type(error).__name__, "", "")
            continue
        quick, slowly = by_turns(work(make(name, n).to(device), T, B, device), once, repeats=3, warm_up=1)
        row(name, 1e3 * quick, 1e3 * slowly, slowly / quick, first)


def lengths(name: str, given: argparse.Namespace) -> Iterator[int]:
    """Full attention's time grows with T squared: to 4,096 of it on the CPU, 16,384 on CUDA."""
    longest = 65536 if "Mem" not in name else 4096 if given.device == "cpu" else 16384
    return (T for T in given.lengths if longest >= T)


def growth(given: argparse.Namespace) -> None:
    n, device = given.hidden, given.device
    B = given.batch if device == "cuda" else 8  # nn.LSTM takes 16 GB for 65,536 steps of 32 rows
    table(f"growth, n = {n}, batch {B}", "T", "us a step", "peak MB")
    for name in ("nn.LSTM", "RelRNN", "RelLSTM", "MemRNN"):
        for T in lengths(name, given):
            if name == "nn.LSTM" and device == "cuda" and T * B > 2**21:
                continue  # cuDNN refuses
            (taken,) = by_turns(work(make(name, n).to(device), T, B, device), repeats=3, warm_up=1)
            row(name, f"{T:,}", 1e6 * taken / T, f"{peak_megabytes(name, T, B, n, 'auto', device):.0f}")


def sizes(given: argparse.Namespace) -> None:
    """RelRNN beside nn.LSTM at other widths and batches."""
    device = given.device
    table("RelRNN / nn.LSTM", "n", "batch", "T", "ms", "nn.LSTM's ms", "ratio")
    shapes = ((256, 64, 1020), (512, 64, 1020), (128, 1, 2020), (128, 256, 2020)) if device == "cuda" else (
        (64, 32, 220), (256, 32, 220), (512, 32, 220), (128, 1, 220), (128, 128, 220))  # fmt: skip
    for n, B, T in shapes:
        calls = [work(make(name, n).to(device), T, B, device) for name in ("RelRNN", "nn.LSTM")]
        ours, theirs, ratio = compared(*calls, repeats=given.repeats)
        row("", str(n), str(B), str(T), 1e3 * ours, 1e3 * theirs, ratio)


def small(given: argparse.Namespace) -> None:
    """Every kernel once, alone and over a cluster, with carried states and sequences of different lengths."""
    screened = {"buffer": 3, "relevant": 2}
    for layer in (
        ms.RNN(3, 128), ms.RNN(3, 200, nonlinearity="modrelu"), ms.LSTM(3, 100), ms.GORU(3, 128), ms.RAC(3, 60),
        ms.RelRNN(3, 128, **screened), ms.RelRNN(3, 60, buffer=0, relevant=3),
        ms.RelLSTM(3, 128, output="s", **screened), ms.MemRNN(3, 100), ms.MemLSTM(3, 60, output="s"),
        ms.SAB(3, 128, top=3, output="both"),
    ):  # fmt: skip
        if type(layer).__name__ not in given.layers:
            continue
        layer = layer.to(given.device)
        state = ms.detach(layer(torch.randn(4, 2, 3, device=given.device))[1])
        padded = torch.randn(9, 2, 3, device=given.device)
        packed = nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([9, 5]), enforce_sorted=False)
        layer(packed, state)[0].data.square().sum().backward()
        print("ran", layer, flush=True)


PARTS = {each.__name__: each for each in (peers, sizes, eager, compiled, growth, small)}


def options() -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default=device)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=[p for p in PARTS if p != "small"])
    parser.add_argument("--layers", nargs="+", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, help="32 on the CPU, 64 on CUDA")
    parser.add_argument("--T", type=int, help="220 on the CPU, 2,020 on CUDA")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="of the growth with T")
    parser.add_argument("--repeats", type=int, help="25 on the CPU, 9 on CUDA")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU")
    given = parser.parse_args()
    given.repeats = given.repeats or (25 if given.device == "cpu" else 9)
    given.usual_T = 220 if given.device == "cpu" else 2020
    given.batch, given.T = given.batch or (32 if given.device == "cpu" else 64), given.T or given.usual_T
    return given


def main() -> None:
    given = options()
    torch.set_num_threads(given.threads)
    where = torch.cuda.get_device_name() if given.device == "cuda" else f"{platform.machine()}, {given.threads} threads"
    print(f"{where}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, float32, input of 10")
    for part in given.parts:
        PARTS[part](given)


if __name__ == "__main__":
    main()
