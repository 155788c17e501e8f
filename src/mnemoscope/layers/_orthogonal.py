"""Recurrences whose matrix starts, or stays, orthogonal: gradients neither vanish nor explode through it."""

import math
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from mnemoscope import equations, kernels
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import _init
from mnemoscope.layers._base import Layer
from mnemoscope.layers._checks import check_choice, check_int
from mnemoscope.layers._init import RecurrentInit
from mnemoscope.layers._last_result import LastResult
from mnemoscope.layers._matrix_exp import SkewExponential
from mnemoscope.layers._plain import RNN, Nonlinearity
from mnemoscope.layers._projection import project_sequence
from mnemoscope.layers._run import KernelChoice, KernelSpec
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import State

Trivialization = Literal["static", "dynamic"]
Layout = Literal["fft", "tunable"]


class OrthRNN(RNN):
    """An `RNN` whose V is *initialized* orthogonal and then trained freely; modReLU by default (Kerg et al. 2020).

    Args:
        nonlinearity: "tanh", "relu", "sigmoid", "identity", "modrelu" (with its own bias), or any pointwise function.
        preactivation: whether the state is kept before the nonlinearity.
        recurrent_init: how V starts: "henaff" (expm of skew blocks), "cayley", "orthogonal" or torch's "uniform".

    The other arguments are nn.LSTM's, and `checkpoint` (see `Layer`); shapes are `RNN`'s.

    Examples:
        >>> layer = mnemoscope.OrthRNN(3, 16)
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
        nonlinearity: Nonlinearity = "modrelu",
        preactivation: bool = False,
        recurrent_init: RecurrentInit = "henaff",
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__(
            *arguments,
            nonlinearity=nonlinearity,
            preactivation=preactivation,
            recurrent_init=recurrent_init,
            checkpoint=checkpoint,
            device=device,
            dtype=dtype,
        )


class ExpRNN(OrthRNN):
    """h_t = modReLU(V h_{t-1} + U x_t) with V = expm(A), A skew, so that V stays orthogonal (Lezcano-Casado 2019).

    `parameter_groups` gives A a tenth of the learning rate.

    Args:
        nonlinearity: "tanh", "relu", "sigmoid", "identity", "modrelu" (with its own bias), or any pointwise function.
        preactivation: whether the state is kept before the nonlinearity.
        recurrent_init: how V starts: "henaff" (expm of skew blocks) or "cayley", and with the dynamic map any of RNN's.
        trivialization: "static" learns A in V = expm(A), the published expRNN; "dynamic" learns it in V = B expm(A)
            around a base B, which `rebase` moves to the present V (dtriv).

    The other arguments are nn.LSTM's, and `checkpoint` (see `Layer`); shapes are `RNN`'s. ``bias=False`` leaves
    modReLU's b alone, as published.

    Examples:
        >>> layer = mnemoscope.ExpRNN(3, 16)
        >>> optimizer = torch.optim.RMSprop(mnemoscope.parameter_groups(layer, lr=1e-3))
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
        nonlinearity: Nonlinearity = "modrelu",
        preactivation: bool = False,
        recurrent_init: RecurrentInit = "henaff",
        trivialization: Trivialization = "static",
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_choice(self, "trivialization", trivialization, get_args(Trivialization))
        if trivialization == "static" and recurrent_init not in ("henaff", "cayley"):
            raise MnemoscopeError(
                f"the static map starts from 'henaff' or 'cayley'; got recurrent_init={recurrent_init!r}, "
                "which trivialization='dynamic' can start from"
            )
        self.trivialization = trivialization
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__(
            *arguments,
            nonlinearity=nonlinearity,
            preactivation=preactivation,
            recurrent_init=recurrent_init,
            checkpoint=checkpoint,
            device=device,
            dtype=dtype,
        )
        for name in self._recurrent_names():
            parametrize.register_parametrization(self, name, SkewExponential(trivialization == "dynamic"), unsafe=True)
        self.reset_parameters()  # once more, now that the recurrent matrices are drawn by their skew matrices

    def _recurrent_names(self) -> list[str]:
        return [f"weight_hh_{suffix}" for suffix, _ in self._suffixes()]

    def _reset_parameter(self, name: str, registered: str) -> None:
        assignable = self.trivialization == "dynamic" or not parametrize.is_parametrized(self, registered)
        if name != "weight_hh" or assignable:
            super()._reset_parameter(name, registered)
            return
        skew = self._skew(registered)
        angles = _init.cayley_angles if self.recurrent_init == "cayley" else _init.henaff_angles
        skew.copy_(_init.skew_blocks(self.hidden_size, angles(self.hidden_size // 2, skew)).tril())

    @torch.no_grad()
    def rebase(self) -> None:
        """Move the base of the dynamic trivialization to the present V; A starts again at zero, V stays."""
        if self.trivialization != "dynamic":
            raise MnemoscopeError("rebase is for trivialization='dynamic'; the static map has no base")
        for name in self._recurrent_names():
            setattr(self, name, getattr(self, name))

    def slow_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the skew matrices, which need a smaller learning rate."""
        for name in self._recurrent_names():
            yield self._skew(name)

    def _skew(self, name: str) -> nn.Parameter:
        original: Any = self.get_submodule(f"parametrizations.{name}").original
        return original  # under torch.func a plain tensor, which get_parameter refuses


class GORU(Layer):
    """The gated orthogonal recurrent unit (Jing et al. 2017).

    r = sigmoid(W_r h + U_r x + b_r);  g = sigmoid(W_g h + U_g x + b_g);  c = modReLU(r * (Q h) + U_c x, b_c);
    h_t = g * h_{t-1} + (1 - g) * c, with Q a product of layers of Givens rotations, orthogonal by construction.

    Args:
        layout: "fft", log2(n) layers that mix every pair of coordinates (n a power of two), or "tunable", an even
            number of layers that rotate neighbors (n even).
        rotations: the number of layers for "tunable"; n by default, which reaches every rotation.

    The other arguments are nn.LSTM's, and `checkpoint` (see `Layer`); shapes are `RNN`'s. With ``bias=False`` b_c is
    gone too, and the candidate c is linear.

    Examples:
        >>> layer = mnemoscope.GORU(3, 16)
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
        layout: Layout = "fft",
        rotations: int | None = None,
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_choice(self, "layout", layout, get_args(Layout))
        if rotations is not None:
            check_int(self, "rotations", rotations)
        self.layout = layout
        self.rotations = rotations
        arguments = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__(*arguments, checkpoint=checkpoint, device=device, dtype=dtype)
        self._rotations = [LastResult() for _ in self._suffixes()]
        self.rotations = len(self.weights(0).angles)

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        n = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (3 * n, input_size),
            "weight_hh": (2 * n, n),
            "angles": (_rotation_layers(self.layout, n, self.rotations), n // 2),
        }
        if self.bias:
            shapes |= {"bias_gates": (2 * n,), "bias_modrelu": (n,)}
        return shapes

    def init_parameter(self, name: str, tensor: Tensor) -> None:
        if name == "angles":
            nn.init.uniform_(tensor, -math.pi, math.pi)
        elif name == "bias_gates":
            tensor.zero_()
            tensor[: self.hidden_size] = 2  # b_r: the reset gate starts open
        elif name == "bias_modrelu":
            nn.init.constant_(tensor, 0.01)
        else:
            super().init_parameter(name, tensor)

    def weights(self, index: int) -> Weights:
        w = super().weights(index)
        w.rotation = self._rotations[index](lambda: rotation(w.angles, self.layout), w.angles)
        return w

    def project(self, w: Weights, x: Tensor) -> Tensor:
        bias = F.pad(w.bias_gates, (0, self.hidden_size)) if self.bias else None  # modReLU has the candidate's
        return project_sequence(x, w.weight_ih, bias)

    def cell(self, w: Weights, u: Tensor, state: State) -> tuple[Tensor, State]:
        u_gates, u_c = u.split([2 * self.hidden_size, self.hidden_size], -1)
        gates = u_gates + F.linear(state, w.weight_hh)
        rotated = F.linear(state, w.rotation)
        h = equations.goru_cell(gates, rotated, u_c, state, w.bias_modrelu if self.bias else None)
        return h, h

    def kernel_spec(self) -> KernelSpec | None:
        if not self.bias:  # the candidate is linear then, which the kernel does not know
            return None
        return KernelSpec("goru") if self.unchanged_from(GORU, "cell") else None

    def run_kernel(
        self, choice: KernelChoice, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        W = torch.cat([w.weight_hh, w.rotation])
        h = kernels.goru(choice.dtype, self.project(w, x), W, state, w.bias_modrelu, lengths)
        return h, kernels.last_valid_state(h, state, lengths)

    def options_repr(self) -> list[str]:
        return [f"layout={self.layout!r}", f"rotations={self.rotations}"]


def _rotation_layers(layout: str, n: int, rotations: int | None) -> int:
    if layout == "fft":
        if n < 2 or n & (n - 1):
            raise MnemoscopeError(f"GORU's 'fft' layout needs a hidden_size that is a power of two; got {n}")
        return n.bit_length() - 1
    rotations = n if rotations is None else rotations
    if n % 2 or rotations < 2 or rotations % 2:
        raise MnemoscopeError(
            f"GORU's 'tunable' layout needs an even hidden_size and an even number of rotations; got {n}, {rotations}"
        )
    return rotations


def rotation(angles: Tensor, layout: str) -> Tensor:
    """Return the orthogonal matrix Q (n, n) of layers of Givens rotations by angles (layers, n / 2), first to last."""
    layers, pairs = angles.shape
    n = 2 * pairs
    q = torch.eye(n, device=angles.device, dtype=angles.dtype)
    for k in range(layers):
        # A layer rotates rows at distance 2^k, or neighbors, in every second layer the neighbors across those pairs.
        distance = 1 << k if layout == "fft" else 1
        shift = 0 if layout == "fft" else k % 2
        a, b = q.roll(-shift, 0).view(-1, 2, distance, n).unbind(1)
        cos = torch.cos(angles[k]).view(-1, distance, 1)
        sin = torch.sin(angles[k]).view(-1, distance, 1)
        q = torch.stack([cos * a - sin * b, sin * a + cos * b], 1).view(n, n).roll(shift, 0)
    return q


def parameter_groups(model: nn.Module, lr: float, slow: float = 0.1) -> list[dict[str, Any]]:
    """Return optimizer groups for a model: `ExpRNN`'s skew matrices learn at ``slow * lr``, everything else at `lr`.

    Examples:
        >>> model = nn.ModuleList([mnemoscope.ExpRNN(3, 16), nn.Linear(16, 2)])
        >>> groups = mnemoscope.parameter_groups(model, lr=1e-3)
        >>> [group["lr"] for group in groups]
        [0.001, 0.0001]
    """
    skew = [p for module in model.modules() if isinstance(module, ExpRNN) for p in module.slow_parameters()]
    slow_ids = {id(p) for p in skew}
    groups = [{"params": [p for p in model.parameters() if id(p) not in slow_ids], "lr": lr}]
    if skew:
        groups.append({"params": skew, "lr": slow * lr})
    return groups
