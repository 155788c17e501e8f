"""What every layer with a memory shares: the form of its state. Equations are in the files of the layers."""

from __future__ import annotations

from torch import Tensor

from mnemoscope.layers._base import Layer, Weights
from mnemoscope.layers._checks import state_error
from mnemoscope.layers._memory import AttentiveState, Memory, add_empty_slots, empty_memory
from mnemoscope.recurrence import State


class MemoryLayer(Layer):
    """A layer whose state is h (and c), s and a `Memory` of past states.

    It comes before the recurrence whose states are remembered: ``class SAB(MemoryLayer, LSTM)``. A subclass
    states its equations in `observe_cell`, and says in `memory_layout` what the slots of its memory are for.
    """

    constant_state_size = False

    @property
    def slots(self) -> int:
        """Slots of the memory before the first step."""
        return 0

    @property
    def memory_layout(self) -> str:
        """What the slots are for, in words: the memory of a layer that says something else is refused."""
        raise TypeError(f"{type(self).__name__} must say what the slots of its memory are for")

    def memory_fits(self, memory: Memory) -> bool:
        """True if the memory of a caller's state has the right number of slots."""
        return True

    def cell(self, w: Weights, u: Tensor, state: AttentiveState) -> tuple[Tensor, AttentiveState]:
        output, after, _ = self.observe_cell(w, u, state)
        return output, after

    def initial_cell_state(self, w: Weights, batch: int) -> AttentiveState:
        zeros = w.weight_hh.new_zeros(batch, self.hidden_size)
        memory = empty_memory(zeros, batch, self.slots)
        return AttentiveState([zeros for _ in self.state_names], zeros, memory, self.memory_layout)

    def coerce_state(self, state: State) -> AttentiveState:
        """Return a state of our own as it is, and a bare h or (h, c) with an empty memory and s = h."""
        if isinstance(state, AttentiveState):
            known_layout = state.memory_layout in ("", self.memory_layout)
            if len(state) != len(self.state_names) or not known_layout or not self.memory_fits(state.memory):
                raise state_error(self, state)
            return state
        bare = super().coerce_state(state)
        visible = (bare,) if isinstance(bare, Tensor) else bare
        if any(t.dim() != 3 for t in visible):
            raise state_error(self, state)
        h = visible[0]
        one_layer = empty_memory(h[0], h.shape[1], self.slots)
        memory = Memory(*(t.expand(len(h), *t.shape) for t in one_layer))
        return AttentiveState(visible, h, memory, self.memory_layout)

    def keep_where_active(self, active: Tensor, new: AttentiveState, old: AttentiveState) -> AttentiveState:
        grown = new.memory.values.shape[1] - old.memory.values.shape[1]
        if grown:  # an ended sequence gets an empty slot beside the new one of the others
            old = AttentiveState(old, old.s, add_empty_slots(old.memory, grown))
        return super().keep_where_active(active, new, old)
