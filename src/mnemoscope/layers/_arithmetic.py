"""The recurrent arithmetic circuit of Levine et al. 2018: products instead of a non-linearity."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from mnemoscope import kernels
from mnemoscope.layers import _init
from mnemoscope.layers._plain import Gated
from mnemoscope.layers._projection import project_sequence
from mnemoscope.layers._run import KernelChoice, KernelSpec
from mnemoscope.layers._state import in_cuda_graph
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import Attention, State
from mnemoscope.torch_internals import in_onnx_export


class RAC(Gated):
    """A recurrent arithmetic circuit: h_t = (W_H h_{t-1}) * (W_I f(x_t)), shallow, or deep with ``num_layers`` > 1.

    (Levine et al. 2018, eqs 4 and 5.)

    A deep circuit's layer l reads h_t of layer l - 1. The state before the first step is the one that multiplies by
    ones, h_0 = W_H^+ 1 with the pseudo-inverse; gradients flow through it.

    Args:
        feature: f, a map of the last dimension of x to `input_size` features; the identity by default (x holds the
            template features already, one-hot for discrete inputs).
        bias: the paper has none; with True both factors become affine.

    The other arguments are nn.LSTM's, and `checkpoint` (see `Layer`); shapes are `RNN`'s.

    Examples:
        >>> layer = mnemoscope.RAC(3, 16)
        >>> output, h = layer(torch.randn(20, 4, 3))  # (20, 4, 16) and (1, 4, 16)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = False,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        feature: Callable[[Tensor], Tensor] | None = None,
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__(*arguments, checkpoint=checkpoint, device=device, dtype=dtype)
        self.feature = feature

    def init_parameter(self, name: str, tensor: Tensor) -> None:
        if name == "weight_hh":
            _init.orthogonal_(tensor)
        elif name == "weight_ih":
            nn.init.normal_(tensor, std=tensor.shape[1] ** -0.5)
        else:
            nn.init.zeros_(tensor)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        for suffix, _ in self._suffixes()[: self.num_directions]:  # one-hot templates meet entries of variance 1
            nn.init.normal_(getattr(self, f"weight_ih_{suffix}"))

    def forward(self, input: Any, hx: State | None = None, *, starts: Any = None) -> tuple[Any, State]:
        if isinstance(input, PackedSequence):
            return super().forward(PackedSequence(self._template(input.data), *input[1:]), hx, starts=starts)
        return super().forward(self._template(input), hx, starts=starts)

    def observe(self, x: Tensor, state: State) -> tuple[Tensor, State, tuple[Attention, ...] | None]:
        return super().observe(self._template(x), state)

    def _template(self, x: Tensor) -> Tensor:
        if self.feature is None or not isinstance(x, Tensor):
            return x
        return self.feature(x)

    def project(self, w: Weights, x: Tensor) -> Tensor:
        return project_sequence(x, w.weight_ih, w.bias_ih if self.bias else None)

    def cell(self, w: Weights, u: Tensor, state: State) -> tuple[Tensor, State]:
        h = F.linear(state, w.weight_hh, w.bias_hh if self.bias else None) * u
        return h, h

    def kernel_spec(self) -> KernelSpec | None:
        return KernelSpec("rac") if self.unchanged_from(RAC, "cell") else None

    def run_kernel(
        self, choice: KernelChoice, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        b = w.bias_hh if self.bias else None
        h = kernels.rac(choice.dtype, self.project(w, x), w.weight_hh, state, b, lengths)
        return h, kernels.last_valid_state(h, state, lengths)

    def initial_cell_state(self, w: Weights, batch: int) -> State:
        """Solve W_H h_0 + b = 1."""
        W = w.weight_hh.double()  # in float64: W may be nearly singular
        ones = W.new_ones(self.hidden_size)
        if self.bias:
            ones = ones - w.bias_hh.double()
        if in_onnx_export():
            h = _pseudo_inverse(W) @ ones
        elif in_cuda_graph(W):
            h = torch.linalg.solve_ex(W, ones).result  # (hidden,); not finite for a singular W, which cannot be asked
        else:
            h = _solve(W, ones)
        return h.to(w.weight_hh.dtype).expand(batch, -1)


def _solve(W: Tensor, ones: Tensor) -> Tensor:
    """Return h with W h = 1, or the nearest to it of a singular W."""
    try:
        return torch.linalg.solve(W, ones)
    except torch.linalg.LinAlgError:
        return torch.linalg.pinv(W) @ ones


def _pseudo_inverse(W: Tensor) -> Tensor:
    """Return W^+ (n, n) by products alone, which is all that ONNX knows: Newton's iteration X <- X (2 - W X).

    It doubles the correct digits at every step once it has any: 80 steps suffice for a condition number up to 1e9.
    """
    absolute = W.abs()
    X = W.t() / (absolute.sum(0).max() * absolute.sum(1).max())
    for _ in range(80):
        X = 2 * X - X @ W @ X
    return X
