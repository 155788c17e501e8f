"""metrics.jsonl: one record per line, truncated to the checkpoint when a run is resumed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import append, parse_json, read_bytes, sync, to_json, truncate

MetricsRecord = dict[str, Any]
MAX_METRICS_BYTES = 1 << 30


class MetricsLog:
    """The records of a run, in memory and, if there is a path, on disk.

    No record holds a time of day, so a resumed run writes the same bytes as one that was never stopped.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.records: list[MetricsRecord] = []
        self._bytes = 0
        self._hash = hashlib.sha256()

    def add(self, record: MetricsRecord) -> None:
        line = to_json(record)
        if self.path is not None:
            append(self.path, line)
        self._count(line)
        self.records.append(record)

    def position(self) -> dict[str, Any]:
        """Return where the file ends now, for a checkpoint. The file is synced to disk first."""
        if self.path is not None and self._bytes:
            sync(self.path)
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def rewind(self, position: dict[str, Any]) -> None:
        """Go back to `position`. The file itself is not changed until `truncate`."""
        head = self._read_until(position)
        self.records = [parse_json(line, str(self.path)) for line in head.splitlines()]
        self._bytes = 0
        self._hash = hashlib.sha256()
        self._count(head)

    def truncate(self) -> None:
        """Delete what a stopped run wrote after its last checkpoint."""
        if self.path is not None and self.path.exists():
            truncate(self.path, self._bytes)

    def _read_until(self, position: dict[str, Any]) -> bytes:
        length = position.get("bytes")
        content = (
            read_bytes(self.path, limit=MAX_METRICS_BYTES) if self.path is not None and self.path.exists() else b""
        )
        if type(length) is int and length >= 0:
            head = content[:length]
            if hashlib.sha256(head).hexdigest() == position.get("sha256"):
                return head
        raise MnemoscopeError(f"{self.path} is damaged: it is not what it was when the checkpoint was written")

    def _count(self, data: bytes) -> None:
        self._bytes += len(data)
        self._hash.update(data)


def read_metrics(path: Path) -> list[MetricsRecord]:
    """Return the records in a metrics.jsonl. A last line that a killed process left incomplete is skipped."""
    if not path.exists():
        return []
    lines = read_bytes(path, limit=MAX_METRICS_BYTES).split(b"\n")[:-1]
    return [_record(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _record(line: bytes, where: str) -> MetricsRecord:
    record = parse_json(line, where)
    if not isinstance(record, dict) or type(record.get("update")) is not int:
        raise MnemoscopeError(f"{where} is not a record of a run: it must be an object with a whole number 'update'")
    for name, value in record.items():
        is_split = name == "split" and isinstance(value, str)
        if not (value is None or type(value) in (int, float) or is_split):
            raise MnemoscopeError(f"{where} is not a record of a run: {name!r} must be a number")
    return record
