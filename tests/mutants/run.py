"""Run mutants: apply each change to a copy of the source, run the tests that must notice it, print a table.

make mutants                         # all of them
make mutants ARGS='lyapunov kerg-X'  # those whose names contain one of these words
make mutants ARGS='--list'
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy  # noqa: F401  loaded once here, and inherited by every process below
import pytest
import torch

from mutants.mutant import Mutant
from mutants.table import MUTANTS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SECONDS = 300  # after which a test counts as failed: a change may make a loop endless
KILLED, SURVIVED, BROKEN = "killed", "SURVIVED", "BROKEN"


def mutate(text: str, mutant: Mutant) -> str:
    """Return the source with the mutant's change; its original text must occur exactly once."""
    count = text.count(mutant.original)
    if count != 1:
        raise ValueError(f"{mutant.name}: {mutant.original!r} occurs {count} times in {mutant.file}, not once")
    return text.replace(mutant.original, mutant.replacement)


def run_tests(source: Path, tests: Sequence[str]) -> int:
    """Return pytest's exit code for the tests, against the package in `source`, from a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=_child, args=(source, list(tests)))
    process.start()
    process.join()
    return -signal.SIGALRM if process.exitcode is None else process.exitcode


def _child(source: Path, tests: list[str]) -> None:
    signal.alarm(SECONDS)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = str(source)  # for tests that start processes
    os.chdir(ROOT)
    torch.set_num_threads(1)
    found = importlib.util.find_spec("mnemoscope")
    assert found is not None
    assert str(found.origin).startswith(str(source)), found.origin
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *tests])))


def verdict(code: int) -> str:
    """Return what an exit code of pytest means: failed tests, or an endless loop, kill a mutant."""
    if code in (int(pytest.ExitCode.TESTS_FAILED), -signal.SIGALRM):
        return KILLED
    return SURVIVED if code == 0 else BROKEN


def run_mutant(copy: Path, mutant: Mutant) -> str:
    """Return whether the mutant's tests notice it; the copy of the source is as before afterwards."""
    path = copy / "mnemoscope" / mutant.file
    original = path.read_text()
    path.write_text(mutate(original, mutant))
    cached = Path(importlib.util.cache_from_source(str(path)))
    cached.unlink(missing_ok=True)
    try:
        return verdict(run_tests(copy, mutant.tests.split()))
    finally:
        path.write_text(original)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run mutants of the source against the tests that must notice them.")
    parser.add_argument("words", nargs="*", help="run only mutants whose name or file contains one of these")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests on the unchanged source first")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.words or any(w in m.name or w in m.file for w in options.words)]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:28} {mutant.file}: {mutant.original}  ->  {mutant.replacement}")
        return 0

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(copy, quiet=2)
        if not options.no_baseline and run_tests(copy, sorted({t for m in chosen for t in m.tests.split()})) != 0:
            print("the tests fail on the unchanged source: fix that first")
            return 1
        outcomes = []
        for mutant in chosen:
            start = time.monotonic()
            outcome = run_mutant(copy, mutant)
            outcomes.append(outcome)
            print(f"{outcome:9} {time.monotonic() - start:6.1f} s  {mutant.name:28} {mutant.file}", flush=True)
    killed = outcomes.count(KILLED)
    print(f"{killed} of {len(chosen)} killed, {len(chosen) - killed} not")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
