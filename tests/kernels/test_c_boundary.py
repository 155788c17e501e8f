"""The structures that Python hands to the compiled loops, beside what the compiled library says of them."""

from __future__ import annotations

import ctypes

import pytest
import torch

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cpu import library
from mnemoscope.kernels._cpu.run import Loop
from mnemoscope.kernels._cpu.structures import STRUCTURES, Threads

pytestmark = pytest.mark.skipif(not library.available(torch.float32), reason="no compiled CPU kernels here")

KINDS = {ctypes.c_void_p: "pointer", ctypes.c_int64: "integer", ctypes.c_double: "double", Threads: "structure"}


def in_python(name: str) -> list[tuple[str, int, int, str]]:
    structure = STRUCTURES[name]
    rows = []
    for field, kind in structure._fields_:
        described = getattr(structure, field)
        rows.append((field, described.offset, described.size, KINDS[kind]))
    return rows


@pytest.mark.parametrize("name", STRUCTURES)
def test_fields_have_the_names_offsets_sizes_and_kinds_of_the_compiled_structure(name: str) -> None:
    assert in_python(name) == library.described()[name]
    assert STRUCTURES[name].packer.size == ctypes.sizeof(STRUCTURES[name])


def test_both_sides_know_the_same_structures() -> None:
    assert set(STRUCTURES) == set(library.described())


def test_a_loop_fills_the_fields_by_name() -> None:
    """h = (V h0 + b) * xp, one step of one row of one unit: no two arguments may be exchanged."""
    xp, V, h0, b = torch.full((1, 1, 1), 3.0), torch.full((1, 1), 5.0), torch.full((1, 1), 7.0), torch.tensor([2.0])
    assert Loop(op.rac_forward)(xp, V, h0, b, None).item() == (5 * 7 + 2) * 3


def test_an_unknown_or_missing_field_raises_at_once() -> None:
    with pytest.raises(TypeError, match="rac_forward has no field dv_row"):
        Loop(op.rac_forward, scratch=["dv_row"])
    one = torch.ones(1, 1)
    with pytest.raises(TypeError, match="rac_forward: missing or unknown fields dv_rows"):
        Loop(op.rac_forward)(one[None], one, one, None, None, dv_rows=one)
    with pytest.raises(TypeError, match="attentive_backward: missing or unknown fields dv_rows"):
        Loop(op.attentive_backward, scratch=["dv_rows"])()
