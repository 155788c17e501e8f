"""Models that a user's own Python makes: package.module:factory or path/to/file.py:factory."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from mnemoscope.errors import MnemoscopeError, did_you_mean, type_and_line

DEFAULT_HIDDEN_SIZE = 64  # for a factory that requires a hidden_size when none was given
VOCABULARY_NAMES = ("vocab_size", "vocabulary_size", "num_tokens", "num_embeddings", "ntoken", "n_vocab", "n_tokens")


@contextmanager
def exits_are_errors() -> Iterator[None]:
    """Turn sys.exit in the code of a target into a MnemoscopeError: with exit code 0 it would pass --fail-if."""
    try:
        yield
    except SystemExit as end:
        raise MnemoscopeError(
            f"a target's own code called sys.exit({end.code!r}); it must not end the process that examines it"
        ) from end


def make_model(spec: str, features: int, options: Mapping[str, Any], vocabulary: int | None = None) -> Any:
    """Return the model that a factory makes; sizes that it requires are filled in: input, hidden, vocabulary."""
    with _importable(_folder(spec)):
        factory = import_attribute(spec)
        model = factory if isinstance(factory, nn.Module) else _call(factory, spec, features, options, vocabulary)
    if not isinstance(model, nn.Module) and not callable(getattr(model, "step", None)):
        given = type(model).__name__
        raise MnemoscopeError(
            f"{spec} gave an object of type {given}; it must give a torch module or an object with a step"
        )
    return model


def import_attribute(spec: str) -> Any:
    """Return what package.module:name or path/to/file.py:name stands for."""
    module, _, name = spec.rpartition(":")
    with _importable(_folder(spec)):
        return _attribute(_import(module), name, spec)


def defined_names(path: Path) -> list[str]:
    """Return the public functions and classes that a Python file defines, without running it; none if it is broken."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


def _folder(spec: str) -> Path:
    """The folder of a file; for a module the current one, as `python -m` has it."""
    module = spec.rpartition(":")[0]
    return Path(module).parent if module.endswith(".py") else Path()


def _call(factory: Any, spec: str, features: int, options: Mapping[str, Any], vocabulary: int | None) -> Any:
    if not callable(factory):
        given = type(factory).__name__
        raise MnemoscopeError(f"{spec} is of type {given}; it must be a function or a class that makes a model")
    required = _required_arguments(factory)
    sizes = {"input_size": features, "hidden_size": DEFAULT_HIDDEN_SIZE}
    if vocabulary is not None:
        sizes |= dict.fromkeys(VOCABULARY_NAMES, vocabulary)
    arguments = {name: size for name, size in sizes.items() if name in required} | dict(options)
    missing = [name for name in required if name not in arguments]
    if missing:
        example = " ".join(f"{name}=..." for name in missing)
        raise MnemoscopeError(f"{spec} also needs {', '.join(missing)}: give {_them(missing)} as --with {example}")
    try:
        return factory(**arguments)
    except Exception as error:
        raise MnemoscopeError(f"the factory {spec} raised {type_and_line(error)}") from error


def _them(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _required_arguments(factory: Any) -> list[str]:
    """The names of a factory's arguments without defaults."""
    if factory in (nn.RNN, nn.LSTM, nn.GRU):  # their signature is *args, **kwargs
        return ["input_size", "hidden_size"]
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature
        return []
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.default is p.empty and p.kind in by_name]


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules in `folder` be imported; afterwards sys.path is as it was, so that no later import finds them."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:  # unless the target's own code removed it
            sys.path.remove(entry)


def _import(module: str) -> ModuleType:
    """Import a module by its dotted name, or from a .py file."""
    try:
        if module.endswith(".py"):
            return _import_file(Path(module))
        return importlib.import_module(module)
    except MnemoscopeError:
        raise
    except ModuleNotFoundError as error:
        raise MnemoscopeError(f"cannot import {module}: there is no module {error.name}") from error
    except Exception as error:
        raise MnemoscopeError(f"cannot import {module}: {type_and_line(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise MnemoscopeError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"mnemoscope_target_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a module up by its name
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, name: str, spec: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise MnemoscopeError(f"{spec}: there is no {part!r} in it{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    return found
