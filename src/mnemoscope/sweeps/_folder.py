"""A sweep's folder: sweep.json, and the runs beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder, read_json, to_json, write_atomic
from mnemoscope.schema import from_dict, to_dict
from mnemoscope.sweeps._driver import read_failures
from mnemoscope.sweeps._grid import Changes, with_changes
from mnemoscope.sweeps._halving import Halving, parse_share
from mnemoscope.sweeps._job import Ending, Job
from mnemoscope.sweeps._runs import run_job_of
from mnemoscope.training import Run, RunConfig

FILE = "sweep.json"
FORMAT = 1
_BEFORE_SWEEP = re.compile(r"\.lock|\.sweep\.json\..*tmp")  # all that a sweep killed at its very start can leave


@dataclass(frozen=True)
class Entry:
    """One run of a sweep: its folder's name, and what makes it differ from `base`, or else all of its configuration."""

    run: str
    changes: Changes = field(default_factory=dict)
    config: dict[str, Any] | None = None


@dataclass(frozen=True)
class SweepFile:
    """The content of sweep.json: what runs there are. How they went is in their own folders."""

    base: dict[str, Any] | None
    """The content of the config.json that entries with `changes` change."""
    runs: tuple[Entry, ...]
    rungs: tuple[int, ...] = ()
    """Of successive halving; empty if every run is trained to its end."""
    keep: str = "1/2"
    format: int = FORMAT

    def config(self, entry: Entry) -> RunConfig:
        """Return a run's configuration."""
        if entry.config is not None:
            return RunConfig.from_dict(entry.config, f"{FILE}: {entry.run}")
        if self.base is None:
            raise MnemoscopeError(f"{FILE}: {entry.run} has neither a configuration nor a base to change")
        return with_changes(self.base, entry.changes)

    def job(self, entry: Entry, **options: Any) -> Job:
        """Return the job that trains a run; refused if it is not the one that the entry's name says."""
        job = run_job_of(self.config(entry), **options)
        if job.name != entry.run:
            raise MnemoscopeError(f"{FILE} was changed: its entry {entry.run} describes {job.name}")
        return job

    @property
    def halving(self) -> Halving | None:
        return Halving(self.rungs, parse_share(self.keep)) if self.rungs else None


class Sweep:
    """A sweep's folder, read only: its runs, their configurations and how they went."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder)
        self.file = read_sweep(self.path)

    @property
    def names(self) -> list[str]:
        """The names of the runs' folders, in the sweep's order."""
        return [entry.run for entry in self.file.runs]

    def configs(self) -> Iterator[RunConfig]:
        """Yield the configuration of each run, also of those that have not begun."""
        for entry in self.file.runs:
            yield self.file.config(entry)

    def run(self, name: str) -> Run | None:
        """Return a run by its name, or None if it has not begun."""
        return Run(self.path / name) if (self.path / name / "config.json").is_file() else None

    def failures(self) -> dict[str, Ending]:
        """Return how runs failed, by name: those that diverged, and those that could not be trained."""
        return read_failures(self.path)


def read_sweep(folder: Path) -> SweepFile:
    """Return the content of a folder's sweep.json; anything wrong raises a one-line error."""
    path = folder / FILE
    if not path.is_file():
        raise MnemoscopeError(f"{folder} is not the folder of a sweep: it has no {FILE}")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise MnemoscopeError(f"{path} is not the file of a sweep of format {FORMAT}")
    file = from_dict(SweepFile, content, str(path))
    if not file.runs:
        raise MnemoscopeError(f"{path} has no runs")
    for entry in file.runs:
        if Path(entry.run).name != entry.run:
            raise MnemoscopeError(f"{path} names the run {entry.run!r}, which is not a folder's name")
    return file


def write_sweep(folder: Path, file: SweepFile) -> SweepFile:
    """Write sweep.json, with the runs that are there already before the new ones; return what it then says.

    A sweep can grow by more runs. One that is halved cannot: which runs went on depended on all of them.
    """
    if (folder / FILE).exists():
        file = _union(read_sweep(folder), file, folder)
    content = to_dict(file)
    content["runs"] = [{name: value for name, value in entry.items() if value} for entry in content["runs"]]
    write_atomic(folder / FILE, to_json(content, indent=1))
    return file


def prepare_folder(folder: Path) -> None:
    """Create the folder of a sweep; refuse one that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise MnemoscopeError(f"{folder} is a file; choose another folder for the sweep")
    if (folder / "config.json").exists():
        raise MnemoscopeError(f"{folder} holds a run, not a sweep; choose another folder")
    found = folder.iterdir() if folder.is_dir() and not (folder / FILE).exists() else ()
    if not all(_BEFORE_SWEEP.fullmatch(entry.name) for entry in found):
        raise MnemoscopeError(f"{folder} is not empty and holds no sweep; choose another folder")
    make_folder(folder, follow=True)


def entries_of(jobs_and_changes: Sequence[tuple[Job, Changes]] | Iterator[tuple[Job, Changes]]) -> tuple[Entry, ...]:
    """Return the entries of runs; two that are the same run are refused."""
    entries: dict[str, Entry] = {}
    for job, changes in jobs_and_changes:
        if job.name in entries:
            both = " and ".join(words(c) or "a run without changes" for c in (entries[job.name].changes, changes))
            raise MnemoscopeError(f"two runs are the same: {both}")
        entries[job.name] = Entry(job.name, changes, None if changes else dict(job.config))
    return tuple(entries.values())


def words(changes: Mapping[str, Any]) -> str:
    """Return changes in a few words: "buffer=2 seed=0"."""
    return " ".join(f"{name.partition('.')[2]}={value}" for name, value in changes.items())


def _union(old: SweepFile, new: SweepFile, folder: Path) -> SweepFile:
    if old.halving != new.halving:
        raise MnemoscopeError(f"{folder} holds a sweep with other rungs; choose another folder")
    known = {entry.run for entry in old.runs}
    added = [entry for entry in new.runs if entry.run not in known]
    if old.rungs and (added or len(known) != len(new.runs)):
        raise MnemoscopeError(f"{folder} holds a halved sweep of other runs, which cannot grow; choose another folder")
    if old.base != new.base:  # what the new entries change is not the base that the file has
        added = [Entry(entry.run, {}, new.config(entry).to_dict()) for entry in added]
    return SweepFile(old.base, (*old.runs, *added), old.rungs, old.keep)
