"""metrics.jsonl: one line a record, cut back to the checkpoint when a run is resumed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import append, parse_json, read_bytes, sync, to_json

Record = dict[str, Any]


class Metrics:
    """The records of a run, in memory and, where there is a path, on disk.

    No record holds a time of day: a resumed run writes the bytes of one that was never stopped.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.records: list[Record] = []
        self._bytes = 0
        self._hash = hashlib.sha256()

    def add(self, record: Record) -> None:
        line = to_json(record)
        if self.path is not None:
            append(self.path, line)
        self._note(line)
        self.records.append(record)

    def mark(self) -> dict[str, Any]:
        """Where the file ends now, for a checkpoint; the file is on the disk when this returns."""
        if self.path is not None and self._bytes:
            sync(self.path)
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def rewind(self, mark: Record) -> None:
        """Go back to where the file ended at `mark`; the file itself is left alone until `cut`."""
        head = self._head(mark)
        self.records = [parse_json(line, str(self.path)) for line in head.splitlines()]
        self._bytes, self._hash = 0, hashlib.sha256()
        self._note(head)

    def cut(self) -> None:
        """Drop what a stopped run wrote after its last checkpoint."""
        if self.path is not None and self.path.exists():
            os.truncate(self.path, self._bytes)

    def _head(self, mark: Record) -> bytes:
        length, digest = mark.get("bytes"), mark.get("sha256")
        there = read_bytes(self.path) if self.path is not None and self.path.exists() else b""
        if type(length) is not int or length < 0 or hashlib.sha256(there[:length]).hexdigest() != digest:
            raise MnemoscopeError(f"{self.path} is damaged: it is not what it was when the checkpoint was written")
        return there[:length]

    def _note(self, data: bytes) -> None:
        self._bytes += len(data)
        self._hash.update(data)


def read_metrics(path: Path) -> list[Record]:
    """The records in a metrics.jsonl; a last line that a kill cut short is passed over."""
    if not path.exists():
        return []
    lines = read_bytes(path).split(b"\n")[:-1]
    return [_record(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _record(line: bytes, where: str) -> Record:
    record = parse_json(line, where)
    if not isinstance(record, dict) or type(record.get("update")) is not int:
        raise MnemoscopeError(f"{where} is not a record of a run: it must be an object with a whole number 'update'")
    for name, value in record.items():
        if not (value is None or type(value) in (int, float) or (name == "split" and isinstance(value, str))):
            raise MnemoscopeError(f"{where} is not a record of a run: {name!r} must be a number")
    return record
