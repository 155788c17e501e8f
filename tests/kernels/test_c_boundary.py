"""The structures that Python hands to the compiled loops, beside what the compiled library says of them."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mnemoscope
from mnemoscope.kernels import _dispatch
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cpu import library
from mnemoscope.kernels._cpu.run import Loop
from mnemoscope.kernels._cpu.structures import STRUCTURES, Field, expected_fields

pytestmark = pytest.mark.skipif(not library.available(torch.float32), reason="no compiled CPU kernels here")


@pytest.fixture
def compiled() -> dict[str, list[Field]]:
    loops = library.library()
    assert loops is not None
    return library.described(loops)


@pytest.mark.parametrize("name", STRUCTURES)
def test_fields_have_the_names_offsets_sizes_and_kinds_of_the_compiled_structure(name: str, compiled) -> None:
    assert expected_fields()[name] == compiled[name]
    assert STRUCTURES[name].packer.size == ctypes.sizeof(STRUCTURES[name])


def test_both_sides_know_the_same_structures(compiled) -> None:
    assert set(STRUCTURES) == set(compiled)


def with_another_offset(fields: dict[str, list[Field]]) -> dict[str, list[Field]]:
    first, *others = fields["rnn_forward"]
    return fields | {"rnn_forward": [first._replace(offset=8), *others]}


def with_fields_exchanged(fields: dict[str, list[Field]]) -> dict[str, list[Field]]:
    return fields | {"rnn_forward": fields["rnn_forward"][::-1]}


def without_a_structure(fields: dict[str, list[Field]]) -> dict[str, list[Field]]:
    return {name: found for name, found in fields.items() if name != "sab_backward"}


def with_one_more_structure(fields: dict[str, list[Field]]) -> dict[str, list[Field]]:
    return fields | {"other_forward": fields["rnn_forward"]}


@pytest.fixture
def fresh_choice() -> Iterator[None]:
    """The library is chosen anew, and once more after the test."""
    library.library.cache_clear()
    _dispatch._backend_supports.cache_clear()
    yield
    library.library.cache_clear()
    _dispatch._backend_supports.cache_clear()


@pytest.mark.parametrize(
    "doctored", [with_another_offset, with_fields_exchanged, without_a_structure, with_one_more_structure]
)
def test_a_library_built_from_other_sources_is_not_used(doctored, compiled, monkeypatch, fresh_choice) -> None:
    monkeypatch.setattr(library, "described", lambda loops: doctored(compiled))
    with pytest.warns(RuntimeWarning, match="built from other sources.*rebuild them with pip install -e ."):
        assert library.library() is None
    for layer in (mnemoscope.LSTM(3, 4), mnemoscope.RelLSTM(3, 4, buffer=2, relevant=1)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it was said once
            output, _ = layer(torch.ones(5, 2, 3))
        with mnemoscope.kernels.backend("eager"):
            torch.testing.assert_close(output, layer(torch.ones(5, 2, 3))[0])


def test_a_library_that_cannot_describe_itself_is_not_used(monkeypatch, fresh_choice) -> None:
    monkeypatch.setattr(library, "builds", lambda name: [Path(torch._C.__file__)])  # some shared library
    with pytest.warns(RuntimeWarning, match="built from other sources"):
        assert library.library() is None


def test_a_loop_fills_the_fields_by_name() -> None:
    """h = (V h0 + b) * xp, one step of one row of one unit: no two arguments may be exchanged."""
    xp, V, h0, b = torch.full((1, 1, 1), 3.0), torch.full((1, 1), 5.0), torch.full((1, 1), 7.0), torch.tensor([2.0])
    assert Loop(op.rac_forward)(xp, V, h0, b, None).item() == (5 * 7 + 2) * 3


def test_an_unknown_or_missing_field_raises_at_once() -> None:
    with pytest.raises(TypeError, match="rac_forward has no field dv_row"):
        Loop(op.rac_forward, scratch=["dv_row"])
    one = torch.ones(1, 1)
    with pytest.raises(TypeError, match="rac_forward: missing or unknown fields du_rows"):
        Loop(op.rac_forward)(one[None], one, one, None, None, du_rows=one)
    with pytest.raises(TypeError, match="attentive_forward: missing or unknown fields largest_magnitude"):
        Loop(op.attentive_forward, scratch=["largest_magnitude"])()


def test_a_tensor_of_another_type_or_with_strides_raises_at_once() -> None:
    one = torch.ones(1, 1)
    two = torch.ones(1, 1, 2)
    for wrong in (torch.ones(2, 2).double(), torch.ones(2, 2).int(), torch.arange(4.0).view(2, 2).T):
        with pytest.raises(TypeError, match=r"rac_forward: V must be contiguous and of torch\.float32"):
            Loop(op.rac_forward)(two, wrong, two[0], None, None)
    with pytest.raises(TypeError, match=r"rac_forward: lengths must be contiguous and of torch\.int64"):
        Loop(op.rac_forward)(one[None], one, one, None, torch.ones(1, dtype=torch.int32))
