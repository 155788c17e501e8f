"""Tasks: sequences to remember, with their loss, metrics and baseline."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from mnemoscope.tasks._adding import Adding
from mnemoscope.tasks._chorales import Chorales
from mnemoscope.tasks._copying import Copy, Denoise
from mnemoscope.tasks._custom import Custom
from mnemoscope.tasks._data import missing_data
from mnemoscope.tasks._digits import Digits
from mnemoscope.tasks._gaussian import Gaussian
from mnemoscope.tasks._start_end import StartEnd
from mnemoscope.tasks._symbols import Symbols
from mnemoscope.tasks._task import Batch, Split, Task, require_at_least
from mnemoscope.tasks._text import Characters, Words

_IN_RL = {"tmaze": "TMaze", "minigrid": "MiniGrid", "gym": "Gym"}


class _Tasks(Mapping[str, type[Task]]):
    """Tasks by name. Those of `mnemoscope.rl`, a room above this one, are imported when they are first asked for."""

    def __init__(self, *own: type[Task]) -> None:
        self._own = {task.name: task for task in own}

    def __getitem__(self, name: str) -> type[Task]:
        if name in _IN_RL:
            task: type[Task] = getattr(import_module("mnemoscope.rl"), _IN_RL[name])
            return task
        return self._own[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *_IN_RL])

    def __len__(self) -> int:
        return len(self._own) + len(_IN_RL)


TASKS: Mapping[str, type[Task]] = _Tasks(
    Copy, Denoise, Adding, Symbols, Digits, Characters, Words, Chorales, Gaussian, StartEnd
)
"""Every task by its name on the command line. `Custom` is for Python only."""

__all__ = [
    "TASKS",
    "Adding",
    "Batch",
    "Characters",
    "Chorales",
    "Copy",
    "Custom",
    "Denoise",
    "Digits",
    "Gaussian",
    "Split",
    "StartEnd",
    "Symbols",
    "Task",
    "Words",
    "missing_data",
    "require_at_least",
]
