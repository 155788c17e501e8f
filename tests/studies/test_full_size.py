"""The full size of every study that trains: first update, measurements, verdict and page, without extra packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mnemoscope.studies import load, write_pages
from mnemoscope.tasks import missing_data

SCRIPT = Path(__file__).with_name("full_size.py")
ABSENT = ("tyro", "plotly", "pooch", "flint", "gymnasium", "minigrid", "ray", "submitit", "tensorboard")
"""Packages that a machine with a GPU may well lack, and that training and measuring must not need."""
AGENTS = ("kerg/table4", "kerg/table4-memory", "kerg/tmaze")  # tests/rl has their agents


def _trains(study):
    return any("function" not in job.config for job in study.jobs("full", 0).values())


STUDIES = [name for name, study in load().items() if name not in AGENTS and _trains(study)]


@pytest.mark.slow
@pytest.mark.parametrize("paper", sorted({name.split("/")[0] for name in STUDIES}))
def test_the_full_size_begins_and_is_judged_without_extra_packages(paper, tmp_path):
    chosen = [name for name in STUDIES if name.startswith(f"{paper}/")]
    chosen = [name for name in chosen if not any(missing_data(data) for data in load()[name].data)]
    command = [sys.executable, str(SCRIPT), str(tmp_path), *ABSENT, "--", *chosen]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout[done.stdout.index("{") :]) == {}, done.stderr[-2000:]
    write_pages(tmp_path)
    for name in chosen:
        assert "full" in (tmp_path / name / "index.html").read_text()
