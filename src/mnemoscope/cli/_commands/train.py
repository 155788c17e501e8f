"""mnemoscope train TASK: teach a network a task."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

import tyro

from mnemoscope.cli._console import first_sentence, parse, take
from mnemoscope.cli._follow import Reporting, follow
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import read_json
from mnemoscope.tasks import TASKS, Task
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, train

K = TypeVar("K")


@dataclass(frozen=True)
class Train(Generic[K]):
    """Options of `mnemoscope train`."""

    task: K
    network: tyro.conf.OmitArgPrefixes[NetworkConfig] = field(default_factory=NetworkConfig)
    fit: tyro.conf.OmitArgPrefixes[FitConfig] = field(default_factory=FitConfig)
    out: Path | None = None
    """The run's folder; by default a new one under runs/."""
    reporting: tyro.conf.OmitArgPrefixes[Reporting] = field(default_factory=Reporting)


def main(arguments: list[str]) -> int:
    path, rest = take(arguments, "--config")
    base = None if path is None else RunConfig.from_plain(read_json(Path(path)), path)
    task, rest = _task(rest, base)
    if task is None:
        print(_usage())
        return 0
    options = _options(task, base, rest)
    config = RunConfig(options.task, options.network, options.fit)
    folder = options.out or _new_folder(f"{task.name}-{config.network.model}")
    return follow(lambda watch: train(config, folder, watch), config, folder, options.reporting)


def _task(arguments: list[str], base: RunConfig | None) -> tuple[Task | None, list[str]]:
    """The task with its defaults, and the arguments after it; None where only help is asked for."""
    name, rest = (arguments[0], arguments[1:]) if arguments and arguments[0][0] != "-" else (None, arguments)
    if name is None and base is not None:
        return base.task, rest
    if name is None and {"-h", "--help"} & set(arguments):
        return None, rest
    if name not in TASKS:
        given = "no task was given" if name is None else f"{name!r} is not a task"
        raise MnemoscopeError(f"{given}; mnemoscope train TASK takes one of {', '.join(TASKS)}")
    return (base.task if base is not None and base.task.name == name else TASKS[name]()), rest


def _options(task: Task, base: RunConfig | None, arguments: list[str]) -> Train[Task]:
    default: Train[Task] = Train(task, *((base.network, base.fit) if base is not None else ()))
    about = f"{first_sentence(type(task))} --config RUN/config.json repeats a run; options beside it change it."
    kind: Any = Train[type(task)]  # type: ignore[misc]  # tyro asks for the fields of this task
    options: Train[Task] = parse(kind, arguments, f"train {task.name}", about=about, default=default)
    return options


def _new_folder(name: str) -> Path:
    """The first of runs/name, runs/name-2, ... that is not there yet."""
    candidates = (Path("runs", name if i == 1 else f"{name}-{i}") for i in count(1))
    return next(path for path in candidates if not path.exists())


def _usage() -> str:
    width = max(map(len, TASKS))
    lines = [f"  {name:<{width}}  {first_sentence(task)}" for name, task in TASKS.items()]
    head = "usage: mnemoscope train TASK [OPTIONS]\n       mnemoscope train --config RUN/config.json [OPTIONS]\n"
    return "\n".join([head, *lines, "", "mnemoscope train TASK --help names the options."])
