"""Jobs on this machine: one process each, forked from a server that has imported everything once."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from multiprocessing import connection
from pathlib import Path
from typing import Any

from mnemoscope.errors import check_count
from mnemoscope.sweeps._job import Ending, Job, output_to, run_job

PRELOADED = ("mnemoscope.sweeps", "mnemoscope.training", "safetensors.torch")
KILL_SECONDS = 60.0  # after which a job that was asked to stop is killed


class LocalEngine:
    """Processes of this machine, at most `jobs` at a time; by default as many as there are CPUs for `threads` each."""

    def __init__(self, jobs: int | None = None, *, threads: int = 1, preload: Sequence[str] = ()) -> None:
        if jobs is not None:
            check_count("jobs", jobs)
        self.slots = jobs or max(1, cpus() // max(threads, 1))
        has_forkserver = "forkserver" in multiprocessing.get_all_start_methods()  # Windows has not
        self._processes: Any = multiprocessing.get_context("forkserver" if has_forkserver else "spawn")
        if has_forkserver:
            self._processes.set_forkserver_preload([*PRELOADED, *preload])
        self._running: dict[str, tuple[Any, connection.Connection]] = {}

    def start(self, jobs: Sequence[tuple[Job, Path]], logs: Path) -> None:
        """Start jobs in their folders. What they print goes to a file of their name in `logs`."""
        for job, folder in jobs:
            receiver, sender = self._processes.Pipe(duplex=False)
            log = logs / f"{job.name}.txt"
            arguments = (job, folder, log, sender, dict(os.environ))
            process = self._processes.Process(target=_child, args=arguments, name=job.name)
            with _without_main(), _interrupts_later():  # or Ctrl-C could leave a process that is not in the list
                process.start()
                self._running[job.name] = (process, receiver)
            sender.close()

    def wait(self, seconds: float) -> Iterator[tuple[str, Ending]]:
        """Yield the names of jobs that have ended, and how; wait up to `seconds` for the first."""
        connection.wait([process.sentinel for process, _ in self._running.values()], seconds)
        for name, (process, receiver) in list(self._running.items()):
            if process.is_alive():
                continue
            ending = _ending(process, receiver)
            del self._running[name]
            process.close()
            receiver.close()
            yield name, ending

    def stop(self) -> None:
        """Ask all jobs to save their work and end; kill those that have not after a minute."""
        for process, _ in self._running.values():
            process.terminate()
        deadline = time.monotonic() + KILL_SECONDS
        try:
            for process, _ in self._running.values():
                process.join(max(0.0, deadline - time.monotonic()))
        finally:  # also after a second Ctrl-C
            for process, receiver in self._running.values():
                process.kill()
                process.join()
                process.close()
                receiver.close()
            self._running.clear()


def cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ending(process: Any, receiver: connection.Connection) -> Ending:
    process.join()
    with contextlib.suppress(EOFError, OSError):
        if receiver.poll():
            return Ending(**json.loads(receiver.recv_bytes()))
    code = process.exitcode or 0
    if code < 0:
        return Ending("died", f"killed by {signal.Signals(-code).name}")
    return Ending("died", f"its process ended with exit code {code}")


def _child(job: Job, folder: Path, log: Path, sender: connection.Connection, environment: Mapping[str, str]) -> None:
    """Do a job in this new process; stop when asked to, or when the parent process is gone."""
    os.environ.clear()  # of the server, which may be older than what a notebook has set since
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the driver decides
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_stop_after, args=(parent, stop), daemon=True).start()

    # The terminal belongs to the driver's bar: what a job prints goes to its log.
    with output_to(log):
        ending = run_job(job, folder, stop.is_set)
    with contextlib.suppress(OSError):  # the driver is gone
        sender.send_bytes(json.dumps(asdict(ending)).encode())


def _stop_after(process: Any, stop: threading.Event) -> None:
    """Ask for a stop once a process has ended."""
    process.join()
    stop.set()


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Have Ctrl-C and a termination signal take effect at the end of the block."""
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep the new process from importing the user's script again: a job's function is in a module."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)
