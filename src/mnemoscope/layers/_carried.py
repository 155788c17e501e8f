"""The state of a layer with a memory: what its users get, and what they hand back.

A user sees nn.RNN's h or nn.LSTM's (h, c), and h carries the memory: scripts written for torch's layers detach, move
and index these tensors one by one.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels import Attended, last_valid_state
from mnemoscope.layers._memory import Memory, memory_after_kernel, reset_memory
from mnemoscope.layers._state import in_cuda_graph
from mnemoscope.recurrence import fill_rows, initial_part, initial_parts
from mnemoscope.torch_internals import dispatches_plainly, outside_dispatch_modes, version

Rule: TypeAlias = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""What one operation does to a memory: from the function and its arguments to its result, None for a plain one."""


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
    _done: Attended | None
    """What a kernel left, until s or the memory is asked for."""
    memory_layout: str = ""

    def __new__(
        cls, visible: Iterable[Any], s: Tensor | None = None, memory: Memory | None = None, memory_layout: str = ""
    ) -> Any:
        visible = tuple(visible)
        first = visible[0] if visible else None
        if isinstance(first, CarryingTensor):
            if s is None and first.is_current:
                memory_layout = first.memory_layout  # s and the memory are read from h
            elif first.s is not s or first.memory is not memory:
                visible = (first.plain, *visible[1:])  # what is given counts, not what h carries
        return cls._made(visible, s, memory, memory_layout)

    @classmethod
    def _made(
        cls, visible: tuple[Any, ...], s: Tensor | None, memory: Memory | None, memory_layout: str
    ) -> AttentiveState:
        """Return a state of parts that are known to belong together."""
        state = tuple.__new__(cls, visible)
        state._s = s
        state._memory = memory
        state._done = None
        state.memory_layout = memory_layout
        return state

    @classmethod
    def after_kernel(cls, visible: tuple[Tensor, ...], done: Attended, memory_layout: str) -> AttentiveState:
        """Return the state after a kernel's run from zeros, in grad mode, of rows without padding.

        Most users look at h and c alone: s and the memory are made, and differentiated through, when they are asked
        for. That saves a GPU's host several launches.
        """
        state = cls._made(visible, None, None, memory_layout)
        state._done = Attended(done.s, None, *done[2:])  # of h only the shape is needed, and it would be kept alive
        return state

    @classmethod
    def of_carrier(cls, carrier: CarryingTensor, c: Tensor) -> AttentiveState:
        """Return (h, c) of an h that was just made: s and the memory are read from it."""
        return cls._made((carrier, c), None, None, carrier.memory_layout)

    @property
    def s(self) -> Any:
        """s of every layer, (layers * directions, batch, n): what the next step reads in place of h."""
        return self.carried[0]

    @property
    def memory(self) -> Any:
        """The states that can be attended to, a `Memory`."""
        return self.carried[1]

    @property
    def carried(self) -> tuple[Any, Any]:
        """s and the memory."""
        if self and isinstance(self[0], CarryingTensor):
            return self[0].carried
        return (self._s, self._memory) if self._done is None else self._look_back(self._done)

    def _look_back(self, done: Attended) -> tuple[Tensor, Memory]:
        """Return s and the memory as the call would have made them."""
        if torch.compiler.is_compiling():
            return last_valid_state(done.s, None, None), memory_after_kernel(None, done, None, done.values.dtype)
        with torch.inference_mode(False), torch.enable_grad():
            s = last_valid_state(done.s, None, None)
            memory = memory_after_kernel(None, done, None, done.values.dtype)
        # What a transform or a mode makes ends with it, and what a CUDA graph makes is not there before its replay.
        if dispatches_plainly() and not in_cuda_graph(s):
            self._s, self._memory, self._done = s, memory, None
        return s, memory

    @property
    def h(self) -> Tensor:
        """h, (layers * directions, batch, n)."""
        return self[0]

    @property
    def visible(self) -> tuple[Tensor, ...]:
        """What the state unpacks into, as plain tensors."""
        return tuple(plain(t) for t in self)

    def map_state(self, fn: Callable[[Tensor], Tensor]) -> Any:
        """Apply `fn` to every tensor, those of the memory included, and keep the structure."""
        return state_from_leaves([fn(t) for t in state_leaves(self)], len(self), self.memory_layout, _is_carrying(self))

    def reset_rows(self, mask: Tensor, initial: Any) -> Any:
        """Return the state with the rows that a mask (batch,) marks as in `initial`; by None zero, with no memory."""
        return _reset_rows(self, mask, initial)

    def __getnewargs__(self) -> tuple[Any, ...]:  # for copy and pickle
        return (tuple(self),) if _is_carrying(self) else (tuple(self), self.s, self.memory, self.memory_layout)


class Unstacked(NamedTuple):
    """The state of a single layer, (batch, ...), from which its user's (1, batch, ...) is made.

    Most users look at h and c alone: s and the memory are stacked, and differentiated through, when they are asked for.

    Attributes:
        layer: refers to the layer, which a state must not keep alive.
        state: its state, with plain tensors.
        c: an LSTM's c as the user got it; a view of the state's.
        differentiated: whether gradients were enabled in the call that made it.
    """

    layer: weakref.ref[Any]
    state: AttentiveState
    c: Tensor | None
    differentiated: bool

    def stack(self) -> tuple[Tensor, Memory]:
        """Return s and the memory as the call would have returned them."""
        s = self.state.s
        if torch.compiler.is_compiling():
            return s.unsqueeze(0), Memory(*[t.unsqueeze(0) for t in self.state.memory])
        with torch.inference_mode(s.is_inference()), torch.set_grad_enabled(self.differentiated):
            return s.unsqueeze(0), Memory(*[t.unsqueeze(0) for t in self.state.memory])


class CarryingTensor(Tensor):
    """The h of a layer with a memory: a tensor (layers * directions, batch, hidden_size) that carries it along.

    What users of nn.LSTM do with a state keeps the memory: ``detach``, ``clone``, ``to`` and its kin, an index, mask or
    slice of the batch (``h[:, rows]``, ``index_select``, ``narrow``, ``chunk``, ``split``, ``repeat``,
    ``repeat_interleave``, ``torch.cat`` along it). ``mask * h`` with a mask (1, batch, 1) and ``h[:, rows] = 0`` begin
    an episode: these rows get an empty memory. Any other operation gives an ordinary tensor without a memory.

    Attributes:
        plain: h as an ordinary tensor; every operation reads this one.
        s: as in `AttentiveState`.
        memory: as in `AttentiveState`; None after a step that overwrote it.
        memory_layout: as in `AttentiveState`.
    """

    rules: ClassVar[dict[str, Rule]] = {}
    """Operations that keep the memory, by the name of torch's function (`_carried_operations.py`)."""

    plain: Tensor
    memory_layout: str
    version: int | None
    made: Any = None
    """What the step that made it leaves for the next one (`_streaming.py`)."""
    unstacked: Unstacked | None = None
    """The layer's own state, until s or the memory is asked for."""
    _s: Any = None
    _memory: Any = None

    @property
    def s(self) -> Tensor:
        """s of every layer, (layers * directions, batch, n): what the next step reads in place of h."""
        return self.carried[0]

    @s.setter
    def s(self, s: Tensor) -> None:
        self.carry(s, self.memory)

    @property
    def memory(self) -> Memory:
        """The states that can be attended to."""
        return self.carried[1]

    @memory.setter
    def memory(self, memory: Memory) -> None:
        self.carry(self.s, memory)

    @property
    def carried(self) -> tuple[Any, Any]:
        """s and the memory, made of the layer's own state when they are first asked for."""
        if self.unstacked is None:
            return self._s, self._memory
        s, memory = self.unstacked.stack()
        # A graph that is compiled cannot write to its arguments, and what a transform or a mode makes ends with it.
        kept = self.unstacked.state._done is None  # not within a CUDA graph
        if not torch.compiler.is_compiling() and dispatches_plainly() and kept:
            self.carry(s, memory)
        return s, memory

    def carry(self, s: Tensor, memory: Memory) -> None:
        """Carry these from now on."""
        self._s, self._memory, self.unstacked = s, memory, None

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = cls.rules.get(getattr(func, "__name__", ""))
        if rule is not None:
            carried = rule(func, args, kwargs)
            if carried is not None:
                return carried
        return func(*plain_arguments(args), **plain_arguments(kwargs))

    @property
    def h(self) -> Tensor:
        """h as a plain tensor, without the memory."""
        return self.plain

    @property
    def visible(self) -> tuple[Tensor, ...]:
        """What a caller sees of the state: (h,)."""
        return (self.plain,)

    @property
    def is_current(self) -> bool:
        """False after h was written to in place: the memory is not that of this h any more."""
        return torch.compiler.is_compiling() or self.version is None or self.version == version(self.plain)

    def reset_by_mask(self, mask: Tensor) -> tuple[Tensor, Memory]:
        """Return s and the memory, which is empty in the rows where a mask (1, batch, 1) is zero."""
        return self.s * mask, reset_memory(self.memory, (mask == 0).view(-1), self.memory_layout)

    def reset_by_mask_(self, mask: Tensor) -> CarryingTensor:
        """Empty the memory of the rows where a mask (1, batch, 1) is zero, and return the same tensor."""
        self.carry(*self.reset_by_mask(mask))
        self.version = version(self.plain)
        return self

    def reset_rows(self, mask: Tensor, initial: Any) -> Any:
        """Return the state with some rows of the batch begun anew; see `mnemoscope.reset`."""
        return _reset_rows(self, mask, initial)

    def map_state(self, fn: Callable[[Tensor], Tensor]) -> Any:
        """Apply `fn` to every tensor, those of the memory included, and keep the structure."""
        return state_from_leaves([fn(t) for t in state_leaves(self)], 1, self.memory_layout, True)

    def __deepcopy__(self, memo: dict[int, Any]) -> CarryingTensor:
        return self.map_state(lambda t: copy.deepcopy(t, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return carrying, (self.plain, self.s, self.memory, self.memory_layout)


def carrying(h: Tensor, s: Tensor, memory: Memory, memory_layout: str) -> CarryingTensor:
    """Return h as a tensor that carries s and the memory."""
    carrier = _carrier(h, memory_layout)
    carrier._s = s
    carrier._memory = memory
    carrier.unstacked = None  # torch.compile does not find what the class says
    return carrier


def _carrier(h: Tensor, memory_layout: str) -> CarryingTensor:
    ordinary = type(h) is Tensor and h.layout is torch.strided
    carrier = h.as_subclass(CarryingTensor) if ordinary else _shell()
    carrier.plain = h
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


def present_unstacked(layer: Any, state: AttentiveState) -> Any:
    """Return what `present_state` would of a single layer; s and the memory are stacked when asked for."""
    h, *c = [t.unsqueeze(0) for t in state]
    carrier = _carrier(h, state.memory_layout)
    carrier.unstacked = Unstacked(weakref.ref(layer), state, c[0] if c else None, torch.is_grad_enabled())
    return AttentiveState.of_carrier(carrier, c[0]) if c else carrier


def state_leaves(state: AttentiveState | CarryingTensor) -> list[Tensor]:
    """Return h (and c), s and the tensors of the memory, all of them plain; without the rest if it was lost."""
    return list(state.visible) if state.memory is None else [*state.visible, state.s, *state.memory]


def state_from_leaves(parts: list[Any], visible: int, layout: str, carry: bool = True) -> Any:
    """Return the state of `state_leaves`: the number of tensors before s, and whether h is to carry the memory."""
    if len(parts) == visible:
        return AttentiveState(parts)
    state = AttentiveState(parts[:visible], parts[visible], Memory(*parts[visible + 1 :]), layout)
    return present_state(state) if carry else state


def _is_carrying(state: Any) -> bool:
    return isinstance(state, CarryingTensor) or (len(state) > 0 and isinstance(state[0], CarryingTensor))


def _has_memory(state: Any) -> bool:
    """True for a state that comes with its memory: not for a bare one, nor if h was written to."""
    if not isinstance(state, AttentiveState | CarryingTensor) or state.memory is None:
        return False
    h = state if isinstance(state, CarryingTensor) else state[0]
    return not isinstance(h, CarryingTensor) or h.is_current


def _reset_rows(state: AttentiveState | CarryingTensor, mask: Tensor, initial: Any) -> Any:
    single = isinstance(state, CarryingTensor)
    visible = state.visible
    firsts: list[Any] = [0] * len(visible)
    if initial is not None:
        pairs = zip(visible, initial_parts(visible, initial), strict=True)
        firsts = [initial_part(tensor, plain(part)) for tensor, part in pairs]
    begun = [fill_rows(t, mask, first) for t, first in zip(visible, firsts, strict=True)]
    if not _has_memory(state):  # a layer will say so
        return begun[0] if single else tuple(begun)

    first_s, first_memory = firsts[0], None
    if _has_memory(initial):
        first_s, first_memory = initial_part(state.s, initial.s), initial.memory
        if "" not in (initial.memory_layout, state.memory_layout) and initial.memory_layout != state.memory_layout:
            raise MnemoscopeError(
                f"reset: the memory of the initial state holds {initial.memory_layout}, that of the state "
                f"{state.memory_layout}"
            )
    s = fill_rows(state.s, mask, first_s)
    memory = reset_memory(state.memory, mask, state.memory_layout, first_memory)
    after = AttentiveState(begun, s, memory, state.memory_layout)
    return present_state(after) if _is_carrying(state) else after


def plain_arguments(arguments: Any) -> Any:
    """Return the arguments of a function of torch with plain tensors in place of those that carry a memory."""
    if isinstance(arguments, CarryingTensor):
        return arguments.plain
    if type(arguments) in (tuple, list):
        return type(arguments)(plain_arguments(item) for item in arguments)
    if type(arguments) is dict:
        return {key: plain_arguments(item) for key, item in arguments.items()}
    return arguments


torch.serialization.add_safe_globals([AttentiveState, Memory, carrying])  # a saved state is loaded as nn.LSTM's is
