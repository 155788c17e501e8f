"""A resumed run says what changed since it was stopped: data, versions, metrics.jsonl."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import Path

import pytest

from mnemoscope.cli import main
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import to_json
from mnemoscope.tasks import Characters, Copy, Words
from mnemoscope.tasks import _corpora as corpora
from mnemoscope.training import Change, FitConfig, NetworkConfig, Run, RunConfig, Stop, resume, train

FIT = FitConfig(
    updates=12, batch_size=2, evaluate_every=4, evaluate_batches=1, log_every=2, checkpoint_every=4, threads=1
)
SMALL = NetworkConfig("torch.RNN", 4)
TEXT = "".join("abcdefgh"[i * i % 8] + " the sea"[i % 8] for i in range(500))


def stop(progress) -> None:
    if progress.update == 5:
        raise Stop


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run on a text, stopped at its fifth update."""
    (tmp_path / "text.txt").write_text(TEXT)
    config = RunConfig(Characters(data=str(tmp_path / "text.txt"), bptt=5), SMALL, FIT)
    with pytest.raises(Stop):
        train(config, tmp_path / "run", stop)
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def forget_texts():
    """Texts are kept in memory by their paths; here they change on disk."""
    corpora.characters.cache_clear()


@pytest.fixture
def new_text(stopped: Path) -> None:
    (stopped.parent / "text.txt").write_text(TEXT[:-40] + "h" * 40)
    corpora.characters.cache_clear()


def test_config_and_checkpoint_hold_data_versions_kernels_and_threads(stopped: Path) -> None:
    recorded = json.loads((stopped / "config.json").read_text())["environment"]
    assert len(recorded["data_sha256"]) == 64
    assert recorded["threads"] == 1
    assert all(recorded[name] for name in ("mnemoscope", "torch", "kernels"))
    checkpoint = json.loads((stopped / "checkpoints/00000005.json").read_text())
    assert checkpoint["numbers"]["environment"] == recorded


@pytest.mark.usefixtures("new_text")
def test_other_data_are_refused(stopped: Path, capsys) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*.*")}
    assert main(["resume", str(stopped), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mnemoscope: the data are not those of the run")
    assert "--allow-changed data" in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in stopped.rglob("*.*")} == before


def test_other_data_that_make_another_model_are_called_other_data(stopped: Path) -> None:
    (stopped.parent / "text.txt").write_text(TEXT + "a letter more: z")
    corpora.characters.cache_clear()
    with pytest.raises(MnemoscopeError, match="the data are not those of the run"):
        resume(stopped)


@pytest.mark.usefixtures("new_text")
def test_other_data_that_are_allowed_are_written_down(stopped: Path) -> None:
    assert main(["resume", str(stopped), "--quiet", "--allow-changed", "data"]) == 0
    [change] = Run(stopped).summary().changes
    recorded = json.loads((stopped / "config.json").read_text())["environment"]
    assert (change.update, change.what, change.before) == (5, "data", recorded["data_sha256"])
    last = json.loads((stopped / "checkpoints/00000012.json").read_text())["numbers"]
    assert last["environment"]["data_sha256"] == change.after != change.before
    assert last["changes"] == [vars(change)]


@pytest.mark.usefixtures("new_text")
def test_a_change_is_allowed_once(stopped: Path) -> None:
    def stop_later(progress) -> None:
        if progress.update == 9:
            raise Stop

    with pytest.raises(Stop):
        resume(stopped, stop_later, allow_changed=["data"])
    assert [change.what for change in resume(stopped).changes] == ["data"]  # the checkpoint knows the new data


def test_generated_data_are_compared_by_their_first_batch(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(Stop):
        train(RunConfig(Copy(T=3), SMALL, FIT), tmp_path / "run", stop)
    batch = Copy._batch
    monkeypatch.setattr(Copy, "_batch", lambda self, step, size, split: batch(self, step + 1, size, split))
    with pytest.raises(MnemoscopeError, match="the data are not those of the run"):
        resume(tmp_path / "run")


def test_other_versions_are_a_warning_and_in_the_summary(stopped: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr("torch.__version__", "9.9")
    with caplog.at_level(logging.WARNING):
        summary = resume(stopped)
    assert [(change.what, change.after) for change in summary.changes] == [("torch", "9.9")]
    assert "torch changed at update 5" in caplog.text
    assert Run(stopped).summary() == summary


def test_nothing_changed_is_nothing_said(stopped: Path, caplog) -> None:
    assert resume(stopped).changes == ()
    assert not caplog.text


def test_unknown_change_is_refused(stopped: Path) -> None:
    with pytest.raises(MnemoscopeError, match="what may change are data and metrics"):
        resume(stopped, allow_changed=["weather"])  # type: ignore[list-item]


@pytest.mark.parametrize("damage", ["lost", "edited", "emptied", "no text"])
def test_metrics_that_were_lost_or_edited_do_not_cost_the_weights(stopped: Path, damage: str, capsys) -> None:
    path = stopped / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    edited = [lines[0].replace(b"0.", b"1.", 1), b"x\n", *lines[2:]]
    content = {"lost": b"", "edited": b"".join(edited), "emptied": b"", "no text": b"\xff"}
    path.write_bytes(content[damage])
    if damage == "lost":
        path.unlink()
    assert main(["resume", str(stopped), "--quiet"]) == 2
    assert "--allow-changed metrics" in capsys.readouterr().err
    assert main(["evaluate", str(stopped), "--batches", "1", "--batch-size", "2", "--quiet"]) == 0
    assert main(["resume", str(stopped), "--quiet", "--allow-changed", "metrics"]) == 0

    # Every record after the checkpoint is there, and of those before it what could be read.
    records = Run(stopped).metrics()
    assert [record["update"] for record in records if record["update"] > 5] == [6, 8, 8, 10, 12, 12]
    assert len(records) - 6 == (len(lines) - 1 if damage == "edited" else 0)
    assert [change.what for change in Run(stopped).summary().changes] == ["metrics"]
    assert main(["compare", str(stopped), "--quiet", "--figure", str(stopped.parent / "f.png")]) == 0


def test_weights_are_those_of_a_run_whose_metrics_were_not_lost(stopped: Path) -> None:
    other = Path(shutil.copytree(stopped, stopped.parent / "other"))
    (other / "metrics.jsonl").unlink()
    resume(stopped)
    resume(other, allow_changed=["metrics"])
    name = "checkpoints/00000012.safetensors"
    assert (stopped / name).read_bytes() == (other / name).read_bytes()


def test_data_paths_are_absolute(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    for task in (Characters, Words):
        assert task(data="text.txt").data == str(tmp_path / "text.txt")
        assert task(data="ptb").data == "ptb"
    with pytest.raises(Stop):
        train(RunConfig(Characters(data="text.txt", bptt=5), SMALL, FIT), tmp_path / "run", stop)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resume("../run")


def test_run_and_text_can_be_moved_together(stopped: Path, tmp_path: Path) -> None:
    new = tmp_path / "moved"
    new.mkdir()
    shutil.move(stopped, new / "run")
    shutil.move(stopped.parent / "text.txt", new / "text.txt")
    corpora.characters.cache_clear()
    assert resume(new / "run").changes == ()


def test_run_of_an_older_version_is_resumed(stopped: Path) -> None:
    """Its checkpoints have no environment: nothing can be compared, and nothing is claimed."""
    for path in stopped.glob("checkpoints/0*.json"):
        body = json.loads(path.read_text())
        del body["sha256"], body["numbers"]["environment"], body["numbers"]["changes"]
        path.write_bytes(to_json({**body, "sha256": hashlib.sha256(to_json(body)).hexdigest()}))
    assert resume(stopped).changes == ()


def test_change_in_words() -> None:
    assert str(Change(5, "torch", "2.11", "2.13")) == "torch changed at update 5: 2.11 before, 2.13 now"
