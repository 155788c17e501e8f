"""Ray and Slurm: the same runs, byte for byte; retries; stopping; and one line where they are not installed.

Slurm is submitit's local executor: processes of this machine, submitted and read as jobs of Slurm are.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_engine import attempts, job
from test_sweep import BASE, GRID, command, results, runs_with_metrics, wait_until

from mnemoscope.cli import main
from mnemoscope.errors import MnemoscopeError
from mnemoscope.sweeps import Engine, RayEngine, SlurmEngine, SweepProgress, run_jobs, sweep
from mnemoscope.sweeps._remote import DriverFile, DriverWatch, remote_job

needs_ray = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed (extra 'ray')")
needs_submitit = pytest.mark.skipif(
    not importlib.util.find_spec("submitit"), reason="submitit is not installed (extra 'slurm')"
)


@pytest.fixture(scope="module")
def ray_engine() -> Iterator[RayEngine]:
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), path])  # for the workers to find `jobs`
    engine = RayEngine(jobs=2)
    yield engine
    engine.close()
    os.environ["PYTHONPATH"] = path


@pytest.fixture(params=[pytest.param("ray", marks=needs_ray), pytest.param("slurm", marks=needs_submitit)])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    if request.param == "ray":
        return request.getfixturevalue("ray_engine")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    return SlurmEngine(jobs=2, cluster="local")


def test_the_same_bytes_as_in_local_processes(engine: Engine, tmp_path: Path) -> None:
    sweep(BASE, {**GRID, "fit.seed": [0]}, tmp_path / "local", jobs=2)
    sweep(BASE, {**GRID, "fit.seed": [0]}, tmp_path / "remote", engine=engine)
    assert results(tmp_path / "local") == results(tmp_path / "remote")
    seen: list[SweepProgress] = []
    sweep(BASE, {**GRID, "fit.seed": [0]}, tmp_path / "remote", engine=engine, callback=seen.append)
    assert seen == []
    assert not (tmp_path / "remote" / ".driver").exists()


def test_killed_jobs_are_tried_again_and_errors_are_not(engine: Engine, tmp_path: Path) -> None:
    dies, fails = job("die_first", deaths=1), job("fail", code=2)
    seen: list[SweepProgress] = []
    assert run_jobs([dies, fails], tmp_path, engine, total=2, callback=seen.append) == 1
    assert attempts(tmp_path, dies) == 2
    assert attempts(tmp_path, fails) == 1
    assert {progress.ending.outcome for progress in seen} == {"died", "ended", "failed"}
    assert (tmp_path / "logs" / f"{fails.name}.txt").read_text() == "before the error\n"


def test_an_interrupt_has_every_job_save_its_work(engine: Engine, tmp_path: Path) -> None:
    jobs = [job("wait_for_stop", number=i) for i in range(2)]

    def interrupt() -> None:
        while not all((tmp_path / j.name / "begun").exists() for j in jobs):
            time.sleep(0.05)
        signal.raise_signal(signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_jobs(jobs, tmp_path, engine, total=2)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert all((tmp_path / j.name / "saved").exists() for j in jobs)
    assert not (tmp_path / ".driver").exists()


def test_a_new_driver_stops_what_an_old_one_left_behind(tmp_path: Path) -> None:
    old = DriverFile(tmp_path)
    watch = DriverWatch(str(old.path), old.token)
    assert not watch()
    new = DriverFile(tmp_path)
    watch.asked_at = -10.0
    assert watch()
    assert not DriverWatch(str(new.path), new.token)()
    late = remote_job({"call": "jobs:finish", "config": {}}, str(tmp_path / "x"), "", str(old.path), old.token)
    assert late.outcome == "stopped"
    assert not (tmp_path / "x").exists()
    new.remove()
    assert not DriverWatch(str(new.path), new.token)()  # a file system that is away stops nothing


@pytest.mark.parametrize(("engine_name", "module", "extra"), [("ray", "ray", "ray"), ("slurm", "submitit", "slurm")])
def test_what_is_not_installed_is_named(
    engine_name: str,
    module: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    arguments = ["sweep", "copy", "--grid", "fit.seed=0:2", "--engine", engine_name, "--out", str(tmp_path / "s")]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"pip install 'mnemoscope[{extra}]'" in error
    assert list(tmp_path.iterdir()) == []


@needs_submitit
def test_a_machine_without_slurm_or_a_wrong_parameter_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MnemoscopeError, match="engine = 'slurm' cannot be used here"):
        sweep(BASE, GRID, tmp_path / "a", engine=SlurmEngine(parameters={"nonsense": 1}, cluster="local"))
    if not os.environ.get("PATH") or not any(Path(p, "srun").exists() for p in os.environ["PATH"].split(":")):
        with pytest.raises(MnemoscopeError, match="engine = 'slurm' cannot be used here"):
            sweep(BASE, GRID, tmp_path / "b", engine=SlurmEngine())


@needs_ray
def test_an_address_without_a_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**settings: object) -> None:
        assert settings["address"] == "10.0.0.1:6379"
        raise ConnectionError("no such host\nand much more")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(MnemoscopeError, match=r"cannot reach Ray at address = '10\.0\.0\.1:6379': no such host$"):
        RayEngine("10.0.0.1:6379")


def kill_workers(kills: int, seconds: float, done: threading.Event) -> list[int]:
    """Kill workers of Ray in the middle of their jobs, at random moments; return their numbers."""
    killed: list[int] = []
    while len(killed) < kills and not done.wait(random.uniform(0, seconds)):
        commands = {int(p.parent.name): p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()}
        busy = [number for number, command in commands.items() if command.startswith(b"ray::remote_job")]
        if busy:
            killed.append(random.choice(busy))
            os.kill(killed[-1], signal.SIGKILL)
    return killed


@needs_ray
@pytest.mark.slow
def test_five_kills_among_twenty_runs_on_ray(ray_engine: RayEngine, tmp_path: Path) -> None:
    random.seed(0)
    base = replace(BASE, fit=replace(BASE.fit, updates=400, checkpoint_every=50))
    grid = {"network.buffer": [2, 5], "network.relevant": [2, 5], "fit.seed": [0, 1, 2, 3, 4]}
    sweep(base, grid, tmp_path / "local", jobs=2)
    seen: list[SweepProgress] = []
    done = threading.Event()
    killer = threading.Thread(target=kill_workers, args=(5, 3.0, done))
    killer.start()
    sweep(base, grid, tmp_path / "ray", engine=ray_engine, callback=seen.append)
    done.set()
    killer.join()
    assert sum(progress.ending.outcome == "died" for progress in seen) >= 3
    assert results(tmp_path / "ray") == results(tmp_path / "local")


@needs_ray
@pytest.mark.slow
def test_a_driver_on_ray_that_is_killed_is_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    driver = subprocess.Popen(command(folder, "--quiet", "--engine", "ray", updates=2000))
    wait_until(lambda: runs_with_metrics(folder), driver)
    driver.kill()
    driver.wait()
    assert not list(folder.glob("*/summary.json"))
    assert subprocess.run(command(folder, "--quiet", "--engine", "ray", updates=2000)).returncode == 0
    assert subprocess.run(command(tmp_path / "local", "--quiet", updates=2000)).returncode == 0
    assert results(folder) == results(tmp_path / "local")
