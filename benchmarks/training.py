"""What the training loop adds to forward + backward + optimizer, and how much faster the kernels make the demo.

    python benchmarks/training.py [--models torch.LSTM RelRNN] [--updates 60] [--threads 2] [--words]

Copy at T = 200 (220 steps), batch 64, n = 128. The loop makes batches, clips, schedules, logs and saves. After each of
its updates a bare update on a fixed batch is timed, so that both see the same machine. Evaluations are not counted.

With --words, on a GPU alone: the read-out of many outputs, padded and not, and the update of a word model by where its
back-propagation is cut.

The demo's RelRNN is trained as `make demo` does it, every fourth update by the eager loop. Each of those is compared
with the three updates before it, because the machine's speed may drift.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from mnemoscope import kernels
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, Progress, SequenceModel, fit
from timing import median_seconds

TASK = Copy(T=200)
BATCH, HIDDEN = 64, 128
WORD_UNITS, WORD_STEPS = 1500, 65
WORD_ROWS = 20 * WORD_STEPS
WORD_OUTPUTS = (50, 10_000, 10_001, 33_280, 33_278)


class BareUpdate:
    """Forward, loss, backward and Adam, and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        self.inputs, self.targets = TASK.batch(0, BATCH)

    def seconds(self) -> float:
        """Make one update and return how long it takes."""
        start = time.perf_counter()
        outputs, _ = self.model(self.inputs)
        TASK.loss(outputs, self.targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start


def time_loop(name: str, updates: int, threads: int) -> tuple[list[float], list[float]]:
    """Return the seconds of the loop's updates and of bare ones, interleaved."""
    torch.manual_seed(0)
    model = SequenceModel.for_task(TASK, NetworkConfig(name, HIDDEN))
    bare_update = BareUpdate(copy.deepcopy(model))
    in_loop: list[float] = []
    bare: list[float] = []
    start = 0.0

    def callback(progress: Progress) -> None:
        nonlocal start
        if progress.update:
            in_loop.append(time.perf_counter() - start)
        bare.append(bare_update.seconds())
        start = time.perf_counter()

    config = FitConfig(updates, batch_size=BATCH, evaluate_every=10**9, evaluate_batches=1, checkpoint_every=20)
    with tempfile.TemporaryDirectory() as folder:
        fit(model, TASK, replace(config, threads=threads), Path(folder, "run"), callback=callback)
    return in_loop[3:-1], bare[3:-1]  # without the warm-up and the last update, which evaluates


def time_eager_updates(updates: int, threads: int) -> list[tuple[float, float]]:
    """Return pairs of seconds of the demo's update: the median of three with the kernels, and the eager one after."""
    torch.manual_seed(0)
    task = Copy(T=100)
    model = SequenceModel.for_task(task, NetworkConfig("RelRNN", HIDDEN, readout_gain=6.0))
    backend = ExitStack()
    times: list[float] = []
    start = 0.0

    def callback(progress: Progress) -> None:
        nonlocal start
        times.append(time.perf_counter() - start)
        backend.close()
        backend.enter_context(kernels.backend("eager" if progress.update % 4 == 3 else "auto"))
        start = time.perf_counter()

    config = FitConfig(updates, batch_size=BATCH, evaluate_every=10**9, evaluate_batches=1)
    with backend:
        fit(model, task, replace(config, threads=threads), callback=callback)
    groups = [times[i : i + 4] for i in range(5, len(times) - 4, 4)]  # without the warm-up
    return [(statistics.median(fused), eager) for *fused, eager in groups]


def readout_updates(outputs: int, device: str) -> list[Callable[[], None]]:
    """Return both passes of an nn.Linear and of the network's read-out, of WORD_ROWS rows and WORD_UNITS inputs."""
    x = torch.randn(WORD_ROWS, WORD_UNITS, device=device, requires_grad=True)
    grad = torch.randn(WORD_ROWS, outputs, device=device)
    config = NetworkConfig("LSTM", WORD_UNITS)
    readouts = nn.Linear(WORD_UNITS, outputs), SequenceModel(1, outputs, config).readout

    def both_passes(readout: nn.Module) -> Callable[[], None]:
        readout.to(device)

        def call() -> None:
            readout.zero_grad()
            readout(x).backward(grad)

        return call

    return [both_passes(readout) for readout in readouts]


def word_update(bptt: int, words: int, device: str) -> Callable[[], None]:
    """Return an update of a word model without its optimizer, back-propagation cut every `bptt` steps (0: never)."""
    network = NetworkConfig("LSTM", WORD_UNITS, embedding=WORD_UNITS, init="uniform")
    model = SequenceModel(words, words, network, token_input=True).to(device)
    ids = torch.randint(words, (WORD_STEPS, WORD_ROWS // WORD_STEPS), device=device)

    def call() -> None:
        model.zero_grad()
        outputs, _ = model(ids, bptt=bptt)
        nn.functional.cross_entropy(outputs.flatten(0, 1), ids.flatten()).backward()

    return call


def show_words(device: str = "cuda", repeats: int = 21) -> None:
    """Print what the read-out and the update of a word model take."""
    print(f"n {WORD_UNITS}, {WORD_ROWS} rows\n| outputs | nn.Linear, ms | the read-out, ms |\n|---|---|---|")
    for outputs in WORD_OUTPUTS:
        times = median_seconds(*readout_updates(outputs, device), repeats=repeats)
        print(f"| {outputs:,} | " + " | ".join(f"{1e3 * seconds:.3f}" for seconds in times) + " |")
    words = WORD_OUTPUTS[-1]
    cuts = (0, 35, 5)
    times = median_seconds(*(word_update(bptt, words, device) for bptt in cuts), repeats=repeats)
    print(f"\n| bptt, of {WORD_STEPS} steps | both passes of a model of {words:,} words, ms |\n|---|---|")
    for bptt, seconds in zip(cuts, times, strict=True):
        print(f"| {bptt or 'never'} | {1e3 * seconds:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["torch.LSTM", "LSTM", "RelRNN"])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--words", action="store_true", help="time a word model on the GPU instead")
    options = parser.parse_args()
    if options.words:
        torch.set_float32_matmul_precision("high")  # matrix products in TF32
        show_words()
        return
    print(f"torch {torch.__version__}, {options.threads} threads, batch {BATCH}, n {HIDDEN}, {TASK.length} steps")
    print("| model | bare update, ms | in the loop, ms | added (medians) | added (means) |\n|---|---|---|---|---|")
    for name in options.models:
        in_loop, bare = time_loop(name, options.updates, options.threads)
        bare_median, loop_median = statistics.median(bare), statistics.median(in_loop)
        added = f"{_added(bare_median, loop_median)} | {_added(statistics.mean(bare), statistics.mean(in_loop))}"
        print(f"| {name} | {1e3 * bare_median:.1f} | {1e3 * loop_median:.1f} | {added} |")

    pairs = time_eager_updates(options.updates, options.threads)
    fused, eager = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    low, middle, high = statistics.quantiles([slow / fast for fast, slow in pairs], n=4)
    print("\n| the demo's update | ms | by the eager loop, ms | times as long | quartiles |\n|---|---|---|---|---|")
    print(f"| Copy(100), batch {BATCH} | {fused:.1f} | {eager:.0f} | {middle:.1f} | {low:.1f} to {high:.1f} |")


def _added(bare: float, in_loop: float) -> str:
    return f"{100 * (in_loop / bare - 1):+.1f} %"


if __name__ == "__main__":
    main()
