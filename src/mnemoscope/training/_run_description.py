"""What config.json says of a run, also of one whose model or task is the user's own."""

from __future__ import annotations

from typing import Any

from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import TASKS, Task
from mnemoscope.training._config import FitConfig
from mnemoscope.training._model import SequenceModel
from mnemoscope.training._schema import to_plain


def describe(model: nn.Module, task: Task, config: FitConfig) -> dict[str, Any]:
    """A configuration from which the run can be repeated; of what is not ours, the name of its class."""
    network = to_plain(model.config) if isinstance(model, SequenceModel) else {"own": _name(model)}
    ours = TASKS.get(task.name) is type(task)
    return {
        "task": {"name": task.name, **to_plain(task)} if ours else {"own": _name(task)},
        "network": network,
        "fit": to_plain(config),
    }


def refuse_own(about: Any, where: str) -> None:
    """Only Python can make a model or a task of the user's own again."""
    for part in ("network", "task"):
        section = about.get(part) if isinstance(about, dict) else None
        if isinstance(section, dict) and "own" in section:
            raise MnemoscopeError(f"{where} has a {part} of your own, {section['own']}; use it from Python, by fit()")


def first_difference(found: Any, expected: dict[str, Any]) -> str:
    """The first field in which two configurations differ, in words; empty where they do not."""
    for part, section in expected.items():
        there = found.get(part) if isinstance(found, dict) else None
        for name, value in section.items():
            given = there.get(name) if isinstance(there, dict) else None
            if given != value:
                return f"its {part} has {name} = {given!r}, not {value!r}"
    return "" if found == expected else "it has other fields"


def _name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
