"""`make demo`: train an LSTM and a RelRNN on the same task and show what each remembers."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import torch

from mnemoscope.cli import guarded
from mnemoscope.cli import main as mnemoscope
from mnemoscope.kernels import fused_dtype
from mnemoscope.training import Run, evaluate

MAX_UPDATES = 2000  # a network that solves the task stops earlier


def main() -> int:
    T, options = choose_task()
    number = 1
    while Path("runs", f"demo-{number}").exists():
        number += 1
    folder = Path("runs", f"demo-{number}")
    paths = [folder / name for name in ("LSTM", "RelRNN")]
    task = ["train", "copy", "--task.T", str(T), "--updates", str(MAX_UPDATES), "--readout-gain", "6", *options]
    for path in paths:
        _run([*task, "--model", path.name, "--out", str(path)])
    runs = [str(path) for path in paths]
    _run(["compare", *runs, "--figure", str(folder / "learning-curves.png")])
    _run(["examine", *runs, "--out", str(folder / "examined")])
    print(f"\nTen symbols, to be repeated {T} steps later; guessing gives 12.5 %. On sequences never seen before:")
    for run in map(Run, paths):
        print(f"  {run.path.name:<7}{accuracy(run):6.1%} right after {run.checkpoint().update} updates")
    print(f"How far back each remembers: {folder / 'examined' / 'report.html'}")
    return 0


def choose_task() -> tuple[int, list[str]]:
    """Return T and options of `train`: T = 100 with the fused kernels, a shorter task and one thread without."""
    if fused_dtype("attentive", torch.zeros(1, 1, 1), 128, buffer=10, relevant=10) is not None:
        print("Copy at T = 100, with the fused kernels.")
        return 100, []
    print("Copy at T = 30 instead of 100: without the fused kernels even that takes some eight minutes.")
    return 30, ["--threads", "1"]


def accuracy(run: Run) -> float:
    """Return the accuracy on a thousand test sequences."""
    return evaluate(run.model(), run.task, batches=16, split="test")["accuracy"]


def _run(command: list[str]) -> None:
    print(f"\n$ mnemoscope {shlex.join(command)}", flush=True)
    code = mnemoscope(command)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(guarded(main))
