"""mnemoscope train TASK: train a network on a task."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import tyro

from mnemoscope.cli._console import OutputOptions, first_sentence, parse, pop_option
from mnemoscope.cli._examination_files import unused_folder
from mnemoscope.cli._follow import follow
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import read_json
from mnemoscope.tasks import TASKS, Task
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, train

TaskType = TypeVar("TaskType")


@dataclass(frozen=True)
class Train(Generic[TaskType]):
    """Options of `mnemoscope train`."""

    task: TaskType
    network: tyro.conf.OmitArgPrefixes[NetworkConfig] = field(default_factory=NetworkConfig)
    fit: tyro.conf.OmitArgPrefixes[FitConfig] = field(default_factory=FitConfig)
    out: Path | None = None
    """The run's folder; by default a new one under runs/."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    path, rest = pop_option(arguments, "--config")
    base = None if path is None else RunConfig.from_dict(read_json(Path(path)), path)
    name, rest = _pop_task_name(rest)
    if name is None and base is None and {"-h", "--help"} & set(rest):
        print(_usage())
        return 0
    task = _task(name, base)
    options = _options(task, base, rest)
    config = RunConfig(options.task, options.network, options.fit)
    folder = options.out or unused_folder("runs", f"{task.name}-{config.network.model}")
    return follow(lambda callback: train(config, folder, callback), config, folder, options.output)


def _pop_task_name(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The first argument if it is not an option, and the others."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def _task(name: str | None, base: RunConfig | None) -> Task:
    """The task with its defaults, or as the configuration to repeat has it."""
    if base is not None and name in (None, base.task.name):
        return base.task
    if name is None or name not in TASKS:
        problem = "no task was given" if name is None else f"{name!r} is not a task"
        raise MnemoscopeError(f"{problem}; mnemoscope train TASK takes one of {', '.join(TASKS)}")
    return TASKS[name]()


def _options(task: Task, base: RunConfig | None, arguments: list[str]) -> Train[Task]:
    default: Train[Task] = Train(task) if base is None else Train(task, base.network, base.fit)
    about = f"{first_sentence(type(task))} --config RUN/config.json repeats a run; other options then change it."
    kind: Any = Train[type(task)]  # type: ignore[misc]  # tyro needs this task's fields
    options: Train[Task] = parse(kind, arguments, f"train {task.name}", about=about, default=default)
    return options


def _usage() -> str:
    width = max(map(len, TASKS))
    lines = [f"  {name:<{width}}  {first_sentence(task)}" for name, task in TASKS.items()]
    head = "usage: mnemoscope train TASK [OPTIONS]\n       mnemoscope train --config RUN/config.json [OPTIONS]\n"
    return "\n".join([head, *lines, "", "mnemoscope train TASK --help shows the options."])
