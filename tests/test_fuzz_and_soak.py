"""A few hundred cases of the fuzzer, and a short soak: `make fuzz` and `make soak` run them at length."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def run(*words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=environment)


def test_fuzzed_cases_neither_crash_nor_hang_nor_write_elsewhere() -> None:
    done = run("fuzz.run", "--cases", "300", "--jobs", "1", "--seed", "1", "--seconds", "120")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_memory_stays_flat() -> None:
    done = run("soak", "--minutes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
