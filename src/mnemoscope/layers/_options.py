"""A layer's own options, read from its constructor, and the error for one that it does not have."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, get_type_hints

from mnemoscope.errors import did_you_mean

Init = TypeVar("Init", bound=Callable[..., None])

_PLACEMENT = ("device", "dtype")  # torch's keywords, which say nothing about the equations


class Option(NamedTuple):
    """One keyword argument of a layer: `annotation` is the resolved type, `help` a sentence of the docstring."""

    name: str
    annotation: Any
    default: Any
    help: str


@functools.cache
def options(layer: type) -> dict[str, Option]:
    """Return a layer's own options by name: the keyword-only arguments of its constructor, without device and dtype.

    Types are resolved from the annotations, help is the text under ``Args:`` in the docstring of the class or of the
    nearest base class that has it.

    Examples:
        >>> from mnemoscope.layers import RelLSTM, options
        >>> options(RelLSTM)["buffer"].help
        'nu, how many of the last states are attended.'
    """
    parameters = inspect.signature(layer).parameters.values()
    own = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _PLACEMENT]
    annotations = get_type_hints(layer.__init__)  # type: ignore[misc]
    return {p.name: Option(p.name, annotations.get(p.name, Any), p.default, _help(layer, p.name)) for p in own}


def _help(layer: type, name: str) -> str:
    for base in layer.__mro__:
        described = _described_arguments(base.__doc__ or "")
        if name in described:
            return described[name]
    return ""


def _described_arguments(doc: str) -> dict[str, str]:
    """The entries under ``Args:`` of a docstring, each on one line."""
    section = re.search(r"^Args:\n((?:[ ]+.*\n|\n)*)", inspect.cleandoc(doc) + "\n", re.MULTILINE)
    if section is None:
        return {}
    entries = re.findall(r"^(\w+): ((?:.*\n)(?:[ ]+.*\n)*)", textwrap.dedent(section[1]), re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def naming_unknown_options(init: Init) -> Init:
    """Return the constructor `init`, which names the class and the nearest option where a keyword is not one of its.

    A nonlinearity may also be given where nn.RNN takes it, as the fourth argument: ``RNN(3, 4, 1, "relu")``. The
    signature that ``help``, ``inspect`` and type checkers see stays that of `init`.
    """
    parameters = inspect.signature(init).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if takes_any:
        return init

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        by_position = len(args) > 3 and isinstance(args[3], str) and "nonlinearity" not in kwargs
        if by_position and "nonlinearity" in parameters:
            kwargs["nonlinearity"] = args[3]
            args = args[:3] + args[4:]
        for name in kwargs:
            if name not in parameters:
                raise TypeError(_unknown_option(type(self).__name__, name, list(parameters)[1:]))
        init(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


def _unknown_option(layer: str, name: str, known: list[str]) -> str:
    hint = did_you_mean(name, known) or f"; it takes {', '.join(known)}"
    return f"{layer}() got an unexpected keyword argument {name!r}{hint}"
