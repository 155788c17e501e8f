"""mnemoscope evaluate RUN: measure a trained network on held-out data, also of another length or task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
import tyro
from rich.progress import Progress
from rich.table import Table

from mnemoscope.cli._console import number, parse, show, show_json, take, terminal
from mnemoscope.cli._follow import Reporting
from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import TASKS, Split, Task
from mnemoscope.training import Run, SequenceModel, evaluate
from mnemoscope.training._run import Which

K = TypeVar("K")


@dataclass(frozen=True)
class Evaluate(Generic[K]):
    """Options of `mnemoscope evaluate`."""

    task: K
    which: Which = "last"
    """The last weights, or those that did best on held-out batches."""
    split: Split = "test"
    """The part of the data to evaluate on."""
    batches: int | None = None
    """How many batches; by default all, or 8 where the task makes new ones for ever."""
    batch_size: int = 64
    """Sequences in a batch."""
    reporting: tyro.conf.OmitArgPrefixes[Reporting] = field(default_factory=Reporting)

    def __post_init__(self) -> None:
        for name, value in (("batches", self.batches), ("batch-size", self.batch_size)):
            if value is not None and value < 1:
                raise MnemoscopeError(f"{name} = {value} is not allowed; it must be at least 1")


ABOUT = """Measure a trained network on data it was not taught. --task.T 1000 asks for another length, --task NAME for
another task with the same inputs and outputs."""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _without_run(arguments)
    run, (name, rest) = Run(arguments[0]), take(arguments[1:], "--task")
    default: Evaluate[Task] = Evaluate(_task(name, run.task))
    kind: Any = Evaluate[type(default.task)]  # type: ignore[misc]  # tyro asks for the fields of this task
    options: Evaluate[Task] = parse(kind, rest, f"evaluate {run.path}", about=ABOUT, default=default)
    model = run.model(options.which)
    _refuse_misfit(model, options.task)
    _report(run, options, _measure(model.to("cuda" if torch.cuda.is_available() else "cpu"), options))
    return 0


def _without_run(arguments: list[str]) -> int:
    if not {"-h", "--help"} & set(arguments):
        raise MnemoscopeError("no run was given; mnemoscope evaluate RUN takes the folder of a run")
    print(f"usage: mnemoscope evaluate RUN [OPTIONS]\n\n{ABOUT}\nmnemoscope evaluate RUN --help names the options.")
    return 0


def _task(name: str | None, trained: Task) -> Task:
    if name is None or name == trained.name:
        return trained
    if name not in TASKS:
        raise MnemoscopeError(f"task = {name!r} is not a task; tasks are {', '.join(TASKS)}")
    return TASKS[name]()


def _refuse_misfit(model: SequenceModel, task: Task) -> None:
    has = (model.input_size, model.output_size, model.token_input)
    if has != (task.input_size, task.output_size, task.token_input):
        sizes = f"{model.input_size} inputs and gives {model.output_size} outputs"
        wants = f"{task.name} has {task.input_size} and wants {task.output_size}"
        raise MnemoscopeError(f"the network does not fit the task: it reads {sizes}; {wants}")


def _measure(model: SequenceModel, options: Evaluate[Task]) -> dict[str, float]:
    console = terminal()
    hidden = options.reporting.quiet or not console.is_terminal
    with Progress(console=console, disable=hidden, transient=True) as progress:
        row = progress.add_task("evaluating")

        def watch(done: int, total: int) -> None:
            progress.update(row, completed=done, total=total)

        size, batches, split = options.batch_size, options.batches, options.split
        return evaluate(model, options.task, batch_size=size, batches=batches, split=split, watch=watch)


def _report(run: Run, options: Evaluate[Task], metrics: dict[str, float]) -> None:
    about = {"run": str(run.path), "task": options.task.name, "length": options.task.length, "split": options.split}
    if options.reporting.json:
        show_json({**about, "baseline": options.task.baseline, "metrics": metrics})
    elif not options.reporting.quiet:
        table = Table("metric", "value", title=" · ".join(map(str, about.values())))
        for name, value in metrics.items():
            table.add_row(name, number(value))
        if options.task.baseline is not None:
            table.add_row("loss without memory", number(options.task.baseline))
        show(table)
