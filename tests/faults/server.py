"""A process with the shim preloaded that forks a child for every job: imports are paid for once.

Reads one JSON object a line, {"job": ..., "fault": {"folder", "at", "error", "record"}}, and answers with one:
{"code": exit code or minus the signal, "error": what was printed, "calls": file operations made}.
{"kill": number} kills a job that runs beside others.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import sys
import threading
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np

from mnemoscope.cli import guarded
from mnemoscope.cli._examination_files import load_examinations, save_examinations, write_report
from mnemoscope.finding import Examination, Finding
from mnemoscope.training import RunConfig, resume, train

Job = dict[str, Any]


def examinations(which: int) -> dict[str, Examination]:
    """What writer number `which` saves: one model or several, with arrays that tell the writers apart."""
    found = {}
    for model in range(1 + 2 * (which % 2)):
        finding = Finding("horizon", f"Of {which}.", "estimated", series={"decay": np.full(50 + model, float(which))})
        name = f"model {model} of {which}"
        found[name] = Examination({"horizon": finding}, f"Verdict {which}.", {"name": name})
    return found


def training(job: Job) -> None:
    """Begin or continue a run."""
    folder = Path(job["folder"])
    if (folder / "config.json").exists():
        resume(folder)
    else:
        train(RunConfig.from_dict(job["config"]), folder)


def saving(job: Job) -> None:
    """Save an examination, and draw its page if asked to."""
    save_examinations(examinations(job["which"]), Path(job["folder"]))
    if job.get("page"):
        write_report(examinations(job["which"]), Path(job["folder"]), ())


def saving_for_seconds(job: Job) -> None:
    """Save again and again, as one of two writers."""
    end = time.monotonic() + job["seconds"]
    saves = 0
    while not saves or time.monotonic() < end:
        saving(job)
        saves += 1
    print(saves, file=sys.stderr)


def reading_for_seconds(job: Job) -> None:
    """Read again and again; whatever is found must be what one of the writers wrote, whole."""
    end = time.monotonic() + job["seconds"]
    allowed = [examinations(which) for which in job["writers"]]
    reads = 0
    while not reads or time.monotonic() < end:
        found = load_examinations(Path(job["folder"]))
        assert found in allowed, f"a torn read: {list(found)}"
        reads += 1
    print(reads, file=sys.stderr)


JOBS = {job.__name__: job for job in (training, saving, saving_for_seconds, reading_for_seconds)}


def child(job: Job, fault: Job, answer: int) -> None:
    """Do a job under a fault, and write what was printed to `answer`."""
    shim = ctypes.CDLL(None)
    shim.faults_calls.restype = ctypes.c_long
    record = os.open(fault["record"], os.O_WRONLY | os.O_CREAT | os.O_APPEND) if fault.get("record") else -1
    printed = io.StringIO()
    folder = os.fsencode(fault.get("folder", ""))
    shim.faults_arm(folder, ctypes.c_long(fault.get("at", 0)), fault.get("error", 0), record)
    with redirect_stderr(printed):
        try:
            code = guarded(lambda: JOBS[job["do"]](job) or 0)
        except BaseException as error:
            print(f"Traceback: {error!r}", file=printed)
            code = 1
    calls = shim.faults_calls()
    shim.faults_arm(b"", ctypes.c_long(0), 0, -1)
    os.write(answer, json.dumps({"code": code, "error": printed.getvalue(), "calls": calls}).encode())
    os._exit(code)


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lock = threading.Lock()
    beside: dict[int, int] = {}  # the processes of jobs that run at once

    def serve(request: Job) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            child(request["job"], request.get("fault", {}), writing)
        os.close(writing)
        beside[request.get("id", 0)] = pid
        killer = None
        if "kill_after" in request:
            killer = threading.Timer(request["kill_after"], os.kill, (pid, signal.SIGKILL))
            killer.start()
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        if killer is not None:
            killer.cancel()
        code = os.waitstatus_to_exitcode(status)
        answer = json.loads(text) if text else {"code": code, "error": "", "calls": 0}
        with lock:
            print(json.dumps({**answer, "code": code, "id": request.get("id", 0)}), file=out, flush=True)

    print("ready", file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "kill" in request:
            os.kill(beside[request["kill"]], signal.SIGKILL)
        elif request.get("beside"):  # several jobs at once
            threading.Thread(target=serve, args=(request,)).start()
        else:
            serve(request)


if __name__ == "__main__":
    main()
