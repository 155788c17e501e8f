"""`make demo`: an LSTM and a RelRNN, the same task, the same command, and what each remembers."""

from __future__ import annotations

import shlex
import sys
from itertools import count
from pathlib import Path

import torch

from mnemoscope.cli import main as mnemoscope
from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels import supported
from mnemoscope.training import Run, evaluate

BUDGET = 2000  # updates; whoever has solved the task stops earlier


def main() -> int:
    T, options = choose_task()
    folder = next(path for path in (Path("runs", f"demo-{i}") for i in count(1)) if not path.exists())
    paths = [folder / name for name in ("LSTM", "RelRNN")]
    task = ["train", "copy", "--task.T", str(T), "--updates", str(BUDGET), "--readout-gain", "6", *options]
    for path in paths:
        _run([*task, "--model", path.name, "--out", str(path)])
    runs = [str(path) for path in paths]
    _run(["compare", *runs, "--figure", str(folder / "learning-curves.png")])
    _run(["examine", *runs, "--out", str(folder / "examined")])
    print(f"\nTen symbols, to be said again {T} steps later; guessing gives 12.5 %. On sequences never seen before,")
    for run in map(Run, paths):
        print(f"  {run.path.name:<7}{accuracy(run):6.1%} right after {run.checkpoint().update} updates")
    print(f"How far back each remembers: {folder / 'examined' / 'report.html'}")
    return 0


def choose_task() -> tuple[int, list[str]]:
    """T = 100 with the fused kernels; the readable loop gets a shorter task, and one thread: more would only wait."""
    if supported("attentive", torch.zeros(1, 1, 1), 128, buffer=10, relevant=10) is not None:
        print("Copy at T = 100, with the fused kernels.")
        return 100, []
    print("Copy at T = 30 instead of 100: without the fused kernels even that takes some eight minutes.")
    return 30, ["--threads", "1"]


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
