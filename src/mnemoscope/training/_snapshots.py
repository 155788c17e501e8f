"""Snapshots of the weights alone, at chosen moments of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import safetensors.torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder, read_bytes, write_atomic
from mnemoscope.training._checkpoint import cpu_copy, load_tensors


class SnapshotSchedule:
    """The updates after which snapshots are taken: 0, every so often, and some that are chosen.

    Args:
        every: updates between two, or epochs if the configuration counts in them; 0 takes none.
        at: further updates, or epochs.
        in_updates: converts such a number to updates.
    """

    def __init__(self, every: int, at: Collection[int], in_updates: Callable[[int], int]) -> None:
        self._every = every
        self._in_updates = in_updates
        self._chosen = {0, *map(in_updates, at)} if every or at else set()
        self._passed = 0  # regular snapshots before the last update asked about

    def __contains__(self, update: int) -> bool:
        """True if a snapshot is due after `update`; asked in ascending order."""
        if update in self._chosen or not self._every:
            return update in self._chosen
        while (due := self._in_updates(self._passed * self._every)) < update:
            self._passed += 1
        return due == update


def check_chosen(model: nn.Module, beginnings: Sequence[str]) -> None:
    """Refuse the beginning of a name that no weight of a model has."""
    names = list(model.state_dict())
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in names):
            raise MnemoscopeError(
                f"snapshot-weights = {beginning!r} is not allowed; no weight's name begins with it: {', '.join(names)}"
            )


def write_snapshot(folder: Path, update: int, model: nn.Module, beginnings: Sequence[str] = ()) -> None:
    """Write the tensors of `model.state_dict()`, or those whose names begin so, under the update's number."""
    make_folder(folder)
    chosen = tuple(beginnings) or ("",)
    tensors = {name: cpu_copy(tensor) for name, tensor in model.state_dict().items() if name.startswith(chosen)}
    write_atomic(folder / f"{update:08d}.safetensors", safetensors.torch.save(tensors))


def recorded_updates(folder: Path) -> list[int]:
    """Return the updates whose files are in a folder, in ascending order."""
    return sorted(int(path.stem) for path in folder.glob("*.safetensors") if path.stem.isdecimal())


def read_snapshot(folder: Path, update: int) -> dict[str, Tensor]:
    """Return the tensors of a snapshot by their names in the `state_dict()`."""
    kept = recorded_updates(folder)
    if update not in kept:
        shown = ", ".join(map(str, kept[:20])) + (", …" if len(kept) > 20 else "")
        has = f"it has those of {shown}" if kept else "it has none: train with snapshot-every or snapshot-at"
        raise MnemoscopeError(f"{folder.parent} has no snapshot of update {update}; {has}")
    return read_tensors(folder / f"{update:08d}.safetensors")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a safetensors file, by name in alphabetical order."""
    return load_tensors(read_bytes(path), path)
