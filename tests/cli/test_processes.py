"""The command as a process: signals, a terminal, a full disk."""

from __future__ import annotations

import os
import pty
import resource
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

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))  # room for the checkpoints, not for all the metrics

    arguments = train(folder, "--updates", "150", "--log-every", "1", "--checkpoint-every", "20", "--quiet")
    done = subprocess.run(arguments, capture_output=True, text=True, preexec_fn=small_files)
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
