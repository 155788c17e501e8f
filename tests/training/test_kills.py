"""SIGKILL at any moment loses nothing: the resumed run ends with the bytes of one never disturbed.

A few kills in the usual suite; MNEMOSCOPE_KILLS says how many (`make test-faults`: 50).
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import killing
import pytest

from mnemoscope.tasks import Characters
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

KILLS = int(os.environ.get("MNEMOSCOPE_KILLS", "6"))
FIT = FitConfig(
    updates=48,
    batch_size=4,
    schedule="plateau",
    lr=0.1,
    evaluate_every=10,
    evaluate_batches=2,
    log_every=4,
    checkpoint_every=6,
    record_every=15,
    threads=1,
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("".join("abcdefgh"[i * i * i % 7] for i in range(4000)))
    network = NetworkConfig("RelRNN", 8, dropout=0.2, options={"buffer": 2, "relevant": 2})
    return RunConfig(Characters(data=str(text), bptt=5), network, FIT).to_dict()


@pytest.fixture(scope="module")
def undisturbed(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], float]:
    """The files of a run that was not disturbed, and how long it took."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    killing.warm_up()
    begun = time.perf_counter()
    finish(config, folder)
    return files(folder), time.perf_counter() - begun


def finish(config: dict[str, Any], folder: Path) -> None:
    process = killing.start(config, folder)
    process.join()
    assert process.exitcode == 0


def files(folder: Path) -> dict[str, bytes]:
    """Everything but the summary, which tells the time."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    assert found.pop("summary.json")
    return found


def test_kill_at_random_moments(config, undisturbed, tmp_path: Path) -> None:
    expected, duration = undisturbed
    random.seed(0)
    killed = runs = 0
    while killed < KILLS // 2:
        folder = tmp_path / f"run-{runs}"
        while killed < KILLS // 2 and not (folder / "summary.json").exists():
            process = killing.start(config, folder)
            process.join(random.uniform(0, duration / 2))
            process.kill()
            process.join()
            killed += process.exitcode == -signal.SIGKILL
        finish(config, folder)
        assert files(folder) == expected
        runs += 1


def test_kill_in_the_middle_of_a_write(config, undisturbed, tmp_path: Path) -> None:
    random.seed(1)
    folder, killed = tmp_path / "run", 0
    moments = [4, *(random.randint(1, 60) for _ in range(KILLS - KILLS // 2 - 1))]  # the 4th is in config.json
    for number, moment in enumerate(moments):
        if (folder / "summary.json").exists():
            assert files(folder) == undisturbed[0]
            folder = tmp_path / f"run-{number}"
        process = killing.start(config, folder, die_at=moment)
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        assert process.exitcode in (0, -signal.SIGKILL)
    finish(config, folder)
    assert files(folder) == undisturbed[0]
    assert killed
