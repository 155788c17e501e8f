"""The fuzzer's runner: workers that run cases, and a watch over them.

    python -m fuzz.run --cases 20000 --jobs 2 --seed 0
    python -m fuzz.run --only 1234                      one case again, with its traceback

A worker runs case after case in one process. It is watched from outside: one that dies by a signal, does not answer for
20 seconds (twice --seconds) or has had more than 2 GB is noted with its case and replaced.
"""

from __future__ import annotations

import argparse
import collections
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

HANG = 10  # seconds that a case may take; after twice as many a worker that does not even take the alarm is killed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=HANG, help="that a case may take")
    parser.add_argument("--only", type=int)
    parser.add_argument("--worker", nargs=2, metavar=("ROOT", "TEMPLATE"))
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    if options.worker:
        return _worker(Path(options.worker[0]), Path(options.worker[1]), options.seed, options.seconds)
    with tempfile.TemporaryDirectory(prefix="mnemoscope-fuzz-") as folder:
        root = Path(folder)
        if options.only is not None:
            return _one_case(root, options.only, options.seed)
        return _all_cases(root, options)


def _one_case(root: Path, number: int, seed: int) -> int:
    from fuzz.cases import run_case

    _make_template(root / "template")
    (root / "worker").mkdir()
    print(run_case(number, seed, _sandbox(root / "worker", root / "template")))
    return 0


def _make_template(folder: Path) -> None:
    from fuzz.cases import make_template

    folder.mkdir()
    make_template(folder)


def _sandbox(root: Path, template: Path) -> Any:
    from fuzz.sandbox import Sandbox

    os.environ["MPLCONFIGDIR"] = str(root / "matplotlib")
    os.environ["TMPDIR"] = tempfile.tempdir = str(root / "tmp")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(root / "tmp")
    (root / "tmp").mkdir()
    (root / "victim").mkdir(exist_ok=True)
    (root / "victim/file").write_text("untouched")
    import matplotlib.figure  # noqa: F401  (its cache of fonts is written now)

    return Sandbox(root.resolve(), template)


def _worker(root: Path, template: Path, seed: int, seconds: int) -> int:
    """Read numbers of cases from standard input; answer each with a line on standard output."""
    from fuzz.cases import run_case
    from fuzz.sandbox import MAX_MEMORY, memory

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    box = _sandbox(root, template)
    signal.signal(signal.SIGALRM, _hang)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        number = int(line)
        signal.alarm(seconds)
        try:
            answer = "ok " + run_case(number, seed, box)
        except BaseException as error:
            note = " ".join(getattr(error, "__notes__", []))
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
            answer = f"failed {note} {type(error).__name__} at {where}: {str(error)[:400]!r}"
        signal.alarm(0)
        if memory() > MAX_MEMORY:
            answer = f"failed: {memory() / 1e9:.1f} GB of memory ({answer})"
        print(answer.encode("ascii", "backslashreplace").decode(), file=answers, flush=True)
        if memory() > MAX_MEMORY:
            break
    return 0


class Hang(BaseException):
    """A case took too long."""


def _hang(number: int, frame: Any) -> None:
    raise Hang


class _Watch:
    """One worker process after the other, and the cases that they answer."""

    def __init__(self, number: int, root: Path, numbers: queue.Queue[int], options: Any, done: Any) -> None:
        self.number, self.root, self.numbers, self.options, self.done = number, root, numbers, options, done
        self.generation = 0
        self.process: Any = None

    def run(self) -> None:
        while True:
            try:
                number = self.numbers.get_nowait()
            except queue.Empty:
                break
            self.done(number, self._answer(number))
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()

    def _start(self) -> None:
        self.generation += 1
        folder = self.root / f"worker-{self.number}-{self.generation}"
        folder.mkdir()
        words = [sys.executable, "-m", "fuzz.run", "--seed", str(self.options.seed)]
        words += ["--seconds", str(self.options.seconds)]
        words += ["--worker", str(folder), str(self.root / "template")]
        with (self.root / f"log-{self.number}.txt").open("ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.process.stdout.readline()

    def _answer(self, number: int) -> str:
        if self.process is None or self.process.poll() is not None:
            self._start()
        timer = threading.Timer(2 * self.options.seconds, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        waited = not timer.is_alive()
        timer.cancel()
        if line:
            return line.strip()
        code = self.process.wait()
        self.process = None
        if waited:
            return f"failed: it hung for {2 * self.options.seconds} s and was killed"
        return f"failed: the process died with code {code} (a negative one is a signal's)"


def _all_cases(root: Path, options: Any) -> int:
    began = time.monotonic()
    _make_template(root / "template")
    numbers: queue.Queue[int] = queue.Queue()
    for number in range(options.first, options.first + options.cases):
        numbers.put(number)
    counts: collections.Counter[str] = collections.Counter()
    failures: list[str] = []

    def done(number: int, answer: str) -> None:
        word, _, kind = answer.partition(" ")
        if word == "ok":
            counts[kind] += 1
        else:
            failures.append(f"case {number}: {answer}")
            print(failures[-1], flush=True)
        answered = sum(counts.values()) + len(failures)
        if answered % 1000 == 0:
            print(f"{answered} cases, {len(failures)} failed, {time.monotonic() - began:.0f} s", flush=True)

    watches = [_Watch(i, root, numbers, options, done) for i in range(options.jobs)]
    threads = [threading.Thread(target=watch.run) for watch in watches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{options.cases} cases in {time.monotonic() - began:.0f} s: {len(failures)} failed ({total})")
    shutil.rmtree(root, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
