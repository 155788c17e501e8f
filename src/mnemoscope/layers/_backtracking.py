"""Sparse attentive backtracking (Ke et al. 2018), as run in the comparison of Kerg et al. 2020."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mnemoscope import equations, kernels
from mnemoscope.layers._carried import AttentiveState
from mnemoscope.layers._checks import check_bool, check_choice, check_int
from mnemoscope.layers._memory import STORED_STATES, Memory, append_state
from mnemoscope.layers._memory_layer import MemoryLayer
from mnemoscope.layers._plain import LSTM
from mnemoscope.layers._run import KernelChoice, KernelSpec
from mnemoscope.layers._state import in_cuda_graph
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import Attention
from mnemoscope.torch_internals import in_onnx_export


class SAB(MemoryLayer, LSTM):
    """An LSTM, cut from its past every `truncation` steps, that reaches back through a few remembered states.

    h^, c_t = LSTM(x_t, (h_{t-1}, c_{t-1}));  a_i = w^T tanh([h^; m_i]) over the memory;  all but the largest are set to
    zero, a_i <- relu(a_i - a_(k_top)), and normalized (a softmax while no more than k_top are stored);
    h_t = h^ + sum_i a_i m_i;  h_t is stored every `store_every` steps. w starts from N(0, 0.01^2).

    The gradient through the scores would be divided by the little by which they differ, once more at every hop from one
    remembered state to the next: over a few hundred steps it overflows. So the scores read detached h^ and m_i, as the
    authors' code can (`block_attn_grad_past`): w is learned, and the gradient goes back through the attended states.

    Args:
        store_every: k_att, steps between stored states.
        top: k_top, how many of the stored states may be attended.
        truncation: k_trunc, steps after which the gradient through h and c is cut.
        output: "both" for [h; attended], the read-out of the paper, with 2 * hidden_size features, or "h".
        detach_scores: whether the gradient is blocked from the scores to h^ and m_i.

    The state is (h, c), and h carries ``.memory``. The other arguments are nn.LSTM's.

    Examples:
        >>> layer = mnemoscope.SAB(3, 16, truncation=5)
        >>> output, (h, c) = layer(torch.randn(20, 4, 3))
        >>> output.shape  # [h; attended]
        torch.Size([20, 4, 32])
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
        output: Literal["h", "both"] = "both",
        detach_scores: bool = True,
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_int(self, "store_every", store_every)
        check_int(self, "top", top)
        check_int(self, "truncation", truncation)
        check_choice(self, "output", output, ("h", "both"))
        check_bool(self, "detach_scores", detach_scores)
        self.store_every = store_every
        self.top = top
        self.truncation = truncation
        self.concatenated = output == "both"
        self.detach_scores = detach_scores
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        LSTM.__init__(self, *arguments, checkpoint=checkpoint, device=device, dtype=dtype)

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        return {**super().shapes(input_size), "weight_score": (2 * self.state_sizes[0],)}

    def init_parameter(self, name: str, tensor: Tensor) -> None:
        if name == "weight_score":
            nn.init.normal_(tensor, std=0.01)
        else:
            super().init_parameter(name, tensor)

    @property
    def step_size(self) -> int:
        return 2 * self.state_sizes[0] if self.concatenated else self.state_sizes[0]

    @property
    def memory_layout(self) -> str:
        return STORED_STATES

    def observe_cell(self, w: Weights, u: Tensor, state: AttentiveState) -> tuple[Tensor, AttentiveState, Attention]:
        memory = state.memory
        cut = ((memory.clock > 0) & (memory.clock % self.truncation == 0))[:, None]
        h, c = (torch.where(cut, t.detach(), t) for t in state)
        h, c = self.advance(w, u, h, c)
        alpha = self._attention_weights(w, h, memory)
        attended = equations.attention_context(alpha, memory.values)
        h = h + attended
        output = self._output(h, attended)
        stored = self._store(h, memory)
        alpha = F.pad(alpha, (0, stored.origin.shape[1] - alpha.shape[1]))  # a state stored now was not attended
        attention = Attention(alpha, stored.origin, stored.relevance)
        return output, AttentiveState((h, c), h, stored, self.memory_layout), attention

    def _attention_weights(self, w: Weights, h: Tensor, memory: Memory) -> Tensor:
        """Return the attention over the memory (batch, slots): sparse where it holds more than `top` states."""
        w_query, w_key = w.weight_score.chunk(2)
        query, keys = torch.tanh(h), memory.keys  # tanh(m_i)
        if self.detach_scores:
            query, keys = query.detach(), keys.detach()
        scores = (query @ w_query)[:, None] + keys @ w_key
        return equations.sparse_attention_weights(scores, memory.origin >= 0, self.top)

    def _output(self, h: Tensor, attended: Tensor) -> Tensor:
        return torch.cat([h, attended], -1) if self.concatenated else h

    def _store(self, h: Tensor, memory: Memory) -> Memory:
        """Return the memory after one step, with h in it if it is due."""
        due = (memory.clock + 1) % self.store_every == 0  # (batch,)
        if not _any(due):
            return memory._replace(clock=memory.clock + 1)
        grown = append_state(memory, h, torch.tanh(h))
        origin = torch.where(due, memory.clock, -1)  # a row that is not due gets an empty slot
        return grown._replace(origin=torch.cat([memory.origin, origin[:, None]], 1))

    def kernel_spec(self) -> KernelSpec | None:
        if not self.unchanged_from(SAB, "observe_cell", "cell") or not self.unchanged_from(LSTM, "advance"):
            return None
        if self.proj_size:
            return None
        return KernelSpec("sab", relevant=self.top)

    def run_kernel(
        self, choice: KernelChoice, w: Weights, x: Tensor, state: AttentiveState | None, lengths: Tensor | None
    ) -> tuple[Tensor, AttentiveState]:
        if state is None:
            state = self.initial_cell_state(w, x.shape[1])
        options = kernels.SabOptions(self.store_every, self.top, self.truncation, self.detach_scores)
        _, key = w.weight_score.chunk(2)  # the other half shifts all scores alike
        h0, c0 = state
        carried = kernels.CarriedMemory(*state.memory)
        u = self.project(w, x)
        h, attended, c = kernels.sab(choice.dtype, options, u, w.weight_hh, key, h0, c0, carried, lengths)
        output = self._output(h, attended)
        last = kernels.last_valid_state(h, h0, lengths)
        memory = self._memory_after(h, state.memory, lengths)
        return output, AttentiveState((last, c), last, memory, self.memory_layout)

    def _memory_after(self, h: Tensor, memory: Memory, lengths: Tensor | None) -> Memory:
        """Return the memory after all the steps of h (time, batch, hidden)."""
        time = h.shape[0]  # len() is a number, and an exported program is for sequences of any length
        steps = torch.arange(time, device=h.device)
        passed = torch.full_like(memory.clock, time) if lengths is None else lengths  # (batch,)
        clock = memory.clock[:, None] + torch.minimum(steps, passed[:, None])  # (batch, time)
        due = (clock + 1) % self.store_every == 0
        if in_cuda_graph(due):
            slots = steps  # their number must not depend on the clocks: a step that is not due has an empty slot
        else:
            slots = due.any(0).nonzero().squeeze(1)  # a slot in every row for each step at which any row is due
        states = h[slots].transpose(0, 1)
        origin = torch.where(due & (steps < passed[:, None]), clock, -1)[:, slots]
        return Memory(
            values=torch.cat([memory.values, states], 1),
            keys=torch.cat([memory.keys, torch.tanh(states)], 1),
            origin=torch.cat([memory.origin, origin], 1),
            relevance=F.pad(memory.relevance, (0, slots.shape[0])),
            clock=memory.clock + passed,
        )

    def options_repr(self) -> list[str]:
        shown = [f"store_every={self.store_every}", f"top={self.top}", f"truncation={self.truncation}"]
        if not self.concatenated:
            shown.append("output='h'")
        if not self.detach_scores:
            shown.append("detach_scores=False")
        return shown


def _any(rows: Tensor) -> bool:
    """True if any row is marked, and where values cannot be read: at the price of an empty slot.

    That is so under vmap, in a CUDA graph, and while a model is exported to ONNX, whose loop appends a slot at every
    step.
    """
    if in_onnx_export() or in_cuda_graph(rows):
        return True
    try:
        return bool(rows.any())
    except RuntimeError:
        return True
