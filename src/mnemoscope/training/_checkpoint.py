"""Checkpoints: tensors in a safetensors file, everything else in a JSON file beside it, both checked by SHA-256.

The JSON file is written last, and names the file of tensors and its hash. So a checkpoint exists exactly when its JSON
file does, and a truncated or flipped byte in either file is found before anything is used. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import FileMissing, read_bytes, read_json, remove, to_json, version, write_atomic
from mnemoscope.schema import from_dict

FORMAT: Literal[2] = 2  # 1 did not name the file of tensors
BEST = "best.json"
KEEP_LAST = 3


@dataclass(frozen=True)
class Checkpoint:
    """Everything that the next update depends on."""

    update: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


@dataclass(frozen=True)
class _Body:
    """The content of a checkpoint's JSON file, but for its own checksum."""

    format: Literal[1, 2]
    update: int
    tensors_sha256: str
    numbers: dict[str, Any]
    tensors: str = ""
    """The name of the file of tensors. In format 1 it was the JSON file's own, with another suffix."""


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write `checkpoint` under its update's number and return the path of its tensors."""
    return _write(folder, checkpoint, f"{checkpoint.update:08d}.safetensors", f"{checkpoint.update:08d}.json")


def write_best(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the best checkpoint so far: first new tensors, then best.json, which names them; then delete the old ones.

    So a reader of best.json finds the old pair or the new one.
    """
    tensors = _write(folder, checkpoint, f"best-{checkpoint.update:08d}.safetensors", BEST)
    for path in folder.glob("best*.safetensors"):
        if path.name != tensors.name:
            remove(path)


def _write(folder: Path, checkpoint: Checkpoint, tensors: str, name: str) -> Path:
    data = safetensors.torch.save({key: cpu_copy(tensor) for key, tensor in checkpoint.tensors.items()})
    body = asdict(_Body(FORMAT, checkpoint.update, hashlib.sha256(data).hexdigest(), checkpoint.numbers, tensors))
    write_atomic(folder / tensors, data)
    write_atomic(folder / name, to_json({**body, "sha256": _digest(body)}, indent=1))
    return folder / tensors


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint whose JSON file is at `path`; raise one line if it is damaged."""
    before = version(path)
    body = _read_body(path)
    tensors = path.with_name(body.tensors) if body.tensors else path.with_suffix(".safetensors")
    try:
        data = read_bytes(tensors)
    except FileMissing:
        if version(path) == before:
            raise
        return read_checkpoint(path)  # replaced by a better one between the two reads
    if hashlib.sha256(data).hexdigest() != body.tensors_sha256:
        raise MnemoscopeError(f"{tensors} is damaged: its content does not match its checksum")
    return Checkpoint(body.update, load_tensors(data, tensors), body.numbers)


def load_tensors(data: bytes, path: Path) -> dict[str, Tensor]:
    """Return the tensors in the content of a safetensors file, by name in alphabetical order."""
    try:
        # The reader's own order changes from call to call, and sums over the tensors would change with it.
        return dict(sorted(safetensors.torch.load(data).items()))
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise MnemoscopeError(f"{path} is not a safetensors file: {error}") from error


def _read_body(path: Path) -> _Body:
    content = read_json(path)
    if not isinstance(content, dict) or content.pop("sha256", None) != _digest(content):
        raise MnemoscopeError(f"{path} is damaged: its content does not match its checksum")
    if content.get("format") not in (1, FORMAT):
        found = reprlib.repr(content.get("format"))
        raise MnemoscopeError(f"{path} has format {found}; this version reads format {FORMAT}")
    body = from_dict(_Body, content, str(path))
    if body.update < 0 or Path(body.tensors).name != body.tensors:
        raise MnemoscopeError(f"{path} is not a checkpoint of this program")
    return body


def checkpoints(folder: Path) -> list[Path]:
    """Return the JSON files of the numbered checkpoints in a folder, newest first."""
    numbered = [path for path in folder.glob("*.json") if path.stem.isdecimal()]
    return sorted(numbered, key=lambda path: int(path.stem), reverse=True)


def prune(folder: Path) -> None:
    """Delete all but the newest three checkpoints.

    A JSON file is deleted before its tensors, so that no checkpoint is ever left without them.
    """
    for path in checkpoints(folder)[KEEP_LAST:]:
        remove(path)
    for path in folder.glob("*.safetensors"):
        if path.stem.isdecimal() and not path.with_suffix(".json").exists():
            remove(path)


def remove_temporary_files(folder: Path) -> None:
    """Delete the half-written files that a killed process left behind."""
    for path in folder.glob(".*.tmp"):
        remove(path)


def check_tensors_match(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors that are not those of this model, naming the first that differ.

    Args:
        tensors: what a file holds, by name.
        expected: the model's `state_dict()`.
        where: the file, for the error.
    """
    missing = sorted(expected.keys() - tensors.keys())
    if missing:
        raise MnemoscopeError(f"{where} is another model's: it lacks {', '.join(missing[:3])}")
    unknown = sorted(tensors.keys() - expected.keys())
    if unknown:
        raise MnemoscopeError(f"{where} is another model's: it has unknown {', '.join(unknown[:3])}")
    for name, tensor in expected.items():
        if tensors[name].shape != tensor.shape:
            shapes = f"{list(tensors[name].shape)} where this model has {list(tensor.shape)}"
            raise MnemoscopeError(f"{where} is another model's: {name} is {shapes}")


def cpu_copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU: safetensors refuses strided and shared memory, and tied weights share it."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(body)).hexdigest()
