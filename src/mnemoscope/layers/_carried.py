"""The state of a layer with a memory: what its users get, and what they hand back.

A user sees nn.RNN's h or nn.LSTM's (h, c), and h carries the memory: scripts written for torch's layers detach, move
and index these tensors one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mnemoscope.layers._memory import Memory
from mnemoscope.recurrence import to
from mnemoscope.torch_internals import outside_dispatch_modes, version


class AttentiveState(tuple):
    """A state that unpacks as nn.LSTM's, ``(h, c)``, and carries the rest along; its h is a `CarryingTensor`.

    It is also the form in which layers compute. There h is a plain tensor, and a layer whose state is h alone has it
    too, as ``(h,)``.

    ``AttentiveState(parts)`` of one argument, as libraries rebuild a tuple of any type, takes the memory from the part
    that carries it. Where none does, its `s` and `memory` are None: for a layer it is a bare (h, c).

    Attributes:
        s: the macro-state s_t = h_t + c_t, which the next step reads.
        memory: the `Memory`.
        memory_layout: what the slots of the memory are for, set by the layer; empty if unknown.
    """

    _s: Any
    _memory: Any
    memory_layout: str = ""

    def __new__(
        cls, visible: Iterable[Any], s: Tensor | None = None, memory: Memory | None = None, memory_layout: str = ""
    ) -> Any:
        visible = tuple(visible)
        first = visible[0] if visible else None
        if isinstance(first, CarryingTensor):
            if s is None and first.is_current:
                s, memory, memory_layout = first.s, first.memory, first.memory_layout
            elif first.s is not s or first.memory is not memory:
                visible = (first.plain, *visible[1:])  # what is given counts, not what h carries
        state = super().__new__(cls, visible)
        state._s = s
        state._memory = memory
        state.memory_layout = memory_layout
        return state

    @property
    def s(self) -> Any:
        return self[0].s if _is_carrying(self) else self._s

    @property
    def memory(self) -> Any:
        return self[0].memory if _is_carrying(self) else self._memory

    @property
    def h(self) -> Tensor:
        return self[0]

    @property
    def visible(self) -> tuple[Tensor, ...]:
        """What the state unpacks into, as plain tensors."""
        return tuple(plain(t) for t in self)

    def map_state(self, fn: Callable[[Tensor], Tensor]) -> Any:
        return state_from_leaves([fn(t) for t in state_leaves(self)], len(self), self.memory_layout, _is_carrying(self))

    def __getnewargs__(self) -> tuple[Any, ...]:  # for copy and pickle
        return (tuple(self),) if _is_carrying(self) else (tuple(self), self.s, self.memory, self.memory_layout)


class CarryingTensor(Tensor):
    """The h of a layer with a memory: a tensor (layers * directions, batch, hidden_size) that carries it along.

    What users of nn.LSTM do with a state keeps the memory: ``detach``, ``clone``, ``to`` and its kin, an index, mask or
    slice of the batch (``h[:, rows]``, ``index_select``, ``narrow``, ``chunk``, ``split``, ``repeat``,
    ``repeat_interleave``, ``torch.cat`` along it). ``mask * h`` with a mask (1, batch, 1) and ``h[:, rows] = 0`` begin
    an episode: these rows get an empty memory. Any other operation gives an ordinary tensor without a memory.

    Attributes:
        plain: h as an ordinary tensor; every operation reads this one.
        s, memory, memory_layout: as in `AttentiveState`.
    """

    plain: Tensor
    s: Tensor
    memory: Memory
    memory_layout: str
    version: int | None

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        carry = _CARRYING.get(getattr(func, "__name__", ""))
        if carry is not None:
            carried = carry(func, args, kwargs)
            if carried is not None:
                return carried
        return func(*_plain_all(args), **_plain_all(kwargs))

    @property
    def h(self) -> Tensor:
        return self.plain

    @property
    def visible(self) -> tuple[Tensor, ...]:
        return (self.plain,)

    @property
    def is_current(self) -> bool:
        """False after h was written to in place: the memory is not that of this h any more."""
        return torch.compiler.is_compiling() or self.version is None or self.version == version(self.plain)

    def begin_anew(self, mask: Tensor) -> CarryingTensor:
        """Empty the memory of the rows where a mask (1, batch, 1) is zero, and return the same tensor."""
        self.s, self.memory = _begun_anew(self, mask)
        self.version = version(self.plain)
        return self

    def map_state(self, fn: Callable[[Tensor], Tensor]) -> Any:
        return state_from_leaves([fn(t) for t in state_leaves(self)], 1, self.memory_layout, True)

    def __deepcopy__(self, memo: dict[int, Any]) -> CarryingTensor:
        return self.map_state(lambda t: copy.deepcopy(t, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return carrying, (self.plain, self.s, self.memory, self.memory_layout)


def carrying(h: Tensor, s: Tensor, memory: Memory, memory_layout: str) -> CarryingTensor:
    """Return h as a tensor that carries s and the memory."""
    ordinary = type(h) is Tensor and h.layout is torch.strided
    carrier = h.as_subclass(CarryingTensor) if ordinary else _shell()
    carrier.plain = h
    carrier.s = s
    carrier.memory = memory
    carrier.memory_layout = memory_layout
    carrier.version = version(h)
    return carrier


def _shell() -> CarryingTensor:
    """Return a tensor for an h that cannot be of two types, as a FakeTensor: all operations read `plain`."""
    with outside_dispatch_modes():
        return torch.empty(0).as_subclass(CarryingTensor)


def plain(tensor: Any) -> Any:
    """Return the ordinary tensor of one that carries a memory; anything else as it is."""
    return tensor.plain if isinstance(tensor, CarryingTensor) else tensor


def present_state(state: AttentiveState) -> Any:
    """Return the form in which a user gets a state: h, or (h, c), where h carries the memory."""
    h = state[0]
    if not isinstance(h, Tensor):  # torch's pytrees are also made of what is said of each tensor
        return state
    carrier = carrying(h, state.s, state.memory, state.memory_layout)
    if len(state) == 1:
        return carrier
    return AttentiveState((carrier, *state[1:]), state.s, state.memory, state.memory_layout)


def state_leaves(state: AttentiveState | CarryingTensor) -> list[Tensor]:
    """Return h (and c), s and the tensors of the memory, all of them plain; without the rest if it was lost."""
    return list(state.visible) if state.memory is None else [*state.visible, state.s, *state.memory]


def state_from_leaves(parts: list[Any], visible: int, layout: str, carry: bool = True) -> Any:
    """Return the state of `state_leaves`: the number of tensors before s, and whether h is to carry the memory."""
    if len(parts) == visible:
        return AttentiveState(parts)
    state = AttentiveState(parts[:visible], parts[visible], Memory(*parts[visible + 1 :]), layout)
    return present_state(state) if carry else state


def _is_carrying(state: AttentiveState) -> bool:
    return len(state) > 0 and isinstance(state[0], CarryingTensor)


def _plain_all(arguments: Any) -> Any:
    """Return the arguments of a function of torch with plain tensors in place of those that carry a memory."""
    if isinstance(arguments, CarryingTensor):
        return arguments.plain
    if type(arguments) in (tuple, list):
        return type(arguments)(_plain_all(item) for item in arguments)
    if type(arguments) is dict:
        return {key: _plain_all(item) for key, item in arguments.items()}
    return arguments


# Operations that keep the memory. Each rule gets the function and its arguments, the first of which carries a memory,
# and returns the result with its memory, or None where the arguments are such that there is none.

Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


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
    return to(carrier, *_plain_all(rest), **_plain_all(kwargs)) if _carries(carrier) else None


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
    rest = [1, *_plain_all(rest[1:])] if rest else []
    kwargs = _plain_all({**kwargs, "dim": 1}) if "dim" in kwargs else kwargs
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
    """torch.cat of states along the batch; they must have as many slots."""
    carriers = args[0] if args else kwargs.get("tensors", ())
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if "out" in kwargs or dim not in (1, -2) or not all(_is_batched(c) for c in carriers):
        return None
    first = carriers[0]
    alike = {(c.memory_layout, c.memory.values.shape[2:]) for c in carriers}
    if len(alike) != 1:
        return None
    together = [torch.cat(parts, 1) for parts in zip(*map(state_leaves, carriers), strict=True)]
    return state_from_leaves(together, 1, first.memory_layout)


def _mask(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """mask * h or h * mask with a mask (1, batch, 1): where it is zero an episode starts, with an empty memory."""
    carrier, mask = args if isinstance(args[0], CarryingTensor) else reversed(args)
    if kwargs or not _is_batched(carrier) or not _is_mask_of(mask, carrier):
        return None
    return carrying(carrier.plain * mask, *_begun_anew(carrier, mask), carrier.memory_layout)


def _mask_in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """h *= mask."""
    carrier, mask = args
    if not _is_batched(carrier) or not _is_mask_of(mask, carrier):
        return None
    carrier.plain.mul_(mask)
    return carrier.begin_anew(mask)


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
    return carrier.begin_anew(mask)


def _is_mask_of(mask: Any, carrier: CarryingTensor) -> bool:
    """True for a tensor (1, batch, 1) or (batch, 1)."""
    batch = carrier.plain.shape[1]
    return type(mask) is Tensor and mask.shape in ((1, batch, 1), (batch, 1))


def _begun_anew(carrier: CarryingTensor, mask: Tensor) -> tuple[Tensor, Memory]:
    """Return s and the memory, empty in the rows where the mask is zero."""
    layers, batch, _ = carrier.plain.shape
    keep = (mask != 0).view(1, batch).expand(layers, batch)
    values, keys, origin, relevance, clock = carrier.memory
    memory = Memory(
        values=torch.where(keep[..., None, None], values, 0),
        keys=torch.where(keep[..., None, None], keys, 0),
        origin=torch.where(keep[..., None], origin, -1),
        relevance=torch.where(keep[..., None], relevance, 0),
        clock=torch.where(keep, clock, 0),
    )
    return carrier.s * mask, memory


def _carries(carrier: Any) -> bool:
    return isinstance(carrier, CarryingTensor) and carrier.is_current


def _is_batched(carrier: Any) -> bool:
    """True for h (layers * directions, batch, hidden_size) with its memory, not for one of unbatched input."""
    return _carries(carrier) and carrier.plain.dim() == 3


_CARRYING: dict[str, Rule] = {
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

torch.serialization.add_safe_globals([AttentiveState, Memory, carrying])  # a saved state is loaded as nn.LSTM's is
