"""mnemoscope evaluate RUN: evaluate a trained network on held-out data, also of another length or task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
import tyro
from rich.progress import Progress
from rich.table import Table

from mnemoscope.cli._console import OutputOptions, format_value, parse, pop_option, say, show, show_json, terminal
from mnemoscope.cli._help import paragraphs
from mnemoscope.cli._run_row import setting_of
from mnemoscope.errors import MnemoscopeError, did_you_mean
from mnemoscope.tasks import TASKS, Split, Task
from mnemoscope.training import CheckpointName, Run, SequenceModel, evaluate
from mnemoscope.wording import counted

TaskType = TypeVar("TaskType")


@dataclass(frozen=True)
class Evaluate(Generic[TaskType]):
    """Options of `mnemoscope evaluate`."""

    task: TaskType
    which: CheckpointName | int = "last"
    """The last weights, the best on held-out batches, or those of a snapshot: the number of its update."""
    split: Split = "test"
    """The part of the data to evaluate on."""
    batches: int | None = None
    """How many batches; by default all, or 8 if the task generates data endlessly. An agent plays batches times
    batch-size episodes, by default 4 times 64."""
    batch_size: int = 64
    """Sequences in a batch."""
    carry_memory: int | None = None
    """States that an attentive layer's memory keeps from one batch of running text to the next; by default as in the
    run."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("batch_size", 1), ("carry_memory", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                label = name.replace("_", "-")
                raise MnemoscopeError(f"{label} = {value} is not allowed; it must be at least {least}")


ABOUT = """Evaluate a trained network on data it was not trained on. --task.T 1000 changes the length, --task NAME the
task, to one with the same inputs and outputs."""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _without_run(arguments)
    run = Run(arguments[0])
    name, rest = pop_option(arguments[1:], "--task")
    carry_memory = getattr(run.config.fit, "carry_memory", None)
    default: Evaluate[Task] = Evaluate(_task(name, run.task), carry_memory=carry_memory)
    kind: Any = Evaluate[type(default.task)]  # type: ignore[misc]  # tyro needs this task's fields
    options: Evaluate[Task] = parse(kind, rest, f"evaluate {run.path}", about=ABOUT, default=default)
    model = run.model(options.which)
    _check_sizes(model, options.task)
    metrics = _evaluate(model.to("cuda" if torch.cuda.is_available() else "cpu"), options)
    _show_metrics(run, options, metrics)
    return 0


def _without_run(arguments: list[str]) -> int:
    if not {"-h", "--help"} & set(arguments):
        raise MnemoscopeError("no run was given; mnemoscope evaluate RUN takes the folder of a run")
    about = paragraphs(f"{ABOUT}\n\nmnemoscope evaluate RUN --help shows the options.")
    print(f"usage: mnemoscope evaluate RUN [OPTIONS]\n\n{about}")
    return 0


def _task(name: str | None, trained: Task) -> Task:
    if name is None or name == trained.name:
        return trained
    if name not in TASKS:
        hint = did_you_mean(name, TASKS)
        raise MnemoscopeError(f"task = {name!r} is not a task; tasks are {', '.join(TASKS)}{hint}")
    return TASKS[name]()


def _check_sizes(model: SequenceModel, task: Task) -> None:
    sizes = (model.input_size, model.output_size, model.token_input)
    if sizes != (task.input_size, task.output_size, task.token_input):
        has = f"it reads {model.input_size} inputs and gives {model.output_size} outputs"
        wants = f"{task.name} has {task.input_size} and wants {task.output_size}"
        raise MnemoscopeError(f"the network does not fit the task: {has}; {wants}")


def _evaluate(model: SequenceModel, options: Evaluate[Task]) -> dict[str, float]:
    console = terminal()
    hidden = options.output.quiet or not console.is_terminal
    with Progress(console=console, disable=hidden, transient=True) as progress:
        bar = progress.add_task("evaluating")

        def show_progress(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        return evaluate(
            model,
            options.task,
            batch_size=options.batch_size,
            batches=options.batches,
            split=options.split,
            callback=show_progress,
            carry_memory=options.carry_memory,
        )


def _show_metrics(run: Run, options: Evaluate[Task], metrics: dict[str, float]) -> None:
    about = {"run": str(run.path), "task": options.task.name, "length": options.task.length, "split": options.split}
    if options.output.json:
        show_json({**about, "baseline": options.task.baseline, "metrics": metrics})
    elif not options.output.quiet:
        # Not a title, which would be folded to the width of the table.
        say(" · ".join([str(run.path), *_played(options.task), options.split]))
        table = Table("metric", "value")
        for name, value in metrics.items():
            table.add_row(name, format_value(value))
        if options.task.baseline is not None and "loss" in metrics:
            table.add_row("loss without memory", format_value(options.task.baseline))
        show(table)


def _played(task: Task) -> list[str]:
    """Return what was evaluated: an agent's world, whose episodes have lengths of their own, or a task's length."""
    setting = setting_of(vars(task))
    return [task.name, counted(task.length, "step")] if setting is None else [f"{task.name}, {setting}"]
