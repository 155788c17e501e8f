"""Sparse attentive backtracking (Ke et al. 2018), as run in the comparison of Kerg et al. 2020."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope import equations, kernels
from mnemoscope.layers._attentive import Attentive
from mnemoscope.layers._base import Weights
from mnemoscope.layers._checks import check_choice, check_int
from mnemoscope.layers._memory import AttentiveState, Memory, append
from mnemoscope.layers._plain import LSTM


class SAB(Attentive, LSTM):
    """An LSTM, cut from its past every `truncation` steps, that reaches back through a few remembered states.

    h^, c_t = LSTM(x_t, (h_{t-1}, c_{t-1}));  a_i = w^T tanh([h^; m_i]) over the memory;  all but the largest are set to
    zero, a_i <- relu(a_i - a_(k_top)), and normalised (a softmax while no more than k_top are stored);
    h_t = h^ + sum_i a_i m_i;  h_t is stored every `store_every` steps.

    Args:
        store_every: k_att, steps between stored states.
        top: k_top, how many of the stored states may be attended.
        truncation: k_trunc, steps after which the gradient through h and c is cut.
        output: "h", or "both" for [h; attended], the read-out of the paper, with 2 * hidden_size features.

    The state unpacks as ``(h, c)`` and carries ``.memory``. The other arguments are nn.LSTM's.
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
        store_every: int = 2,
        top: int = 10,
        truncation: int = 10,
        output: Literal["h", "both"] = "h",
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_int(self, "store_every", store_every)
        check_int(self, "top", top)
        check_int(self, "truncation", truncation)
        check_choice(self, "output", output, ("h", "both"))
        self.store_every = store_every
        self.top = top
        self.truncation = truncation
        self.concatenated = output == "both"
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

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        return {**LSTM.shapes(self, input_size), "weight_score": (2 * self.hidden_size,)}

    @property
    def step_size(self) -> int:
        return 2 * self.hidden_size if self.concatenated else self.hidden_size

    @property
    def kind(self) -> str:
        return "stored states"

    def observe_cell(self, w: Weights, u: Tensor, state: AttentiveState) -> tuple[Tensor, AttentiveState, Tensor]:
        memory = state.memory
        cut = ((memory.clock > 0) & (memory.clock % self.truncation == 0))[:, None]
        h, c = (torch.where(cut, t.detach(), t) for t in state)
        h, c = self.advance(w, u, h, c)
        alpha = self._choose(w, h, memory)
        attended = equations.attention_context(alpha, memory.values)
        h = h + attended
        output = torch.cat([h, attended], -1) if self.concatenated else h
        stored = self._store(h, memory)
        alpha = F.pad(alpha, (0, stored.origin.shape[1] - alpha.shape[1]))  # a state stored now was not attended
        return output, AttentiveState((h, c), h, stored, self.kind), alpha

    def _choose(self, w: Weights, h: Tensor, memory: Memory) -> Tensor:
        """Attention over the memory (batch, slots): sparse where it holds more than `top` states."""
        query, key = w.weight_score.chunk(2)
        scores = (torch.tanh(h) @ query)[:, None] + memory.keys @ key  # keys hold tanh(m_i)
        return equations.sparse_attention_weights(scores, memory.origin >= 0, self.top)

    def _store(self, h: Tensor, memory: Memory) -> Memory:
        due = (memory.clock + 1) % self.store_every == 0  # (batch,)
        if not _some(due):
            return memory._replace(clock=memory.clock + 1)
        grown = append(memory, h, torch.tanh(h))
        made = torch.where(due, memory.clock, -1)  # a row whose turn it is not gets an empty slot
        return grown._replace(origin=torch.cat([memory.origin, made[:, None]], 1))

    def fused(
        self, w: Weights, x: Tensor, state: AttentiveState, lengths: Tensor | None
    ) -> tuple[Tensor, AttentiveState] | None:
        known = self.follows(SAB, "observe_cell", "cell") and self.follows(LSTM, "advance")
        dtype = kernels.supported("sab", x, self.hidden_size, relevant=self.top) if known else None
        if dtype is None:
            return None
        how = kernels.Backtracking(self.store_every, self.top, self.truncation)
        key = w.weight_score.chunk(2)[1]  # the other half shifts all scores alike
        h0, c0 = state
        bank = kernels.Bank(*state.memory)
        h, attended, c = kernels.sab(dtype, how, self.project(w, x), w.weight_hh, key, h0, c0, bank, lengths)
        output = torch.cat([h, attended], -1) if self.concatenated else h
        last = kernels.final(h, h0, lengths)
        return output, AttentiveState((last, c), last, self._stored(h, state.memory, lengths), self.kind)

    def _stored(self, h: Tensor, memory: Memory, lengths: Tensor | None) -> Memory:
        """The memory after all the steps of h (time, batch, hidden)."""
        steps = torch.arange(len(h), device=h.device)
        passed = torch.full_like(memory.clock, len(h)) if lengths is None else lengths  # (batch,)
        clock = memory.clock[:, None] + torch.minimum(steps, passed[:, None])  # (batch, time)
        due = (clock + 1) % self.store_every == 0
        slots = due.any(0).nonzero().squeeze(1)  # a slot in every row where it is one row's turn
        states = h[slots].transpose(0, 1)
        origin = torch.where(due & (steps < passed[:, None]), clock, -1)[:, slots]
        relevance = F.pad(memory.relevance, (0, len(slots)))
        values, keys = torch.cat([memory.values, states], 1), torch.cat([memory.keys, torch.tanh(states)], 1)
        return Memory(values, keys, torch.cat([memory.origin, origin], 1), relevance, memory.clock + passed)

    def options_repr(self) -> list[str]:
        options = [f"store_every={self.store_every}", f"top={self.top}", f"truncation={self.truncation}"]
        return options + (["output='both'"] if self.concatenated else [])


def _some(rows: Tensor) -> bool:
    """Whether any row is marked. Under vmap nobody can look: then as if one were, at the price of an empty slot."""
    try:
        return bool(rows.any())
    except RuntimeError:
        return True
