"""Ids that remember where in the inputs they come from, so that outputs can be differentiated by what is looked up.

An id has no gradient. What a model looks up with it has one: a row of a table, or a one-hot vector. `TrackedIds` are
the ids themselves, with the position of each in the inputs carried along through views, indexing, loops and shifts.
Where they meet a table, the row is taken from given features instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mnemoscope.torch_internals import pytree, without_torch_function


@dataclass(frozen=True)
class Lookup:
    """One way in which a model turns ids into numbers.

    Attributes:
        table: the (V, d) that rows are taken from; None for one-hot vectors.
        width: numbers for each id.
        derived: True if the ids were changed by arithmetic before, as a hash is.
    """

    table: Tensor | None
    width: int
    derived: bool


@dataclass
class Vocabulary:
    """All lookups of a model, and what they give at each position of the inputs.

    Filled by a first run; afterwards every lookup gives its own columns of `features`.

    Attributes:
        lookups: with what each gave at each position, (positions, width).
        features: (positions, d), or None while the first run is recorded.
        sees_ids: True if the model has done more with the ids than look them up, as compare them with a padding.
    """

    positions: int
    lookups: dict[int, tuple[Lookup, Tensor]] = field(default_factory=dict)
    features: Tensor | None = None
    sees_ids: bool = False

    def recorded(self) -> Tensor:
        """(positions, d): what all lookups gave, side by side."""
        return torch.cat([rows.to(self._first_dtype()) for _, rows in self.lookups.values()], 1)

    def _first_dtype(self) -> torch.dtype:
        return next(iter(self.lookups.values()))[1].dtype

    def look_up(self, ids: TrackedIds, table: Tensor | None, plain: Tensor) -> Tensor:
        """Return what the lookup of these ids gives; `plain` is what it would give by itself, ids.shape + (d,)."""
        lookup = Lookup(table, plain.shape[-1], ids.derived)
        number = self._number(lookup)
        if self.features is None:
            self._record(number, lookup, ids.positions, plain)
            return plain
        start = sum(known.width for known, _ in list(self.lookups.values())[:number])
        columns = self.features[:, start : start + lookup.width]
        rows = columns[ids.positions.clamp(min=0)].to(plain.dtype)
        known = (ids.positions >= 0)[..., None]
        return rows if bool(known.all()) else torch.where(known, rows, plain)

    def _record(self, number: int, lookup: Lookup, positions: Tensor, plain: Tensor) -> None:
        if number not in self.lookups:
            self.lookups[number] = lookup, plain.new_zeros(self.positions, lookup.width)
        known = positions >= 0
        rows = self.lookups[number][1]
        rows[positions[known]] = plain[known].detach()

    def _number(self, wanted: Lookup) -> int:
        """Return the number of a lookup: of the same table, else of the only one of its shape, else a new one."""
        alike = [n for n, (known, _) in self.lookups.items() if _same_shape(known, wanted)]
        for number in alike:
            if self.lookups[number][0].table is wanted.table:
                return number
        for number in alike:
            with suppress(RuntimeError):  # a batched or a meta tensor has no values to compare
                if torch.equal(_table(self.lookups[number][0]), _table(wanted)):
                    return number
        if self.features is None:
            return len(self.lookups)
        return alike[0]


def _same_shape(one: Lookup, other: Lookup) -> bool:
    same_kind = (one.table is None) == (other.table is None)
    return same_kind and one.width == other.width and one.derived == other.derived


def _table(lookup: Lookup) -> Tensor:
    return torch.empty(0) if lookup.table is None else lookup.table


class TrackedIds(Tensor):
    """Ids, and `positions`: where each of them stands in the inputs, -1 for one that does not stand there."""

    positions: Tensor
    vocabulary: Vocabulary
    derived: bool

    @staticmethod
    def make(ids: Tensor, positions: Tensor, vocabulary: Vocabulary, derived: bool = False) -> TrackedIds:
        tracked = _plain(ids).as_subclass(TrackedIds)
        tracked.positions = positions
        tracked.vocabulary = vocabulary
        tracked.derived = derived
        return tracked

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        with without_torch_function():
            if name in _LOOKUPS:
                found = _LOOKUPS[name](func, args, kwargs)
                if found is not None:
                    return found
            plain_args, plain_kwargs = pytree.tree_map(_plain, (args, kwargs))
            result = func(*plain_args, **plain_kwargs)
            if name in _MOVES:
                return _move(func, args, kwargs, result)
            if name in _ELEMENTWISE:
                result = _change(args, kwargs, result)
            if name not in _WITHOUT_VALUES and not isinstance(result, TrackedIds):
                _first_tracked(args, kwargs).vocabulary.sees_ids = True
            return result


def track(ids: Tensor, vocabulary: Vocabulary) -> TrackedIds:
    """Return ids that remember their positions, counted in the order of the tensor."""
    return TrackedIds.make(ids, torch.arange(ids.numel(), device=ids.device).view(ids.shape), vocabulary)


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, TrackedIds) else value


def _name(func: Any) -> str:
    """Return the name of a torch function, method, property or operator."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(func.__self__, "__name__", "")
    return name.partition(".")[0]


def _first_tracked(*values: Any) -> TrackedIds:
    return next(leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, TrackedIds))


def _move(func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """Move the positions as the ids were moved; what comes from elsewhere has no position."""
    tracked = _first_tracked(args, kwargs)
    name = _name(func)

    def positions(value: Any) -> Any:
        if isinstance(value, TrackedIds):
            return value.positions
        is_ids = isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool
        return torch.full_like(value, -1) if is_ids and name in _JOINS else value

    moved_args, moved_kwargs = pytree.tree_map(positions, (args, kwargs))
    if name == "pad":
        moved_args, moved_kwargs = moved_args[:2], {"mode": _pad_mode(args, kwargs)}
        if moved_kwargs["mode"] == "constant":
            moved_kwargs["value"] = -1
        if len(moved_args) < 2:
            moved_kwargs["pad"] = kwargs["pad"]
    if name in ("masked_fill", "masked_fill_"):
        moved_args = (*moved_args[:2], -1)
    if name == "to":  # another dtype is for the ids alone
        moved_args, moved_kwargs = (tracked.positions, result.device), {}
    moved = func(*moved_args, **moved_kwargs) if name not in _CASTS else tracked.positions

    def wrap(value: Any, where: Any) -> Any:
        is_ids = isinstance(value, Tensor) and not value.is_floating_point()
        return TrackedIds.make(value, where, tracked.vocabulary, tracked.derived) if is_ids else value

    if isinstance(result, Tensor):
        return wrap(result, moved)
    if isinstance(result, tuple | list):
        return type(result)([wrap(value, where) for value, where in zip(result, moved, strict=True)])
    return result


def _pad_mode(args: Any, kwargs: Any) -> str:
    mode: str = args[2] if len(args) > 2 else kwargs.get("mode", "constant")
    return mode


def _change(args: Any, kwargs: Any, result: Any) -> Any:
    """Keep the positions through arithmetic on the ids of one place; ids of several places lose them."""
    tracked = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, TrackedIds)]
    first = tracked[0]
    is_ids = isinstance(result, Tensor) and not result.is_floating_point() and result.dtype != torch.bool
    one_place = all(other.positions is first.positions for other in tracked)
    if not is_ids or not one_place or result.shape != first.shape:
        return result
    unchanged = torch.equal(result, _plain(first))
    return TrackedIds.make(result, first.positions, first.vocabulary, first.derived or not unchanged)


def _embedding(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """F.embedding(input, weight), or torch.embedding(weight, input)."""
    plain_args, plain_kwargs = pytree.tree_map(_plain, (args, kwargs))
    plain = func(*plain_args, **plain_kwargs)
    both = [*args[:2], *(kwargs[key] for key in ("input", "weight", "indices") if key in kwargs)]
    ids = next((value for value in both if isinstance(value, TrackedIds)), None)
    table = next((value for value in both if not isinstance(value, TrackedIds)), None)
    return plain if ids is None else ids.vocabulary.look_up(ids, table, plain)


def _row(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """table[ids]; None for an index of anything else."""
    if len(args) < 2 or isinstance(args[0], TrackedIds) or not isinstance(args[1], TrackedIds):
        return None
    table, ids = args[:2]
    if not table.is_floating_point() or table.dim() != 2 or ids.dtype in (torch.bool, torch.uint8):
        return None
    return ids.vocabulary.look_up(ids, table, table[_plain(ids)])


def _index_select(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """table.index_select(0, ids)."""
    if len(args) < 3 or not isinstance(args[2], TrackedIds) or args[1] != 0:
        return None
    return _row(func, (args[0], args[2]), {})


def _one_hot(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """F.one_hot(ids, V), as real numbers."""
    ids = _first_tracked(args, kwargs)
    plain_args, plain_kwargs = pytree.tree_map(_plain, (args, kwargs))
    plain = func(*plain_args, **plain_kwargs).to(torch.get_default_dtype())
    return ids.vocabulary.look_up(ids, None, plain)


def _scatter(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """zeros.scatter_(-1, ids[..., None], 1), the other way to write one-hot vectors."""
    names = ("self", "dim", "index", "value")
    given = dict(zip(names, args, strict=False)) | kwargs
    zeros, ids, value = given.get("self"), given.get("index"), given.get("value", given.get("src"))
    is_one = not isinstance(value, Tensor) and value == 1
    if not isinstance(ids, TrackedIds) or zeros is None or not is_one or bool(zeros.any()):
        return None
    if given["dim"] not in (-1, zeros.dim() - 1) or ids.shape[-1] != 1:
        return None
    at = TrackedIds.make(_plain(ids)[..., 0], ids.positions[..., 0], ids.vocabulary, ids.derived)
    rows = ids.vocabulary.look_up(at, None, zeros.scatter(-1, _plain(ids), 1.0))
    return zeros.copy_(rows) if _name(func).endswith("_") else rows


_LOOKUPS: dict[str, Callable[[Any, Any, Any], Tensor | None]] = {
    "embedding": _embedding,
    "__getitem__": _row,
    "index_select": _index_select,
    "one_hot": _one_hot,
    "scatter": _scatter,
    "scatter_": _scatter,
}

_CASTS = {"long", "int", "type", "type_as", "contiguous", "clone", "detach", "alias"}
"""Moves that leave every id where it is."""

_JOINS = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "where"}

_MOVES = {
    *_CASTS,
    *_JOINS,
    *("view", "reshape", "flatten", "unflatten", "ravel", "unsqueeze", "squeeze", "view_as", "reshape_as"),
    *("transpose", "t", "T", "mT", "permute", "movedim", "moveaxis", "swapaxes", "swapdims"),
    *("expand", "expand_as", "repeat", "tile", "repeat_interleave", "broadcast_to"),
    *("__getitem__", "select", "narrow", "slice", "index_select", "gather", "take_along_dim", "masked_select"),
    *("split", "chunk", "unbind", "tensor_split", "split_with_sizes", "unsafe_split", "unsafe_chunk", "unfold"),
    *("roll", "flip", "fliplr", "pad", "masked_fill", "to", "cpu", "cuda"),
}

_ELEMENTWISE = {
    *("add", "sub", "mul", "remainder", "fmod", "floor_divide", "clamp", "clip", "clamp_min", "clamp_max", "abs"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__mod__", "__floordiv__", "rsub"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"),
    *("__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
}

_WITHOUT_VALUES = {
    *("shape", "size", "dim", "ndim", "numel", "nelement", "stride", "storage_offset", "__len__", "element_size"),
    *("dtype", "device", "layout", "is_cuda", "is_cpu", "is_meta", "get_device", "requires_grad", "grad", "is_leaf"),
    *("is_floating_point", "is_complex", "is_signed", "is_contiguous", "is_sparse", "is_quantized", "is_nested"),
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "__hash__", "__repr__", "requires_grad_"),
}
"""What does not depend on which ids they are."""
