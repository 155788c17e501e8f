"""Every layer beside nn.LSTM: time and peak memory of forward + backward, one table.

    python benchmarks/layers.py [--backend eager|auto] [--lengths 220 1020] [--threads 2]

Ratios are to nn.LSTM in the same run: calls are interleaved, and medians are compared. The graph of an eager loop with
full attention keeps a tanh of every pair of steps, 33 GB at T = 1020: there MemRNN and MemLSTM, marked by a star, run
the portable path, as they do on a machine without compiled kernels.
"""

from __future__ import annotations

import argparse

import torch

from mnemoscope.kernels import backend
from mnemoscope.layers import LAYERS
from timing import forward_backward, make_layer, median_seconds, peak_megabytes

HIDDEN, BATCH = 128, 32


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--backend", choices=["eager", "auto"], default="eager", help="step by step, or what layers choose"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[220, 1020], help="steps, a table each")
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--repeats", type=int, default=3, help="calls per median")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    print(f"float32, batch {BATCH}, input 10, hidden {HIDDEN}, {options.threads} threads, {options.backend} path")
    for T in options.lengths:
        print(f"\n{'T = ' + str(T):14} {'ms':>9} {'us a step':>10} {'ratio':>7} {'peak MB':>9} {'ratio':>7}")
        lstm = forward_backward(make_layer("nn.LSTM", HIDDEN), T, BATCH)
        lstm_memory = peak_megabytes("nn.LSTM", T, BATCH, HIDDEN, "auto", "cpu")
        for name in options.layers:
            path = options.backend
            if path == "eager" and name.startswith("Mem") and T > 500:
                path = "portable"
            with backend(path):
                call = forward_backward(make_layer(name, HIDDEN), T, BATCH)
                ours, theirs = median_seconds(call, lstm, repeats=options.repeats, warm_up=1)
            memory = peak_megabytes(name, T, BATCH, HIDDEN, path, "cpu")
            label = name if path == options.backend else name + "*"
            times = f"{1e3 * ours:9.1f} {1e6 * ours / T:10.1f} {ours / theirs:7.2f}"
            print(f"{label:14} {times} {memory:9.0f} {memory / lstm_memory:7.2f}", flush=True)
        print(f"{'nn.LSTM':14} {1e3 * theirs:9.1f} {1e6 * theirs / T:10.1f} {1:7.2f} {lstm_memory:9.0f} {1:7.2f}")


if __name__ == "__main__":
    main()
