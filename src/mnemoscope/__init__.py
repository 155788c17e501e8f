"""Mnemoscope shows how far back a recurrent network remembers, and gives it layers that remember further."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mnemoscope import startup as startup  # first: before torch is loaded

# isort: split
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import catalog, parameter_groups
from mnemoscope.layers.catalog import *  # noqa: F403
from mnemoscope.recurrence import Recurrence, State, Trace, detach, reset, select, to, trace

if TYPE_CHECKING:  # type checkers and editors see the names; at run time `__getattr__` finds them
    from mnemoscope import adapters as adapters
    from mnemoscope import finding as finding
    from mnemoscope import report as report
    from mnemoscope import rl as rl
    from mnemoscope import scopes as scopes
    from mnemoscope import studies as studies
    from mnemoscope import sweeps as sweeps
    from mnemoscope import systems as systems
    from mnemoscope import tasks as tasks
    from mnemoscope import theory as theory
    from mnemoscope import training as training
    from mnemoscope.finding import Examination, Finding
    from mnemoscope.scopes import examine
    from mnemoscope.sweeps import sweep

__version__ = "0.1.0"
__all__ = [
    "Examination",
    "Finding",
    "MnemoscopeError",
    "Recurrence",
    "State",
    "Trace",
    "detach",
    "examine",
    "parameter_groups",
    "reset",
    "select",
    "sweep",
    "to",
    "trace",
]
__all__ += catalog.__all__  # every layer

_LAZY = {
    "Examination": "mnemoscope.finding",
    "Finding": "mnemoscope.finding",
    "examine": "mnemoscope.scopes",
    "sweep": "mnemoscope.sweeps",
}

_ROOMS = {
    "adapters",
    "finding",
    "report",
    "rl",
    "scopes",
    "studies",
    "sweeps",
    "systems",
    "tasks",
    "theory",
    "training",
}
"""What loads when it is first used, so that ``mnemoscope.scopes`` is there without an import of its own."""


if not TYPE_CHECKING:  # else every misspelt name would pass as Any

    def __getattr__(name: str) -> Any:  # layers are wanted by every script, the scopes by few: they load when asked for
        if name in _LAZY:
            return getattr(import_module(_LAZY[name]), name)
        if name in _ROOMS:
            return import_module(f"mnemoscope.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
