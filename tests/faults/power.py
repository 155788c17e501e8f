"""What a disk may hold after a power cut, by the strict reading of POSIX.

A name (of a new file or folder, of a rename, of a deletion) is on disk only once its folder was synced; content, once
the file was. What was not synced may be there, in part or not at all, each thing by itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Call:
    """One recorded system call; paths are relative to the watched folder's parent."""

    kind: str
    path: str
    other: str
    number: int
    data: bytes


def read_calls(record: Path, root: Path) -> list[Call]:
    """Return the calls in a record of the shim."""
    data = record.read_bytes()
    calls = []
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        kind, path, other, number, size = data[at:end].decode().split("\t")
        content = data[end + 1 : end + 1 + int(size)]
        names = [str(Path(name).relative_to(root)) if name else "" for name in (path, other)]
        calls.append(Call(kind, *names, int(number), content))
        at = end + 1 + int(size)
    return calls


@dataclass
class _File:
    """Content on disk, and writes that may not be."""

    durable: bytes = b""
    pending: list[Call] = field(default_factory=list)

    def after(self, calls: list[Call]) -> bytes:
        content = bytearray(self.durable)
        for call in calls:
            if call.kind == "t":
                del content[call.number :]
            else:
                content[len(content) : call.number] = bytes(max(call.number - len(content), 0))
                content[call.number : call.number + len(call.data)] = call.data
        return bytes(content)

    def after_cut(self, rng: random.Random) -> bytes:
        kept = self.pending[: rng.randrange(len(self.pending) + 1)]
        if kept and kept[-1].kind == "w" and rng.random() < 0.5:  # half of the last write
            last = kept[-1]
            kept = [*kept[:-1], Call("w", last.path, "", last.number, last.data[: len(last.data) // 2])]
        return self.after(kept)


class Disk:
    """Names and content, on disk and on their way there."""

    def __init__(self, start: dict[str, bytes] | None = None) -> None:
        """`start` is what was on disk before the first call: content by path."""
        self.names: dict[str, _File] = {path: _File(content) for path, content in (start or {}).items()}  # as seen now
        self.durable_names: dict[str, _File | None] = dict(self.names)  # None is a folder
        self.durable_names |= {str(parent): None for path in self.names for parent in Path(path).parents}
        self.durable_names["."] = None
        self.pending: dict[str, list[tuple[str, str, _File | None]]] = {}  # by folder: what, name, file

    def apply(self, call: Call) -> None:
        folder = str(Path(call.path).parent)
        pending = self.pending.setdefault(folder, [])
        match call.kind:
            case "c":
                self.names[call.path] = _File()
                pending.append(("add", call.path, self.names[call.path]))
            case "m":
                pending.append(("add", call.path, None))
            case "u":
                self.names.pop(call.path, None)
                pending.append(("remove", call.path, None))
            case "r":
                file = self.names.pop(call.path)
                self.names[call.other] = file
                pending.append(("rename " + call.path, call.other, file))
            case "w" | "t":
                self.names[call.path].pending.append(call)
            case "s" if call.path in self.names:
                file = self.names[call.path]
                file.durable = file.after(file.pending)
                file.pending = []
            case "s":
                for change in self.pending.pop(call.path, []):
                    self._commit(self.durable_names, change)

    @staticmethod
    def _commit(names: dict[str, _File | None], change: tuple[str, str, _File | None]) -> None:
        what, name, file = change
        if what == "remove":
            names.pop(name, None)
        else:
            names.pop(what.removeprefix("rename "), None)
            names[name] = file

    def after_cut(self, rng: random.Random) -> dict[str, bytes | None]:
        """Return what is on disk after a cut now: content by path, None for a folder."""
        names = dict(self.durable_names)
        for changes in self.pending.values():
            how = rng.randrange(3)
            kept = {0: [], 1: changes[: rng.randrange(len(changes) + 1)]}.get(how)
            if kept is None:
                kept = [change for change in changes if rng.random() < 0.5]
            for change in kept:
                self._commit(names, change)
        present = {}
        for name, file in names.items():
            parents = [str(parent) for parent in Path(name).parents]
            if all(parent in names for parent in parents if parent != "."):  # else nothing leads there
                present[name] = None if file is None else file.after_cut(rng)
        return present


def write_state(state: dict[str, bytes | None], root: Path) -> None:
    """Write what is on a disk into a folder."""
    for name in sorted(state):
        content = state[name]
        if content is None:
            (root / name).mkdir(parents=True, exist_ok=True)
    for name, content in state.items():
        if content is not None:
            (root / name).write_bytes(content)
