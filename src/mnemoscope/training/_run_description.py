"""The content of config.json, also for a run with a model or task written by the user."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import read_json, to_json
from mnemoscope.schema import added_later, from_dict, to_dict
from mnemoscope.tasks import TASKS, Task
from mnemoscope.training._config import SECTIONS, LoopConfig, NetworkConfig, RunConfig, check_sections
from mnemoscope.training._environment import Environment
from mnemoscope.training._layer_options import EARLIER_DEFAULTS
from mnemoscope.training._model import SequenceModel


@dataclass(frozen=True)
class RunDescription:
    """What config.json holds: a configuration that repeats the run, and where it began.

    A model or task of the user's own is described by its class, as ``{"own": "package.Class"}``. A run that was resumed
    with more updates than it began with also has the budgets that it had before, in `earlier_updates`.
    """

    task: dict[str, Any]
    network: dict[str, Any]
    fit: dict[str, Any]
    environment: Environment = field(default_factory=Environment)
    earlier_updates: tuple[int, ...] = added_later(())

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """The configuration: all but the environment, which may change."""
        return {name: getattr(self, name) for name in SECTIONS}

    @property
    def sha256(self) -> str:
        """The hash of the configuration: a checkpoint continues only the run that it was made in."""
        return hashlib.sha256(to_json(self.sections)).hexdigest()

    @property
    def accepted_sha256(self) -> list[str]:
        """The hashes that a checkpoint of this run may hold: its own, and those of its smaller budgets before."""
        earlier = [replace(self, fit={**self.fit, "updates": updates}) for updates in self.earlier_updates]
        return [self.sha256, *(description.sha256 for description in earlier)]

    def with_more_updates(self, updates: Any) -> RunDescription:
        """Return the description with a larger budget; itself if it is not larger, or not a number of updates."""
        before = self.fit.get("updates")
        if type(before) is not int or type(updates) is not int or not 0 < before < updates or self._counts_epochs:
            return self
        return replace(self, fit={**self.fit, "updates": updates}, earlier_updates=(*self.earlier_updates, before))

    @property
    def _counts_epochs(self) -> bool:
        return bool(self.fit.get("epochs")) and "accumulate" in self.fit  # an agent's epochs are not a budget

    @property
    def threads(self) -> int:
        """The number of CPU threads of the run; 0 if it was not recorded."""
        threads = self.fit.get("threads")
        return threads if type(threads) is int and threads > 0 else 0

    def to_json(self) -> bytes:
        """Return the content of config.json."""
        content: dict[str, Any] = {**self.sections, "environment": asdict(self.environment)}
        if self.earlier_updates:
            content["earlier_updates"] = list(self.earlier_updates)
        return to_json(content, indent=2)

    def config(self, folder: Path) -> RunConfig:
        """Return the configuration of the run in `folder`; refused if its model or task was the user's own.

        A text that is not where it was is looked for beside the run: the two may have been moved together.
        """
        for part in ("network", "task"):
            section = getattr(self, part)
            if "own" in section:
                raise MnemoscopeError(
                    f"{folder} has a {part} of your own, {section['own']}; use it from Python, by fit()"
                )
        moved = replace(self, task=_with_text_beside(self.task, folder), network=_with_earlier_defaults(self.network))
        return RunConfig.from_dict(moved.sections, str(folder / "config.json"))


def read_description(path: Path) -> RunDescription:
    """Return the checked content of a config.json."""
    data = read_json(path)
    check_sections(data, str(path))
    return from_dict(RunDescription, data, str(path))


def describe_run(model: nn.Module, task: Task, config: LoopConfig, environment: Environment) -> RunDescription:
    """Return the description of a new run."""
    if TASKS.get(task.name) is type(task):
        task_section = {"name": task.name, **to_dict(task)}
    else:
        task_section = {"own": _class_name(task)}
    if isinstance(model, SequenceModel):
        network_section = model.config.to_dict()
    else:
        network_section = {"own": _class_name(model)}
    return RunDescription(task_section, network_section, config.to_dict(), environment)


def first_difference(recorded: RunDescription, expected: RunDescription, path: Path) -> str:
    """Return the first field in which two configurations differ, in words; empty if they are equal.

    The path of a text does not count: its content is compared by its hash.
    """
    network = recorded.network
    if "own" not in network:  # as it is written now: without null options
        network = NetworkConfig.from_dict(_with_earlier_defaults(network), f"{path}: network").to_dict()
    found = replace(recorded, network=network).sections
    for part, section in expected.sections.items():
        for name, value in section.items():
            other = found[part].get(name)
            if other != value and not (name == "data" and _is_path(other) and _is_path(value)):
                return f"its {part} has {name} = {other!r}, not {value!r}"
        if found[part].keys() != section.keys():
            return f"its {part} has other fields"
    return ""


def _with_text_beside(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    data = task.get("data", "")
    if not _is_path(data) or Path(data).exists():
        return task
    beside = [place / Path(data).name for place in (folder, folder.parent)]
    return {**task, "data": next((str(path) for path in beside if path.is_file()), data)}


def _with_earlier_defaults(network: dict[str, Any]) -> dict[str, Any]:
    """Return the network with the options that it was made with, where their defaults were others then."""
    model = network.get("model")
    earlier = EARLIER_DEFAULTS.get(model, {}) if isinstance(model, str) else {}
    return {**earlier, **network}


def _is_path(data: Any) -> bool:
    return isinstance(data, str) and "\0" not in data and len(Path(data).parts) > 1


def _class_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
