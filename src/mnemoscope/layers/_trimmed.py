"""States whose memory is bounded where it would grow without end."""

from __future__ import annotations

from mnemoscope.errors import check_count
from mnemoscope.layers._carried import AttentiveState, CarryingTensor
from mnemoscope.layers._memory import keep_newest
from mnemoscope.recurrence import State, rebuild


def trim_memory(state: State, keep: int) -> State:
    """Return a state whose memories hold their `keep` newest states alone; h, c and s are as they were.

    For a stream that never ends: between two chunks, ``state = trim_memory(detach(state), 100)`` bounds the memory of
    `MemRNN`, `MemLSTM` and `SAB`, and 0 empties it. What has no memory is returned as it is.

    Args:
        state: a layer's state, or a (nested) tuple of states.
        keep: how many states of each sequence to keep, 0 or more.

    Examples:
        >>> from mnemoscope.layers import trim_memory
        >>> output, h = mnemoscope.MemRNN(3, 16)(torch.randn(20, 4, 3))
        >>> trim_memory(h, 5).memory.values.shape
        torch.Size([1, 4, 5, 16])
    """
    check_count("keep", keep, 0)
    if isinstance(state, AttentiveState | CarryingTensor):
        if state.memory is None:
            return state
        memory = keep_newest(state.memory, keep, state.memory_layout)
        return rebuild(state, [*state.visible, state.s, *memory])
    if not isinstance(state, tuple | list):
        return state
    parts = [trim_memory(part, keep) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
