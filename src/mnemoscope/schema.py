"""JSON into checked values: dataclasses and back, every field checked against its annotation.

Files of runs and findings may come from anybody. They become checked types here, once, as they are read; what is behind
need not ask again whether a field is there or of which type it is.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
import types
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mnemoscope.errors import MnemoscopeError, did_you_mean

T = TypeVar("T")

_short = reprlib.repr  # a file may hold anything, however long or deep
_QUOTES = "'\""


@cache
def _type_hints(kind: Any) -> dict[str, Any]:
    """The annotations of a dataclass; to evaluate them anew at each call would take longer than all the checks."""
    return get_type_hints(kind)


def added_later(default: Any, *, kw_only: bool = False) -> Any:
    """Return a dataclass field that files written before it lack: `to_dict` leaves it out at its default.

    So the JSON of an old configuration, its hash, and whatever is named by the hash stay what they were.
    """
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"added_later": True})


def to_dict(value: Any) -> Any:
    """Return a dataclass as the dicts, lists, strings and numbers of JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        written = (field for field in fields(value) if field.init and not _is_left_out(field, value))
        return {field.name: to_dict(getattr(value, field.name)) for field in written}
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_dict(kind: type[T], data: Any, where: str) -> T:
    """Return the dataclass `kind` built from JSON data. Anything that does not fit raises a one-line error."""
    return kind(**checked_fields(kind, data, where))


def checked_fields(kind: type, data: Any, where: str) -> dict[str, Any]:
    """Return the fields of the dataclass `kind` in JSON data by name, each of the type of its annotation."""
    check_object(data, where)
    known = {field.name: field for field in fields(kind) if field.init}
    for name in data:
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise MnemoscopeError(f"{where} has no field {_short(name)}; its fields are {', '.join(known)}{hint}")
    for name, field in known.items():
        if name not in data and _is_required(field):
            raise MnemoscopeError(f"{where} lacks the field {name!r}")
    hints = _type_hints(kind)
    return {name: convert(hints[name], value, f"{where}.{name}") for name, value in data.items()}


def check_object(data: Any, where: str) -> None:
    """Refuse JSON data that is not an object."""
    if not isinstance(data, dict):
        raise MnemoscopeError(f"{where} = {_short(data)} is not allowed; it must be an object with named fields")


def check_fields(value: Any, *names: str) -> None:
    """Refuse a dataclass with a field of the wrong type, or with a number that is NaN or infinite.

    `names` are the fields to look at; without any, all of them.
    """
    kind: Any = type(value)
    hints = _type_hints(kind)
    for name in names or [field.name for field in fields(value)]:
        convert(hints[name], getattr(value, name), name.replace("_", "-"))


def convert(kind: Any, value: Any, where: str) -> Any:
    """Return `value` as the annotation `kind`, or refuse it in one line that begins with `where`."""
    if is_dataclass(kind):
        return from_dict(kind, value, where)  # type: ignore[arg-type]
    result = _try_convert(kind, value, where)
    if result is MISSING:
        is_too_large = type(value) is int and int in (kind, *get_args(kind))
        allowed = "between -2^63 and 2^63" if is_too_large else _describe(kind)
        raise MnemoscopeError(f"{where} = {_short(value)} is not allowed; it must be {allowed}")
    return result


def _is_left_out(field: Field[Any], value: Any) -> bool:
    return bool(field.metadata.get("added_later")) and getattr(value, field.name) == field.default


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _try_convert(kind: Any, value: Any, where: str) -> Any:
    """Return `value` as the annotation `kind`; MISSING if it does not fit."""
    origin = get_origin(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):  # one of several that are allowed
        return from_dict(kind, value, where) if isinstance(value, dict) else MISSING  # type: ignore[arg-type]
    if origin in (types.UnionType, Union):
        attempts = (_try_convert(option, value, where) for option in get_args(kind))
        return next((result for result in attempts if result is not MISSING), MISSING)
    if origin is tuple:
        return _convert_tuple(get_args(kind), value, where)
    if origin is list:
        items = _convert_tuple((*get_args(kind), Ellipsis), value, where)
        return items if items is MISSING else list(items)
    if origin is dict:
        return _convert_dict(get_args(kind)[1], value, where)
    if kind is float:
        return float(value) if type(value) in (int, float) and abs(value) <= sys.float_info.max else MISSING
    if kind is Path:
        return Path(value) if isinstance(value, str) and "\0" not in value else MISSING
    return value if _is_plain_value(kind, value) else MISSING


def _is_plain_value(kind: Any, value: Any) -> bool:
    """True if a value that needs no conversion is of the annotation `kind`."""
    if get_origin(kind) is Literal:
        return any(value == option and type(value) is type(option) for option in get_args(kind))
    if kind is int:
        return type(value) is int and abs(value) < 2**63  # bool does not pass as an int
    if kind in (None, types.NoneType):
        return value is None
    return type(value) is kind


def _convert_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        return MISSING
    items = kinds[:1] * len(value) if kinds[1:] == (Ellipsis,) else kinds
    if len(items) != len(value):
        return MISSING
    pairs = enumerate(zip(items, value, strict=True))
    return tuple(convert(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)


def _convert_dict(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        return MISSING
    return {name: convert(kind, item, f"{where}.{_short(name).strip(_QUOTES)}") for name, item in value.items()}


_NAMES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a string", Path: "a path"}


def _describe(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in get_args(kind))
    if origin in (types.UnionType, Union):
        return " or ".join(_describe(option) for option in get_args(kind))
    if origin in (tuple, list):
        return "a list"
    if origin is dict:
        return "an object with named fields"
    if kind in (None, types.NoneType):
        return "null"
    return _NAMES.get(kind, str(kind))
