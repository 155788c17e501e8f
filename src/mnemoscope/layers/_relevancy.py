"""Relevancy screening: attention over the last few states and the few older ones that mattered (Kerg et al. 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers._attentive import Attentive
from mnemoscope.layers._base import Weights
from mnemoscope.layers._memory import Memory, append, rearrange
from mnemoscope.layers._plain import LSTM, RNN


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

    @property
    def kind(self) -> str:
        return f"the last {self.buffer} and {self.relevant} older ones"

    def remember(self, w: Weights, h: Tensor, memory: Memory) -> Memory:
        if self.decay < 1:
            recent, older = memory.relevance.split([self.buffer, self.relevant], 1)
            memory = memory._replace(relevance=torch.cat([recent, self.decay * older], 1))
        oldest = memory.clock % max(self.buffer, 1)  # of S, or its next empty slot
        leaving = (oldest if self.buffer else torch.full_like(oldest, self.slots))[:, None]  # (batch, 1)
        grown = append(memory, h, F.linear(h, w.weight_key))  # with h_t in one slot too many, the last
        source = torch.arange(self.slots, device=h.device).expand(len(h), -1)  # a state stays in its slot,
        if self.relevant:
            source = source.scatter(1, *self._judge(grown, leaving))  # but may lose it to the one that leaves S,
        if self.buffer:
            source = source.scatter(1, leaving, self.slots)  # which itself gives way to h_t
        return rearrange(grown, source)

    def _judge(self, grown: Memory, leaving: Tensor) -> tuple[Tensor, Tensor]:
        """The slot of R's least relevant member, and the slot of what stands there from now on: (batch, 1) each.

        `leaving` is the slot of the state that leaves S; without a buffer a state is judged as it is made.
        """
        members = slice(self.buffer, self.slots)
        vacant = grown.origin[:, members] < 0
        standing = grown.relevance[:, members].masked_fill(vacant, -torch.inf)  # room is less than any relevance
        least, place = standing.min(1, keepdim=True)
        place = place + self.buffer
        enters = (grown.origin.gather(1, leaving) >= 0) & (grown.relevance.gather(1, leaving) > least)
        return place, torch.where(enters, leaving, place)

    def count(self, memory: Memory, alpha: Tensor) -> Memory:
        counted = alpha if self.refresh else F.pad(alpha[:, : self.buffer], (0, self.relevant))
        return memory._replace(relevance=memory.relevance + counted)

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
