"""A run that was stopped, or killed, and resumed is the run that never was."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from mnemoscope import MnemoscopeError
from mnemoscope.files import to_json
from mnemoscope.tasks import Characters, Copy, Gaussian, Symbols
from mnemoscope.training import FitConfig, NetworkConfig, Run, RunConfig, Stop, fit, initial_model, resume, train

FIT = FitConfig(
    updates=24, batch_size=4, evaluate_every=5, evaluate_batches=1, log_every=4, checkpoint_every=7, threads=1
)
SMALL = NetworkConfig(model="torch.LSTM", hidden_size=8)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join("abcdefgh"[i * i % 8] + " the sea"[i % 8] for i in range(1500)))
    return path


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a run folder that must not depend on when it was stopped."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    summary = json.loads(found.pop("summary.json"))
    del summary["seconds"], summary["updates_per_second"]
    return {**found, "summary": json.dumps(summary).encode()}


def stop_at(update: int):
    def callback(progress):
        if progress.update == update:
            raise Stop

    return callback


def variants(text: Path) -> dict[str, RunConfig]:
    copy, characters = Copy(T=3), Characters(data=str(text), bptt=20)
    return {
        "adam": RunConfig(copy, SMALL, FIT),
        "dropout": RunConfig(copy, replace(SMALL, num_layers=2, dropout=0.3), FIT),
        "sgd, 1/t": RunConfig(copy, SMALL, replace(FIT, optimizer="sgd", momentum=0.9, schedule="inverse", lr=0.5)),
        "rmsprop, steps": RunConfig(copy, SMALL, replace(FIT, optimizer="rmsprop", schedule="step", step_every=6)),
        "plateau, carried": RunConfig(characters, SMALL, replace(FIT, schedule="plateau", lr=0.3)),
        "carried memory": RunConfig(characters, NetworkConfig("RelLSTM", 8, options={"buffer": 3, "relevant": 2}), FIT),
        "groups": RunConfig(copy, NetworkConfig("ExpRNN", 8), FIT),
        "accumulated, recorded": RunConfig(copy, SMALL, replace(FIT, accumulate=3, record_every=5, bptt=6)),
        "scaled clip": RunConfig(copy, SMALL, replace(FIT, clip=0.1, scale_clip=True)),
        "milestones, ids": RunConfig(
            replace(characters, ids=True),
            NetworkConfig("torch.RNN", 8, embedding=8, tied=True, init="uniform"),
            replace(FIT, schedule="milestones", milestones=(4, 9, 11), stable=1.0),
        ),
        "snapshots, training data": RunConfig(
            copy, SMALL, replace(FIT, snapshot_every=10, snapshot_at=(3, 22), evaluate_train=True)
        ),
        "full attention, memory of 5": RunConfig(characters, NetworkConfig("MemLSTM", 8), replace(FIT, carry_memory=5)),
        "full attention, emptied": RunConfig(characters, NetworkConfig("MemRNN", 8), replace(FIT, carry_memory=0)),
        "truncated": RunConfig(characters, NetworkConfig("LSTM", 8, truncated=4), FIT),
        "system": RunConfig(
            Gaussian(T=12, features=3, hidden=4),
            NetworkConfig("LinearSystem", 4, init="system", skip=True, truncated=5),
            replace(FIT, batch_size=1, precision="64-true", schedule="inverse", optimizer="sgd", stable=0.75),
        ),
        "bf16": RunConfig(copy, NetworkConfig("LSTM", 8), replace(FIT, precision="bf16-mixed")),
    }


NAMES = list(variants(Path()))


@pytest.mark.parametrize("name", NAMES)
def test_resume_is_bit_for_bit(name: str, tmp_path: Path, text: Path, request) -> None:
    config = variants(text)[name]
    if name == "bf16":  # some virtual machines announce the tiles that oneDNN then uses, and do not have them
        torch.backends.mkldnn.set_flags(False)
        request.addfinalizer(lambda: torch.backends.mkldnn.set_flags(True))
    train(config, tmp_path / "whole")
    with pytest.raises(Stop):
        train(config, tmp_path / "parts", stop_at(9))  # between a record, an evaluation and a checkpoint
    with pytest.raises(Stop):
        resume(tmp_path / "parts", stop_at(22))
    resume(tmp_path / "parts")
    whole, parts = files(tmp_path / "whole"), files(tmp_path / "parts")
    kept = {name for name in whole if "checkpoints/" not in name or "best" in name or "00000024" in name}
    assert {name: whole[name] for name in kept} == {name: parts[name] for name in kept}


def test_snapshots_have_the_weights_of_their_updates(tmp_path: Path) -> None:
    """Two updates an epoch: the initial weights, every second epoch, and epoch 5."""
    task = Symbols(T=4, first=0, second=2, window=1, sequences=10)
    fit = replace(FIT, epochs=6, snapshot_every=2, snapshot_at=(5,), record_every=1, stop_when_solved=False)
    train(RunConfig(task, NetworkConfig("RNN", 4), replace(fit, stable=0.5)), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.snapshots() == [0, 4, 8, 10, 12]
    updates, path = run.trajectory()
    for update in run.snapshots():
        model = run.model(update)
        assert run.snapshot(update).keys() == model.state_dict().keys()
        vector = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        assert torch.equal(vector, path[updates.index(update)])
    assert torch.linalg.matrix_norm(run.snapshot(0)["layer.weight_hh_l0"], 2) <= 0.5  # begun inside the stable set
    with pytest.raises(MnemoscopeError, match=r"has no snapshot of update 3; it has those of 0, 4, 8, 10, 12"):
        run.model(3)


def test_a_run_without_snapshots_says_how_to_take_them(tmp_path: Path) -> None:
    train(RunConfig(Copy(T=3), SMALL, replace(FIT, updates=1)), tmp_path / "run")
    assert Run(tmp_path / "run").snapshots() == []
    assert not (tmp_path / "run/snapshots").exists()
    with pytest.raises(MnemoscopeError, match="it has none: train with snapshot-every or snapshot-at"):
        Run(tmp_path / "run").snapshot(0)


def test_a_damaged_snapshot_is_refused_in_one_line(tmp_path: Path) -> None:
    train(RunConfig(Copy(T=3), SMALL, replace(FIT, updates=1, snapshot_every=1)), tmp_path / "run")
    (tmp_path / "run/snapshots/00000001.safetensors").write_bytes(b"nothing")
    with pytest.raises(MnemoscopeError, match=r"00000001.safetensors is not a safetensors file"):
        Run(tmp_path / "run").model(1)


def test_resume_of_a_finished_run_returns_its_summary(tmp_path: Path) -> None:
    config = RunConfig(Copy(T=3), SMALL, FIT)
    summary = train(config, tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.*")}
    assert resume(tmp_path / "run") == summary
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.*")} == before


def test_last_three_checkpoints_are_kept(tmp_path: Path) -> None:
    train(RunConfig(Copy(T=3), SMALL, FIT), tmp_path / "run")
    kept = sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir())
    numbers = ["00000014", "00000021", "00000024"]
    assert kept[:6] == [f"{n}{suffix}" for n in numbers for suffix in (".json", ".safetensors")]
    assert kept[6:] == ["best-00000005.safetensors", "best.json"]


def test_damaged_checkpoint_is_skipped_for_an_older_one(tmp_path: Path, caplog) -> None:
    config = RunConfig(Copy(T=3), SMALL, FIT)
    train(config, tmp_path / "whole")
    with pytest.raises(Stop):
        train(config, tmp_path / "parts", stop_at(20))
    newest = tmp_path / "parts/checkpoints/00000020.safetensors"
    data = bytearray(newest.read_bytes())
    data[-5] ^= 1
    newest.write_bytes(data)
    resume(tmp_path / "parts")
    assert "00000020.safetensors is damaged" in caplog.text
    assert "going back to update 14" in caplog.text
    whole, parts = files(tmp_path / "whole"), files(tmp_path / "parts")
    assert whole["metrics.jsonl"] == parts["metrics.jsonl"]
    assert whole["checkpoints/00000024.safetensors"] == parts["checkpoints/00000024.safetensors"]


OLD_OPTIONS = (
    "nonlinearity buffer relevant mix output decay refresh store_every top truncation recurrent_init trivialization "
    "layout rotations checkpoint preactivation"
)


def as_old_run_folder(folder: Path) -> None:
    """Rewrite a run folder as the first version wrote it: null options, and another name in checkpoints."""
    config = json.loads((folder / "config.json").read_text())
    del config["environment"]
    config["network"] |= {name: config["network"].get(name) for name in OLD_OPTIONS.split()}
    (folder / "config.json").write_bytes(to_json(config, indent=2))
    for path in folder.glob("checkpoints/*.json"):
        body = json.loads(path.read_text())
        del body["sha256"]
        body["format"] = 1
        path.with_name(body.pop("tensors")).rename(path.with_suffix(".safetensors"))
        if path.stem != "best":
            body["numbers"]["standing"] = body["numbers"].pop("best_so_far")
            body["numbers"]["config_sha256"] = hashlib.sha256(to_json(config)).hexdigest()
            body["numbers"]["torch"] = body["numbers"].pop("environment")["torch"]
            del body["numbers"]["changes"]
        path.write_bytes(to_json({**body, "sha256": hashlib.sha256(to_json(body)).hexdigest()}, indent=1))


def test_old_run_folder_is_loaded_and_resumed(tmp_path: Path) -> None:
    network = NetworkConfig("RelLSTM", 8, options={"buffer": 3, "relevant": 2})
    config = RunConfig(Copy(T=3), network, FIT)
    train(config, tmp_path / "whole")
    with pytest.raises(Stop):
        train(config, tmp_path / "old", stop_at(9))
    as_old_run_folder(tmp_path / "old")
    before = (tmp_path / "old/config.json").read_bytes()
    assert Run(tmp_path / "old").config == config
    assert Run(tmp_path / "old").checkpoint("best").update == 5
    resume(tmp_path / "old")
    whole, old = files(tmp_path / "whole"), files(tmp_path / "old")
    for name in ("metrics.jsonl", "checkpoints/00000024.safetensors", "summary"):
        assert whole[name] == old[name]
    assert whole["checkpoints/best-00000005.safetensors"] == old["checkpoints/best.safetensors"]
    assert old["config.json"] == before


def test_threads_are_recorded_for_resume(tmp_path: Path) -> None:
    train(RunConfig(Copy(T=3), SMALL, replace(FIT, threads=0, updates=2)), tmp_path / "run")
    assert Run(tmp_path / "run").config.fit.threads >= 1


LONG = replace(FIT, updates=10, stop_when_solved=False)


def test_a_finished_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Also from an end between checkpoints and logged averages, and twice."""
    config = RunConfig(Copy(T=3), SMALL, LONG)
    train(replace(config, fit=replace(LONG, updates=20)), tmp_path / "whole")
    train(config, tmp_path / "run")
    resume(tmp_path / "run", updates=15)
    summary = resume(tmp_path / "run", updates=20)
    assert summary.updates == 20
    assert [str(change) for change in summary.changes] == [
        "updates changed at update 10: 10 before, 15 now",
        "updates changed at update 15: 15 before, 20 now",
    ]
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    assert run.files.metrics.read_bytes() == whole.files.metrics.read_bytes()
    for name, tensor in whole.checkpoint().tensors.items():
        assert torch.equal(run.checkpoint().tensors[name], tensor), name
    assert run.config == whole.config
    assert json.loads(run.files.config.read_text())["earlier_updates"] == [10, 15]
    assert resume(tmp_path / "run") == resume(tmp_path / "run", updates=20) == summary


def test_a_run_that_was_killed_as_it_was_given_more_updates_goes_on(tmp_path: Path) -> None:
    train(RunConfig(Copy(T=3), SMALL, LONG), tmp_path / "run")
    with pytest.raises(Stop):
        resume(tmp_path / "run", stop_at(10), updates=12)
    assert resume(tmp_path / "run").updates == 12


@pytest.mark.parametrize("updates", [None, 20])
@pytest.mark.parametrize("damage", ["checkpoints", "metrics", "model"])
def test_what_cannot_be_resumed_keeps_its_summary(tmp_path: Path, damage: str, updates: int | None) -> None:
    """It says how the run ended, or why it failed: nothing else does."""
    config = RunConfig(Copy(T=3), SMALL, LONG)
    train(config, tmp_path / "run")
    run = Run(tmp_path / "run")
    if updates is None:  # a run that has ended well is not begun again
        summary = json.loads(run.files.summary.read_text()) | {"outcome": "diverged", "message": "the loss is nan"}
        run.files.summary.write_bytes(to_json(summary))
    if damage == "checkpoints":
        for path in run.files.checkpoints.glob("*.safetensors"):
            path.write_bytes(b"")
    if damage == "metrics":
        run.files.metrics.write_bytes(b"")
    before = files(tmp_path / "run")
    model = initial_model(config)
    if damage == "model":
        model.more = nn.Linear(1, 1)
    longer = replace(LONG, updates=updates or LONG.updates)
    with pytest.raises(MnemoscopeError, match="it lacks" if damage == "model" else "damaged"):
        fit(model, config.task, longer, tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == before


def test_a_run_that_has_lost_its_checkpoints_says_that_it_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(RunConfig(Copy(T=3), SMALL, LONG), tmp_path / "run")
    before = Run(tmp_path / "run").files.metrics.read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "summary.json").unlink()
    resume(tmp_path / "run")
    assert "run has records and no checkpoint any more; it begins anew" in caplog.text
    assert Run(tmp_path / "run").files.metrics.read_bytes() == before


def test_more_updates_are_refused_where_the_run_would_not_be_a_longer_one(tmp_path: Path, text: Path) -> None:
    runs = {
        "shorter": (Copy(T=3), LONG, "has a budget of 10 updates; --updates 9 must not be less"),
        "epochs": (Characters(data=str(text), bptt=20), replace(LONG, epochs=1), "is in epochs, not in updates"),
        "plateau": (Copy(T=3), replace(LONG, schedule="plateau", updates=3), "its plateau schedule counted"),
    }
    for name, (task, config, said) in runs.items():
        train(RunConfig(task, SMALL, config), tmp_path / name)
        before = files(tmp_path / name)
        with pytest.raises(MnemoscopeError, match=said):
            resume(tmp_path / name, updates=9)
        assert files(tmp_path / name) == before


def test_a_solved_run_does_not_go_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Copy, "solved", 0.0)
    train(RunConfig(Copy(T=3), SMALL, replace(FIT, updates=5)), tmp_path / "run")
    with pytest.raises(MnemoscopeError, match=r"solved its task after 5 updates.*--no-stop-when-solved"):
        resume(tmp_path / "run", updates=9)
