"""Train, resume, evaluate, examine, report and compare, again and again: memory must stay flat.

    python -m soak --minutes 10

The first fifth of the time warms up (imports, caches, the allocator's arenas). Then the resident memory after each
round may not grow: the mean of the last fifth is compared with that of the second.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from mnemoscope.cli import main

ALLOWED_GROWTH = 0.02
SMALL = ["--hidden-size", "8", "--batch-size", "4", "--task.T", "10", "--evaluate-batches", "1", "--threads", "1"]
MODELS = ("RelRNN", "LSTM", "GRU", "torch.LSTM", "SAB", "OrthRNN", "MemLSTM", "RAC")


def one_round(folder: Path, number: int) -> None:
    """Do everything once."""
    run = folder / "runs" / f"run-{number % 4}"
    findings = folder / "findings"
    model = MODELS[number % len(MODELS)]
    for path in sorted(run.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    commands = [
        ["train", "copy", "--model", model, *SMALL, "--updates", "20", "--evaluate-every", "10", "--out", str(run)],
        ["resume", str(run)],
        ["evaluate", str(run), "--batches", "1", "--batch-size", "4"],
        [
            "examine",
            str(run),
            "--budget",
            "3",
            "--batch",
            "2",
            "--scopes",
            "recurrence",
            "horizon",
            "signal",
            "lyapunov",
        ],
        ["examine", model, "--steps", "10", "--batch", "2", "--scopes", "horizon", "--out", str(findings)],
        ["report", str(findings)],
        ["report", str(folder / "runs")],
        ["compare", str(run), "--figure", str(folder / "curves.png")],
    ]
    for command in commands:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = main(command)
        if code:
            raise SystemExit(f"{command} ended with code {code}: {printed.getvalue()}")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def soak(seconds: float) -> int:
    """Run rounds for a time; return 0 if memory stayed flat, 1 if it grew."""
    begun = time.monotonic()
    samples: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory(prefix="mnemoscope-soak-") as folder:
        while time.monotonic() - begun < seconds or len(samples) < 10:
            one_round(Path(folder), len(samples))
            gc.collect()
            samples.append((time.monotonic() - begun, resident_bytes()))
            if len(samples) % 10 == 0:
                print(f"{samples[-1][0]:6.0f} s  {len(samples)} rounds  {samples[-1][1] / 1e6:.1f} MB", flush=True)
    fifth = max(len(samples) // 5, 1)
    before = statistics.mean(size for _, size in samples[fifth : 2 * fifth])
    after = statistics.mean(size for _, size in samples[-fifth:])
    growth = after / before - 1
    sizes = f"{before / 1e6:.1f} MB, then {after / 1e6:.1f} MB ({growth:+.2%})"
    print(f"{len(samples)} rounds in {samples[-1][0]:.0f} s: {sizes}")
    return 0 if growth <= ALLOWED_GROWTH else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    sys.exit(soak(60 * parser.parse_args().minutes))
