"""Nests of tuples, lists, dicts and dataclasses, taken apart and put together again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from mnemoscope.torch_internals import pytree


def map_nest(function: Callable[[Any], Any], nest: Any) -> Any:
    """Return the same nest with function(leaf) in the place of every leaf."""

    def map_leaf(leaf: Any) -> Any:
        if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
            return function(leaf)
        changed = copy.copy(leaf)
        for field in dataclasses.fields(leaf):
            object.__setattr__(changed, field.name, map_nest(function, getattr(leaf, field.name)))  # it may be frozen
        return changed

    return pytree.tree_map(map_leaf, nest)


def leaves_of(nest: Any) -> list[Any]:
    """Return the leaves, in the order in which `rebuild` takes them."""
    leaves: list[Any] = []
    map_nest(leaves.append, nest)
    return leaves


def rebuild(nest: Any, leaves: Iterable[Any]) -> Any:
    """Return the same nest with other leaves."""
    remaining = iter(leaves)
    return map_nest(lambda _: next(remaining), nest)
