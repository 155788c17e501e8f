"""`make demo`: the same task and the same budget for an LSTM and for a RelRNN, and what each remembers."""

from __future__ import annotations

import shlex
import sys
from itertools import count
from pathlib import Path

import torch

from .cli import main as mnemoscope
from .kernels import supported
from .training import Run, evaluate

UPDATES = 3000
MODELS = {"RelRNN": ["--recurrent-init", "henaff"], "LSTM": []}


def main() -> int:
    T = choose_length()
    folder = next(path for path in (Path("runs", f"demo-{i}") for i in count(1)) if not path.exists())
    for model, options in MODELS.items():
        command = ["train", "copy", "--task.T", str(T), "--model", model, *options, "--updates", str(UPDATES)]
        code = _say_and_run([*command, "--out", str(folder / model)])
        if code:
            return code
    runs = [str(folder / model) for model in MODELS]
    code = _say_and_run(["compare", *runs, "--figure", str(folder / "learning-curves.png")])
    print(f"\nTen symbols, to be said again {T} steps later; guessing gives 12.5 %. On sequences never seen before:")
    for model in MODELS:
        run = Run(folder / model)
        accuracy = evaluate(run.model(), run.task, batches=16, split="test")["accuracy"]
        print(f"  {model:<7} {100 * accuracy:5.1f} %  after {run.checkpoint().update} updates of {UPDATES} at most")
    return code or _say_and_run(["examine", *runs, "--out", str(folder / "examination")])


def choose_length() -> int:
    """T = 100 with the fused kernels; the readable loop takes ten times as long, and gets a shorter task."""
    if supported("attentive", torch.zeros(1, 1, 1), 128, buffer=10, relevant=10) is not None:
        print("Copy at T = 100, with the fused kernels.")
        return 100
    print("Copy at T = 30 instead of 100: this machine has no fused kernels, and the readable loop is slow.")
    return 30


def _say_and_run(command: list[str]) -> int:
    print(f"\n$ mnemoscope {shlex.join(command)}", flush=True)
    return mnemoscope(command)


if __name__ == "__main__":
    sys.exit(main())
