"""Options of single scopes from the command line: --set landscape.to=initial landscape.x_range=-0.5,1.5."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from mnemoscope.cli._sequences import Sequences
from mnemoscope.cli._targets import Target, as_tensor, is_run, read_literal
from mnemoscope.cli._weights import read_weights
from mnemoscope.errors import MnemoscopeError
from mnemoscope.scopes import SCOPES
from mnemoscope.tasks import Split
from mnemoscope.training import Run, initial_model

INITIAL = "initial"  # the weights of a run before its first update
WEIGHTS = (("landscape", "to"), ("landscape", "third"), ("attractors", "path"))


def read_scope_options(words: Sequence[str], scopes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse ``scope.option=value`` words: by scope, then by option. Values are Python literals, else strings."""
    options: dict[str, dict[str, Any]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        scope, dot, option = name.partition(".")
        if not equals or not dot:
            raise MnemoscopeError(f"--set takes scope.option=value; got {word!r}")
        if scope not in SCOPES:
            raise MnemoscopeError(f"--set {word}: {scope!r} is not a scope; scopes are {', '.join(sorted(SCOPES))}")
        if scope not in scopes:
            raise MnemoscopeError(f"--set {word}: {scope} is not among the --scopes; add it there")
        try:
            SCOPES[scope].check_options([option])
        except MnemoscopeError as error:
            raise MnemoscopeError(f"--set {word}: {error}") from None
        options.setdefault(scope, {})[option] = read_literal(f"--set {name}", value)
    return options


def options_for(
    options: Mapping[str, Mapping[str, Any]], target: Target, held_out: Callable[[Split], Sequences]
) -> dict[str, dict[str, Any]]:
    """Return the options with what their words stand for of this target: weights, held-out sequences, tensors.

    Args:
        options: as they were parsed.
        target: whose weights `initial` are.
        held_out: makes the sequences of a split, for the target.
    """
    return {
        scope: {name: _value(scope, name, value, target, held_out) for name, value in given.items()}
        for scope, given in options.items()
    }


def _value(scope: str, name: str, value: Any, target: Target, held_out: Callable[[Split], Sequences]) -> Any:
    if (scope, name) in WEIGHTS and value != "scale":
        weights = _weights(f"{scope}.{name}", str(value), target)
        return _path_to(weights, target) if name == "path" else weights
    if (scope, name) == ("landscape", "held_out"):
        if value not in get_args(Split):
            raise MnemoscopeError(f"--set landscape.held_out={value}: it must be one of {', '.join(get_args(Split))}")
        sequences = held_out(value)
        return sequences.inputs, sequences.targets
    annotation = str(inspect.signature(SCOPES[scope].measure).parameters[name].annotation)
    if "Tensor" in annotation and isinstance(value, list | tuple):
        return as_tensor(f"--set {scope}.{name}", value)
    return value


def _weights(option: str, value: str, target: Target) -> dict[str, Tensor]:
    """Return the weights that a word names: a run's first ones, another run's last, or those in a file."""
    if value == INITIAL:
        if target.run is None:
            raise MnemoscopeError(
                f"--set {option}={INITIAL}: {target.spec} is not a run; give a run's folder or a file"
            )
        return initial_model(target.run.config).state_dict()
    if is_run(value):
        return Run(value).model().state_dict()
    if not Path(value).is_file():
        raise MnemoscopeError(f"--set {option}={value}: there is no such run or file; a run's own start is {INITIAL!r}")
    return read_weights(target.model, Path(value))


def _path_to(weights: Mapping[str, Tensor], target: Target) -> Callable[[float], dict[str, Tensor]]:
    """Return s -> (1 - s) own + s weights, for the parameters that both have."""
    own = {name: tensor.detach().clone() for name, tensor in target.model.named_parameters() if name in weights}

    def path(s: float) -> dict[str, Tensor]:
        return {name: (1 - s) * tensor + s * weights[name].to(tensor) for name, tensor in own.items()}

    return path
