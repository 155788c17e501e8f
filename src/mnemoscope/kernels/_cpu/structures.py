"""The structures of the C boundary, derived from the operators' arguments and results.

The C++ source of each loop declares the same fields in the same order. The two are compared when the library is loaded
(`library.py`), and by `tests/kernels/test_c_boundary.py`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, get_type_hints

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._operator import Operator, Projection, for_every_operator

# Values of arguments that are strings: the enumerations of the same names in C++.
ENUMERATIONS: dict[str, dict[str, int]] = {
    "phi": {"tanh": 0, "relu": 1, "modrelu": 2, "identity": 3},
    "cell": {"rnn": 0, "lstm": 1},
    "mix": {"sum": 0, "mean": 1},
}


# Tensors of integers; all others are of the type that the loop computes in.
INTEGERS = {
    "lengths": torch.int64,
    "origin0": torch.int64,
    "clock0": torch.int64,
    "slots_T": torch.int64,
    "origin_T": torch.int64,
    "origin": torch.int64,
    "clock": torch.int64,
    "slots": torch.int32,
}


class Threads(ctypes.Structure):
    """How many threads a loop may use, and the address of GOMP_parallel that provides them (0: it starts its own).

    With `watches_signals` a signal stops the loop.
    """

    _fields_ = [
        ("count", ctypes.c_int64),
        ("gomp_parallel", ctypes.c_void_p),
        ("watches_signals", ctypes.c_int64),
    ]


class Arguments(ctypes.Structure):
    """The sizes, arguments and results of one compiled loop.

    Attributes:
        order: the fields that a call must give, which are all but `threads`.
        names: the same as a set.
        dtypes: the type of each field's tensor; None for that of the loop.
        packer: writes their values, and then those of `threads`; four times faster than ctypes' own attributes.
    """

    order: ClassVar[tuple[str, ...]]
    names: ClassVar[frozenset[str]]
    dtypes: ClassVar[tuple[torch.dtype | None, ...]]
    packer: ClassVar[struct.Struct]


def _type(hint: Any) -> type:
    if hint in (Tensor, Tensor | None):
        return ctypes.c_void_p
    return ctypes.c_double if hint is float else ctypes.c_int64


def _structure(
    *operators: Operator, sizes: Sequence[str] = (), omit: Sequence[str] = (), scratch: Sequence[str] = ()
) -> type[Arguments]:
    """Return the structure of one compiled loop.

    Args:
        operators: the operators that it serves; of two, the one with more arguments first.
        sizes: integers beside steps, batch and n.
        omit: arguments and results that stay in Python.
        scratch: tensors that are no results.
    """
    types: dict[str, type] = dict.fromkeys(("steps", "batch", "n", *sizes), ctypes.c_int64)
    for operator in operators:
        types |= {name: _type(hint) for name, hint in operator.arguments.items() if name not in types}
    for operator in operators:
        types |= {name: ctypes.c_void_p for name in operator.results if name not in types}
    types |= dict.fromkeys(scratch, ctypes.c_void_p)
    for name in omit:
        del types[name]
    return _arguments(operators[-1].name, types)


def _arguments(name: str, types: dict[str, type]) -> type[Arguments]:
    """Return the structure of fields of these types, in this order."""
    layout = "".join("d" if kind is ctypes.c_double else "q" for kind in types.values())
    members = {
        "_fields_": [*types.items(), ("threads", Threads)],
        "order": tuple(types),
        "names": frozenset(types),
        "dtypes": tuple(INTEGERS.get(name) for name in types),
        "packer": struct.Struct(f"@{layout}qqq"),
    }
    return type(name, (Arguments,), members)


def _step_structure() -> type[Arguments]:
    """Return the structure of one attentive step, which is no operator: nothing differentiates or traces it."""
    types: dict[str, type] = dict.fromkeys(("steps", "batch", "n", "n_inputs", "carried", "room"), ctypes.c_int64)
    for group in (Projection, op.AttentionWeights, op.AttentionState, op.CarriedMemory, op.AttentionOptions):
        types |= {name: _type(hint) for name, hint in get_type_hints(group).items()}
    types |= dict.fromkeys(op.StepResults._fields, ctypes.c_void_p)
    return _arguments("attentive_step", types)


# What the loops that can project their inputs take for it, beside x and V, and the last state; and its gradients.
PROJECTION = ("U", "b_ih", "b_hh", "h_T")
PROJECTION_BACKWARD = ("U", "dU", "db_ih", "db_hh")


def _projecting(forward: Operator) -> type[Arguments]:
    return _structure(forward, sizes=["n_inputs"], scratch=PROJECTION)


def _projecting_backward(*operators: Operator) -> type[Arguments]:
    return _structure(*operators, sizes=["n_inputs"], omit=["needs_dx"], scratch=PROJECTION_BACKWARD)


STRUCTURES: dict[str, type[Arguments]] = {
    "rnn_forward": _projecting(op.rnn_forward),
    "rnn_backward": _projecting_backward(op.rnn_backward_with_inputs, op.rnn_backward),
    "lstm_forward": _projecting(op.lstm_forward),
    "lstm_backward": _projecting_backward(op.lstm_backward_with_inputs, op.lstm_backward),
    "sab_forward": _structure(op.sab_forward, sizes=["carried"]),
    "sab_backward": _structure(op.sab_backward, sizes=["carried"]),
    "attentive_forward": _structure(
        op.attentive_forward,
        sizes=["n_inputs", "carried", "activation_width"],
        omit=["overflowed"],
        scratch=["largest_magnitude", *PROJECTION],
    ),
    "attentive_backward": _structure(
        op.attentive_backward_with_inputs,
        op.attentive_backward,
        sizes=["n_inputs", "carried", "activation_width"],
        omit=["overflowed", "needs_dx"],
        scratch=PROJECTION_BACKWARD,
    ),
}

STRUCTURES["attentive_step"] = _step_structure()


def _add_structure(operator: Operator) -> None:
    has_own_loop = not operator.name.startswith("portable_") and not operator.name.endswith("_with_inputs")
    if has_own_loop and operator.name not in STRUCTURES:
        STRUCTURES[operator.name] = _structure(operator)


for_every_operator(_add_structure)


class Field(NamedTuple):
    """One field of a structure: its name, where it begins, its bytes and what it is."""

    name: str
    offset: int
    size: int
    kind: str


_KINDS = {ctypes.c_void_p: "pointer", ctypes.c_int64: "integer", ctypes.c_double: "double", Threads: "structure"}


def expected_fields() -> dict[str, list[Field]]:
    """Return the fields of every structure, as a library must describe them that is compiled from these sources."""
    found: dict[str, list[Field]] = {}
    for name, structure in STRUCTURES.items():
        types = {field: kind for field, kind, *_ in structure._fields_}
        members = {field: getattr(structure, field) for field in types}
        found[name] = [Field(field, at.offset, at.size, _KINDS[types[field]]) for field, at in members.items()]
    return found
