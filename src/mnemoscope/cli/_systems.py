"""Systems with known answers as targets of `mnemoscope examine`: system:henon --with a=1.2."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mnemoscope.errors import MnemoscopeError, did_you_mean
from mnemoscope.systems import SYSTEMS, KnownSystem

PREFIX = "system:"


def is_system(spec: str) -> bool:
    """True if a target names a known system."""
    return spec.startswith(PREFIX)


def make_system(spec: str, options: Mapping[str, Any]) -> KnownSystem:
    """Return the system that `spec` names; an unknown name or option is an error of one line."""
    name = spec.removeprefix(PREFIX)
    if name not in SYSTEMS:
        hint = did_you_mean(name, SYSTEMS) or f"; systems are {', '.join(SYSTEMS)}"
        raise MnemoscopeError(f"{name!r} is not a known system{hint}")
    defaults = system_options(name)
    for option, value in options.items():
        if option not in defaults:
            hint = did_you_mean(option, defaults) or f"; it takes {', '.join(defaults) or 'none'}"
            raise MnemoscopeError(f"{spec} has no option {option!r}{hint}")
        _check_number(f"{spec}: {option}", value, defaults[option])
    return SYSTEMS[name](**options)


def system_options(name: str) -> dict[str, Any]:
    """Return the options of a system with their defaults."""
    parameters = inspect.signature(SYSTEMS[name]).parameters
    return {option: parameter.default for option, parameter in parameters.items()}


def _check_number(name: str, value: Any, default: float) -> None:
    """Every option of a system is a number, whole where its default is."""
    allowed: tuple[type, ...] = (int,)
    word = "a whole number"
    if isinstance(default, float):
        allowed = (int, float)
        word = "a number"
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise MnemoscopeError(f"{name} must be {word}; got {value!r}")
