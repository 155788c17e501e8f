"""Relevancy screening: attention over the last few states and the few older ones that mattered (Kerg et al. 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers.attentive import Attentive
from mnemoscope.layers.memory import Memory
from mnemoscope.layers.plain import LSTM, RNN
from mnemoscope.layers.sequence import Weights, hold


class Screened(Attentive):
    """A memory of two parts: slots [0, nu) hold S, the last nu states, as a ring; slots [nu, nu + rho) hold R.

    A state's relevance is the attention it receives while it is in S. When it leaves S it enters R if there is room, or
    takes the place of R's least relevant member if its own relevance is strictly greater; otherwise it is forgotten.
    Each sequence of the batch decides for itself. Relevance is counted, never differentiated; members of R keep their
    gradient path.

    Args:
        buffer: nu, how many of the last states are attended.
        relevant: rho, how many older states are kept.
        decay: what the relevance of R's members is multiplied by at every step; below 1, old relevance fades.
        refresh: whether members of R go on gaining relevance by the attention they receive.
    """

    bounded = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *args: Any,
        buffer: int = 10,
        relevant: int = 10,
        decay: float = 1.0,
        refresh: bool = False,
        **kwargs: Any,
    ) -> None:
        for name, value in (("buffer", buffer), ("relevant", relevant)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise MnemoscopeError(f"{name} must be a whole number of at least 0; got {value!r}")
        if not 0 < decay <= 1:
            raise MnemoscopeError(f"decay must lie in (0, 1]; got {decay!r}")
        self.buffer, self.relevant, self.decay, self.refresh = buffer, relevant, decay, refresh
        super().__init__(input_size, hidden_size, *args, **kwargs)

    @property
    def slots(self) -> int:
        return self.buffer + self.relevant

    def remember(self, w: Weights, h: Tensor, memory: Memory) -> Memory:
        if self.decay < 1:
            recent = torch.arange(self.slots, device=h.device) < self.buffer
            faded = torch.where(recent, memory.relevance, self.decay * memory.relevance)
            memory = memory._replace(relevance=faded)
        entry = Memory(h, F.linear(h, w.weight_key), memory.clock, torch.zeros_like(h[:, 0]), memory.clock)
        ring = memory.clock % max(self.buffer, 1)  # (batch,): the slot of the oldest state of S, or the next empty one
        leaving = _read(memory, ring) if self.buffer else entry  # without a buffer a state is judged as it is made
        memory = self._judge(memory, leaving) if self.relevant else memory
        memory = _write(memory, ring, entry) if self.buffer else memory
        return memory._replace(clock=memory.clock + 1)

    def _judge(self, memory: Memory, leaving: Memory) -> Memory:
        """R after the state that leaves S has been weighed against its least relevant member."""
        vacant = memory.origin[:, self.buffer :] < 0
        standing = memory.relevance[:, self.buffer :].masked_fill(vacant, -torch.inf)  # room is less than any relevance
        least, place = standing.min(-1)
        place = place + self.buffer
        enters = (leaving.origin >= 0) & (leaving.relevance > least)  # (batch,)
        pairs = zip(leaving, _read(memory, place), strict=True)
        return _write(memory, place, Memory(*(hold(enters, new, old) for new, old in pairs)))

    def count(self, memory: Memory, alpha: Tensor) -> Memory:
        counted = torch.arange(self.slots, device=alpha.device) < (self.slots if self.refresh else self.buffer)
        return memory._replace(relevance=memory.relevance + torch.where(counted, alpha, 0))

    def screening(self) -> tuple[int, int, float, bool]:
        return self.buffer, self.relevant, float(self.decay), self.refresh

    def fits(self, memory: Memory) -> bool:
        return memory.values.shape[-2] == self.slots

    def options_repr(self) -> list[str]:
        options = [f"buffer={self.buffer}", f"relevant={self.relevant}"]
        options += [f"decay={self.decay}"] if self.decay < 1 else []
        return super().options_repr() + options + (["refresh=True"] if self.refresh else [])


class RelRNN(Screened, RNN):
    """`MemRNN` with relevancy screening: each step attends at most buffer + relevant states.

    h_t = phi(V s_{t-1} + U x_t + b);  s_t = h_t + attention of s_{t-1} over S and R. The state unpacks as ``(h,)`` and
    carries ``.s`` and ``.memory``, as `MemRNN`'s does, with buffer + relevant slots. Arguments are `RNN`'s, `buffer`,
    `relevant`, `decay`, `refresh`, `mix`, `output`.
    """


class RelLSTM(Screened, LSTM):
    """`MemLSTM` with relevancy screening: put it where nn.LSTM stood.

    ``out, (h, c) = RelLSTM(10, 128)(x)`` unpacks as nn.LSTM's result; the state carries its memory along, and a bare
    (h, c) handed back in starts with an empty one. Arguments are nn.LSTM's, `buffer`, `relevant`, `decay`, `refresh`,
    `mix`, `output`.
    """


def _read(memory: Memory, slot: Tensor) -> Memory:
    """The state in one slot (batch,) of each sequence, as a memory without the slot dimension."""
    values, keys, origin, relevance = (t.gather(1, _along(t, slot)).squeeze(1) for t in memory[:4])
    return Memory(values, keys, origin, relevance, memory.clock)


def _write(memory: Memory, slot: Tensor, entry: Memory) -> Memory:
    """The memory with `entry` in one slot (batch,) of each sequence."""
    pairs = zip(memory[:4], entry[:4], strict=True)  # scatter moves one row where a masked choice would touch them all
    values, keys, origin, relevance = (
        t.scatter(1, _along(t, slot), new[:, None].to(t.dtype)) for t, new in pairs  # autocast makes h coarser
    )
    return Memory(values, keys, origin, relevance, memory.clock)


def _along(tensor: Tensor, slot: Tensor) -> Tensor:
    """The index (batch, 1, ...) of one slot of each sequence in a tensor (batch, slots, ...)."""
    return slot.view(-1, *[1] * (tensor.dim() - 1)).expand(-1, 1, *tensor.shape[2:])
