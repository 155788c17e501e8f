"""Libraries of the extra `theory`, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from mnemoscope.errors import MnemoscopeError


def require_optional(module: str) -> ModuleType:
    """Import `module`, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise MnemoscopeError(f"{module} is not installed; it comes with: pip install mnemoscope[theory]") from None
