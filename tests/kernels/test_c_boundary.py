"""The structures that Python hands to the compiled loops, beside what the compiled library says of them."""

from __future__ import annotations

import ctypes

import pytest
import torch

from mnemoscope.kernels._cpu import library
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


def rac() -> dict[str, object]:
    """A call's fields: one step of one row of one unit, h = (V h0) * xp."""
    tensors = {name: torch.full((1, 1), 2.0) for name in ("V", "h0")}
    return dict(steps=1, batch=1, n=1, xp=torch.full((1, 1, 1), 3.0), **tensors, b=None, lengths=None, h=torch.zeros(1))


def test_a_call_by_keywords_runs_the_loop() -> None:
    fields = rac()
    library.call("rac_forward", torch.float32, **fields)
    assert fields["h"].item() == 12.0


def test_an_unknown_or_missing_field_raises_at_once() -> None:
    with pytest.raises(TypeError, match=r"rac_forward: missing or unknown fields h_0"):
        library.call("rac_forward", torch.float32, **rac(), h_0=None)
    fields = rac()
    del fields["lengths"]
    with pytest.raises(TypeError, match=r"missing or unknown fields lengths"):
        library.call("rac_forward", torch.float32, **fields)
