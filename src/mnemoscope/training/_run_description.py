"""The content of config.json, also for a run with a model or task written by the user."""

from __future__ import annotations

from typing import Any

from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import TASKS, Task
from mnemoscope.training._config import FitConfig, NetworkConfig
from mnemoscope.training._model import SequenceModel
from mnemoscope.training._schema import to_dict


def describe_run(model: nn.Module, task: Task, config: FitConfig) -> dict[str, Any]:
    """Return a configuration that repeats the run. A model or task of the user's own is described by its class."""
    if TASKS.get(task.name) is type(task):
        task_section = {"name": task.name, **to_dict(task)}
    else:
        task_section = {"own": _class_name(task)}
    if isinstance(model, SequenceModel):
        network_section = model.config.to_dict()
    else:
        network_section = {"own": _class_name(model)}
    return {"task": task_section, "network": network_section, "fit": to_dict(config)}


def with_network_as_written_now(config: Any, where: str) -> Any:
    """Return a recorded configuration with its network as `describe_run` writes it: without null options."""
    if not isinstance(config, dict):
        return config
    sections = dict(config)
    network = config.get("network")
    if isinstance(network, dict) and "own" not in network:
        sections["network"] = NetworkConfig.from_dict(network, f"{where}: network").to_dict()
    return sections


def require_built_in(config: Any, where: str) -> None:
    """Refuse a run whose model or task the user wrote: only their Python code can build it again."""
    for part in ("network", "task"):
        section = config.get(part) if isinstance(config, dict) else None
        if isinstance(section, dict) and "own" in section:
            raise MnemoscopeError(f"{where} has a {part} of your own, {section['own']}; use it from Python, by fit()")


def first_difference(found: Any, expected: dict[str, Any]) -> str:
    """Return the first field in which two configurations differ, in words; empty if they are equal."""
    for part, section in expected.items():
        recorded = found.get(part) if isinstance(found, dict) else None
        for name, value in section.items():
            other = recorded.get(name) if isinstance(recorded, dict) else None
            if other != value:
                return f"its {part} has {name} = {other!r}, not {value!r}"
    return "" if found == expected else "it has other fields"


def _class_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
