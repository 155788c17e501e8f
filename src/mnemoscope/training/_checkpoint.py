"""Checkpoints: tensors in safetensors, everything else in a JSON beside them, both checked by sha256.

The JSON is written last and names the tensors' hash, so a checkpoint exists exactly when its JSON does, and a cut or
flipped byte anywhere in it is found before anything is used. Nothing is ever unpickled.
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
from mnemoscope.files import read_bytes, read_json, to_json, write_whole

FORMAT = 1
KEPT = 3


@dataclass(frozen=True)
class Checkpoint:
    """All that the next update depends on."""

    update: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, name: str | None = None) -> Path:
    """Write `checkpoint` whole or not at all under its update's number, or under `name`; the path of its tensors."""
    path = folder / (name or f"{checkpoint.update:08d}")
    data = safetensors.torch.save({key: _plain(tensor) for key, tensor in checkpoint.tensors.items()})
    body = {
        "format": FORMAT,
        "update": checkpoint.update,
        "tensors_sha256": hashlib.sha256(data).hexdigest(),
        "numbers": checkpoint.numbers,
    }
    write_whole(path.with_suffix(".safetensors"), data)
    write_whole(path.with_suffix(".json"), to_json({**body, "sha256": _digest(body)}, indent=1))
    return path.with_suffix(".safetensors")


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint whose JSON is at `path`, or one line on what is wrong with it."""
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
    """The JSON files of the numbered checkpoints in a folder, the newest first."""
    found = [path for path in folder.glob("*.json") if path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem), reverse=True)


def prune(folder: Path, keep: int = KEPT) -> None:
    """Delete all but the newest checkpoints; a JSON goes before its tensors, so that none is left without them."""
    for path in checkpoints(folder)[keep:]:
        path.unlink(missing_ok=True)
    for path in folder.glob("*.safetensors"):
        if path.stem.isdecimal() and not path.with_suffix(".json").exists():
            path.unlink(missing_ok=True)


def clear_leftovers(folder: Path) -> None:
    """Delete the half-written files that a kill left behind."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def fit_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors that are not those of this model, naming the first ones that differ."""
    for word, names in (("lacks", expected.keys() - found.keys()), ("has unknown", found.keys() - expected.keys())):
        if names:
            raise MnemoscopeError(f"{where} is another model's: it {word} {', '.join(sorted(names)[:3])}")
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            shapes = f"{list(found[name].shape)} where this model has {list(tensor.shape)}"
            raise MnemoscopeError(f"{where} is another model's: {name} is {shapes}")


def _unpack(path: Path, body: dict[str, Any], data: bytes) -> Checkpoint:
    update, numbers = body.get("update"), body.get("numbers")
    if type(update) is not int or update < 0 or not isinstance(numbers, dict):
        raise MnemoscopeError(f"{path} is not a checkpoint of this program")
    try:
        return Checkpoint(update, safetensors.torch.load(data), numbers)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise MnemoscopeError(f"{path.with_suffix('.safetensors')} is not a safetensors file: {error}") from error


def _plain(tensor: Tensor) -> Tensor:
    """An own copy on the CPU: safetensors refuses shared and strided memory, and tied weights share theirs."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(body)).hexdigest()
