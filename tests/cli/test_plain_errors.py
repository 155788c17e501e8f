"""Whatever is wrong with a word, a name or a file, the command line says so in one line and exits with code 2."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import tracemalloc
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
import torch

from mnemoscope.cli import main
from mnemoscope.cli._weights import read_inputs
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import visible
from mnemoscope.finding import Examination, Finding
from mnemoscope.tasks import Characters, Words
from mnemoscope.tasks import _corpora as corpora

pytest.importorskip("tyro")

LONG = "x" * 300
HUGE = "1" * 310


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = ["--task.T", "3", "--hidden-size", "4", "--batch-size", "2", "--updates", "2", "--evaluate-every", "1"]
    assert main(["train", "copy", "--model", "RNN", *options, "--quiet", "--out", str(folder)]) == 0
    finding = Finding(
        "horizon",
        "It reaches back.",
        "estimated",
        figures={"horizon": 3.0},
        series={"input_gradient": np.arange(1, 6.0)},
        labels={"regime": "stable", "rows": ["a", "b"]},
    )
    Examination({"horizon": finding}, "A verdict.", {"name": "m", "needs": "3"}).save(folder.parent / "findings")
    torch.save({"weight": torch.ones(3)}, folder.parent / "weights.pt")
    np.save(folder.parent / "inputs.npy", np.ones((4, 2, 3)))
    (folder.parent / "text.txt").write_text("some text\n" * 30)
    return folder.parent


@pytest.fixture
def here(trained, tmp_path, monkeypatch) -> Path:
    """A folder with a run, findings, weights, inputs and a text, which is the current one."""
    folder = Path(shutil.copytree(trained, tmp_path / "here"))
    monkeypatch.chdir(folder)
    return folder


def refused(capfd, *words: object) -> str:
    capfd.readouterr()
    assert main([str(word) for word in words]) == 2
    error = capfd.readouterr().err
    assert error.startswith("mnemoscope: ")
    assert error.count("\n") == 1
    assert error[:-1].isprintable()
    return error


@pytest.mark.parametrize(
    "words",
    [
        ["train", ""],
        ["evaluate", "run", "--task", ""],
        ["examine", "GRU", "--task", ""],
        ["train", "copy", "--out", LONG],
        ["train", "copy", "--config", LONG],
        ["train", "characters", "--task.data", LONG],
        ["train", "words", "--task.data", "a\0b"],
        ["train", "copy", "--out", "text.txt"],
        ["train", "copy", "--out", "text.txt/run"],
        ["train", "copy", "--out", "a\0b"],
        ["train", "copy", "--updates", HUGE],
        ["train", "copy", "--seed", HUGE],
        ["train", "copy", "--lr", HUGE],
        ["train", "copy", "--task.T", HUGE],
        ["train", "copy", "--hidden-size", HUGE],
        ["train", "copy", "--model", "\x1b[2J"],
        ["resume", LONG],
        ["resume", "text.txt"],
        ["resume", "a\0b"],
        ["evaluate", LONG],
        ["evaluate", "run", "--batch-size", HUGE],
        ["compare", LONG],
        ["compare", "run", "--figure", LONG + ".png"],
        ["compare", "run", "--figure", "text.txt/f.png"],
        ["report", LONG],
        ["report", "text.txt"],
        ["report", "findings", "--out", "text.txt"],
        ["report", "findings", "--out", "text.txt/deeper"],
        ["examine", LONG],
        ["examine", "a\0b"],
        ["examine", "GRU", "--checkpoint", LONG],
        ["examine", "GRU", "--inputs", LONG + ".npy"],
        ["examine", "GRU", "--with", "x={[]:1}"],
        ["examine", "GRU", "--with", "hidden_size=" + "(" * 300],
        ["examine", "GRU", "--with", "hidden_size=" + HUGE],
        ["examine", "GRU", "--steps", HUGE],
        ["examine", "system:henon", "--with", "a=" + HUGE],
        ["examine", os.fsdecode(b"\xff\xfe")],
        ["resume", os.fsdecode(b"\xff\xfe")],
        ["theory", os.fsdecode(b"\xff")],
        [os.fsdecode(b"\xff")],
        ["\x1b[2Jtrain"],
    ],
    ids=lambda words: " ".join(map(str, words)).encode("ascii", "backslashreplace").decode()[:60].replace("\0", "0"),
)
def test_wrong_words(here, capfd, words) -> None:
    refused(capfd, *words)


WRONG: tuple[Any, ...] = (None, True, 7, -1, 1.5, "x", [], [1], {}, {"x": 1}, 10**310, "\x1b[2J")


def edited(path: Path, change: Any) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


FINDINGS = ("format", "arrays", "verdict", "about", "partial", "seconds", "findings")
FINDING = (
    "scope",
    "sentence",
    "status",
    "why",
    "figures",
    "labels",
    "certified",
    "warnings",
    "seconds",
    "help",
    "title",
)


@pytest.mark.parametrize("field", [*FINDINGS, *(f"findings.{name}" for name in FINDING)])
def test_wrong_types_in_findings(here, capfd, field) -> None:
    path = here / "findings/findings.json"
    original = path.read_text()
    right = json.loads(original)
    right = (right["findings"][0] if "." in field else right)[field.rpartition(".")[2]]
    for value in WRONG:
        path.write_text(original)
        edited(path, lambda d, v=value: (d["findings"][0] if "." in field else d).update({field.rpartition(".")[2]: v}))
        numbers = isinstance(right, float) and type(value) in (int, float) and abs(value) < 1e300
        if (type(value) is type(right) and value != 10**310 and field not in ("format", "arrays")) or numbers:
            assert main(["report", str(here / "findings"), "--quiet"]) in (0, 2)  # the right type, and perhaps allowed
        else:
            refused(capfd, "report", here / "findings")


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl"])
@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b'"x"', b"7", b"{}", b"\xff", b"[" * 9999, b'{"update": ' + b"1" * 310]
)
def test_wrong_content_of_a_runs_files(here, capfd, name, content) -> None:
    (here / "run" / name).write_bytes(content + b"\n")
    if name == "metrics.jsonl":
        refused(capfd, "compare", here / "run")
    elif name == "summary.json":
        refused(capfd, "resume", here / "run")
    else:
        refused(capfd, "evaluate", here / "run")


@pytest.mark.parametrize(
    "field", ["outcome", "updates", "metric", "best", "held_out", "parameters", "seconds", "changes"]
)
def test_wrong_types_in_a_summary(here, capfd, field) -> None:
    for value in ({"x": "y"}, [[]], True, 10**310):
        edited(here / "run/summary.json", lambda d, v=value: d.update({field: v}))
        refused(capfd, "resume", here / "run")
        refused(capfd, "compare", here / "run")


def test_values_above_the_largest_that_can_be_drawn(here) -> None:
    path = here / "findings"
    values = np.array([1.7e308, -1.7e308, 1.6e307, 1e308, 5e-324])
    for name in ("horizon", "lyapunov", "mine"):
        finding = Finding(
            name, "x", "estimated", figures={"horizon": 1.7e308}, series={"input_gradient": values, "x": values}
        )
        Examination({name: finding}, "x", {"needs": "1e308"}).save(path)
        assert main(["report", str(path), "--figures", "svg", "--quiet"]) == 0
    metrics = here / "run/metrics.jsonl"
    records = [{"update": 1, "split": "valid", "loss": 1.7e308, "accuracy": -1.7e308}]
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["compare", str(here / "run"), "--quiet"]) == 0


@pytest.mark.parametrize("at", range(0, 120, 7))
def test_broken_header_of_an_array(here, at) -> None:
    data = bytearray((here / "inputs.npy").read_bytes())
    data[at] ^= 0x5A
    (here / "inputs.npy").write_bytes(data)
    with contextlib.suppress(MnemoscopeError):  # a flipped byte may also leave another valid header
        read_inputs(here / "inputs.npy")


@pytest.mark.parametrize("at", range(30, 900, 70))
def test_flipped_byte_in_a_torch_file(here, capfd, at) -> None:
    data = bytearray((here / "weights.pt").read_bytes())
    data[at % len(data)] ^= 0x10
    (here / "weights.pt").write_bytes(data)
    refused(capfd, "examine", "GRU", "--checkpoint", "weights.pt", "--out", "o")


@pytest.mark.parametrize("name", ["checkpoints", "config.json", "summary.json", "metrics.jsonl"])
def test_file_where_a_folder_should_be_and_the_reverse(here, capfd, name) -> None:
    path = here / "run" / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("x")
        refused(capfd, "evaluate", here / "run")
        (here / "run/summary.json").unlink()
        refused(capfd, "resume", here / "run")
    else:
        path.unlink()
        path.mkdir()
        refused(capfd, "compare", here / "run")


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\x1b[31mred", b"a b#c%d?e&f<g>", "naïve ü".encode()])
def test_strange_names_of_folders(here, capfd, name) -> None:
    (here / "runs").mkdir()
    run = (here / "run").rename(here / "runs" / os.fsdecode(name))
    shutil.copytree(here / "findings", run / "examination")
    assert main(["report", str(run)]) == 0
    assert main(["compare", str(run), "--figure", "f.svg"]) == 0
    assert main(["report", str(here / "runs")]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    assert all(c.isprintable() or c == "\n" for c in printed.out)
    index = (here / "runs/index.html").read_text()
    [link] = re.findall(r'<a href="([^"]*)">', index)
    assert Path(os.fsdecode(os.fsencode(here / "runs") + b"/" + unquote_to_bytes(link))).is_file()
    assert not set(link) & set(" #?<>\x1b")
    (run / "config.json").write_text("{")
    refused(capfd, "evaluate", run)


def test_escapes_from_files_are_shown(here, capfd) -> None:
    edited(here / "run/config.json", lambda d: d["network"].update(model="\x1b]0;mine\x07"))
    assert main(["compare", "run"]) == 0
    printed = capfd.readouterr()
    assert "\\x1b]0;mine\\x07" in printed.out
    assert "\x1b]" not in printed.out + printed.err
    edited(here / "run/config.json", lambda d: d["task"].update(name="\x1b[2J\x9b"))
    assert "\\x1b[2J" in refused(capfd, "train", "--config", "run/config.json")


def test_visible() -> None:
    for text in ("plain ü 日本\n", "99.7\u00a0%", "日\u3000本"):
        assert visible(text) == text
    assert visible("\x1b[31m\x9b\r\t\u202e\udcff") == r"\x1b[31m\x9b\r\t\u202e\udcff"


def test_text_that_unpacks_to_too_much_is_refused(here, monkeypatch, capfd) -> None:
    monkeypatch.setattr(corpora, "MAX_TEXT_BYTES", 10_000)
    monkeypatch.setattr(corpora, "MAX_WORDS", 50)
    (here / "bomb.gz").write_bytes(gzip.compress(b"a" * 20_000))
    (here / "words.txt").write_text(" ".join(map(str, range(100))))
    for data in ("bomb.gz", "words.txt"):
        refused(capfd, "train", "words", "--task.data", data, "--out", "o")


@pytest.mark.parametrize("kind", [Characters, Words])
def test_text_takes_a_few_bytes_a_character_while_it_is_encoded(tmp_path, kind) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a b c d " * 400_000)
    tracemalloc.start()
    try:
        kind(str(path)).corpus  # noqa: B018
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * path.stat().st_size + 100e6  # and a block at a time beside it


def test_words_are_numbered_by_frequency_then_by_first_occurrence(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(corpora, "_BLOCK", 7)  # many blocks
    path = tmp_path / "text.txt"
    path.write_text("b a a c b a\nd c  b\ta <unk>\n" * 20)
    corpus = Words(str(path)).corpus
    assert corpus.symbols == ("a", "b", "c", "<eos>", "d", "<unk>")
    words = [corpus.symbols[i] for i in torch.cat([corpus.train, corpus.valid, corpus.test])]
    assert words == path.read_text().replace("\n", " <eos> ").split()
    assert Words(str(path), vocabulary=2).corpus.symbols == ("a", "b", "<unk>")


def test_error_of_the_system_is_one_line(here, capfd, monkeypatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(30, "Read-only file system", "somewhere")

    monkeypatch.setattr(os, "open", fail)
    assert "Read-only file system" in refused(capfd, "train", "copy", "--out", "new")
    monkeypatch.undo()
    with pytest.raises(MnemoscopeError):
        Examination.load(here / "nowhere")
