"""Files of runs and findings made by somebody else: links, FIFOs, devices and names lead nowhere and block nothing."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope import files
from mnemoscope.cli import main
from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Examination, Finding

pytestmark = pytest.mark.timeout(240)  # instead of waiting forever for the other end of a FIFO


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = ["--task.T", "3", "--hidden-size", "4", "--batch-size", "2", "--updates", "2", "--evaluate-every", "1"]
    assert main(["train", "copy", "--model", "RNN", *options, "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def refused(capsys, *words):
    assert main([str(word) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def everything_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def save_findings(folder, scope="horizon"):
    finding = Finding(scope, "It reaches back.", "estimated", series={"decay": np.arange(5.0)})
    Examination({scope: finding}, "A verdict.").save(folder)


def test_scope_with_dots_and_slashes_writes_its_figures_inside_the_folder(tmp_path):
    folder = tmp_path / "a/b/findings"
    save_findings(folder, "../../../x")
    assert main(["report", str(folder), "--figures", "svg", "--quiet"]) == 0
    assert list(folder.glob("figures/*.svg"))
    assert {path.parent for path in everything_below(tmp_path)} == {folder, folder / "figures"}


@pytest.mark.parametrize("command", ["examine", "report"])
def test_examination_that_is_a_link_is_refused(run, tmp_path, capsys, command):
    save_findings(tmp_path / "elsewhere")
    before = everything_below(tmp_path / "elsewhere")
    (run / "examination").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refused(capsys, command, run, "--quiet")
    assert everything_below(tmp_path / "elsewhere") == before


def test_figures_folder_that_is_a_link_is_refused(tmp_path, capsys):
    save_findings(tmp_path / "findings")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "findings/figures").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refused(capsys, "report", tmp_path / "findings", "--figures", "svg")
    assert not list((tmp_path / "elsewhere").iterdir())


def replace(path, kind, tmp_path):
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        (tmp_path / "target").touch()
        path.symlink_to(tmp_path / "target")


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "link"])
@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "summary.json", "00000002.json", "00000002.safetensors"]
)
def test_only_regular_files_of_a_run_are_opened(run, tmp_path, capsys, name, kind):
    path = next(run.rglob(name))
    for checkpoint in run.glob("checkpoints/*"):  # leave no other to go back to
        if checkpoint.stem != "00000002":
            checkpoint.unlink()
    replace(path, kind, tmp_path)
    if name == "summary.json":
        refused(capsys, "resume", run, "--quiet")
    if "checkpoints" not in path.parts:
        refused(capsys, "compare", run, "--quiet", "--figure", tmp_path / "f.png")
    if name not in ("metrics.jsonl", "summary.json"):
        refused(capsys, "evaluate", run)
    assert not list(run.glob("**/.*.tmp"))


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "link"])
@pytest.mark.parametrize("name", ["findings.json", "arrays-*.safetensors"])
def test_only_regular_files_of_findings_are_opened(tmp_path, capsys, name, kind):
    save_findings(tmp_path / "findings")
    replace(next((tmp_path / "findings").glob(name)), kind, tmp_path)
    refused(capsys, "report", tmp_path / "findings")


@pytest.mark.parametrize("option", ["--checkpoint", "--inputs"])
@pytest.mark.parametrize("suffix", [".npy", ".pt", ".safetensors"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_weights_and_inputs_must_be_regular_files(tmp_path, capsys, option, suffix, kind):
    path = tmp_path / f"file{suffix}"
    path.touch()
    replace(path, kind, tmp_path)
    assert "is not a regular file" in refused(capsys, "examine", "GRU", option, path, "--out", tmp_path / "o")


def test_file_that_is_too_large_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "findings.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(MnemoscopeError, match="are more than"):
        Examination.load(tmp_path)
    with pytest.raises(MnemoscopeError, match="are more than"):
        files.read_bytes(path)


def test_file_that_the_user_names_may_be_a_link(tmp_path):
    (tmp_path / "data").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert files.read_json(tmp_path / "link", follow=True) == 1
    with pytest.raises(MnemoscopeError, match="it is a link"):
        files.read_json(tmp_path / "link")


def test_writes_do_not_follow_links_or_wait_for_fifos(tmp_path):
    (tmp_path / "data").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(MnemoscopeError, match="cannot write"):
            files.append(tmp_path / name, b"new")
        with pytest.raises(MnemoscopeError, match="cannot write"):
            files.truncate(tmp_path / name, 0)
        files.write_atomic(tmp_path / name, b"new")  # replaces the link itself
        assert (tmp_path / name).read_bytes() == b"new"
    assert (tmp_path / "data").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"data", "link", "fifo"}


@given(st.text())
def test_safe_name_is_one_part_of_a_path(name):
    safe = files.safe_name(name)
    assert Path("folder", safe).parent == Path("folder")
    assert safe not in ("", ".", "..")
    assert not safe.startswith(".")
    assert len(safe.encode()) <= files.MAX_NAME_BYTES


@pytest.mark.parametrize("text", ["1" * 310, "1e999", "NaN", "[" * 100_000, "9" * 5000, ""])
def test_json_numbers_that_no_float_holds_are_refused(text):
    with pytest.raises(MnemoscopeError, match="x is not valid JSON"):
        files.parse_json(text.encode(), "x")


def test_json_is_utf_8() -> None:
    assert files.parse_json('\ufeff{"a": "ä"}'.encode(), "x") == {"a": "ä"}  # some editors write a byte order mark
    for encoding in ("utf-16", "utf-32", "latin-1"):
        with pytest.raises(MnemoscopeError, match="x is not valid JSON: 'utf-8' codec"):
            files.parse_json('{"ä": "\\ud800"}'.encode(encoding), "x")
