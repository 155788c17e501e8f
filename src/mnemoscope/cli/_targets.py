"""What `mnemoscope examine` examines: a run's folder, a built-in model, a known system, or a factory in Python."""

from __future__ import annotations

import ast
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.cli._factories import DEFAULT_HIDDEN_SIZE, defined_names, make_model
from mnemoscope.cli._systems import PREFIX, is_system, make_system
from mnemoscope.cli._weights import load_weights
from mnemoscope.errors import MnemoscopeError, did_you_mean, first_line
from mnemoscope.systems import KnownSystem
from mnemoscope.tasks import Task
from mnemoscope.training import CheckpointName, NetworkConfig, Run, make_layer, make_network, models


@dataclass(frozen=True)
class Target:
    """A model ready to be examined: its name, how the user named it, and the run or known system that it is, if any."""

    name: str
    spec: str
    model: Any
    run: Run | None = None
    system: KnownSystem | None = None


def is_run(spec: str) -> bool:
    """True if a target is a run's folder."""
    try:
        return Path(spec).is_dir()
    except (OSError, ValueError):  # a name that is too long, or holds a null: no folder has it
        return False


def load_target(
    spec: str,
    *,
    task: Task | None,
    features: int,
    vocabulary: int | None,
    options: Mapping[str, Any],
    checkpoint: Path | None,
    which: CheckpointName | int,
) -> Target:
    """Return the model that `spec` names, with the weights in `checkpoint` if one is given."""
    if is_run(spec):
        if checkpoint is not None or options:
            raise MnemoscopeError(f"{spec} is a run and has weights of its own: leave out --checkpoint and --with")
        run = Run(spec)
        return Target(run.path.resolve().name, spec, run.model(which), run)
    if spec in models():
        target = Target(spec, spec, _built_in(spec, task, features, options))
    elif is_system(spec):
        system = make_system(spec, options)
        target = Target(spec.removeprefix(PREFIX), spec, system, system=system)
    elif ":" in spec:
        target = Target(spec.rpartition(":")[2], spec, make_model(spec, features, options, vocabulary))
    else:
        raise _unknown_target(spec)
    if checkpoint is not None:
        load_weights(target.model, checkpoint)
    return target


def read_options(words: Sequence[str], option: str = "--with") -> dict[str, Any]:
    """Parse ``name=value`` pairs; values are Python literals, and any other word is a string."""
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise MnemoscopeError(f"{option} takes name=value pairs; got {word!r}")
        options[name] = read_literal(f"{option} {name}", value)
    return options


def read_literal(what: str, word: str) -> Any:
    """Return a Python literal's value; any other word is a string."""
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # as {[]: 1} and deep nests do
        return word
    if isinstance(value, int) and abs(value) >= 2**63:
        raise MnemoscopeError(f"{what} = {reprlib.repr(value)} is too large; use less")
    return value


def as_tensor(what: str, numbers: Sequence[Any]) -> Tensor:
    """Return a list of numbers as a tensor; `what` names it in the error."""
    try:
        return torch.tensor(numbers)
    except (ValueError, TypeError, RuntimeError) as error:
        raise MnemoscopeError(f"{what} must be a list of numbers: {first_line(error)}") from error


def _unknown_target(spec: str) -> MnemoscopeError:
    if spec.endswith(".py") and Path(spec).is_file():
        names = defined_names(Path(spec))
        listed = f"; it defines {', '.join(names)}" if names else ""
        example = names[0] if names else "make"
        return MnemoscopeError(f"say what in {spec} makes the model, as {spec}:{example}{listed}")
    if Path(spec).is_file():
        return MnemoscopeError(
            f"{spec} is a file, not a model: weights are given as --checkpoint, sequences as --inputs, beside the "
            "model; a target is a run's folder, a model or module:factory"
        )
    if "/" in spec or spec.startswith("."):
        return MnemoscopeError(f"there is no folder {spec}; a target is a run's folder, a model or module:factory")
    hint = did_you_mean(spec, models()) or f"; models are {', '.join(models())}"
    return MnemoscopeError(
        f"{spec!r} is neither a run's folder, nor a model, nor system:NAME, nor package.module:factory{hint}"
    )


def _built_in(name: str, task: Task | None, features: int, options: Mapping[str, Any]) -> nn.Module:
    """A fresh network for the task, or the bare layer if there is none."""
    config = NetworkConfig.from_dict({"hidden_size": DEFAULT_HIDDEN_SIZE, **options, "model": name}, "--with")
    return make_layer(config, features) if task is None else make_network(task, config)
