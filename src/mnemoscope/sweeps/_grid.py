"""Grids: axes of values for fields of a run's configuration, and the configurations that they make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from math import prod
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.training import RunConfig

Changes = dict[str, Any]
"""Values by field, as "network.hidden_size"."""

Grid = Mapping[str, Sequence[Any]]
"""Values to try by field; a grid's runs are all their combinations."""

SECTIONS = ("task", "network", "fit")
MAX_RUNS = 1_000_000
_RANGE = re.compile(r"(-?\d+):(-?\d+)(?::(-?\d+))?")
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def parse_grid(words: Sequence[str]) -> dict[str, list[Any]]:
    """Return the grid in words as `network.buffer=2,5` and `fit.seed=0:5`, the latter being 0 to 4."""
    grid: dict[str, list[Any]] = {}
    for word in words:
        field, equals, text = word.partition("=")
        if not equals:
            raise MnemoscopeError(f"grid: {word!r} is not an axis; write it as network.buffer=2,5 or fit.seed=0:5")
        field = field.replace("-", "_")
        if field in grid:
            raise MnemoscopeError(f"grid: {field} is given twice; write all its values behind one =")
        grid[field] = _parse_values(text, field)
    return grid


def _parse_values(text: str, field: str) -> list[Any]:
    values: list[Any] = []
    for part in text.split(",") if text else []:
        span = _RANGE.fullmatch(part)
        if span is None:
            values.append(_parse_value(part))
            continue
        start, stop, step = (int(number or 1) for number in span.groups())
        if not step:
            raise MnemoscopeError(f"grid: {field} = {part} has a step of 0; write it as first:end or first:end:step")
        if abs(stop - start) > MAX_RUNS:
            raise MnemoscopeError(f"grid: {field} = {part} is too long; a range may span {MAX_RUNS:,} at most")
        values.extend(range(start, stop, step))
    return values


def _parse_value(text: str) -> Any:
    """A number, a truth value or nothing, as JSON or Python write it; else the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if type(value) in (int, float) else text


def check_grid(grid: Grid) -> int:
    """Refuse a grid with an axis that is not a field, is empty or has a value twice; return how many runs it makes."""
    if not grid:
        raise MnemoscopeError("the grid is empty; give it an axis, as network.buffer=2,5 or fit.seed=0:5")
    for field, values in grid.items():
        section, dot, name = str(field).partition(".")
        if not dot or not name or section not in SECTIONS:
            raise MnemoscopeError(
                f"grid: {field!r} is not a field of a configuration; fields begin with task., network. or fit."
            )
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise MnemoscopeError(f"grid: {field} has no values; write them as {field}=1,2 or {field}=0:5")
        for i, value in enumerate(values):
            if any(value == other and type(value) is type(other) for other in values[:i]):
                raise MnemoscopeError(f"grid: {field} has {value!r} twice")
    count = prod(len(values) for values in grid.values())
    if count > MAX_RUNS:
        raise MnemoscopeError(f"the grid makes {count:,} runs; {MAX_RUNS:,} are allowed")
    return count


def grid_points(grid: Grid) -> Iterator[Changes]:
    """Yield every combination of a grid's values, the last axis running fastest."""
    for values in product(*grid.values()):
        yield {field: _plain(value) for field, value in zip(grid, values, strict=True)}


def _plain(value: Any) -> Any:
    """A number of numpy or torch as Python's own."""
    return value.item() if hasattr(value, "item") else value


def with_changes(base: Mapping[str, Any], changes: Changes) -> RunConfig:
    """Return a configuration with some fields changed; a value that is not allowed raises a one-line error.

    Args:
        base: the content of a config.json.
        changes: values by field.
    """
    content = deepcopy(dict(base))
    for field, value in changes.items():
        section, _, name = field.partition(".")
        if section == "task" and name == "name":
            raise MnemoscopeError("grid: task.name cannot vary, since tasks have different fields; give a list of runs")
        content[section][name] = value
    return RunConfig.from_dict(content, "grid")
