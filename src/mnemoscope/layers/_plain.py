"""Linear system, plain RNN, LSTM and GRU. Parameters are torch's, by name and by layout."""

from collections.abc import Callable
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mnemoscope import equations, kernels
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import _init
from mnemoscope.layers._base import Layer
from mnemoscope.layers._checks import check_bool, check_choice, check_state
from mnemoscope.layers._init import RecurrentInit
from mnemoscope.layers._projection import project_sequence
from mnemoscope.layers._run import KernelChoice, KernelSpec, choose_cudnn
from mnemoscope.layers._torch_interface import TorchInterface
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import State

Nonlinearity = str | Callable[[Tensor], Tensor]


class Gated(Layer):
    """A layer whose parameters are torch's: weight_ih (G n, input), weight_hh (G n, m for h of size m) and biases."""

    gates: ClassVar[int] = 1

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        rows = self.gates * self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, input_size), "weight_hh": (rows, self.state_sizes[0])}
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        return shapes

    def run_sequence(
        self, x: Tensor, state: State | None, lengths: Tensor | None, order: Tensor | None = None
    ) -> tuple[Tensor, State]:
        # A single layer by cuDNN takes and gives a state as its user does: no views, nor their functions of autograd.
        alone = self.num_layers == 1 and not self.bidirectional and not self.checkpoint
        by_cudnn = choose_cudnn(self, x, lengths) if alone else None
        if by_cudnn is None or (state is None and not self.starts_from_zero()):
            return super().run_sequence(x, state, lengths, order)
        if state is not None:
            state = check_state(self, state, x, x.shape[1])
        output, last = self.run_cudnn(*by_cudnn, self.weights(0), x, state)
        return output, self.present_state(last)

    def run_cudnn(
        self, dtype: torch.dtype, cell: str, w: Weights, x: Tensor, state: State | None
    ) -> tuple[Tensor, State]:
        weights = kernels.CudnnWeights(w.weight_ih, w.weight_hh, *self._biases(w))
        h0, c0 = state if isinstance(state, tuple) else (state, None)
        found = kernels.cudnn(dtype, cell, x, weights, h0, c0)
        return found.h, found.h_T if found.c_T is None else (found.h_T, found.c_T)

    def step_by_kernel(self, x: Tensor, state: State, inplace: bool) -> tuple[Tensor, State] | None:
        spec = self.kernel_spec() if self.steps_on_gpu(x) else None
        if spec is None or spec.options not in (None, "tanh", "relu") or self.num_layers > 1:
            return None
        if not self.unchanged_from(_STEPPED.get(spec.family, Layer), "run_kernel", "project", "coerce_state"):
            return None
        # What fits is checked here; what does not, and what is wrong, by the way of a sequence.
        tensors = (state,) if isinstance(state, Tensor) else state
        shape = (1, x.shape[0], self.hidden_size)
        if not isinstance(tensors, tuple) or len(tensors) != len(self.state_names) or x.shape[1] != self.input_size:
            return None
        for tensor in tensors:
            if not isinstance(tensor, Tensor) or tensor.shape != shape or tensor.device != x.device:
                return None
        w = self.weights(0)
        b_ih, b_hh = self._biases(w)
        b = None
        if spec.family == "gru" and b_hh is not None:  # the reset gate multiplies the last part
            b_hh, b = b_hh.split([2 * self.hidden_size, self.hidden_size])
        projection = kernels.Projection(x, w.weight_ih, b_ih, b_hh)
        c0 = tensors[1] if len(tensors) > 1 else None
        done = kernels.cell_step(spec.family, projection, w.weight_hh, tensors[0], c0, b, spec.options or "tanh")
        if done is None:
            return None
        h, c = done
        return h[0], h if c is None else (h, c)


class RNN(Gated, TorchInterface):
    """The plain recurrent network, h_t = phi(V h_{t-1} + U x_t + b).

    V is ``weight_hh``, U is ``weight_ih``, b the sum of torch's two biases. With ``preactivation=True`` it is the other
    form of Nabli 2019, question 5, h_t = V phi(h_{t-1}) + U x_t + b; phi(h) of the second is h of the first.

    Args:
        nonlinearity: "tanh", "relu", "sigmoid", "identity", "modrelu" (with its own bias), or any pointwise function.
        preactivation: whether the state is kept before the non-linearity.
        recurrent_init: how V starts: "uniform" as in torch, "henaff", "cayley" or "orthogonal".

    The other arguments are nn.LSTM's. Input (time, batch, input_size) -> output (time, batch, directions * hidden_size)
    and h (layers * directions, batch, hidden_size).

    Examples:
        >>> layer = mnemoscope.RNN(3, 16, num_layers=2, nonlinearity="relu")
        >>> output, h = layer(torch.randn(20, 4, 3))  # (20, 4, 16) and (2, 4, 16)
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
        preactivation: bool = False,
        recurrent_init: RecurrentInit = "uniform",
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_choice(self, "recurrent_init", recurrent_init, get_args(RecurrentInit))
        check_bool(self, "preactivation", preactivation)
        self.recurrent_init = recurrent_init
        self.modrelu = nonlinearity == "modrelu"  # which has a parameter of its own
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__(*arguments, checkpoint=checkpoint, device=device, dtype=dtype)
        self.preactivation = preactivation
        self.nonlinearity = nonlinearity  # may be a module, which nn.Module must be ready for
        self._phi = None if self.modrelu else nonlinearity_function(nonlinearity)

    @property
    def mode(self) -> str:  # type: ignore[override]
        """nn.RNN's name of the cell, as "RNN_TANH"."""
        return f"RNN_{self.nonlinearity.upper() if isinstance(self.nonlinearity, str) else 'CUSTOM'}"

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes(input_size)
        if self.modrelu:
            shapes["bias_modrelu"] = (self.hidden_size,)
        return shapes

    def init_parameter(self, name: str, tensor: Tensor) -> None:
        if name == "bias_modrelu":
            nn.init.uniform_(tensor, -0.01, 0.01)
        elif name == "weight_hh" and self.recurrent_init != "uniform":
            _init.RECURRENT[self.recurrent_init](tensor)
        else:
            super().init_parameter(name, tensor)

    def phi(self, w: Weights, z: Tensor) -> Tensor:
        """Return the nonlinearity of z, with these weights' bias if it is modReLU."""
        if self._phi is None:
            return equations.modrelu(z, w.bias_modrelu)
        return self._phi(z)

    def advance(self, w: Weights, u: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """(h_t,) from u = U x_t + b and the state that V reads."""
        if self.preactivation:
            return (u + F.linear(self.phi(w, h), w.weight_hh),)
        return (self.phi(w, u + F.linear(h, w.weight_hh)),)

    def cell(self, w: Weights, u: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = self.advance(w, u, state)
        return h, h

    def kernel_nonlinearity(self) -> str | None:
        """Return the nonlinearity by the name that the kernels know; None if they do not."""
        known = self.nonlinearity in ("tanh", "relu", "modrelu", "identity") and self.unchanged_from(RNN, "phi")
        return str(self.nonlinearity) if known else None

    def kernel_spec(self) -> KernelSpec | None:
        phi = self.kernel_nonlinearity()
        if self.preactivation or phi is None or not self.unchanged_from(RNN, "cell", "advance"):
            return None
        return KernelSpec("rnn", options=phi)

    def run_kernel(
        self, choice: KernelChoice, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        phi = choice.options
        if phi == "identity":
            return kernels.linear(choice.dtype, self.project(w, x), w.weight_hh, state, lengths)
        if phi == "modrelu":
            u = self.projection(w, x, lengths)
            return kernels.rnn(choice.dtype, u, w.weight_hh, state, w.bias_modrelu, phi, lengths)
        u, V = self.kernel_inputs(w, x, lengths)
        return kernels.rnn(choice.dtype, u, V, state, None, phi, lengths)

    def cudnn_cell(self) -> str | None:
        phi = self.kernel_nonlinearity()
        if self.preactivation or phi not in ("tanh", "relu"):
            return None
        return phi if self.unchanged_from(RNN, "cell", "advance", "project") else None

    def options_repr(self) -> list[str]:
        shown = [f"nonlinearity={self.nonlinearity!r}"]
        if self.preactivation:
            shown.append("preactivation=True")
        return shown


class LinearSystem(RNN):
    """A linear dynamical system, h_t = V h_{t-1} + U x_t + b: an `RNN` whose non-linearity is the identity.

    Args:
        recurrent_init: how V starts: "uniform" as in torch, "henaff", "cayley" or "orthogonal".

    The other arguments are nn.LSTM's, and `checkpoint` (see `Layer`); shapes are `RNN`'s.

    Examples:
        >>> layer = mnemoscope.LinearSystem(3, 16)
        >>> output, h = layer(torch.randn(20, 4, 3))  # (20, 4, 16) and (1, 4, 16)
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
        recurrent_init: RecurrentInit = "uniform",
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__(
            *arguments,
            nonlinearity="identity",
            recurrent_init=recurrent_init,
            checkpoint=checkpoint,
            device=device,
            dtype=dtype,
        )

    def options_repr(self) -> list[str]:
        return []


class LSTM(Gated, TorchInterface):
    """Long short-term memory; the same numbers and the same parameters as nn.LSTM.

    i, f, o = sigmoid(.), g = tanh(.) of V h_{t-1} + U x_t + b;  c_t = f * c_{t-1} + i * g;  h_t = o * tanh(c_t).
    With `proj_size` m > 0, h_t = R (o * tanh(c_t)) with R = ``weight_hr`` (m, hidden_size); else m is hidden_size.
    Input (time, batch, input_size) -> output (time, batch, directions * m), h (layers * directions, batch, m) and c
    (layers * directions, batch, hidden_size). Arguments are nn.LSTM's, and `checkpoint`, which saves memory: see
    `Layer`. A projection runs by the eager loop: no kernel knows it.

    Examples:
        >>> layer = mnemoscope.LSTM(3, 16, batch_first=True)
        >>> output, (h, c) = layer(torch.randn(4, 20, 3))  # (4, 20, 16), (1, 4, 16) and (1, 4, 16)
    """

    gates = 4
    mode = "LSTM"
    state_names = ("h", "c")
    has_projection = True

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.proj_size or self.hidden_size, self.hidden_size

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes(input_size)
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        return shapes

    def advance(self, w: Weights, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        """(h_t, c_t) from u = U x_t + b and the state that the gates read."""
        h, c = equations.lstm_cell(u + F.linear(h, w.weight_hh), c)
        return (F.linear(h, w.weight_hr), c) if self.proj_size else (h, c)

    def cell(self, w: Weights, u: Tensor, state: State) -> tuple[Tensor, State]:
        h, c = self.advance(w, u, *state)
        return h, (h, c)

    def kernel_spec(self) -> KernelSpec | None:
        if self.proj_size or not self.unchanged_from(LSTM, "cell", "advance"):
            return None
        return KernelSpec("lstm")

    def cudnn_cell(self) -> str | None:
        known = not self.proj_size and self.unchanged_from(LSTM, "cell", "advance", "project")
        return "lstm" if known else None

    def run_kernel(
        self, choice: KernelChoice, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        h0, c0 = (None, None) if state is None else state
        u, V = self.kernel_inputs(w, x, lengths)
        h, h_T, c_T = kernels.lstm(choice.dtype, u, V, h0, c0, lengths)
        return h, (h_T, c_T)


class GRU(Gated, TorchInterface):
    """Gated recurrent unit; the same numbers and the same parameters as nn.GRU.

    r, z = sigmoid(.);  n = tanh(W_in x + b_in + r * (W_hn h + b_hn));  h_t = (1 - z) * n + z * h_{t-1}.
    Input (time, batch, input_size) -> output (time, batch, directions * hidden_size) and h
    (layers * directions, batch, hidden_size). Arguments are nn.GRU's, and `checkpoint`, which saves memory: see
    `Layer`.

    Examples:
        >>> layer = mnemoscope.GRU(3, 16, bidirectional=True)
        >>> output, h = layer(torch.randn(20, 4, 3))  # (20, 4, 32) and (2, 4, 16)
    """

    gates = 3
    mode = "GRU"

    def project(self, w: Weights, x: Tensor) -> Tensor:
        return F.linear(x, w.weight_ih, w.bias_ih if self.bias else None)  # b_hn belongs inside the reset gate

    def cell(self, w: Weights, u: Tensor, state: State) -> tuple[Tensor, State]:
        v = F.linear(state, w.weight_hh, w.bias_hh if self.bias else None)
        h = equations.gru_cell(u, v, state)
        return h, h

    def kernel_spec(self) -> KernelSpec | None:
        return KernelSpec("gru") if self.unchanged_from(GRU, "cell", "project") else None

    def cudnn_cell(self) -> str | None:
        return "gru" if self.unchanged_from(GRU, "cell", "project") else None

    def run_kernel(
        self, choice: KernelChoice, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        n = self.hidden_size
        b_ih = b_gates = b_hn = None
        if self.bias:  # the reset gate multiplies b_hn; the other biases are added to the input's projection
            b_ih = w.bias_ih
            b_gates, b_hn = w.bias_hh.split([2 * n, n])
        u: Tensor | kernels.Projection
        if kernels.operator_may_project(x, lengths):
            u = kernels.Projection(x, w.weight_ih, b_ih, b_gates)
        else:
            bias = None if b_ih is None or b_gates is None else b_ih + F.pad(b_gates, (0, n))
            u = project_sequence(x, w.weight_ih, bias)
        return kernels.gru(choice.dtype, u, w.weight_hh, b_hn, state, lengths)


_STEPPED: dict[str, type[Layer]] = {"rnn": RNN, "lstm": LSTM, "gru": GRU}
"""By the family of its kernel, the layer that `Gated.step_by_kernel` knows: subclasses may have changed it."""


def identity(z: Tensor) -> Tensor:
    """Return z; of the module, not a lambda, so that layers can be pickled."""
    return z


def nonlinearity_function(nonlinearity: Nonlinearity) -> Callable[[Tensor], Tensor]:
    """Return the pointwise function of a name, or the function itself."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "tanh": torch.tanh,
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "identity": identity,
    }
    if callable(nonlinearity):
        return nonlinearity
    if nonlinearity not in known:
        names = ", ".join(known)
        raise MnemoscopeError(f"Unknown nonlinearity {nonlinearity!r}. Select from {names}, modrelu or a function")
    return known[nonlinearity]
