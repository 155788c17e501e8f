"""How the help shows options: tyro's rules for types and classes, changed in one place for all commands."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)


def rules() -> ConstructorRegistry:
    """Return the rules for `tyro.cli(registry=...)`."""
    registry = ConstructorRegistry()
    registry.primitive_rule(_optional)
    registry.primitive_rule(_several)
    registry.struct_rule(_Fields())
    return registry


def _spec(kind: Any, info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """The rule for one value of a type; None for a type that is not a single value."""
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
    return spec if isinstance(spec, PrimitiveConstructorSpec) else None


def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`int | None` reads INT, not {None}|INT. The word None is understood, but rarely needed: it is the default."""
    kinds = get_args(info.type)
    if get_origin(info.type) not in (Union, types.UnionType) or types.NoneType not in kinds:
        return None
    spec = _spec(Union[tuple(kind for kind in kinds if kind is not types.NoneType)], info)  # noqa: UP007 (of a tuple)
    if spec is None:
        return None
    return dataclasses.replace(
        spec,
        instance_from_str=lambda words: None if words == ["None"] else spec.instance_from_str(words),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
        choices=None if spec.choices is None else (*spec.choices, "None"),
    )


def _several(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`tuple[int, ...]` reads INT..., not [INT [INT ...]]."""
    kinds = get_args(info.type)
    if get_origin(info.type) is not tuple or kinds[1:] != (...,):
        return None
    spec = _spec(kinds[0], info)
    if spec is None or spec.nargs != 1:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{spec.metavar}...",
        instance_from_str=lambda words: tuple(spec.instance_from_str([word]) for word in words),
        is_instance=lambda value: isinstance(value, tuple) and all(map(spec.is_instance, value)),
        str_from_instance=lambda value: [word for part in value for word in spec.str_from_instance(part)],
        choices=spec.choices,
    )


class _Fields:
    """The fields of a class as tyro finds them: with a default only where it says something, their texts unbroken."""

    def __init__(self) -> None:
        self.asking = False

    def __call__(self, info: StructTypeInfo) -> StructConstructorSpec | None:
        if self.asking:  # this rule is asked too; None leaves the answer to tyro's own
            return None
        self.asking = True
        try:
            spec = ConstructorRegistry.get_struct_spec(info)
        finally:
            self.asking = False
        if not isinstance(spec, StructConstructorSpec):
            return None
        fields = (_changed(field) for field in spec.fields)
        return dataclasses.replace(spec, fields=tuple(fields))


def _changed(field: StructFieldSpec) -> StructFieldSpec:
    kind: Any = Annotated[field.type, tyro.conf.arg(help_behavior_hint=_default)]
    return dataclasses.replace(field, type=kind, helptext=_unbroken(field.helptext))


def _default(value: str) -> str:
    return "" if value in ("", "None") else f"(default: {value})"


def _unbroken(text: str | Callable[[], str | None] | None) -> Callable[[], str | None]:
    """Docstrings are indented, and tyro keeps the breaks before indented lines."""

    def join() -> str | None:
        written = text() if callable(text) else text
        return None if written is None else " ".join(written.split())

    return join
