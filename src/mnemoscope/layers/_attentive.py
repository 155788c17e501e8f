"""Recurrences that attend to all their past states (Kerg et al. 2020)."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope import equations, kernels
from mnemoscope.layers._carried import AttentiveState
from mnemoscope.layers._checks import check_choice, warn_caller
from mnemoscope.layers._init import RecurrentInit
from mnemoscope.layers._memory import EVERY_STATE, Memory, append_state, memory_after_kernel
from mnemoscope.layers._memory_layer import MemoryLayer
from mnemoscope.layers._plain import LSTM, RNN, Nonlinearity
from mnemoscope.layers._run import KernelChoice, KernelSpec
from mnemoscope.layers._state import in_cuda_graph
from mnemoscope.layers._streaming import step_by_kernel
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import AdditiveParameters, Attention, State

Mix = Literal["sum", "mean"]
Output = Literal["h", "s"]


class AdditiveAttention(MemoryLayer):
    """The equations of a recurrence that reads s = h + c instead of h, c an attention over past states.

    It stands in front of `RNN` or `LSTM`, whose `advance` computes h_t from s_{t-1}. Every state is remembered; a
    subclass may remember fewer by `remember` and `accumulate_relevance`.
    """

    mix: Mix
    output: Output
    _rules: ClassVar[type]
    """The class that states `kernel_options`: the kernels know its rules, not those of its subclasses."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kernel_options" in vars(cls):
            cls._rules = cls

    def _set_attention(self, mix: Mix, output: Output) -> None:
        """Set the options of the attention."""
        check_choice(self, "mix", mix, get_args(Mix))
        check_choice(self, "output", output, get_args(Output))
        self.mix = mix
        self.output = output

    def _warn_of_growth(self, nonlinearity: Nonlinearity, recurrent_init: RecurrentInit) -> None:
        """Warn of a start from which the states must explode: V keeps lengths, nothing bounds h, and c is added."""
        if self.mix == "sum" and recurrent_init != "uniform" and nonlinearity in ("modrelu", "relu", "identity"):
            warn_caller(
                f"{self._get_name()} with recurrent_init={recurrent_init!r} and nonlinearity={nonlinearity!r} grows "
                "from step to step, past 1e9 within 200: V keeps lengths, and s = h + c adds to them. Use mix='mean', "
                "as the authors' code does, or nonlinearity='tanh'"
            )

    if TYPE_CHECKING:

        def advance(self, w: Weights, u: Tensor, h: Tensor, *rest: Tensor) -> tuple[Tensor, ...]: ...

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        n = self.state_sizes[0]
        return {**super().shapes(input_size), "weight_query": (n, n), "weight_key": (n, n), "weight_score": (n,)}

    @property
    def memory_layout(self) -> str:
        return EVERY_STATE

    def observe_cell(self, w: Weights, u: Tensor, state: AttentiveState) -> tuple[Tensor, AttentiveState, Attention]:
        visible = self.advance(w, u, state.s, *state[1:])  # h_t = phi(V s_{t-1} + U x_t + b), eq. 51
        h = visible[0]
        memory = self.remember(w, h, state.memory)
        c, alpha = attend(w, state.s, memory)
        s = h + c
        if self.mix == "mean":
            s = s / 2
        memory = self.accumulate_relevance(memory, alpha.detach())
        output = h if self.output == "h" else s
        attention = Attention(alpha, memory.origin, memory.relevance)
        return output, AttentiveState(visible, s, memory, self.memory_layout), attention

    def remember(self, w: Weights, h: Tensor, memory: Memory) -> Memory:
        """Return the memory that s_t attends: that of the step before and h_t."""
        return append_state(memory, h, F.linear(h, w.weight_key))

    def accumulate_relevance(self, memory: Memory, alpha: Tensor) -> Memory:
        """Return the memory after its states have received the attention alpha (batch, slots)."""
        return memory

    def additive_parameters(self, layer: int = 0) -> AdditiveParameters | None:
        if not 0 <= layer < self.num_layers:
            return None
        w = self.weights(layer * self.num_directions)
        return AdditiveParameters(w.weight_query, w.weight_key, w.weight_score, 0.5 if self.mix == "mean" else 1.0)

    def kernel_options(self) -> tuple[int, int, float, bool]:
        """Return buffer, relevant, decay and refresh for the kernels; a buffer of -1 attends to every state."""
        return -1, 0, 1.0, False

    def kernel_attention(self) -> kernels.AttentionOptions | None:
        """Return the equations as the kernels know them; None if they do not."""
        if not self.unchanged_from(self._rules, "observe_cell", "cell", "remember", "accumulate_relevance"):
            return None
        if isinstance(self, LSTM) and self.unchanged_from(LSTM, "advance") and not self.proj_size:
            cell = "lstm"
            phi: str | None = "tanh"
        elif isinstance(self, RNN) and self.unchanged_from(RNN, "advance"):
            cell = "rnn"
            phi = self.kernel_nonlinearity()
        else:
            return None
        if phi is None:
            return None
        buffer, relevant, decay, refresh = self.kernel_options()
        return kernels.AttentionOptions(cell, phi, buffer, relevant, self.mix, decay, refresh)

    def kernel_spec(self) -> KernelSpec | None:
        attention = self.kernel_attention()
        if attention is None:
            return None
        return KernelSpec("attentive", attention.cell, attention.buffer, attention.relevant, True, attention)

    def cudnn_cell(self) -> str | None:
        return None  # no need to compare methods

    def run_kernel(
        self, choice: KernelChoice, w: Weights, x: Tensor, state: AttentiveState | None, lengths: Tensor | None
    ) -> tuple[Tensor, AttentiveState]:
        attention: kernels.AttentionOptions = choice.options
        bias = w.bias_modrelu if attention.phi == "modrelu" else None
        if choice.compiled and bias is None:
            u, V = self.kernel_inputs(w, x, lengths)
        else:
            u, V = self.projection(w, x, lengths), w.weight_hh
        lstm = attention.cell == "lstm"
        carried = h0 = s0 = before = None
        dtype = w.weight_hh.dtype
        if state is not None:
            h0, s0, before = state.h, state.s, state.memory
            dtype = before.values.dtype
            carried = kernels.AttentionState(s0, state[1] if lstm else None), kernels.CarriedMemory(*before)

        weights = kernels.AttentionWeights(V, w.weight_query, w.weight_key, w.weight_score, bias)
        done = kernels.attentive(choice.dtype, attention, u, weights, carried, lengths, compiled=choice.compiled)

        h = kernels.last_valid_state(done.h, h0, lengths) if done.h_T is None else done.h_T
        visible = (h, done.c) if lstm else (h,)
        output = done.h if self.output == "h" else done.s
        if state is None and lengths is None and self._may_look_back(done, dtype, isinstance(u, kernels.Projection)):
            return output, AttentiveState.after_kernel(visible, done, self.memory_layout)
        s = kernels.last_valid_state(done.s, s0, lengths)
        memory = memory_after_kernel(before, done, lengths, dtype)
        return output, AttentiveState(visible, s, memory, self.memory_layout)

    def _may_look_back(self, done: kernels.Attended, dtype: torch.dtype, plainly: bool) -> bool:
        """True if s and the memory may be made of a run's results later: of all s, which only a graph keeps so far.

        Not where s is the output, which its user may write to; nor in a CUDA graph, which has to make them. `plainly`
        says that the layer `calls_plainly`; else it is asked.
        """
        if self.output != "h" or not done.s.requires_grad or done.values.dtype is not dtype:
            return False
        return (plainly or kernels.calls_plainly()) and not in_cuda_graph(done.s)

    def step_by_kernel(self, x: Tensor, state: State, inplace: bool) -> tuple[Tensor, State] | None:
        return step_by_kernel(self, x, state, inplace)

    def options_repr(self) -> list[str]:
        shown = super().options_repr()
        if self.mix != "sum":
            shown.append(f"mix={self.mix!r}")
        if self.output != "h":
            shown.append(f"output={self.output!r}")
        return shown


AdditiveAttention._rules = AdditiveAttention


def attend(w: Weights, s: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """Return c = sum_i alpha_i h_i (batch, hidden) and alpha (batch, slots): s attends the memory (eqs 9-10, 95)."""
    query = F.linear(s, w.weight_query)  # (batch, hidden)
    return equations.additive_attention(query, memory.keys, memory.values, w.weight_score, memory.origin >= 0)


class MemRNN(AdditiveAttention, RNN):
    """A plain recurrence with full attention over all its past states (Kerg et al. 2020, eqs 9-10, 50-53).

    h_t = phi(V s_{t-1} + U x_t + b);  alpha = softmax_i v^T tanh(W_a s_{t-1} + U_a h_i), i <= t;
    s_t = h_t + sum_i alpha_i h_i. Input, output and state have `RNN`'s shapes; the state h carries ``.s``, of its own
    shape, and the `Memory`, ``.memory``.

    Memory grows with every step: `RelRNN` bounds it.

    Args:
        nonlinearity: "tanh", "relu", "sigmoid", "identity", "modrelu" (with its own bias), or any pointwise function.
        recurrent_init: how V starts: "uniform" as in torch, "henaff", "cayley" or "orthogonal".
        mix: "sum" is the paper's s_t = h_t + c_t, "mean" its half, as in the authors' code.
        output: which of "h" and "s" the layer gives as its output.

    The other arguments are nn.LSTM's, and `checkpoint`, which saves memory: see `Layer`.

    Examples:
        >>> layer = mnemoscope.MemRNN(3, 16)
        >>> output, h = layer(torch.randn(20, 4, 3))
        >>> h.memory.values.shape  # 20 states of each of 4 sequences
        torch.Size([1, 4, 20, 16])
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


class MemLSTM(AdditiveAttention, LSTM):
    """An LSTM with full attention over all its past h; its gates read [s_{t-1}, x_t], its cell state stays its own.

    Input, output and state have nn.LSTM's shapes; h carries ``.s``, of its own shape, and the `Memory`, ``.memory``.
    With `proj_size` the projected states are remembered, by the eager loop.

    Args:
        mix: "sum" is the paper's s_t = h_t + c_t, "mean" its half, as in the authors' code.
        output: which of "h" and "s" the layer gives as its output.

    The other arguments are nn.LSTM's, and `checkpoint`, which saves memory: see `Layer`.

    Examples:
        >>> layer = mnemoscope.MemLSTM(3, 16)
        >>> output, (h, c) = layer(torch.randn(20, 4, 3))  # h.memory holds 20 states
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
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        LSTM.__init__(self, *arguments, checkpoint=checkpoint, device=device, dtype=dtype)
