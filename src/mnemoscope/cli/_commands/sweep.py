"""mnemoscope sweep TASK --grid ...: train many runs; sweep resume FOLDER goes on, sweep table FOLDER sums them up."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from mnemoscope.cli import _sweep_table
from mnemoscope.cli._commands.train import parse_run
from mnemoscope.cli._console import OutputOptions, parse, pop_option, say, show_json, terminal
from mnemoscope.cli._help import definitions, paragraphs
from mnemoscope.cli._names import chosen_folder
from mnemoscope.cli._sweep_progress import SweepView
from mnemoscope.errors import MnemoscopeError
from mnemoscope.sweeps import (
    Engine,
    Halving,
    LocalEngine,
    RayEngine,
    SlurmEngine,
    Sweep,
    SweepCallback,
    parse_grid,
    resume_sweep,
    sweep,
)
from mnemoscope.tasks import TASKS
from mnemoscope.wording import counted

EngineName = Literal["local", "ray", "slurm"]

USAGE = """usage: mnemoscope sweep TASK --grid FIELD=VALUES... [OPTIONS] [TRAIN OPTIONS]
       mnemoscope sweep --config FILE --grid FIELD=VALUES... [OPTIONS]
       mnemoscope sweep resume FOLDER [OPTIONS]
       mnemoscope sweep table FOLDER [OPTIONS]"""

ABOUT = """Trains a run for every combination of the grid's values, each in a folder of its own. Started again, it goes
on and skips what has ended, well or not; with a larger grid it trains what is new. --config RUN/config.json repeats a
run."""

OPTIONS = {
    "--grid FIELD=VALUES...": "fields of task, network and fit: network.buffer=2,5 fit.seed=0:5 (the latter is 0 to 4)",
    "--out FOLDER": "the sweep's folder; by default a new one under sweeps/",
    "--jobs N": "runs at a time; by default one for each CPU, or for as many CPUs as a run has --threads",
    "--engine ENGINE": f"where: {', '.join(get_args(EngineName))}",
    "--address ADDRESS": "ray: a running cluster, as auto; by default Ray is started on this machine",
    "--gpus N": "ray, slurm: GPUs of a run",
    "--slurm NAME=VALUE...": "slurm: submitit's parameters, as slurm_partition=gpu timeout_min=60",
    "--halving UPDATES": "rungs, as 100,300,900: only the best runs go on from each; the last is the budget",
    "--keep SHARE": "of the runs at a rung that go on; 1/2 by default",
    "--retry-failed": "try again the runs in FOLDER that failed or diverged, from their last checkpoints",
    "--quiet, --json": "print nothing but errors; print the result as JSON",
}

SEE_ALSO = f"""Tasks are {", ".join(TASKS)}.

mnemoscope train TASK --help shows the train options; mnemoscope sweep resume --help and mnemoscope sweep table --help
show theirs."""


@dataclass(frozen=True)
class EngineOptions:
    """Where the runs of a sweep are trained."""

    jobs: int | None = None
    """Runs at a time; by default one for each CPU, or for as many CPUs as a run has threads."""
    engine: EngineName = "local"
    """Where: processes of this machine, tasks of Ray, or jobs of Slurm."""
    address: str | None = None
    """Ray: the address of a running cluster, as auto or 10.0.0.1:6379; by default Ray is started on this machine."""
    gpus: float = 0.0
    """Ray and Slurm: GPUs of a run; with Ray a fraction shares one."""
    slurm: tuple[str, ...] = ()
    """Slurm: submitit's parameters, as slurm_partition=gpu timeout_min=60."""

    @contextmanager
    def open(self, threads: int, preload: Sequence[str] = ()) -> Iterator[Engine]:
        """The engine, ready to run jobs of `threads` CPUs each inside the block.

        `preload` names modules that the jobs need, which processes of this machine then need not import each.
        """
        if self.engine == "ray":
            ray = RayEngine(self.address, jobs=self.jobs, threads=threads, gpus=self.gpus)
            try:
                yield ray
            finally:
                ray.close()
        elif self.engine == "slurm":
            parameters = dict(_parameter(word) for word in self.slurm)
            yield SlurmEngine(jobs=self.jobs, threads=threads, gpus=int(self.gpus), parameters=parameters)
        else:
            yield LocalEngine(self.jobs, threads=threads, preload=preload)


@dataclass(frozen=True)
class Resume:
    """Go on with a sweep that was stopped or killed."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """The sweep's folder."""
    retry_failed: tyro.conf.FlagCreatePairsOff[bool] = False
    """Try again the runs that failed or diverged, from their last checkpoints."""
    where: tyro.conf.OmitArgPrefixes[EngineOptions] = field(default_factory=EngineOptions)
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["resume"]:
        return _resume(arguments[1:])
    if arguments[:1] == ["table"]:
        return _sweep_table.main(arguments[1:])
    if {"-h", "--help"} & set(arguments):
        print(USAGE, paragraphs(ABOUT), definitions(OPTIONS.items()), paragraphs(SEE_ALSO), sep="\n\n")
        return 0
    grid_words, rest = _pop_words(arguments, "--grid")
    where, rest = _pop_engine(rest)
    halving, rest = _pop_halving(rest)
    retry_failed = "--retry-failed" in rest
    rest = [word for word in rest if word != "--retry-failed"]
    config, options = parse_run(rest, "sweep")
    if not grid_words:
        raise MnemoscopeError("no grid was given; mnemoscope sweep TASK --grid network.buffer=2,5 fit.seed=0:5")
    grid = parse_grid(grid_words)
    total = math.prod(map(len, grid.values()))
    name = f"{config.task.name}-{config.network.model}"
    with chosen_folder(options.out, "sweeps", name) as folder, where.open(config.fit.threads or 1) as engine:
        return _follow(
            lambda callback: sweep(
                config, grid, folder, engine=engine, halving=halving, retry_failed=retry_failed, callback=callback
            ),
            SweepView(list(grid), total, options.output.quiet),
            folder,
            options.output,
        )


def _resume(arguments: list[str]) -> int:
    options = parse(Resume, arguments, "sweep resume")
    described = Sweep(options.folder)
    threads = next(described.configs()).fit.threads
    axes = list(described.file.runs[0].changes)
    with options.where.open(threads) as engine:
        return _follow(
            lambda callback: resume_sweep(
                options.folder, engine=engine, retry_failed=options.retry_failed, callback=callback
            ),
            SweepView(axes, len(described.names), options.output.quiet),
            options.folder,
            options.output,
        )


def _follow(start: Callable[[SweepCallback], Sweep], view: SweepView, folder: Path, output: OutputOptions) -> int:
    """Run a sweep to its end, say how it went, and return the exit code."""
    try:
        with view.shown():
            finished = start(view)
    except KeyboardInterrupt:
        terminal().print(
            f"stopped; go on with: mnemoscope sweep resume {shlex.quote(str(folder))}", highlight=False, soft_wrap=True
        )
        return 128 + view.signal_number
    failures = finished.failures()
    diverged = [name for name, ending in failures.items() if ending.exit_code == 3]
    result: dict[str, Any] = {
        "sweep": str(folder),
        "runs": len(finished.names),
        "diverged": len(diverged),
        "failed": len(failures) - len(diverged),
    }
    if output.json:
        show_json(result)
    elif not output.quiet:
        outcomes = [f"{result[key]} {key}" for key in ("diverged", "failed") if result[key]]
        counts = [counted(result["runs"], "run"), *outcomes]
        say(f"{', '.join(counts)}; {folder}; see: mnemoscope sweep table {shlex.quote(str(folder))}")
    if result["failed"]:
        first = next(ending.message for name, ending in failures.items() if name not in diverged)
        raise MnemoscopeError(
            f"{result['failed']} of {counted(result['runs'], 'run')} failed ({folder}/failures.jsonl): {first}; "
            "once that is corrected, --retry-failed tries them again"
        )
    return 0


def _pop_words(arguments: list[str], option: str) -> tuple[list[str], list[str]]:
    """The words behind an option, up to the next option, and the other arguments."""
    words: list[str] = []
    rest: list[str] = []
    inside = False
    for word in arguments:
        if word == option or word.startswith(f"{option}="):
            inside = True
            words += [word.partition("=")[2]] if "=" in word else []
        elif inside and not word.startswith("--"):
            words.append(word)
        else:
            inside = False
            rest.append(word)
    return words, rest


def _pop_engine(arguments: list[str]) -> tuple[EngineOptions, list[str]]:
    slurm, rest = _pop_words(arguments, "--slurm")
    given = ["--slurm", *slurm] if slurm else []
    for option in ("--jobs", "--engine", "--address", "--gpus"):
        value, rest = pop_option(rest, option)
        given += [] if value is None else [option, value]
    return parse(EngineOptions, given, "sweep"), rest


def _parameter(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not equals:
        raise MnemoscopeError(f"slurm = {word!r} is not allowed; write it as slurm_partition=gpu or timeout_min=60")
    try:
        return name, int(text)
    except ValueError:
        return name, text


def _pop_halving(arguments: list[str]) -> tuple[Halving | None, list[str]]:
    rungs, rest = pop_option(arguments, "--halving")
    keep, rest = pop_option(rest, "--keep")
    if rungs is None and keep is not None:
        raise MnemoscopeError("keep needs halving, the updates of its rungs: --halving 100,300,900")
    return (None if rungs is None else Halving.parse(rungs, keep or "1/2")), rest
