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


def in_order_of(like: Any, nest: Any) -> Any:
    """Return a nest with the keys of every dict in the order of those of another nest, if they are the same keys."""
    if isinstance(nest, dict) and isinstance(like, dict) and nest.keys() == like.keys():
        ordered = copy.copy(nest)
        for key in like:  # each is moved to the end
            ordered[key] = in_order_of(like[key], ordered.pop(key))
        return ordered
    if isinstance(nest, tuple | list) and isinstance(like, tuple | list) and len(nest) == len(like):
        parts = [in_order_of(one, other) for one, other in zip(like, nest, strict=True)]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    if dataclasses.is_dataclass(nest) and type(nest) is type(like):
        changed = copy.copy(nest)
        for field in dataclasses.fields(nest):
            object.__setattr__(changed, field.name, in_order_of(getattr(like, field.name), getattr(nest, field.name)))
        return changed
    return nest


def leaves_of(nest: Any) -> list[Any]:
    """Return the leaves, in the order in which `rebuild` takes them."""
    leaves: list[Any] = []
    map_nest(leaves.append, nest)
    return leaves


def rebuild(nest: Any, leaves: Iterable[Any]) -> Any:
    """Return the same nest with other leaves."""
    remaining = iter(leaves)
    return map_nest(lambda _: next(remaining), nest)
