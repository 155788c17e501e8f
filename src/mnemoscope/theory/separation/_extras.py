"""The optional libraries of this room, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from mnemoscope.errors import MnemoscopeError

PAPER = "Levine et al. 2018"


def optional(module: str) -> ModuleType:
    """Import a library of the extra `theory`, or say how to get it."""
    try:
        return import_module(module)
    except ImportError:
        raise MnemoscopeError(f"{module} is not installed; it comes with: pip install mnemoscope[theory]") from None
