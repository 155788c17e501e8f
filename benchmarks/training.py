"""What the training loop adds to forward + backward + optimiser, and what the kernels take off the demo's training.

    python benchmarks/training.py [--models torch.LSTM RelRNN] [--updates 60] [--threads 2]

Copy at T = 200 (220 steps), batch 64, n = 128. The loop makes batches, clips, schedules, logs and saves; a bare update
on a batch made beforehand is timed after each of its updates, so both see the same machine. Evaluations are left out.

The demo's RelRNN is trained as `make demo` does, every fourth update by the eager loop. A machine's speed moves: each
of those is compared with the three updates before it.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from mnemoscope import kernels
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, Progress, SequenceModel, fit

TASK = Copy(T=200)
BATCH, HIDDEN = 64, 128


class Bare:
    """Forward, loss, backward and Adam, and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        self.inputs, self.targets = TASK.batch(0, BATCH)

    def update(self) -> float:
        begun = time.perf_counter()
        outputs, _ = self.model(self.inputs)
        TASK.loss(outputs, self.targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begun


def measure(name: str, updates: int, threads: int) -> tuple[list[float], list[float]]:
    """Seconds of the loop's updates and of bare ones, by turns."""
    torch.manual_seed(0)
    model = SequenceModel.for_task(TASK, NetworkConfig(name, HIDDEN))
    bare, loop, plain = Bare(copy.deepcopy(model)), [], []
    mark = 0.0

    def callback(now: Progress) -> None:
        nonlocal mark
        if now.update:
            loop.append(time.perf_counter() - mark)
        plain.append(bare.update())
        mark = time.perf_counter()

    config = FitConfig(updates, batch_size=BATCH, evaluate_every=10**9, evaluate_batches=1, checkpoint_every=20)
    config = replace(config, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        fit(model, TASK, config, Path(folder, "run"), callback=callback)
    return loop[3:-1], plain[3:-1]  # warm-up; the last update has the final evaluation in it


def against_the_eager_loop(updates: int, threads: int) -> list[tuple[float, float]]:
    """Seconds of the demo's updates with the kernels, medians of three, each with those of the eager one after them."""
    torch.manual_seed(0)
    task = Copy(T=100)
    model = SequenceModel.for_task(task, NetworkConfig("RelRNN", HIDDEN, readout_gain=6.0))
    chosen, times, mark = ExitStack(), [], 0.0

    def callback(now: Progress) -> None:
        nonlocal mark
        times.append(time.perf_counter() - mark)
        chosen.close()
        chosen.enter_context(kernels.backend("eager" if now.update % 4 == 3 else "auto"))
        mark = time.perf_counter()

    config = FitConfig(updates, batch_size=BATCH, evaluate_every=10**9, evaluate_batches=1)
    with chosen:
        fit(model, task, replace(config, threads=threads), callback=callback)
    groups = [times[i : i + 4] for i in range(5, len(times) - 4, 4)]  # the first ones warm up
    return [(statistics.median(fused), eager) for *fused, eager in groups]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["torch.LSTM", "LSTM", "RelRNN"])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.threads} threads, batch {BATCH}, n {HIDDEN}, {TASK.length} steps")
    print("| model | bare update, ms | in the loop, ms | added (medians) | added (means) |\n|---|---|---|---|---|")
    for name in options.models:
        loop, plain = measure(name, options.updates, options.threads)
        medians, means = [statistics.median(t) for t in (plain, loop)], [statistics.mean(t) for t in (plain, loop)]
        cells = [f"{1e3 * medians[0]:.1f}", f"{1e3 * medians[1]:.1f}"]
        print(f"| {name} | {' | '.join(cells)} | {_added(*medians)} | {_added(*means)} |")
    found = against_the_eager_loop(options.updates, options.threads)
    fused, eager = (1e3 * statistics.median(times) for times in zip(*found, strict=True))
    low, middle, high = statistics.quantiles([slow / fast for fast, slow in found], n=4)
    print("\n| the demo's update | ms | by the eager loop, ms | times as long | quartiles |\n|---|---|---|---|---|")
    print(f"| Copy(100), batch {BATCH} | {fused:.1f} | {eager:.0f} | {middle:.1f} | {low:.1f} to {high:.1f} |")


def _added(plain: float, loop: float) -> str:
    return f"{100 * (loop / plain - 1):+.1f} %"


if __name__ == "__main__":
    main()
