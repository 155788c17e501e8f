"""Damaged and hostile run folders: one clear line, no traceback, nothing written elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mnemoscope.cli import main
from mnemoscope.tasks import Characters, Copy
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, Stop, train

pytest.importorskip("tyro")

CONFIG = RunConfig(
    Copy(T=3),
    NetworkConfig("torch.RNN", 4),
    FitConfig(6, batch_size=2, evaluate_every=2, evaluate_batches=1, log_every=1, checkpoint_every=4, threads=1),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped at its fourth update."""

    def stop(progress: Any) -> None:
        if progress.update == 4:
            raise Stop

    folder = tmp_path_factory.mktemp("fuzz") / "template"
    with pytest.raises(Stop):
        train(CONFIG, folder, stop)
    return folder


def copy_of(template: Path) -> Path:
    folder = template.parent / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(template, folder))


def outside(folder: Path) -> dict[str, bytes]:
    others = (p for p in sorted(folder.parent.rglob("*")) if p.is_file() and folder not in p.parents)
    return {str(p): p.read_bytes() for p in others}


def one_line(arguments: list[str], capfd: Any, folder: Path) -> tuple[int, str]:
    """Run a command that may fail only in one line, and write only inside `folder`."""
    before = outside(folder)
    capfd.readouterr()
    code = main(arguments)
    error = capfd.readouterr().err
    assert code in (0, 2, 3)
    assert "Traceback" not in error
    if code:
        assert error.startswith("mnemoscope: ")
        assert error.count("\n") == 1
    assert outside(folder) == before
    return code, error


edits = st.tuples(st.sampled_from(["cut", "flip", "insert", "delete"]), st.floats(0, 1), st.integers(0, 255))
quickly = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def edited(data: bytes, edit: tuple[str, float, int]) -> bytes:
    kind, where, byte = edit
    index = int(where * max(len(data) - 1, 0))
    match kind:
        case "cut":
            return data[:index]
        case "flip":
            return data[:index] + bytes([data[index] ^ (1 << byte % 8)]) + data[index + 1 :]
        case "insert":
            return data[:index] + bytes([byte]) + data[index:]
        case _:
            return data[:index] + data[index + 1 :]


FILES = ["config.json", "metrics.jsonl", "checkpoints/00000004.json", "checkpoints/00000004.safetensors"]


@pytest.mark.parametrize("name", FILES)
@quickly
@given(edit=edits)
def test_damaged_file_never_changes_a_resumed_run(name: str, edit, template: Path, capfd) -> None:
    folder = copy_of(template)
    expected = (template.parent / "resumed").with_suffix(".jsonl")
    original = (folder / name).read_bytes()
    (folder / name).write_bytes(edited(original, edit))
    if not expected.exists():
        whole = shutil.copytree(template, template.parent / "whole")
        assert main(["resume", str(whole), "--quiet"]) == 0
        expected.write_bytes((whole / "metrics.jsonl").read_bytes())
    code, _ = one_line(["resume", str(folder), "--quiet"], capfd, folder)
    if code == 0:
        assert (folder / "metrics.jsonl").read_bytes() == expected.read_bytes()


@quickly
@given(edit=edits)
def test_damaged_config_is_refused_or_valid(edit, template: Path, capfd) -> None:
    folder = copy_of(template)
    path = template.parent / "config.json"
    path.write_bytes(edited((folder / "config.json").read_bytes(), edit))
    shutil.rmtree(folder)
    one_line(["train", "--config", str(path), "--out", str(folder), "--quiet", "--updates", "1"], capfd, folder)


values = st.recursive(
    st.none() | st.booleans() | st.sampled_from([-1, 0, 7, 10**30, 0.5, 1e400, "x", "", "../../x", "torch.LSTM"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "T", "x"]), inner, max_size=2),
    max_leaves=4,
)
FIELDS = [(part, name) for part, section in CONFIG.to_dict().items() for name in section]


@settings(quickly, max_examples=80)
@given(field=st.sampled_from(FIELDS), value=values)
def test_wrong_values_in_config(field: tuple[str, str], value: Any, template: Path, capfd) -> None:
    folder = copy_of(template)
    config = json.loads((folder / "config.json").read_text())
    config[field[0]][field[1]] = value
    (folder / "config.json").write_text(json.dumps(config))
    one_line(["evaluate", str(folder), "--batches", "1", "--batch-size", "2", "--quiet"], capfd, folder)


@quickly
@given(edit=edits)
def test_damaged_metrics_record_does_not_break_compare(edit, template: Path, capfd) -> None:
    folder = copy_of(template)
    (folder / "metrics.jsonl").write_bytes(edited((folder / "metrics.jsonl").read_bytes(), edit))
    one_line(["compare", str(folder), "--quiet", "--figure", str(folder / "figure.png")], capfd, folder)


def signed(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Replace the checkpoints' tensors and sign them anew, as only somebody who means it would."""
    for path in folder.glob("checkpoints/0*.json"):
        data = safetensors.torch.save(tensors)
        path.with_suffix(".safetensors").write_bytes(data)
        body = json.loads(path.read_text())
        del body["sha256"]
        body["tensors_sha256"] = hashlib.sha256(data).hexdigest()
        digest = hashlib.sha256((json.dumps(body) + "\n").encode()).hexdigest()
        path.write_text(json.dumps({**body, "sha256": digest}))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "checkpoints/00000004.safetensors")


def test_checkpoint_of_another_model_is_refused(template: Path, capfd) -> None:
    folder = copy_of(template)
    tensors = tensors_of(folder)
    other = {name.replace("layer.", "lstm."): tensor for name, tensor in tensors.items()}
    signed(folder, other)
    for command in ("resume", "evaluate"):
        code, error = one_line([command, str(folder), "--quiet"], capfd, folder)
        assert code == 2
        assert "another model's" in error
        assert "lacks layer." in error


@pytest.mark.parametrize("name", ["model.readout.weight", "optimizer.0.exp_avg", "random.cpu", "pending.values"])
def test_wrong_shapes_in_a_checkpoint_are_refused(name: str, template: Path, capfd) -> None:
    folder = copy_of(template)
    before = (folder / "metrics.jsonl").read_bytes()
    signed(folder, {**tensors_of(folder), name: torch.zeros(3, 5, 7)})
    code, error = one_line(["resume", str(folder), "--quiet"], capfd, folder)
    assert code == 2
    assert "00000004.safetensors" in error
    assert (folder / "metrics.jsonl").read_bytes() == before


ODD_AVERAGES = {
    "0.exp_avg": torch.tensor(1.0),  # crashes torch's fused Adam
    "0.exp_avg_sq": torch.zeros(0),
    "1.exp_avg": torch.zeros(4, 4, dtype=torch.int64),
    "0.step": torch.tensor(-1.0),
    "1.step": torch.tensor(torch.nan),
    "2.step": torch.zeros(4),
    "99.exp_avg": torch.zeros(4),
    "0.square_avg": torch.zeros(4, 10),
}


@pytest.mark.parametrize("name", [*ODD_AVERAGES, "without 0.exp_avg_sq"])
def test_optimizer_averages_that_do_not_fit_are_refused(name: str, template: Path, capfd) -> None:
    folder = copy_of(template)
    tensors = tensors_of(folder)
    if name in ODD_AVERAGES:
        tensors[f"optimizer.{name}"] = ODD_AVERAGES[name]
    else:
        del tensors[f"optimizer.{name.removeprefix('without ')}"]
    signed(folder, tensors)
    code, error = one_line(["resume", str(folder), "--quiet"], capfd, folder)
    assert code == 2
    assert "00000004.safetensors does not fit this run's configuration: optimizer." in error


@pytest.fixture(scope="module")
def carrying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a text, which carries its state from batch to batch, stopped at its fourth update."""

    def stop(progress: Any) -> None:
        if progress.update == 4:
            raise Stop

    folder = tmp_path_factory.mktemp("carrying")
    (folder / "text.txt").write_text("to be or not to be, that is the question. " * 60)
    network = NetworkConfig("RelLSTM", 4, options={"buffer": 2, "relevant": 1})
    with pytest.raises(Stop):
        train(RunConfig(Characters(str(folder / "text.txt"), bptt=5), network, CONFIG.fit), folder / "run", stop)
    return folder / "run"


@pytest.mark.parametrize(
    ("number", "tensor"),
    [
        (0, torch.zeros(1, 3, 4)),  # another batch
        (1, torch.tensor(0.0)),
        (3, torch.zeros(1, 2, 9, 4)),  # more slots than the layer has
        (5, torch.zeros(1, 2, 3)),  # origins that are no integers
        (7, torch.full((1, 2), -5)),  # a clock before the first step
    ],
)
def test_a_carried_state_that_does_not_fit_is_refused(number: int, tensor: torch.Tensor, carrying: Path, capfd) -> None:
    folder = copy_of(carrying)
    tensors = tensors_of(folder)
    assert f"carried.{number}" in tensors
    signed(folder, {**tensors, f"carried.{number}": tensor})
    code, error = one_line(["resume", str(folder), "--quiet"], capfd, folder)
    assert code == 2
    assert "00000004.safetensors does not fit this run's configuration: " in error


def test_checkpoint_without_content_is_refused(template: Path, capfd) -> None:
    folder = copy_of(template)
    for path in folder.glob("checkpoints/0*.json"):
        path.write_text("{}")
    code, error = one_line(["resume", str(folder), "--quiet"], capfd, folder)
    assert code == 2
    assert "is damaged" in error


def test_symlink_out_of_the_run_folder_is_refused(template: Path, capfd, tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "checkpoints", "summary.json"):
        folder = copy_of(template)
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink(missing_ok=True)
        os.symlink(tmp_path / "elsewhere", folder / name)
        code, error = one_line(["resume", str(folder), "--quiet"], capfd, folder)
        assert code == 2
        assert "is a link" in error
    assert not (tmp_path / "elsewhere").exists()
