"""What a run's numbers depend on beside its configuration, and what of it changed when the run was resumed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Literal

import torch

from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels import build_id
from mnemoscope.tasks import Batch, Task

AllowedChange = Literal["data", "metrics"]
"""What may have changed since a run was stopped, if the user says so."""

_log = logging.getLogger("mnemoscope")


@dataclass(frozen=True)
class Environment:
    """Data, versions and machine of a run. None is what an older version did not record: it is not compared."""

    data_sha256: str | None = None
    """Of a text of the user's own, and of the first batch: other data, or another way to make batches, differ in it."""
    mnemoscope: str | None = None
    torch: str | None = None
    kernels: str | None = None
    """The build of the compiled kernels."""
    threads: int | None = None


@dataclass(frozen=True)
class Change:
    """Something that was different when a run was resumed at `update`."""

    update: int
    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what} changed at update {self.update}: {self.before} before, {self.after} now"


def this_environment(task: Task, first_batch: Batch, threads: int) -> Environment:
    """Return the environment of this process, for a run of `task` whose first batch is given."""
    from mnemoscope import __version__

    digest = hashlib.sha256((task.data_sha256 or "").encode())
    for tensor in first_batch:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return Environment(digest.hexdigest(), __version__, torch.__version__, build_id(), threads)


def changes(before: Environment, now: Environment, update: int, allowed: Collection[AllowedChange]) -> list[Change]:
    """Return what changed between two environments. Other data are refused, unless allowed; all else is a warning."""
    found = []
    for field in fields(Environment):
        old = getattr(before, field.name)
        new = getattr(now, field.name)
        if old is not None and old != new:
            found.append(Change(update, field.name.removesuffix("_sha256"), str(old), str(new)))
    for change in found:
        if change.what == "data" and "data" not in allowed:
            raise MnemoscopeError(
                f"the data are not those of the run (sha256 {change.before[:12]} before, {change.after[:12]} now); "
                "put the old data back, or go on with other data by --allow-changed data"
            )
        _log.warning("%s; the run goes on, but not as one that was never stopped", change)
    return found
