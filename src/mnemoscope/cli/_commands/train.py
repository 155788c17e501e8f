"""mnemoscope train TASK: train a network on a task."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from mnemoscope.cli._console import OutputOptions, first_sentence, parse, pop_option
from mnemoscope.cli._follow import follow
from mnemoscope.cli._help import definitions, paragraphs
from mnemoscope.cli._names import chosen_folder
from mnemoscope.errors import MnemoscopeError, did_you_mean
from mnemoscope.files import read_json
from mnemoscope.tasks import TASKS, Task
from mnemoscope.training import (
    NetworkConfig,
    RunConfig,
    config_type,
    default_config,
    layer_options,
    models,
    train,
)

TaskType = TypeVar("TaskType")
LayerType = TypeVar("LayerType")
FitType = TypeVar("FitType")


FLAGS = {"output": "layer-output", "checkpoint": "checkpoint-activations"}
"""Options of layers whose own names could be taken for others': --out is a folder, --checkpoint of examine weights."""


@dataclass(frozen=True)
class Network(NetworkConfig):
    """The network: an embedding if the inputs are ids, a recurrent layer, and a linear read-out at every step."""

    options: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict)  # `Train.layer` has them, one flag each


@dataclass(frozen=True)
class Train(Generic[TaskType, LayerType, FitType]):
    """Options of `mnemoscope train`."""

    layer: tyro.conf.OmitArgPrefixes[LayerType]
    task: TaskType
    network: tyro.conf.OmitArgPrefixes[Network]
    fit: tyro.conf.OmitArgPrefixes[FitType]
    out: Path | None = None
    """The run's folder; by default a new one under runs/."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    names_no_task = _pop_task_name(arguments)[0] is None and pop_option(arguments, "--config")[0] is None
    if names_no_task and {"-h", "--help"} & set(arguments):
        print(_usage())
        return 0
    config, options = parse_run(arguments, "train")
    with chosen_folder(options.out, "runs", f"{config.task.name}-{config.network.model}") as folder:
        return follow(lambda callback: train(config, folder, callback), config, folder, options.output)


def parse_run(arguments: list[str], command: str) -> tuple[RunConfig, Train[Task, Any, Any]]:
    """Return the configuration of a run that the arguments of `command` describe, and all options."""
    path, rest = pop_option(arguments, "--config")
    base = None if path is None else _read_config(Path(path))
    name, rest = _pop_task_name(rest)
    late = next((task for word in rest if (task := word.removeprefix("--task=")) in TASKS), None)
    if name is None and base is None and late is not None:
        raise MnemoscopeError(f"the task comes first: mnemoscope {command} {late} [OPTIONS]")
    return _parse(_task(name, base, command), base, rest, command)


def _read_config(path: Path) -> RunConfig:
    """The configuration in a file, or that of a run's folder."""
    file = path / "config.json" if path.is_dir() else path
    return RunConfig.from_dict(read_json(file, follow=True), str(file))


def _pop_task_name(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The first argument if it is not an option, and the others."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def _task(name: str | None, base: RunConfig | None, command: str) -> Task:
    """The task with its defaults, or as the configuration to repeat has it."""
    if base is not None and name in (None, base.task.name):
        return base.task
    if name is None or name not in TASKS:
        problem = "no task was given" if name is None else f"{name!r} is not a task"
        hint = did_you_mean(name or "", TASKS)
        raise MnemoscopeError(f"{problem}; mnemoscope {command} TASK takes one of {', '.join(TASKS)}{hint}")
    return TASKS[name]()


def _parse(
    task: Task, base: RunConfig | None, arguments: list[str], command: str
) -> tuple[RunConfig, Train[Task, Any, Any]]:
    """Return the configuration that the arguments give, and all options. The model decides which options there are."""
    network = NetworkConfig() if base is None else base.network
    model, arguments = pop_option(arguments, "--model")
    network = replace(network, model=model or network.model)
    _refuse_options_of_other_layers(network.model, arguments)

    # tyro makes a flag of every field of the task and of the layer's options.
    layer_type = _layer_options_type(network.model)
    default: Train[Task, Any, Any] = Train(
        layer=layer_type(**network.options),
        task=task,
        network=Network(**{name: value for name, value in vars(network).items() if name != "options"}),
        fit=default_config(task) if base is None or not isinstance(base.fit, config_type(task)) else base.fit,
    )
    about = (
        f"{first_sentence(type(task))} The layer options are those of {network.model}; --model NAME --help shows those "
        "of another layer. --config RUN/config.json repeats a run; other options then change it."
    )
    kind: Any = Train[type(task), layer_type, config_type(task)]  # type: ignore[misc]
    options: Train[Task, Any, Any] = parse(kind, arguments, f"{command} {task.name}", about=about, default=default)

    # The configuration records the options that were given, not the layer's defaults.
    defaults = asdict(layer_type())
    given = {
        name: value
        for name, value in asdict(options.layer).items()
        if value != defaults[name] or name in network.options
    }
    fields = {name: value for name, value in vars(options.network).items() if name != "options"}
    return RunConfig(options.task, NetworkConfig(**fields, options=given), options.fit), options


def _layer_options_type(model: str) -> Any:
    """Return a dataclass with the options of a layer as its fields."""
    options = [
        (
            option.name,
            Annotated[option.annotation, tyro.conf.arg(help=option.help, name=FLAGS.get(option.name))],
            option.default,
        )
        for option in layer_options(model).values()
    ]
    return make_dataclass(f"{model} options", options, frozen=True, namespace={"__doc__": f"Options of {model}."})


def _refuse_options_of_other_layers(model: str, arguments: list[str]) -> None:
    """Refuse an option that only other layers have, with the error that the configuration gives."""
    names = {name for other in models() for name in layer_options(other)} - set(layer_options(model))
    for word in arguments:
        if word.partition("=")[0] == "--output":
            raise MnemoscopeError(
                "--output is not an option: --out is the run's folder, --layer-output what a layer gives"
            )
        if word.partition("=")[0] == "--checkpoint":
            raise MnemoscopeError("--checkpoint is not an option: --checkpoint-activations computes activations again")
        name = word.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        if word.startswith("--") and name in names:
            NetworkConfig(model, options={name: True})


def _usage() -> str:
    return "\n\n".join(
        [
            "usage: mnemoscope train TASK [OPTIONS]\n       mnemoscope train --config RUN/config.json [OPTIONS]",
            definitions((name, first_sentence(task)) for name, task in TASKS.items()),
            paragraphs("mnemoscope train TASK --help shows the options."),
        ]
    )
