"""Every layer beside nn.LSTM: time and peak memory of forward + backward, one table.

    python benchmarks/layers.py [--backend eager|auto] [--lengths 220 1020] [--threads 2]

Ratios are to nn.LSTM in the same run: the two are timed by turns, and medians are compared. The graph of a loop with
full attention keeps a tanh of every pair of steps, 33 GB at T = 1020: there MemRNN and MemLSTM, marked by a star, run
as they do where nothing is compiled.
"""

from __future__ import annotations

import argparse

import torch

from measuring import by_turns, chosen, make, peak_megabytes, work
from mnemoscope.layers import LAYERS

HIDDEN, BATCH = 128, 32


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["eager", "auto"], default="eager", help="by steps, or as layers choose")
    parser.add_argument("--lengths", type=int, nargs="+", default=[220, 1020])
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    given = options()
    torch.set_num_threads(given.threads)
    print(f"float32, batch {BATCH}, input 10, hidden {HIDDEN}, {given.threads} threads, {given.backend} path")
    for T in given.lengths:
        print(f"\n{'T = ' + str(T):14} {'ms':>9} {'us a step':>10} {'ratio':>7} {'peak MB':>9} {'ratio':>7}")
        peer = work(make("nn.LSTM", HIDDEN), T, BATCH)
        their_memory = peak_megabytes("nn.LSTM", T, BATCH, HIDDEN, "auto", "cpu")
        for name in given.layers:
            way = "portable" if given.backend == "eager" and name.startswith("Mem") and T > 500 else given.backend
            with chosen(way):
                ours, theirs = by_turns(work(make(name, HIDDEN), T, BATCH), peer, repeats=given.repeats, warm_up=1)
            memory = peak_megabytes(name, T, BATCH, HIDDEN, way, "cpu")
            figures = f"{1e3 * ours:9.1f} {1e6 * ours / T:10.1f} {ours / theirs:7.2f}"
            marked = name if way == given.backend else name + "*"
            print(f"{marked:14} {figures} {memory:9.0f} {memory / their_memory:7.2f}", flush=True)
        print(f"{'nn.LSTM':14} {1e3 * theirs:9.1f} {1e6 * theirs / T:10.1f} {1:7.2f} {their_memory:9.0f} {1:7.2f}")


if __name__ == "__main__":
    main()
