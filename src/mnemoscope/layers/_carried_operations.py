"""Operations of torch on an h that carries a memory, and what becomes of the memory.

Each rule gets the function and its arguments, the first of which carries a memory, and returns the result with its
memory, or None where the arguments are such that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mnemoscope.layers._carried import CarryingTensor, Rule, carrying, plain_arguments, state_from_leaves, state_leaves
from mnemoscope.layers._memory import Memory, empty_memory, values_can_be_read
from mnemoscope.recurrence import to


def register() -> None:
    """Let h keep its memory through these operations."""
    CarryingTensor.rules.update(RULES)


def _copy(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """detach, clone, contiguous, cpu, cuda, pin_memory: the same for every tensor."""
    carrier, *rest = args
    return carrier.map_state(lambda t: func(t, *rest, **kwargs)) if _carries(carrier) else None


def _cast(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """float, double, half, bfloat16; clocks and origins stay integers."""
    carrier = args[0]
    return carrier.map_state(lambda t: func(t) if t.is_floating_point() else t) if _carries(carrier) else None


def _to(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    carrier, *rest = args
    return to(carrier, *plain_arguments(rest), **plain_arguments(kwargs)) if _carries(carrier) else None


def _data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """h.data; torch calls every property by this one name."""
    carrier = args[0]
    if func.__self__ is not Tensor.data or not _carries(carrier):
        return None
    return carrier.map_state(lambda t: t.data)


def _in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """requires_grad_ and detach_, which do not change the numbers."""
    carrier = args[0]
    if not isinstance(carrier, CarryingTensor):
        return None
    func(carrier.plain, *args[1:], **kwargs)
    if func.__name__ == "detach_":
        for t in state_leaves(carrier)[1:]:
            t.detach_()
    return carrier


def _index(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """h[:, rows] and h[:, rows, :], where rows is a slice, a list, or a tensor of indices or a mask."""
    carrier, key = args
    if not _is_batched(carrier) or type(key) is not tuple or len(key) not in (2, 3):
        return None
    everything = (slice(None), Ellipsis)
    layers, rows, *features = key
    one_dimension = isinstance(rows, slice | list) or getattr(rows, "ndim", 0) == 1
    if layers != slice(None) or not one_dimension or any(f not in everything for f in features):
        return None
    return carrier.map_state(lambda t: t[:, rows])


def _along_batch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """index_select, narrow: functions of (tensor, dim, ...)."""
    carrier, *rest = args
    dim = kwargs.get("dim", rest[0] if rest else None)
    if not _is_batched(carrier) or dim not in (1, -2):
        return None
    rest = [1, *plain_arguments(rest[1:])] if rest else []
    kwargs = plain_arguments({**kwargs, "dim": 1}) if "dim" in kwargs else kwargs
    return carrier.map_state(lambda t: func(t, *rest, **kwargs))


def _into_parts(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """chunk and split: functions of (tensor, size, dim) that return several parts of the batch."""
    carrier, *rest = args
    dim = kwargs.get("dim", rest[1] if len(rest) > 1 else 0)
    if not _is_batched(carrier) or dim not in (1, -2):
        return None
    rest, kwargs = rest[:1], {**kwargs, "dim": 1}
    parts = zip(*(func(t, *rest, **kwargs) for t in state_leaves(carrier)), strict=True)
    return tuple(state_from_leaves(list(part), 1, carrier.memory_layout) for part in parts)


def _repeat_interleave(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """repeat_interleave(h, repeats, dim=1): a beam search's copies."""
    carrier, *rest = args
    dim = kwargs.get("dim", rest[1] if len(rest) > 1 else None)
    if not _is_batched(carrier) or dim not in (1, -2):
        return None
    repeats = kwargs["repeats"] if "repeats" in kwargs else rest[0]
    return carrier.map_state(lambda t: t.repeat_interleave(repeats, 1))


def _repeat(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """h.repeat(1, copies, 1)."""
    carrier, *sizes = args
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = list(sizes[0])
    if not _is_batched(carrier) or len(sizes) != 3 or sizes[0] != 1 or sizes[2] != 1:
        return None
    return carrier.map_state(lambda t: t.repeat(1, sizes[1], *[1] * (t.dim() - 2)))


def _concatenate(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.cat of states along the batch; they must have as many slots. Zeros are sequences that begin."""
    parts = args[0] if args else kwargs.get("tensors", ())
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    first = next(part for part in parts if isinstance(part, CarryingTensor))
    if "out" in kwargs or dim not in (1, -2) or not _is_batched(first):
        return None
    carriers = [_begun(part, first) if _is_zero_state(part, first) else part for part in parts]
    if not all(_is_batched(c) for c in carriers):
        return None
    alike = {(c.memory_layout, c.memory.values.shape[2:]) for c in carriers}
    if len(alike) != 1:
        return None
    together = [torch.cat(tensors, 1) for tensors in zip(*map(state_leaves, carriers), strict=True)]
    return state_from_leaves(together, 1, first.memory_layout)


def _is_zero_state(h: Any, like: CarryingTensor) -> bool:
    """True for an h without a memory that is zero, beside another one: fastai so adds sequences to a batch."""
    if isinstance(h, CarryingTensor) or h.dim() != 3 or len(h) != len(like.plain) or not values_can_be_read(h):
        return False
    return not h.any()


def _begun(zeros: Tensor, like: CarryingTensor) -> Any:
    """Return a zero h (layers, batch, hidden_size) with an empty memory of as many slots as another one's."""
    one_layer = empty_memory(like.memory.values[0], zeros.shape[1], like.memory.origin.shape[-1])
    memory = Memory(*(t.expand(len(zeros), *t.shape) for t in one_layer))
    return carrying(zeros, zeros, memory, like.memory_layout)


def _mask(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """mask * h or h * mask with a mask (1, batch, 1): where it is zero an episode starts, with an empty memory."""
    carrier, mask = args if isinstance(args[0], CarryingTensor) else reversed(args)
    if kwargs or not _is_batched(carrier) or not _is_mask_of(mask, carrier):
        return None
    s, memory = carrier.reset_by_mask(mask)
    return carrying(carrier.plain * mask, s, memory, carrier.memory_layout)


def _mask_in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """h *= mask."""
    carrier, mask = args
    if not _is_batched(carrier) or not _is_mask_of(mask, carrier):
        return None
    carrier.plain.mul_(mask)
    return carrier.reset_by_mask_(mask)


def _clear(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """h[:, rows] = 0: an episode starts there, with an empty memory."""
    carrier, key, value = args
    if not _is_batched(carrier) or not isinstance(value, int | float) or value != 0:
        return None
    if type(key) is not tuple or len(key) != 2 or key[0] != slice(None):
        return None
    mask = carrier.plain.new_ones(1, carrier.plain.shape[1], 1)
    mask[key] = 0
    func(carrier.plain, key, value)
    return carrier.reset_by_mask_(mask)


def _is_mask_of(mask: Any, carrier: CarryingTensor) -> bool:
    """True for a tensor (1, batch, 1) or (batch, 1)."""
    batch = carrier.plain.shape[1]
    return type(mask) is Tensor and mask.shape in ((1, batch, 1), (batch, 1))


def _carries(carrier: Any) -> bool:
    return isinstance(carrier, CarryingTensor) and carrier.is_current


def _is_batched(carrier: Any) -> bool:
    """True for h (layers * directions, batch, hidden_size) with its memory, not for one of unbatched input."""
    return _carries(carrier) and carrier.plain.dim() == 3


RULES: dict[str, Rule] = {
    **dict.fromkeys(("detach", "clone", "contiguous", "cpu", "cuda", "pin_memory"), _copy),
    **dict.fromkeys(("float", "double", "half", "bfloat16"), _cast),
    "to": _to,
    "__get__": _data,
    "requires_grad_": _in_place,
    "detach_": _in_place,
    "__getitem__": _index,
    "index_select": _along_batch,
    "narrow": _along_batch,
    "chunk": _into_parts,
    "split": _into_parts,
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "cat": _concatenate,
    "mul": _mask,
    "mul_": _mask_in_place,
    "__imul__": _mask_in_place,
    "__setitem__": _clear,
}
