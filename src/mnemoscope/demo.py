"""`make demo`: an LSTM and a RelRNN, the same task, the same number of updates, and what each remembers."""

from __future__ import annotations

import shlex
import sys
from itertools import count
from pathlib import Path

import torch

from .cli import main as mnemoscope
from .errors import MnemoscopeError
from .kernels import supported
from .training import Run, evaluate

BUDGET = 4000  # updates; the RelRNN stops once it has solved the task, and the LSTM gets as many


def main() -> int:
    T = choose_length()
    folder = next(path for path in (Path("runs", f"demo-{i}") for i in count(1)) if not path.exists())
    learner, baseline = folder / "RelRNN", folder / "LSTM"
    task = ["train", "copy", "--task.T", str(T)]
    _run([*task, "--model", "RelRNN", "--recurrent-init", "henaff", "--updates", str(BUDGET), "--out", str(learner)])
    updates = str(Run(learner).checkpoint().update)
    _run([*task, "--model", "LSTM", "--updates", updates, "--out", str(baseline)])
    _run(["compare", str(learner), str(baseline), "--figure", str(folder / "learning-curves.png")])
    print(f"\nTen symbols, to be said again {T} steps later; guessing gives 12.5 %. On sequences never seen before,")
    for path in (learner, baseline):
        print(f"  {path.name:<7}{accuracy(Run(path)):6.1%} right after {updates} updates")
    return 0


def choose_length() -> int:
    """T = 100 with the fused kernels; the readable loop takes ten times as long, and gets a shorter task."""
    if supported("attentive", torch.zeros(1, 1, 1), 128, buffer=10, relevant=10) is not None:
        print("Copy at T = 100, with the fused kernels.")
        return 100
    print("Copy at T = 30 instead of 100: this machine has no fused kernels, and the readable loop is slow.")
    return 30


def accuracy(run: Run) -> float:
    """On a thousand test sequences."""
    return evaluate(run.model(), run.task, batches=16, split="test")["accuracy"]


def _run(command: list[str]) -> None:
    print(f"\n$ mnemoscope {shlex.join(command)}", flush=True)
    if code := mnemoscope(command):
        sys.exit(code)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MnemoscopeError as error:
        sys.exit(f"mnemoscope: {error}")
