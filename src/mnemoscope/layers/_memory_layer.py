"""What every layer with a memory shares: the form of its state. Equations are in the files of the layers."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mnemoscope.layers._base import Layer
from mnemoscope.layers._carried import AttentiveState, CarryingTensor, plain, present_state, present_unstacked
from mnemoscope.layers._checks import InputError, state_error, warn_caller
from mnemoscope.layers._memory import Memory, NonzeroCheck, add_empty_slots, empty_memory, values_can_be_read
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import State
from mnemoscope.torch_internals import dispatches_plainly

_nonzero_checks: WeakKeyDictionary[Layer, NonzeroCheck] = WeakKeyDictionary()  # a layer that has one can be copied


class MemoryLayer(Layer):
    """A layer whose state is h (and c), s and a `Memory` of past states.

    It comes before the recurrence whose states are remembered: ``class SAB(MemoryLayer, LSTM)``. A subclass
    states its equations in `observe_cell`, and says in `memory_layout` what the slots of its memory are for.
    """

    constant_state_size = False
    _warned_of_lost_memory = False

    @property
    def slots(self) -> int:
        """Slots of the memory before the first step."""
        return 0

    @property
    def memory_layout(self) -> str:
        """What the slots are for, in words: the memory of a layer that says something else is refused."""
        raise TypeError(f"{type(self).__name__} must say what the slots of its memory are for")

    @property
    def fixed_slots(self) -> int | None:
        """Slots that the memory of a caller's state must have; None if any number will do."""
        return None

    def cell(self, w: Weights, u: Tensor, state: AttentiveState) -> tuple[Tensor, AttentiveState]:
        output, after, _ = self.observe_cell(w, u, state)
        return output, after

    def initial_cell_state(self, w: Weights, batch: int) -> AttentiveState:
        zeros = [w.weight_hh.new_zeros(batch, size) for size in self.state_sizes]
        memory = empty_memory(zeros[0], batch, self.slots)
        return AttentiveState(zeros, zeros[0], memory, self.memory_layout)

    def starts_from_zero(self) -> bool:
        return self.unchanged_from(MemoryLayer, "initial_state", "initial_cell_state")

    def coerce_state(self, state: State) -> AttentiveState:
        """Return a state with its memory in the form that the layer computes with.

        A bare h or (h, c) gets an empty memory and s = h, with a warning if it is not zero: its memory was lost.
        """
        if not isinstance(state, AttentiveState) or isinstance(state[0], CarryingTensor) or state.memory is None:
            state = self._find_memory(state)
        known_layout = state.memory_layout in ("", self.memory_layout)
        if len(state) != len(self.state_names) or not known_layout or not isinstance(state.memory, Memory):
            raise state_error(self, state)
        return state

    def _find_memory(self, state: State) -> AttentiveState:
        """Return the state of a caller's h or (h, c): with the memory that h carries, else with an empty one."""
        bare = super().coerce_state(state)
        visible = (bare,) if isinstance(bare, Tensor) else bare
        h = visible[0]
        if isinstance(h, CarryingTensor) and h.memory is None:
            raise InputError(
                f"{self._get_name()} got a state that step(..., inplace=True) has overwritten: go on with the state "
                "that it returned"
            )
        if isinstance(h, CarryingTensor) and h.is_current:
            return AttentiveState([plain(t) for t in visible], h.s, h.memory, h.memory_layout)

        visible = tuple(plain(t) for t in visible)
        if any(t.dim() != 3 or not len(t) for t in visible):
            raise state_error(self, state)
        self._warn_of_lost_memory(visible)
        h = visible[0]
        one_layer = empty_memory(h[0], h.shape[1], self.slots)
        memory = Memory(*(t.expand(len(h), *t.shape) for t in one_layer))
        return AttentiveState(visible, h, memory, self.memory_layout)

    def _warn_of_lost_memory(self, visible: tuple[Tensor, ...]) -> None:
        """Warn, once for each layer, of a state that is not zero and comes without its memory.

        On a GPU the check ends later, and the warning comes with the next call: nothing waits for the device.
        """
        if self._warned_of_lost_memory or not values_can_be_read(visible[0]):
            return
        if visible[0].is_cuda:
            is_nonzero = self._an_earlier_state_was_nonzero(visible[0])
        else:
            is_nonzero = any(bool(t.any()) for t in visible)
        if not is_nonzero:
            return
        self._warned_of_lost_memory = True
        names = " and ".join(self.state_names)
        warn_caller(
            f"{self._get_name()} got a state of {names} without its memory, and goes on with an empty one. Hand back "
            "the state as the layer gave it, or what .detach(), .clone(), .to() and h[:, rows] make of it; buffers "
            "that store h alone lose the memory. A learned first state has none: ignore this then"
        )

    def _an_earlier_state_was_nonzero(self, h: Tensor) -> bool:
        """Return what the last check of an h on a GPU found; False while it is not known. Then check this h."""
        check = _nonzero_checks.get(self)
        if check is not None and not check.is_done():
            return False
        _nonzero_checks[self] = NonzeroCheck(h)
        return check is not None and check.found()

    def present_state(self, state: AttentiveState) -> State:
        """Return h, or (h, c), where h carries the memory."""
        if torch.jit.is_tracing():  # a traced graph gives plain tensors
            return state.visible if len(state) > 1 else state[0]
        return present_state(state)

    def present_layers(self, states: list[State]) -> State:
        lazily = len(states) == 1 and not torch.compiler.is_compiling() and dispatches_plainly()
        return present_unstacked(self, states[0]) if lazily else super().present_layers(states)

    def _first_states(
        self, state: State | None, weights: list[Weights], x: Tensor, order: Tensor | None
    ) -> list[State | None]:
        if order is None and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            before = self._unstacked(state, x)
            if before is not None:
                return [before]
        return super()._first_states(state, weights, x, order)

    def _unstacked(self, state: State | None, x: Tensor) -> AttentiveState | None:
        """Return the layer's own state, if it made the caller's and its s and memory were not read since; else None."""
        carrier = state[0] if isinstance(state, AttentiveState) else state
        if not isinstance(carrier, CarryingTensor) or carrier.unstacked is None or not carrier.is_current:
            return None
        layer, mine, c, _ = carrier.unstacked
        if layer() is not self or (c is not None and (not isinstance(state, AttentiveState) or state[1] is not c)):
            return None
        # What `check_state` would look at: the other tensors were made beside s.
        s = mine.s
        fits = s.dtype is x.dtype and s.shape[0] == x.shape[1] and s.device == x.device
        return mine if fits and mine.memory_layout == self.memory_layout else None

    def map_visible(self, fn: Callable[[Tensor], Tensor], state: AttentiveState) -> AttentiveState:
        return AttentiveState([fn(t) for t in state.visible], state.s, state.memory, state.memory_layout)

    def keep_where_active(self, active: Tensor, new: AttentiveState, old: AttentiveState) -> AttentiveState:
        grown = new.memory.values.shape[1] - old.memory.values.shape[1]
        if grown:  # an ended sequence gets an empty slot beside the new one of the others
            old = AttentiveState(old, old.s, add_empty_slots(old.memory, grown))
        return super().keep_where_active(active, new, old)
