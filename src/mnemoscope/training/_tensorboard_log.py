"""Logging for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError


class TensorBoardLog:
    """A TensorBoard log with the content of metrics.jsonl."""

    def __init__(self, folder: Path, start: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MnemoscopeError("tensorboard is not installed: pip install 'mnemoscope[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder), purge_step=start + 1)

    def add(self, record: dict[str, Any]) -> None:
        evaluated = record.get("split")
        split = {None: "train", "train": "train-evaluated"}.get(evaluated, evaluated)
        for name, value in record.items():
            if isinstance(value, int | float) and name != "update":
                self._writer.add_scalar(f"{split}/{name}", value, record["update"])

    def close(self) -> None:
        self._writer.close()
