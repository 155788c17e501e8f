"""What the training loop adds to forward + backward + optimiser.

    python benchmarks/training.py [--models torch.LSTM RelRNN] [--updates 60] [--threads 2]

Copy at T = 200 (220 steps), batch 64, n = 128. The loop makes batches, clips, schedules, logs and saves; a bare update
on a batch made beforehand is timed after each of its updates, so both see the same machine. Evaluations are left out.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, Progress, SequenceModel, fit

TASK = Copy(T=200)
BATCH, HIDDEN = 64, 128


class Bare:
    """Forward, loss, backward and Adam, and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
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

    def watch(now: Progress) -> None:
        nonlocal mark
        if now.update:
            loop.append(time.perf_counter() - mark)
        plain.append(bare.update())
        mark = time.perf_counter()

    config = FitConfig(updates, batch_size=BATCH, evaluate_every=10**9, evaluate_batches=1, checkpoint_every=20)
    config = replace(config, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        fit(model, TASK, config, Path(folder, "run"), watch=watch)
    return loop[3:-1], plain[3:-1]  # warm-up; the last update has the final evaluation in it


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


def _added(plain: float, loop: float) -> str:
    return f"{100 * (loop / plain - 1):+.1f} %"


if __name__ == "__main__":
    main()
