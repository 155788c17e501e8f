"""What needs a GPU, in parts of at most ten minutes each: tests, and the kernels under compute-sanitizer.

python -m gpu_checks                    # all of them
python -m gpu_checks tests racecheck    # those whose names contain one of these words
python -m gpu_checks --list
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from mnemoscope.kernels._cuda import compiler

ROOT = Path(__file__).parents[1]
SECONDS = 600  # of a part: the longest command on many rented machines
TEST_PARTS = 5
TESTED = (
    "tests/kernels",
    "tests/layers",
    "tests/scopes/test_on_cuda.py",
    "tests/test_torch_internals.py",
    "tests/training/test_output_layer.py",
)
TOOLS = ("memcheck", "racecheck")
FOUND = 99  # compute-sanitizer's exit code if it has something to report
# All reports, for some are set aside: the tool's own limit of 100 might leave out the one that counts.
SANITIZER = ("compute-sanitizer", "--error-exitcode", str(FOUND), "--print-limit", "0")
# Kernels whose blocks exchange data by barriers that count bytes. racecheck does not know these barriers, and reports
# what they put in order; tests/kernels/test_cuda_races.py checks that in the emulator.
EXCHANGING = frozenset(path.stem for path in compiler.FOLDER.glob("*.cu") if "xchange" in path.read_text())
LAYERS = ("RNN", "LSTM", "GRU", "GORU", "RAC"), ("RelRNN",), ("RelLSTM",), ("MemRNN", "MemLSTM", "SAB")


def parts() -> dict[str, list[str]]:
    """Return the command of each part, by its name."""
    found = {}
    for number in range(1, TEST_PARTS + 1):
        pytest = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "cuda"]
        found[f"tests-{number}"] = [*pytest, "--part", f"{number}/{TEST_PARTS}", *TESTED]
    for tool in TOOLS:
        for layers in LAYERS:
            small = [sys.executable, "benchmarks/kernels.py", "--parts", "small", "--layers", *layers]
            found[f"{tool}-{layers[0]}"] = [*SANITIZER, "--tool", tool, *small]
    return found


def run(command: list[str]) -> str:
    """Run a part and return how it ended: "passed", or what went wrong."""
    if not shutil.which(command[0]):
        return f"{command[0]} is not on the PATH"
    # Without torch's cache every tensor is an allocation of its own, whose end memcheck knows.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if "memcheck" in command else None
    report = subprocess.PIPE if "racecheck" in command else None
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, timeout=SECONDS, stdout=report, text=True)
    except subprocess.TimeoutExpired as late:
        print(os.fsdecode(late.stdout or b""), flush=True)  # as far as it came; in bytes, on Linux
        return f"not done after {SECONDS} s"
    if report:
        print(done.stdout, end="", flush=True)
    if done.returncode == FOUND and report:
        return judge_races(done.stdout)
    return "passed" if done.returncode == 0 else f"failed with exit code {done.returncode}"


def judge_races(report: str) -> str:
    """Return how a run of racecheck that found something ended: what it cannot know is set aside."""
    kernels = re.findall(r"Race reported between \w+ access at (\w+)\+", report)
    races = sorted(set(kernels) - EXCHANGING)
    if races or not kernels:
        return f"races in {', '.join(races)}" if races else "failed: no kernel is named"
    return f"passed; {len(kernels)} reports of data that barriers count are set aside"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--list", action="store_true", help="print the names of the parts")
    options = parser.parse_args()
    words = options.words or [""]
    chosen = {name: command for name, command in parts().items() if any(word in name for word in words)}
    if options.list:
        print(*chosen, sep="\n")
        return 0
    if not chosen:
        parser.error(f"no part is called so; there are {', '.join(parts())}")
    if not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here")
    ended = {}
    for name, command in chosen.items():
        begun = time.monotonic()
        ended[name] = run(command)
        print(f"{name}: {ended[name]}, {time.monotonic() - begun:.0f} s", flush=True)
    failed = [name for name, how in ended.items() if not how.startswith("passed")]
    print(
        f"{len(ended) - len(failed)} of {len(ended)} parts passed", *(f"; not: {', '.join(failed)}" for _ in failed[:1])
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
