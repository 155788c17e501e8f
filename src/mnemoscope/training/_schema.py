"""Frozen dataclasses to JSON and back, every field checked against its annotation."""

from __future__ import annotations

import math
import reprlib
import types
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mnemoscope.errors import MnemoscopeError

T = TypeVar("T")

_short = reprlib.repr  # a file may hold anything, however long or deep


def to_plain(value: Any) -> Any:
    """A dataclass as the dicts, lists, strings and numbers that JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: type[T], data: Any, where: str) -> T:
    """Build the dataclass `kind` from plain data; whatever does not fit is named in one line."""
    if not isinstance(data, dict):
        raise MnemoscopeError(f"{where} = {_short(data)} is not allowed; it must be an object with named fields")
    known = {field.name: field for field in fields(kind) if field.init}  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            raise MnemoscopeError(f"{where} has no field {_short(name)}; its fields are {', '.join(known)}")
    for name, field in known.items():
        if name not in data and _required(field):
            raise MnemoscopeError(f"{where} lacks the field {name!r}")
    hints = get_type_hints(kind)
    return kind(**{name: _checked(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def check_fields(value: Any) -> None:
    """Refuse a dataclass with a field of the wrong type, or a number that is none."""
    hints = get_type_hints(type(value))
    for field in fields(value):
        _checked(hints[field.name], getattr(value, field.name), field.name.replace("_", "-"))


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _checked(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return from_plain(kind, value, where)  # type: ignore[arg-type]
    found, result = _convert(kind, value, where)
    if not found:
        raise MnemoscopeError(f"{where} = {_short(value)} is not allowed; it must be {_describe(kind)}")
    return result


def _convert(kind: Any, value: Any, where: str) -> tuple[bool, Any]:
    """Whether `value` can be a `kind`, and what it is then."""
    origin = get_origin(kind)
    if origin in (types.UnionType, Union):
        attempts = (_convert(option, value, where) for option in get_args(kind))
        return next((attempt for attempt in attempts if attempt[0]), (False, None))
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in get_args(kind)), value
    if origin is tuple:
        return _convert_tuple(get_args(kind), value, where)
    if origin is dict:
        return _convert_dict(get_args(kind)[1], value, where)
    if kind is float:
        ok = type(value) in (int, float) and abs(value) <= 1.8e308 and math.isfinite(value)
        return ok, float(value) if ok else None
    if kind is Path:
        return isinstance(value, str) and "\0" not in value, Path(value) if isinstance(value, str) else None
    if kind in (None, types.NoneType):
        return value is None, None
    return type(value) is kind, value  # bool is no int here


def _convert_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[bool, Any]:
    if not isinstance(value, list):
        return False, None
    items = kinds[:1] * len(value) if kinds[1:] == (Ellipsis,) else kinds
    if len(items) != len(value):
        return False, None
    pairs = enumerate(zip(items, value, strict=True))
    return True, tuple(_checked(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)


def _convert_dict(kind: Any, value: Any, where: str) -> tuple[bool, Any]:
    if not isinstance(value, dict):
        return False, None
    return True, {name: _checked(kind, item, f"{where}.{name}") for name, item in value.items()}


_NAMES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a string", Path: "a path"}


def _describe(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in get_args(kind))
    if origin in (types.UnionType, Union):
        return " or ".join(_describe(option) for option in get_args(kind))
    if origin in (tuple, dict):
        return "a list" if origin is tuple else "an object with named fields"
    return "null" if kind in (None, types.NoneType) else _NAMES.get(kind, str(kind))
