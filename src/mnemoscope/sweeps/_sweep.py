"""sweep(): many runs in one folder, on one engine, that go on where they were stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import locked
from mnemoscope.sweeps._driver import Engine, SweepCallback, forget_failures, has_summary, run_jobs
from mnemoscope.sweeps._folder import (
    Entry,
    Sweep,
    SweepFile,
    entries_of,
    prepare_folder,
    read_sweep,
    write_sweep,
)
from mnemoscope.sweeps._grid import Changes, Grid, check_grid, grid_points, with_changes
from mnemoscope.sweeps._halving import Halving, has_reached, survivors
from mnemoscope.sweeps._job import Job
from mnemoscope.sweeps._local import LocalEngine
from mnemoscope.sweeps._runs import run_job_of
from mnemoscope.training import RunConfig


def sweep(
    base: RunConfig | None,
    grid: Grid | Sequence[RunConfig],
    folder: str | Path,
    *,
    jobs: int | None = None,
    engine: Engine | None = None,
    halving: Halving | None = None,
    retry_failed: bool = False,
    callback: SweepCallback | None = None,
) -> Sweep:
    """Train every run of a grid, or of a list, each in a folder of its own in `folder`; return the sweep.

    Runs that have ended, well or not, are skipped: a sweep that was stopped or killed goes on when it is started again.
    A run is named by the hash of its configuration; with a larger grid only what is new is trained.

    Args:
        base: the configuration whose fields the grid changes; None with a list.
        grid: values by field, as `{"network.buffer": [2, 5], "fit.seed": range(5)}`, or a list of configurations.
        folder: new, or that of a sweep.
        jobs: how many runs at a time on this machine; by default one for each CPU, or for as many as a run has threads.
        engine: where the runs are trained; by default in processes of this machine.
        halving: if given, only the best runs go on from each of its rungs.
        retry_failed: whether to try again the runs in the folder that failed or diverged, from their last checkpoints.
        callback: called with the `SweepProgress` when a run has ended.

    Examples:
        >>> from mnemoscope.sweeps import sweep_table
        >>> from mnemoscope.tasks import Copy
        >>> from mnemoscope.training import FitConfig, NetworkConfig, RunConfig
        >>> base = RunConfig(Copy(T=5), NetworkConfig("RelRNN", hidden_size=16), FitConfig(updates=2, batch_size=4))
        >>> done = mnemoscope.sweep(base, {"network.buffer": [2, 5]}, "sweep", jobs=1)
        >>> [group.runs for group in sweep_table(done).groups]
        [1, 1]
    """
    path = Path(folder).absolute()
    file = _described(base, grid, halving)
    prepare_folder(path)  # before the lock, which would leave a file in a folder of something else
    with locked(path):
        prepare_folder(path)
        file = write_sweep(path, file)
        return _run(path, file, engine or _local_engine(file, jobs), retry_failed, callback)


def resume_sweep(
    folder: str | Path,
    *,
    jobs: int | None = None,
    engine: Engine | None = None,
    retry_failed: bool = False,
    callback: SweepCallback | None = None,
) -> Sweep:
    """Go on with the sweep in `folder`, as its sweep.json describes it; `retry_failed` as in `sweep`."""
    path = Path(folder).absolute()
    read_sweep(path)
    with locked(path):
        file = read_sweep(path)
        return _run(path, file, engine or _local_engine(file, jobs), retry_failed, callback)


def _described(base: RunConfig | None, grid: Grid | Sequence[RunConfig], halving: Halving | None) -> SweepFile:
    """Return the content of sweep.json. Every run is made once here, so that whatever is wrong is found at once."""
    if isinstance(grid, Sequence):
        if base is not None or not grid:
            raise MnemoscopeError("a sweep takes a base and a grid, or None and a list of at least one configuration")
        pairs: Iterator[tuple[Job, Changes]] = ((_checked_job(config, halving), {}) for config in grid)
        return _with_halving(SweepFile(None, entries_of(pairs)), halving)
    if base is None:
        raise MnemoscopeError("a grid needs a base, the configuration that it changes")
    check_grid(grid)
    if halving is not None and "fit.updates" in grid:
        raise MnemoscopeError("with halving fit.updates cannot vary; the last rung is the budget of every run")
    content = run_job_of(_with_budget(base, halving)).config
    pairs = ((_checked_job(with_changes(content, point), halving), point) for point in grid_points(grid))
    return _with_halving(SweepFile(content, entries_of(pairs)), halving)


def _checked_job(config: RunConfig, halving: Halving | None) -> Job:
    if halving is not None:
        halving.check(config)
    return run_job_of(_with_budget(config, halving))


def _with_budget(config: RunConfig, halving: Halving | None) -> RunConfig:
    if halving is None:
        return config
    return replace(config, fit=replace(config.fit, updates=halving.rungs[-1]))


def _with_halving(file: SweepFile, halving: Halving | None) -> SweepFile:
    return file if halving is None else replace(file, rungs=halving.rungs, keep=str(halving.keep))


def _local_engine(file: SweepFile, jobs: int | None) -> LocalEngine:
    return LocalEngine(jobs, threads=file.config(file.runs[0]).fit.threads)


def _run(folder: Path, file: SweepFile, engine: Engine, retry_failed: bool, callback: SweepCallback | None) -> Sweep:
    if retry_failed:
        forget_failures(folder)
    if file.halving is None:
        run_jobs(map(file.job, file.runs), folder, engine, total=len(file.runs), callback=callback)
    else:
        _run_rungs(folder, file, file.halving, engine, callback)
    return Sweep(folder)


def _run_rungs(folder: Path, file: SweepFile, halving: Halving, engine: Engine, callback: SweepCallback | None) -> None:
    """Train all runs to the first rung, the survivors to the next; those that are left behind end with a summary."""
    alive = list(file.runs)
    for rung in halving.rungs[:-1]:
        _run_until(alive, folder, file, engine, callback, until=rung)
        kept = survivors([folder / e.run for e in alive], [file.config(e) for e in alive], rung, halving.keep)
        left_behind = [entry for i, entry in enumerate(alive) if i not in set(kept)]
        begun = [entry for entry in left_behind if has_reached(folder / entry.run, rung)]
        _run_until(begun, folder, file, engine, callback, until=rung, end=True)
        alive = [alive[i] for i in kept]
    _run_until(alive, folder, file, engine, callback, until=None)


def _run_until(
    entries: Sequence[Entry],
    folder: Path,
    file: SweepFile,
    engine: Engine,
    callback: SweepCallback | None,
    *,
    until: int | None,
    end: bool = False,
) -> None:
    def is_done(job: Job) -> bool:
        if until is None or end:
            return has_summary(folder / job.name)
        return has_reached(folder / job.name, until)

    options = {} if until is None else {"until": until, "end": end}
    stage = f"rung {file.rungs[-1] if until is None else until}"
    jobs = (file.job(entry, **options) for entry in entries)
    run_jobs(jobs, folder, engine, total=len(entries), is_done=is_done, callback=callback, stage=stage)
