"""Recurrences that attend to all their past states (Kerg et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope import kernels
from mnemoscope.layers._base import Layer, Weights
from mnemoscope.layers._checks import check_choice, misfit
from mnemoscope.layers._init import RecurrentInit
from mnemoscope.layers._memory import AttentiveState, Memory, after, append, attend, empty
from mnemoscope.layers._plain import LSTM, RNN, Nonlinearity
from mnemoscope.recurrence import State

Mix = Literal["sum", "mean"]
Output = Literal["h", "s"]

if TYPE_CHECKING:
    Base = Layer
else:
    Base = object


class Attentive(Base):
    """What a plain recurrence becomes when it reads s = h + c instead of h, c an attention over past states.

    Mixed in front of `RNN` or `LSTM`, whose `advance` makes h_t from s_{t-1}. A subclass says what is remembered.
    """

    bounded = False

    mix: Mix
    output: Output

    def _set_attention(self, mix: Mix, output: Output) -> None:
        """Take the options of the attention; before the parameters are made, whose shapes may depend on options."""
        check_choice(self, "mix", mix, get_args(Mix))
        check_choice(self, "output", output, get_args(Output))
        self.mix = mix
        self.output = output

    if TYPE_CHECKING:

        def advance(self, w: Weights, u: Tensor, h: Tensor, *rest: Tensor) -> tuple[Tensor, ...]: ...

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        n = self.hidden_size
        return {**super().shapes(input_size), "weight_query": (n, n), "weight_key": (n, n), "weight_score": (n,)}

    @property
    def slots(self) -> int:
        """Slots of the memory at the start."""
        return 0

    @property
    def kind(self) -> str:
        """What the slots are for: the memory of another kind of layer is refused."""
        return "every state"

    def start(self, w: Weights, batch: int) -> AttentiveState:
        zeros = w.weight_hh.new_zeros(batch, self.hidden_size)
        return AttentiveState([zeros for _ in self.visible], zeros, empty(zeros, batch, self.slots), self.kind)

    def remember(self, w: Weights, h: Tensor, memory: Memory) -> Memory:
        """The memory that s_t attends: that of the step before and h_t."""
        return append(memory, h, F.linear(h, w.weight_key))

    def count(self, memory: Memory, alpha: Tensor) -> Memory:
        """The memory after its states have received the attention alpha."""
        return memory

    def observe_cell(self, w: Weights, u: Tensor, state: AttentiveState) -> tuple[Tensor, AttentiveState, Tensor]:
        visible = self.advance(w, u, state.s, *state[1:])  # h_t = phi(V s_{t-1} + U x_t + b), eq. 51
        h = visible[0]
        memory = self.remember(w, h, state.memory)
        c, alpha = attend(w, state.s, memory)
        s = h + c if self.mix == "sum" else (h + c) / 2
        memory = self.count(memory, alpha.detach())
        return (h if self.output == "h" else s), AttentiveState(visible, s, memory, self.kind), alpha

    def cell(self, w: Weights, u: Tensor, state: AttentiveState) -> tuple[Tensor, AttentiveState]:
        return self.observe_cell(w, u, state)[:2]

    def screening(self) -> tuple[int, int, float, bool]:
        """The kernels' buffer, relevant, decay and refresh; a buffer of -1 is attention to everything."""
        return -1, 0, 1.0, False

    def attention(self) -> kernels.Attention | None:
        """The equations as the kernels know them; None where they do not."""
        cell, phi = ("lstm", "tanh") if isinstance(self, LSTM) else ("rnn", getattr(self, "phi_name", lambda: None)())
        owner = next(c for c in type(self).__mro__ if "screening" in vars(c))
        known = self.follows(owner, "observe_cell", "cell", "remember", "count")
        known = known and self.follows(LSTM if cell == "lstm" else RNN, "advance")
        buffer, relevant, decay, refresh = self.screening()
        return kernels.Attention(cell, phi, buffer, relevant, self.mix, decay, refresh) if known and phi else None

    def fused(
        self, w: Weights, x: Tensor, state: AttentiveState, lengths: Tensor | None
    ) -> tuple[Tensor, AttentiveState] | None:
        how = self.attention()
        compiled = how and kernels.supported(
            "attentive", x, self.hidden_size, cell=how.cell, buffer=how.buffer, relevant=how.relevant
        )
        dtype = compiled or kernels.portably(x)
        if how is None or dtype is None:
            return None
        b = w.bias_modrelu if how.phi == "modrelu" else None
        joined = compiled is not None and b is None
        u, V = self.feed(w, x, lengths) if joined else (self.project(w, x), w.weight_hh)
        matrices = V, w.weight_query, w.weight_key, w.weight_score
        c0 = state[1] if how.cell == "lstm" else None
        bank = kernels.Bank(*state.memory)
        done = kernels.attentive(dtype, how, u, *matrices, b, state.s, c0, bank, lengths, compiled=compiled is not None)
        h, s = kernels.final(done.h, state.h, lengths), kernels.final(done.s, state.s, lengths)
        memory = after(state.memory, done, lengths)
        final = AttentiveState((h,) if c0 is None else (h, done.c), s, memory, self.kind)
        return (done.h if self.output == "h" else done.s), final

    def adopt(self, state: State) -> AttentiveState:
        """A state of our own, or a bare h or (h, c), which starts with an empty memory and s = h."""
        if isinstance(state, AttentiveState):
            if len(state) != len(self.visible) or state.kind not in ("", self.kind) or not self.fits(state.memory):
                raise misfit(self, state)
            return state
        bare = super().adopt(state)
        visible = (bare,) if isinstance(bare, Tensor) else bare
        if any(t.dim() != 3 for t in visible):
            raise misfit(self, state)
        h = visible[0]
        blank = empty(h[0], h.shape[1], self.slots)
        return AttentiveState(visible, h, Memory(*(t.expand(len(h), *t.shape) for t in blank)), self.kind)

    def fits(self, memory: Memory) -> bool:
        return True

    def hold(self, active: Tensor, new: AttentiveState, old: AttentiveState) -> AttentiveState:
        grown = new.memory.values.shape[1] - old.memory.values.shape[1]
        if grown:  # an ended sequence gets an empty slot beside the others' new one
            values, keys, origin, relevance, clock = old.memory
            values, keys = (F.pad(t, (0, 0, 0, grown)) for t in (values, keys))
            wider = Memory(values, keys, F.pad(origin, (0, grown), value=-1), F.pad(relevance, (0, grown)), clock)
            old = AttentiveState(old, old.s, wider)
        return super().hold(active, new, old)

    def options_repr(self) -> list[str]:
        options = [f"mix={self.mix!r}"] if self.mix != "sum" else []
        return super().options_repr() + options + ([f"output={self.output!r}"] if self.output != "h" else [])


class MemRNN(Attentive, RNN):
    """A plain recurrence with full attention over all its past states (Kerg et al. 2020, eqs 9-10, 50-53).

    h_t = phi(V s_{t-1} + U x_t + b);  alpha = softmax_i v^T tanh(W_a s_{t-1} + U_a h_i), i <= t;
    s_t = h_t + sum_i alpha_i h_i. Input and output have `RNN`'s shapes; the state unpacks as ``(h,)``, h
    (layers * directions, batch, hidden_size), and carries ``.s`` of the same shape and the `Memory`, ``.memory``.

    Memory grows with every step: `RelRNN` bounds it.

    Args:
        nonlinearity: "tanh", "relu", "sigmoid", "identity", "modrelu" (with its own bias), or any pointwise function.
        recurrent_init: how V starts: "uniform" as in torch, "henaff", "cayley" or "orthogonal".
        mix: "sum" is the paper's s_t = h_t + c_t, "mean" its half, as in the authors' code.
        output: which of "h" and "s" the layer gives as its output.

    The other arguments are nn.LSTM's.
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
        mix: Mix = "sum",
        output: Output = "h",
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._set_attention(mix, output)
        RNN.__init__(
            self,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            nonlinearity=nonlinearity,
            recurrent_init=recurrent_init,
            checkpoint=checkpoint,
            device=device,
            dtype=dtype,
        )


class MemLSTM(Attentive, LSTM):
    """An LSTM with full attention over all its past h; its gates read [s_{t-1}, x_t], its cell state stays its own.

    Input and output have nn.LSTM's shapes; the state unpacks as ``(h, c)``, each (layers * directions, batch,
    hidden_size), and carries ``.s`` of the same shape and the `Memory`, ``.memory``.

    Args:
        mix: "sum" is the paper's s_t = h_t + c_t, "mean" its half, as in the authors' code.
        output: which of "h" and "s" the layer gives as its output.

    The other arguments are nn.LSTM's.
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
        mix: Mix = "sum",
        output: Output = "h",
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._set_attention(mix, output)
        LSTM.__init__(
            self,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            checkpoint=checkpoint,
            device=device,
            dtype=dtype,
        )
