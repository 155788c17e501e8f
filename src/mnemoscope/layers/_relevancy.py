"""Relevancy screening: attention over the last few states and the few older ones that mattered (Kerg et al. 2020)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.errors import MnemoscopeError, is_number
from mnemoscope.layers._attentive import AdditiveAttention, Mix, Output
from mnemoscope.layers._checks import check_bool, check_int
from mnemoscope.layers._init import RecurrentInit
from mnemoscope.layers._memory import Memory, append_state, rearrange_slots
from mnemoscope.layers._plain import LSTM, RNN, Nonlinearity
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import Screening


class Screened(AdditiveAttention):
    """A memory of two parts: slots [0, nu) hold S, the last nu states, as a ring; slots [nu, nu + rho) hold R.

    A state's relevance is the attention it receives while it is in S. When it leaves S it enters R if there is room, or
    takes the place of R's least relevant member if its own relevance is strictly greater; otherwise it is forgotten.
    Each sequence of the batch decides for itself. Relevance is counted, never differentiated; members of R keep their
    gradient path.
    """

    constant_state_size = True

    buffer: int
    relevant: int
    decay: float
    refresh: bool

    def _set_screening(self, buffer: int, relevant: int, decay: float, refresh: bool) -> None:
        """Set the options of the screening."""
        check_int(self, "buffer", buffer, least=0)
        check_int(self, "relevant", relevant, least=0)
        check_bool(self, "refresh", refresh)
        if not is_number(decay) or not 0 < decay <= 1:
            raise MnemoscopeError(f"{type(self).__name__}: decay must lie in (0, 1]; got {decay!r}")
        self.buffer = buffer
        self.relevant = relevant
        self.decay = decay
        self.refresh = refresh

    @property
    def slots(self) -> int:
        return self.buffer + self.relevant

    @property
    def screening(self) -> Screening:
        return Screening(self.buffer, self.decay)

    @property
    def memory_layout(self) -> str:
        return f"the last {self.buffer} and {self.relevant} older ones"

    def remember(self, w: Weights, h: Tensor, memory: Memory) -> Memory:
        if self.decay < 1:
            recent, older = memory.relevance.split([self.buffer, self.relevant], 1)
            memory = memory._replace(relevance=torch.cat([recent, self.decay * older], 1))
        grown = append_state(memory, h, F.linear(h, w.weight_key))  # with h_t in one slot too many, the last
        newest = torch.full_like(memory.clock, self.slots)[:, None]  # (batch, 1)
        # The state that leaves S: the oldest, whose slot h_t takes; without a buffer h_t itself.
        leaving = (memory.clock % self.buffer)[:, None] if self.buffer else newest
        source = torch.arange(self.slots, device=h.device).expand(h.shape[0], -1)  # every state stays in its slot
        if self.relevant:
            source = source.scatter(1, *self._admit(grown, leaving))
        if self.buffer:
            source = source.scatter(1, leaving, newest)
        return rearrange_slots(grown, source)

    def _admit(self, grown: Memory, leaving: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slot of R's least relevant member, and the slot of the state to put there: (batch, 1) each.

        `leaving` is the slot of the state that leaves S; without a buffer a state is judged as it is made.
        """
        members = slice(self.buffer, self.slots)
        vacant = grown.origin[:, members] < 0
        relevance = grown.relevance[:, members].masked_fill(vacant, -torch.inf)  # room is less than any relevance
        least, weakest = relevance.min(1, keepdim=True)
        weakest = weakest + self.buffer
        enters = (grown.origin.gather(1, leaving) >= 0) & (grown.relevance.gather(1, leaving) > least)
        return weakest, torch.where(enters, leaving, weakest)

    def accumulate_relevance(self, memory: Memory, alpha: Tensor) -> Memory:
        counted = alpha
        if not self.refresh:
            counted = F.pad(alpha[:, : self.buffer], (0, self.relevant))
        return memory._replace(relevance=memory.relevance + counted)

    def kernel_options(self) -> tuple[int, int, float, bool]:
        return self.buffer, self.relevant, float(self.decay), self.refresh

    @property
    def fixed_slots(self) -> int:
        return self.slots

    def options_repr(self) -> list[str]:
        shown = [*super().options_repr(), f"buffer={self.buffer}", f"relevant={self.relevant}"]
        if self.decay < 1:
            shown.append(f"decay={self.decay}")
        if self.refresh:
            shown.append("refresh=True")
        return shown


class RelRNN(Screened, RNN):
    """`MemRNN` with relevancy screening: each step attends at most buffer + relevant states.

    h_t = phi(V s_{t-1} + U x_t + b);  s_t = h_t + attention of s_{t-1} over S, the last `buffer` states, and R, the
    `relevant` older ones that received the most attention (Kerg et al. 2020, algorithm 1). The state h carries ``.s``
    and ``.memory``, as `MemRNN`'s does, with buffer + relevant slots.

    Args:
        nonlinearity: "tanh", "relu", "sigmoid", "identity", "modrelu" (with its own bias), or any pointwise function.
        recurrent_init: how V starts: "uniform" as in torch, "henaff", "cayley" or "orthogonal".
        buffer: nu, how many of the last states are attended.
        relevant: rho, how many older states are kept for their relevance.
        decay: what the relevance of kept older states is multiplied by at every step; below 1, old relevance fades.
        refresh: whether kept older states go on gaining relevance by the attention they receive.
        mix: "sum" is the paper's s_t = h_t + c_t, "mean" its half, as in the authors' code.
        output: which of "h" and "s" the layer gives as its output.

    The other arguments are nn.LSTM's, and `checkpoint`, which saves memory: see `Layer`.

    Examples:
        >>> layer = mnemoscope.RelRNN(3, 16, buffer=5, relevant=3)
        >>> output, h = layer(torch.randn(20, 4, 3))
        >>> output, h = layer(torch.randn(20, 4, 3), h.detach())  # goes on, memory included
        >>> h.memory.values.shape
        torch.Size([1, 4, 8, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        nonlinearity: Nonlinearity = "tanh",
        recurrent_init: RecurrentInit = "uniform",
        buffer: int = 10,
        relevant: int = 10,
        decay: float = 1.0,
        refresh: bool = False,
        mix: Mix = "sum",
        output: Output = "h",
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._set_attention(mix, output)
        self._set_screening(buffer, relevant, decay, refresh)
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        RNN.__init__(
            self,
            *arguments,
            nonlinearity=nonlinearity,
            recurrent_init=recurrent_init,
            checkpoint=checkpoint,
            device=device,
            dtype=dtype,
        )
        self._warn_of_growth(nonlinearity, recurrent_init)


class RelLSTM(Screened, LSTM):
    """`MemLSTM` with relevancy screening: a drop-in replacement for nn.LSTM.

    h_t, c_t = LSTM(x_t, (s_{t-1}, c_{t-1}));  s_t = h_t + attention of s_{t-1} over S, the last `buffer` states, and
    R, the `relevant` older ones that received the most attention.

    ``out, (h, c) = RelLSTM(10, 128)(x)`` unpacks as nn.LSTM's result; h carries the memory along (`CarryingTensor`). A
    state that comes back without it starts with an empty one, after a warning.

    Args:
        buffer: nu, how many of the last states are attended.
        relevant: rho, how many older states are kept for their relevance.
        decay: what the relevance of kept older states is multiplied by at every step; below 1, old relevance fades.
        refresh: whether kept older states go on gaining relevance by the attention they receive.
        mix: "sum" is the paper's s_t = h_t + c_t, "mean" its half, as in the authors' code.
        output: which of "h" and "s" the layer gives as its output.

    The other arguments are nn.LSTM's, and `checkpoint`, which saves memory: see `Layer`.

    Examples:
        >>> layer = mnemoscope.RelLSTM(3, 16, buffer=5, relevant=3)
        >>> output, (h, c) = layer(torch.randn(20, 4, 3))  # h carries the memory
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        buffer: int = 10,
        relevant: int = 10,
        decay: float = 1.0,
        refresh: bool = False,
        mix: Mix = "sum",
        output: Output = "h",
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._set_attention(mix, output)
        self._set_screening(buffer, relevant, decay, refresh)
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        LSTM.__init__(self, *arguments, checkpoint=checkpoint, device=device, dtype=dtype)
