"""Whatever fails while files are written, nothing is lost, torn or mixed.

Kills at random moments and system calls, errors of the disk, power cuts, two writers: a few of each in the usual suite,
all of them with MNEMOSCOPE_FAULTS=1 (`make test-faults`: 200 kills, 74 errors, 60 power cuts, two writers for 5 s).
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from faults.power import Disk, read_calls, write_state
from faults.server import examinations
from mnemoscope.cli._examination_files import load_examinations
from mnemoscope.tasks import Characters
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

ALL = bool(os.environ.get("MNEMOSCOPE_FAULTS"))
KILLS_AT_CALLS = 120 if ALL else 8
KILLS_OF_SAVES = 50 if ALL else 10
KILLS_AT_MOMENTS = 30 if ALL else 3
ERRORS_IN_RUNS = 50 if ALL else 5
ERRORS_IN_SAVES = 24 if ALL else 5
CUTS = 60 if ALL else 6
SECONDS = 5.0 if ALL else 1.0
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES)
HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="the shim needs Linux and gcc"),
    pytest.mark.timeout(1800),
]


class Server:
    """The process that does the jobs."""

    def __init__(self, shim: Path, log: Path) -> None:
        environment = {**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "faults.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        assert self.read() == "ready", log.read_text()

    def read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def send(self, do: str, folder: Path, fault: dict[str, Any] | None = None, beside: int = 0, **job: Any) -> None:
        request: dict[str, Any] = {"job": {"do": do, "folder": str(folder), **job}}
        if fault:
            request["fault"] = {"folder": str(folder), **fault}
        if beside:
            request |= {"beside": True, "id": beside}
        if "kill_after" in job:
            request["kill_after"] = job["kill_after"]
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def kill(self, beside: int) -> None:
        """Kill a job that was sent with this number."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"kill": beside}) + "\n")
        self.process.stdin.flush()

    def do(self, *arguments: Any, **job: Any) -> dict[str, Any]:
        self.send(*arguments, **job)
        answer: dict[str, Any] = json.loads(self.read())
        assert "Traceback" not in answer["error"], answer["error"]
        return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    shim = folder / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, HERE / "shim.c", "-ldl"], check=True)
    server = Server(shim, folder / "log.txt")
    yield server
    server.process.stdin.close()
    server.process.wait()


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> dict[str, Any]:
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("".join("abcdefgh"[i * i * i % 7] for i in range(4000)))
    network = NetworkConfig("RelRNN", 8, dropout=0.2, options={"buffer": 2, "relevant": 2})
    often = {"evaluate_every": 5, "evaluate_batches": 2, "log_every": 4, "checkpoint_every": 6, "record_every": 15}
    fit = FitConfig(30, batch_size=4, schedule="plateau", lr=0.1, threads=1, **often)  # type: ignore[arg-type]
    return RunConfig(Characters(data=str(text), bptt=5), network, fit).to_dict()


@pytest.fixture(scope="module")
def undisturbed(server, config, tmp_path_factory) -> dict[str, Any]:
    """A run that nothing disturbed: its files, the system calls it made, and how many those are."""
    folder = tmp_path_factory.mktemp("undisturbed").resolve()
    record = folder / "record"
    answer = server.do("training", folder / "run", {"record": str(record)}, config=config)
    assert answer["code"] == 0
    return {"files": files(folder / "run"), "calls": answer["calls"], "record": read_calls(record, folder)}


def files(folder: Path) -> dict[str, bytes]:
    """Everything but the summary, which tells the time."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    assert found.pop("summary.json")
    return found


def finish(server: Server, config: dict[str, Any], folder: Path, undisturbed: dict[str, Any]) -> None:
    """Resume without faults; the result must be that of the run that nothing disturbed."""
    answer = server.do("training", folder, config=config)
    assert answer["code"] == 0, answer["error"]
    found = files(folder)
    assert found.keys() == undisturbed["files"].keys()
    assert found == undisturbed["files"]


def test_kills_at_system_calls_lose_nothing(server, config, undisturbed, tmp_path) -> None:
    rng = random.Random(1)
    killed = runs = 0
    while killed < KILLS_AT_CALLS:
        folder = tmp_path.resolve() / f"run-{runs}"
        while killed < KILLS_AT_CALLS and not (folder / "summary.json").exists():
            at = rng.randint(1, undisturbed["calls"] // 2)
            code = server.do("training", folder, {"at": at}, config=config)["code"]
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
        finish(server, config, folder, undisturbed)
        runs += 1


def test_kills_at_random_moments_lose_nothing(server, config, undisturbed, tmp_path) -> None:
    rng = random.Random(2)
    folder = tmp_path / "run"
    killed = 0
    for number in range(20 * KILLS_AT_MOMENTS):
        if (folder / "summary.json").exists():
            finish(server, config, folder, undisturbed)
            folder = tmp_path / f"run-{number}"
        server.send("training", folder, config=config, kill_after=rng.uniform(0, 0.5))
        killed += json.loads(server.read())["code"] == -signal.SIGKILL
        if killed == KILLS_AT_MOMENTS:
            break
    assert killed == KILLS_AT_MOMENTS
    finish(server, config, folder, undisturbed)


def test_errors_in_a_run_are_one_line_and_lose_nothing(server, config, undisturbed, tmp_path) -> None:
    rng = random.Random(3)
    reported = 0
    while reported < ERRORS_IN_RUNS:
        folder = tmp_path.resolve() / "run"
        fault = {"at": rng.randint(1, undisturbed["calls"]), "error": ERRORS[reported % len(ERRORS)]}
        answer = server.do("training", folder, fault, config=config)
        if answer["code"]:  # else it was of no consequence: a folder that was to be made was there
            assert answer["code"] == 2, answer
            assert answer["error"].startswith("mnemoscope: cannot ")
            assert os.strerror(fault["error"]) in answer["error"]
            assert answer["error"].count("\n") == 1
            reported += 1
        finish(server, config, folder, undisturbed)
        shutil.rmtree(folder)


@pytest.mark.parametrize("kill", [True, False], ids=["kills", "errors"])
def test_faults_while_findings_are_saved_leave_the_old_or_the_new_ones(server, tmp_path, kill) -> None:
    rng = random.Random(4)
    folder = tmp_path.resolve() / "findings"
    assert server.do("saving", folder, which=0)["code"] == 0
    calls = server.do("saving", folder, {"at": 0}, which=1, page=True)["calls"]
    assert calls > 20
    before = 1
    done = 0
    while done < (KILLS_OF_SAVES if kill else ERRORS_IN_SAVES):
        which = rng.randrange(4)
        fault = {"at": rng.randint(1, calls), "error": 0 if kill else rng.choice(ERRORS)}
        answer = server.do("saving", folder, fault, which=which, page=rng.random() < 0.3)
        assert answer["code"] in (0, -signal.SIGKILL if kill else 2), answer
        done += answer["code"] != 0
        found = load_examinations(folder)
        assert found in (examinations(before), examinations(which))
        before = next(number for number in (which, before) if found == examinations(number))
    assert server.do("saving", folder, which=2)["code"] == 0
    assert load_examinations(folder) == examinations(2)
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith((".", "report")))
    assert [name.partition("-")[0] for name in left] == ["arrays", "findings.json"]


def test_two_writers_and_a_reader(server, tmp_path) -> None:
    folder = tmp_path / "findings"
    assert server.do("saving", folder, which=1)["code"] == 0
    for writer in (1, 2):
        server.send("saving_for_seconds", folder, beside=writer, which=writer, seconds=SECONDS)
    for reader in (3, 4):
        server.send("reading_for_seconds", folder, beside=reader, writers=[1, 2], seconds=SECONDS)
    answers = [json.loads(server.read()) for _ in range(4)]
    for answer in answers:
        assert answer["code"] == 0, answer
        assert int(answer["error"]) > 0
    assert len(load_examinations(folder)) in (1, 3)


def test_second_process_is_kept_out_of_a_run(server, config, tmp_path) -> None:
    endless = {**config, "fit": {**config["fit"], "updates": 10**9, "evaluate_every": 1000, "checkpoint_every": 10**9}}
    server.send("training", tmp_path / "run", beside=1, config=endless)
    while not (tmp_path / "run/checkpoints/00000000.json").exists():
        time.sleep(0.01)
    server.send("training", tmp_path / "run", beside=2, config=endless)
    second = json.loads(server.read())
    assert (second["id"], second["code"]) == (2, 2)
    assert "is in use by another process" in second["error"]
    server.kill(1)
    first = json.loads(server.read())
    assert (first["id"], first["code"]) == (1, -signal.SIGKILL)


def test_power_cuts_are_resumable(server, config, undisturbed, tmp_path) -> None:
    rng = random.Random(5)
    for number in range(CUTS):
        root = tmp_path.resolve() / str(number)
        root.mkdir()
        state = cut(undisturbed["record"], None, rng)
        write_state(state, root)
        if number % 2:  # the resumed run is cut, too
            record = root / "record"
            start = {name: content for name, content in state.items() if content is not None}
            assert server.do("training", root / "run", {"record": str(record)}, config=config)["code"] == 0
            calls = read_calls(record, root)
            shutil.rmtree(root)
            root.mkdir()
            write_state(cut(calls, start, rng), root)
        finish(server, config, root / "run", undisturbed)
        shutil.rmtree(root)


def cut(calls: list[Any], start: dict[str, bytes] | None, rng: random.Random) -> dict[str, bytes | None]:
    """What is on disk if the power is cut after a random one of these calls."""
    disk = Disk(start)
    for call in calls[: rng.randrange(len(calls) + 1)]:
        disk.apply(call)
    return disk.after_cut(rng)
