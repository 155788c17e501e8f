"""The command as a process: signals, a terminal, a full disk."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mnemoscope.cli import main

pytest.importorskip("tyro")

OPTIONS = [
    *("--model", "torch.RNN", "--hidden-size", "4", "--batch-size", "2", "--task.T", "2", "--threads", "1"),
    *("--evaluate-batches", "1", "--evaluate-every", "100", "--checkpoint-every", "1000"),
]


SMALL_FILES = """
import os, resource, sys
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
os.execv(sys.argv[2], sys.argv[2:])
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mnemoscope", *arguments]


def train(folder: Path, *more: str) -> list[str]:
    return command("train", "copy", *OPTIONS, *more, "--out", str(folder))


def test_ctrl_c_in_a_terminal_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    folder = tmp_path / "run"
    process = subprocess.Popen(train(folder, "--updates", "1000000"), stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while b"accuracy" not in shown:  # the bar shows an evaluation
        shown += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
    assert process.wait() == 130
    text = shown.decode()
    for part in ("copy · torch.RNN", "/1000000", "loss ", "memoryless loss 0.9452", "updates/s"):
        assert part in text
    assert f"continue with: mnemoscope resume {folder}" in text
    newest = max(int(path.stem) for path in folder.glob("checkpoints/0*.json"))
    assert f"stopped at update {newest};" in text


def test_full_disk_is_one_line_and_loses_nothing_saved(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = train(folder, "--updates", "150", "--log-every", "1", "--checkpoint-every", "20", "--quiet")
    small_files = [sys.executable, "-c", SMALL_FILES, "12000"]  # room for the checkpoints, not for all the metrics
    done = subprocess.run([*small_files, *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"mnemoscope: cannot write {folder}/metrics.jsonl: File too large")
    assert done.stderr.count("\n") == 1
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert main(["train", "--config", str(folder / "config.json"), "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    for name in ("metrics.jsonl", "checkpoints/00000150.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_broken_pipe_is_not_an_error() -> None:
    done = subprocess.run(f"{sys.executable} -m mnemoscope list | head -1", shell=True, capture_output=True, text=True)
    assert "models" in done.stdout
    assert "Traceback" not in done.stderr


STUBBORN = """
import time
print("loading", flush=True)
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
"""


@pytest.mark.parametrize("library", ["torch", "tyro"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_while_a_library_loads(library: str, number: int, tmp_path: Path) -> None:
    """Even one that swallows a KeyboardInterrupt."""
    (tmp_path / f"{library}.py").write_text(STUBBORN)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(
        command("train", "copy", "--help"), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        _, error = process.communicate()
    finally:
        process.kill()
    assert process.returncode == -number  # a shell says 130 and 143
    assert error == ""


def test_ctrl_c_is_pythons_own_again_when_a_command_runs_and_in_scripts() -> None:
    code = "import signal, mnemoscope; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "True\n"
    code = (
        "import sys; sys.argv = ['/bin/mnemoscope', 'list']; import signal, mnemoscope.cli as cli; "
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL; cli._command('list'); "
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "True\n"


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGINT, (130,)), (signal.SIGTERM, (-signal.SIGTERM,))])
def test_a_signal_before_the_first_update_stops_training_at_once(
    number: int, codes: tuple[int], tmp_path: Path
) -> None:
    (tmp_path / "tensorboard.py").write_text(STUBBORN.replace("except BaseException", "except ZeroDivisionError"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    process = subprocess.Popen(
        train(tmp_path / "run", "--tensorboard"),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        _, error = process.communicate()
    finally:
        process.kill()
    assert process.returncode in codes
    assert "Traceback" not in error
