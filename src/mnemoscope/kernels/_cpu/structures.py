"""The structures of the C boundary, field by field as `csrc/cpu/arguments.h` declares them."""

from __future__ import annotations

import ctypes
import struct
from typing import ClassVar


class Threads(ctypes.Structure):
    """How many threads a loop may use, and the address of GOMP_parallel that provides them (0: it starts its own)."""

    _fields_ = [("count", ctypes.c_int64), ("gomp_parallel", ctypes.c_void_p)]


_INTEGERS = {
    "steps", "batch", "n", "n_inputs", "carried", "activation_width", "save", "phi", "cell", "buffer", "relevant",
    "mix", "refresh", "store_every", "top", "truncation",
}  # fmt: skip
_DOUBLES = {"decay"}


def _type(field: str) -> type:
    if field == "threads":
        return Threads
    if field in _DOUBLES:
        return ctypes.c_double
    return ctypes.c_int64 if field in _INTEGERS else ctypes.c_void_p


class Arguments(ctypes.Structure):
    """The arguments and results of one operator.

    Attributes:
        order: the fields that a call must give, which are all but `threads`.
        names: the same as a set.
        packer: writes their values, and then those of `threads`; four times faster than ctypes' own attributes.
    """

    order: ClassVar[tuple[str, ...]]
    names: ClassVar[frozenset[str]]
    packer: ClassVar[struct.Struct]


def _structure(name: str, fields: str) -> type[Arguments]:
    order = tuple(fields.split())
    members = [(field, _type(field)) for field in (*order, "threads")]
    layout = "".join("d" if _type(field) is ctypes.c_double else "q" for field in order)
    extra = {"order": order, "names": frozenset(order), "packer": struct.Struct(f"@{layout}qq")}
    return type(name, (Arguments,), {"_fields_": members, **extra})


_MEMORY = "values0 keys0 origin0 relevance0 clock0"
_SAB_OPTIONS = "store_every top truncation"
_ATTENTION = f"V W_a U_a v b s0 c0 {_MEMORY} cell phi buffer relevant mix decay refresh"
_ATTENTION_SIZES = "steps batch n n_inputs carried activation_width"

_FIELDS = {
    "rnn_forward": "steps batch n n_inputs xp V h0 b phi lengths h",
    "rnn_backward": "steps batch n n_inputs dh x V h0 h lengths phi dxp dx dV dh0",
    "lstm_forward": "steps batch n n_inputs xp V h0 c0 lengths save h c_T cells gates",
    "lstm_backward": "steps batch n n_inputs dh dc_T x V h0 c0 h cells gates lengths dxp dx dV dh0 dc0",
    "rac_forward": "steps batch n xp V h0 b lengths h",
    "rac_backward": "steps batch n dh xp V u lengths dxp du dh0",
    "goru_forward": "steps batch n xp W h0 b lengths save h gates",
    "goru_backward": "steps batch n dh W h0 h gates lengths dxp du dh0",
    "gru_forward": "steps batch n xp V b_hn h0 lengths save h gates",
    "gru_backward": "steps batch n dh V h0 h gates lengths dxp du dh0",
    "sab_forward": f"steps batch n carried xp V w h0 c0 {_MEMORY} {_SAB_OPTIONS} lengths save"
    " h attended c_T cells gates slots attention",
    "sab_backward": f"steps batch n carried dh dattended dc_T V w c0 {_MEMORY} {_SAB_OPTIONS}"
    " h cells gates slots attention lengths dxp dh0 dc0 dvalues0 dscores dscores0",
    "attentive_forward": f"{_ATTENTION_SIZES} xp {_ATTENTION} lengths save"
    " h s c_T values_T keys_T slots_T relevance_T activations slots attention largest_magnitude",
    "attentive_backward": f"{_ATTENTION_SIZES} dh ds dc_T x {_ATTENTION} h s activations slots attention lengths"
    " dxp dq dk dx dV dW_a dU_a dv_rows ds0 dc0 dvalues0 dkeys0",
}

STRUCTURES = {name: _structure(name, fields) for name, fields in _FIELDS.items()}
