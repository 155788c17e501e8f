"""What someone meets who types a command for the first time, in whatever terminal."""

import contextlib
import io
import os
import re
import subprocess
import sys

import pytest
import torch

from mnemoscope import __version__
from mnemoscope.cli import COMMANDS, main
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, SequenceModel, fit


def printed(*arguments):
    """What a command prints in a terminal of ASCII characters and 50 columns."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams
    try:
        code = main(list(map(str, arguments)))
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout, sys.stderr = before
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("ascii"))
    assert code == 0, texts
    return "".join(texts)


@pytest.fixture
def narrow(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_works_in_ascii_and_50_columns(narrow):
    train = ("train", "copy", "--task.T", 5, "--hidden-size", 8, "--updates", 2, "--out", "runs/a", "--model", "LSTM")
    printed(*train)
    printed("resume", "runs/a")
    printed("evaluate", "runs/a", "--task.T", 6)
    printed("compare", "runs/a")
    scopes = ("--scopes", "horizon", "stability", "--budget", 3600)
    examined = printed("examine", "LSTM", "--steps", 12, *scopes, "--out", "e")
    assert "lambda ~ " in examined
    printed("report", "e")
    printed("report", "runs")
    printed("theory")
    printed("list")
    printed("sweep", "copy", "--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_in_ascii_and_50_columns(narrow, command):
    arguments = (command, "copy") if command in ("train", "sweep") else (command,)
    text = printed(*arguments, "--help")
    assert "usage: mnemoscope" in text
    assert printed("help", command).startswith("usage: mnemoscope")


def test_version_and_help(capsys):
    assert main(["-V"]) == main(["--version"]) == main(["help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"mnemoscope {__version__}\nmnemoscope {__version__}\nusage: mnemoscope COMMAND")


@pytest.fixture
def unread():
    """The end of a pipe that nothing reads, as `| head -1` may leave it."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


EXAMINE = ["examine", "RNN", "--scopes", "recurrence", "--steps", "9", "--out", "o", "--fail-if", "recurrence.step>=0"]
UNREAD = [
    (["help"], 0, ""),
    (["-V"], 0, ""),
    (["list", "models"], 0, ""),
    (["list", "models", "--json"], 0, ""),
    ([*EXAMINE, "--json"], 4, "mnemoscope: fail-if RNN: recurrence.step>=0 ("),
    (EXAMINE, 4, "RNN: recurrence\nmnemoscope: fail-if RNN: recurrence.step>=0 ("),
]


@pytest.mark.parametrize(("words", "code", "says"), UNREAD)
def test_a_reader_that_is_gone_changes_no_exit_code(words, code, says, unread, tmp_path):
    command = [sys.executable, "-m", "mnemoscope", *words]
    done = subprocess.run(command, cwd=tmp_path, stdout=unread, stderr=subprocess.PIPE, text=True)
    assert done.returncode == code
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == says.count("\n") + bool(says)


def test_training_goes_on_when_the_reader_of_its_progress_is_gone(unread, tmp_path):
    options = ["--task.T", "3", "--hidden-size", "4", "--updates", "3", "--evaluate-every", "1", "--out", "run"]
    command = [sys.executable, "-m", "mnemoscope", "train", "copy", *options]
    done = subprocess.run(command, cwd=tmp_path, stdout=unread, stderr=unread)
    assert done.returncode == 0
    assert (tmp_path / "run" / "summary.json").is_file()


def test_an_error_that_cannot_be_printed_keeps_its_exit_code(unread):
    assert subprocess.run([sys.executable, "-m", "mnemoscope", "nosuch"], stderr=unread).returncode == 2


def help_of(capsys, *arguments):
    with pytest.raises(SystemExit):
        main([*arguments, "--help"])
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


def test_the_help_of_train_begins_with_the_layer(capsys):
    text = help_of(capsys, "train", "copy", "--model", "RelLSTM")
    places = [
        text.index(name) for name in ("layer options", "--buffer", "task options", "network options", "fit options")
    ]
    assert places == sorted(places)


def test_no_option_stands_without_a_text(capsys):
    text = " ".join(help_of(capsys, "examine").replace("│", " ").split())
    assert "--task NAME The task that makes the sequences" in text


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", [["train"], ["train", "copy"], ["examine"], ["reproduce"], ["sweep"], []])
def test_help_fits_the_terminal(command, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    with contextlib.suppress(SystemExit):
        main([*command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("command", [["train", "copy"], ["examine"], ["reproduce"]])
def test_help_shows_no_default_where_there_is_none(command, capsys):
    text = help_of(capsys, *command)
    for noise in ("None", "(default: )", " ...]"):
        assert noise not in text


def test_help_does_not_keep_the_line_breaks_of_a_docstring(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, "train", "copy")
    assert "learn faster. torch: as torch draws them." in text


@pytest.mark.parametrize(
    "words", [["train", "--model", "LSTM", "copy"], ["train", "--task", "copy"], ["sweep", "--task=copy"]]
)
def test_a_task_that_does_not_come_first(words, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err == f"mnemoscope: the task comes first: mnemoscope {words[0]} copy [OPTIONS]\n"


def test_out_and_output_cannot_be_mistaken(capsys, tmp_path):
    assert main(["train", "copy", "--output", str(tmp_path)]) == 2
    assert "--out is the run's folder, --layer-output what a layer gives" in capsys.readouterr().err
    assert "--layer-output {h,s}" in help_of(capsys, "train", "copy", "--model", "RelRNN")
    assert main(["examine", "LSTM", "--output", "logits"]) == 2


def test_a_layer_option_under_its_other_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["--task.T", "3", "--hidden-size", "4", "--updates", "1", "--quiet"]
    assert main(["train", "copy", "--model", "RelRNN", "--layer-output", "s", *small, "--out", "run"]) == 0
    assert '"output": "s"' in (tmp_path / "run" / "config.json").read_text()


def test_training_leaves_the_precision_of_products_alone():
    task = Copy(T=2)
    fit(SequenceModel.for_task(task, NetworkConfig("RNN", hidden_size=4)), task, FitConfig(updates=1, batch_size=2))
    assert torch.get_float32_matmul_precision() == "highest"
