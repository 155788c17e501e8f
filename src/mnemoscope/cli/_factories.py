"""Models that a user's own Python makes: package.module:factory or path/to/file.py:factory."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from mnemoscope.errors import MnemoscopeError

HIDDEN = 64  # units where a factory asks for a hidden_size and none was given


def make(spec: str, features: int, options: Mapping[str, Any]) -> Any:
    """What a factory gives; sizes that it asks for and nobody gave are filled in."""
    place, _, name = spec.rpartition(":")
    factory = _attribute(_module(place), name, spec)
    model = factory if isinstance(factory, nn.Module) else _called(factory, spec, features, options)
    if not isinstance(model, nn.Module) and not callable(getattr(model, "step", None)):
        given = type(model).__name__
        raise MnemoscopeError(f"{spec} gave a {given}; it must give a torch module or an object with a step")
    return model


def _called(factory: Any, spec: str, features: int, options: Mapping[str, Any]) -> Any:
    if not callable(factory):
        given = type(factory).__name__
        raise MnemoscopeError(f"{spec} is a {given}; it must be a function or a class that makes a model")
    sizes = {"input_size": features, "hidden_size": HIDDEN}
    asked = _required(factory)
    try:
        return factory(**{**{name: size for name, size in sizes.items() if name in asked}, **options})
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise MnemoscopeError(f"the factory {spec} raised {type(error).__name__}: {reason}") from error


def _required(factory: Any) -> set[str]:
    """The arguments that a factory cannot do without."""
    if factory in (nn.RNN, nn.LSTM, nn.GRU):  # which hide theirs behind *args
        return {"input_size", "hidden_size"}
    try:
        wanted = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature
        return set()
    return {p.name for p in wanted if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _module(place: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _from_file(Path(place))
        if "" not in sys.path:
            sys.path.insert(0, "")  # modules beside the user, as `python -m` finds them
        return importlib.import_module(place)
    except MnemoscopeError:
        raise
    except ModuleNotFoundError as error:
        raise MnemoscopeError(f"cannot import {place}: there is no module {error.name}") from error
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise MnemoscopeError(f"cannot import {place}: {type(error).__name__}: {reason}") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise MnemoscopeError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"mnemoscope_target_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pickling look a module up by its name
    sys.path.insert(0, str(path.resolve().parent))  # modules beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _attribute(module: ModuleType, name: str, spec: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise MnemoscopeError(f"{spec}: there is no {part!r} in it{meant}")
        found = getattr(found, part)
    return found
