"""Checkpoints: tensors in a safetensors file, everything else in a JSON file beside it, both checked by SHA-256.

The JSON file is written last and holds the hash of the tensors. So a checkpoint exists exactly when its JSON file does,
and a truncated or flipped byte in either file is found before anything is used. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import read_bytes, read_json, remove, to_json, write_atomic

FORMAT = 1
KEEP_LAST = 3


@dataclass(frozen=True)
class Checkpoint:
    """Everything that the next update depends on."""

    update: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, name: str | None = None) -> Path:
    """Write `checkpoint` under its update's number, or under `name`, and return the path of its tensors."""
    path = folder / (name or f"{checkpoint.update:08d}")
    data = safetensors.torch.save({key: _cpu_copy(tensor) for key, tensor in checkpoint.tensors.items()})
    body = {
        "format": FORMAT,
        "update": checkpoint.update,
        "tensors_sha256": hashlib.sha256(data).hexdigest(),
        "numbers": checkpoint.numbers,
    }
    write_atomic(path.with_suffix(".safetensors"), data)
    write_atomic(path.with_suffix(".json"), to_json({**body, "sha256": _digest(body)}, indent=1))
    return path.with_suffix(".safetensors")


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint whose JSON file is at `path`; raise one line if it is damaged."""
    body = read_json(path)
    if not isinstance(body, dict) or body.pop("sha256", None) != _digest(body):
        raise MnemoscopeError(f"{path} is damaged: its content does not match its checksum")
    if body.get("format") != FORMAT:
        raise MnemoscopeError(f"{path} has format {body.get('format')!r}; this version reads format {FORMAT}")
    data = read_bytes(path.with_suffix(".safetensors"))
    if hashlib.sha256(data).hexdigest() != body.get("tensors_sha256"):
        raise MnemoscopeError(f"{path.with_suffix('.safetensors')} is damaged: its content does not match its checksum")
    return _unpack(path, body, data)


def checkpoints(folder: Path) -> list[Path]:
    """Return the JSON files of the numbered checkpoints in a folder, newest first."""
    numbered = [path for path in folder.glob("*.json") if path.stem.isdecimal()]
    return sorted(numbered, key=lambda path: int(path.stem), reverse=True)


def prune(folder: Path, keep: int = KEEP_LAST) -> None:
    """Delete all but the newest checkpoints.

    A JSON file is deleted before its tensors, so that no checkpoint is ever left without them.
    """
    for path in checkpoints(folder)[keep:]:
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


def _unpack(path: Path, body: dict[str, Any], data: bytes) -> Checkpoint:
    update = body.get("update")
    numbers = body.get("numbers")
    if type(update) is not int or update < 0 or not isinstance(numbers, dict):
        raise MnemoscopeError(f"{path} is not a checkpoint of this program")
    try:
        return Checkpoint(update, safetensors.torch.load(data), numbers)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise MnemoscopeError(f"{path.with_suffix('.safetensors')} is not a safetensors file: {error}") from error


def _cpu_copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU: safetensors refuses strided and shared memory, and tied weights share it."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(body)).hexdigest()
