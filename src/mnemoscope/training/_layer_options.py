"""The recurrent layers that a configuration can name, and the options of each, read from its constructor."""

from __future__ import annotations

import operator
import reprlib
import types
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Literal, Union, get_args, get_origin

from torch import nn

from mnemoscope import layers
from mnemoscope.errors import MnemoscopeError, did_you_mean
from mnemoscope.layers import Option
from mnemoscope.schema import convert

_TORCH_LAYERS: dict[str, type[nn.Module]] = {"torch.RNN": nn.RNN, "torch.LSTM": nn.LSTM, "torch.GRU": nn.GRU}
_TORCH_NONLINEARITY = Option("nonlinearity", Literal["tanh", "relu"], "tanh", '"tanh" or "relu".')

EARLIER_DEFAULTS: dict[str, dict[str, Any]] = {"SAB": {"output": "h", "detach_scores": False}}
"""Defaults that have changed, by layer, as they were. A configuration always says these options; a run folder that does
not was written before."""


def models() -> dict[str, type[nn.Module]]:
    """Return every recurrent layer by its name in a configuration: ours, and torch's for comparison."""
    return {**layers.LAYERS, **_TORCH_LAYERS}


def layer_options(model: str) -> dict[str, Option]:
    """Return the options of a layer that a configuration can set, by name.

    They are the keyword arguments of its constructor. A function, such as a nonlinearity of the user's, can be passed
    in Python only: annotations are returned without it.
    """
    kind: Any = models().get(model)
    if kind is None:
        hint = did_you_mean(str(model), models())
        raise MnemoscopeError(f"model = {model!r} is not a layer; layers are {', '.join(models())}{hint}")
    if kind in _TORCH_LAYERS.values():
        return {"nonlinearity": _TORCH_NONLINEARITY} if kind is nn.RNN else {}
    options = {}
    for name, option in layers.options(kind).items():
        annotation = _without_functions(option.annotation)
        if annotation is not None:
            in_python_only = ", or any pointwise function"
            options[name] = option._replace(annotation=annotation, help=option.help.replace(in_python_only, ""))
    return options


def check_options(
    model: str, options: Mapping[str, Any], where: str = "", *, common: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the options as a dict, each converted to the type of the layer's argument; None counts as not set.

    Args:
        model: the layer's name.
        options: values by the name of the argument.
        where: what errors put before a name.
        common: other names that a misspelled option may have meant.
    """
    known = layer_options(model)
    checked = {name: known[name].default for name in EARLIER_DEFAULTS.get(model, {})}
    for name, value in options.items():
        if value is None:
            continue
        if name not in known:
            raise _unknown_option(model, name, where, common)
        label = f"{where}.{name}" if where else name.replace("_", "-")
        checked[name] = convert(known[name].annotation, value, label)
    return checked


def _unknown_option(model: str, name: str, where: str, common: tuple[str, ...]) -> MnemoscopeError:
    """Return the error for an option that a layer does not have. It names the nearest option, or all of them."""
    known = list(layer_options(model))
    hint = did_you_mean(name, [*known, *common]) or f"; its options are: {', '.join(known) or 'none'}"
    if name in common:
        hint = "; it is a field of NetworkConfig itself"
    prefix = f"{where}: " if where else ""
    return MnemoscopeError(f"{prefix}{model} has no option {reprlib.repr(name)}{hint}")


def _without_functions(annotation: Any) -> Any:
    """Return an annotation without its callable alternatives, or None if nothing but None is left."""
    if get_origin(annotation) not in (types.UnionType, Union):
        return None if get_origin(annotation) is Callable else annotation
    kept = [kind for kind in get_args(annotation) if get_origin(kind) is not Callable]
    if kept == [types.NoneType]:
        return None
    return reduce(operator.or_, kept)
