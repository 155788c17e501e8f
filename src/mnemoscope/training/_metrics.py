"""metrics.jsonl: one record per line, truncated to the checkpoint when a run is resumed."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import append, parse_json, read_bytes, sync, to_json, truncate, write_atomic

MetricsRecord = dict[str, Any]
MAX_METRICS_BYTES = 1 << 30


@dataclass(frozen=True)
class MetricsPosition:
    """Where metrics.jsonl ended when a checkpoint was written."""

    bytes: int
    sha256: str


class MetricsLog:
    """The records of a run, in memory and, if there is a path, on disk.

    No record holds a time of day, so a resumed run writes the same bytes as one that was never stopped.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.records: list[MetricsRecord] = []
        self._bytes = 0
        self._hash = hashlib.sha256()
        self._new_content: bytes | None = None  # to replace a file that was edited
        self.salvaged = False

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
        return asdict(MetricsPosition(self._bytes, self._hash.hexdigest()))

    def rewind(self, position: MetricsPosition) -> bool:
        """Go back to `position`; False if the file is not what it was there. It is not changed until `truncate`."""
        head = self._content()[: max(position.bytes, 0)]
        if hashlib.sha256(head).hexdigest() != position.sha256:
            return False
        self._start_from(head, [_record(line, str(self.path)) for line in head.splitlines()])
        return True

    def salvage(self, update: int) -> None:
        """Go back to what can be read of the records up to `update`; `truncate` then rewrites the file."""
        lines: list[bytes] = []
        records = []
        for line in self._content().splitlines(keepends=True):
            try:
                record = _record(line, str(self.path))
            except MnemoscopeError:
                continue
            if line.endswith(b"\n") and record["update"] <= update:
                lines.append(line)
                records.append(record)
        self._start_from(b"".join(lines), records)
        self._new_content = b"".join(lines)
        self.salvaged = True

    def truncate(self) -> None:
        """Delete what a stopped run wrote after its last checkpoint."""
        if self.path is None:
            return
        if self._new_content is not None:
            write_atomic(self.path, self._new_content)
            self._new_content = None
        elif self.path.exists():
            truncate(self.path, self._bytes)

    def _content(self) -> bytes:
        if self.path is None or not self.path.exists():
            return b""
        return read_bytes(self.path, limit=MAX_METRICS_BYTES)

    def _start_from(self, content: bytes, records: list[MetricsRecord]) -> None:
        self.records = records
        self._bytes = 0
        self._hash = hashlib.sha256()
        self._count(content)

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
