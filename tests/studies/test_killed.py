"""A study whose driver and jobs are killed, all at once and again and again, ends with the same files."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILES = ("study.json", "charts.json", "cells.csv")
UPDATES = 120
KILLS = 5
DRIVER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import study_jobs
from mnemoscope.studies import _study, load, reproduce
load()
study = study_jobs.trained({UPDATES})
_study.STUDIES[study.id] = study
reproduce([study.id], out=sys.argv[1], jobs=int(sys.argv[2]))
"""


def start(out, jobs):
    """A driver in a process group of its own, with all that it starts."""
    command = [sys.executable, "-c", DRIVER, str(out), str(jobs)]
    return subprocess.Popen(command, start_new_session=True)


def files_in(out):
    return sum(len(names) for _, _, names in os.walk(out))


def kill_when_it_works(out, jobs, later):
    """Kill a driver and its jobs some hundredths of a second after they have written their next files."""
    before = files_in(out)
    process = start(out, jobs)
    while process.poll() is None and files_in(out) < before + 3:
        time.sleep(0.005)
    time.sleep(later)
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_study_that_was_killed_again_and_again_ends_with_the_same_bytes(tmp_path, jobs):
    assert start(tmp_path / "whole", 1).wait() == 0
    moments = random.Random(jobs)
    codes = [kill_when_it_works(tmp_path / "killed", jobs, moments.uniform(0, 0.4)) for _ in range(KILLS)]
    assert -signal.SIGKILL in codes
    assert start(tmp_path / "killed", jobs).wait() == 0
    for name in FILES:
        whole, killed = (tmp_path / where / "miller/test" / name for where in ("whole", "killed"))
        assert whole.read_bytes() == killed.read_bytes()
