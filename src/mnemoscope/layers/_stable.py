"""Recurrences kept stable while they are trained (Miller & Hardt 2018, sections 6 and 7.2).

`project_` moves a layer's weights to the nearest ones of a convex set of contractive systems, after each step of the
optimizer; `stable` makes the layer compute its weights that way, so that any optimizer stays inside. Within the set
both change nothing, to the last bit. In contrast to the published code, rows are summed, not columns, weights are
projected, not rescaled, and biases count.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers._plain import LSTM, RNN
from mnemoscope.layers._spectral import cut_by_products

M = TypeVar("M", bound=nn.Module)

LIPSCHITZ = {"tanh": 1.0, "relu": 1.0, "identity": 1.0, "sigmoid": 0.25}


def project_(
    layer: M, lam: float = 0.99, *, input_bound: float = 1.0, forget: float = 2 / 3, lipschitz: float | None = None
) -> M:
    """Move the weights of `layer`, in place, to the nearest lam-contractive ones. Call it after each optimizer step.

    Args:
        layer: a `LinearSystem`, `RNN` or `LSTM`, or torch's nn.RNN or nn.LSTM, of any depth and direction.
        lam: the part of two states' distance that one step may keep; in the Euclidean norm for an RNN, in the infinity
            norm of (c, h) for an LSTM. With 1, the set of the published experiments, states are only kept from moving
            apart.
        input_bound: the largest modulus of an input's entry (LSTM only).
        forget: the largest value that an LSTM's forget gate may take; a higher one lets cells remember longer and
            leaves less to the recurrent weights, whose row sums share lam - forget.
        lipschitz: the Lipschitz constant of an RNN's non-linearity, where that is a function of the user's.

    Returns:
        The layer.

    Examples:
        >>> from mnemoscope.layers import project_
        >>> layer = project_(nn.RNN(3, 16), 0.9)  # after each optimizer.step()
        >>> bool(torch.linalg.matrix_norm(layer.weight_hh_l0, 2) < 0.9001)
        True
    """
    with torch.no_grad():
        for name, ball in _balls(layer, lam, input_bound, forget, lipschitz).items():
            weight = getattr(layer, name)
            nearest = ball.nearest(weight)
            if weight.device.type != "cpu" or not torch.equal(nearest, weight):  # to compare would wait for a GPU
                weight.copy_(nearest)
    return layer


def stable(
    layer: M, lam: float = 0.99, *, input_bound: float = 1.0, forget: float = 2 / 3, lipschitz: float | None = None
) -> M:
    """Parametrize the weights of `layer` so that it is lam-contractive whatever the optimizer does.

    The arguments are `project_`'s. The trained parameters are those before projection; the gradient is that of the
    projection. For torch's own nn.RNN and nn.LSTM use `project_`: on a GPU their weights lie in one buffer, which a
    parametrization does not write to.

    Examples:
        >>> from mnemoscope.layers import stable
        >>> layer = stable(mnemoscope.RNN(3, 16), 0.9)  # once, before the optimizer is made
        >>> optimizer = torch.optim.Adam(layer.parameters())
    """
    if isinstance(layer, nn.RNN | nn.LSTM | nn.GRU):
        raise TypeError(f"stable needs a layer of mnemoscope's; use project_ for torch's {type(layer).__name__}")
    for name, ball in _balls(layer, lam, input_bound, forget, lipschitz).items():
        parametrize.register_parametrization(layer, name, ball)
    return layer


class SpectralBall(nn.Module):
    """A parametrization by the nearest matrix whose largest singular value is at most `radius`."""

    def __init__(self, radius: float) -> None:
        super().__init__()
        self.radius = radius

    def forward(self, matrix: Tensor) -> Tensor:
        return _ClipSpectrum.apply(matrix, self.radius)

    def nearest(self, matrix: Tensor) -> Tensor:
        """Return the same as `forward`, for no gradient; a matrix that is not finite is returned as it is.

        On a GPU it is computed by matrix products, or by the CPU if it is far outside: a GPU's SVD takes many times
        longer than the update before it.
        """
        if matrix.device.type == "cpu":
            return self(matrix) if bool(matrix.isfinite().all()) else matrix
        if matrix.dtype != torch.float64:
            found = cut_by_products(matrix, self.radius, _radius_before_rounding(self.radius, matrix))
            if found is not None:
                return found
        return self.nearest(matrix.cpu()).to(matrix.device)

    def right_inverse(self, matrix: Tensor) -> Tensor:
        return matrix

    def extra_repr(self) -> str:
        return f"radius={self.radius:.6g}"


class RowBalls(nn.Module):
    """A parametrization by the nearest weight whose rows have an l1 norm of at most the radius of their gate.

    Args:
        radii: one for each gate; inf leaves the gate alone.
    """

    def __init__(self, *radii: float) -> None:
        super().__init__()
        self.radii = radii

    def forward(self, weight: Tensor) -> Tensor:
        gates = weight.view(len(weight), -1).chunk(len(self.radii))
        projected = []
        for gate, radius in zip(gates, self.radii, strict=True):
            projected.append(gate if math.isinf(radius) else project_rows(gate, radius))
        return torch.cat(projected).view_as(weight)

    def nearest(self, weight: Tensor) -> Tensor:
        """Return the same as `forward`, for no gradient: on the CPU only rows outside are looked at closely."""
        if weight.device.type != "cpu":  # to count those rows would wait for the GPU
            return self(weight)
        nearest = weight.clone()
        gates = nearest.view(len(weight), -1).chunk(len(self.radii))
        for gate, radius in zip(gates, self.radii, strict=True):
            if not math.isinf(radius):
                outside = _upcast(gate).abs().sum(-1) > radius  # a row with a NaN is not: it stays
                gate[outside] = project_rows(gate[outside], radius)
        return nearest

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight

    def extra_repr(self) -> str:
        return ", ".join(f"{radius:.6g}" for radius in self.radii)


def project_rows(rows: Tensor, radius: float) -> Tensor:
    """Return the Euclidean projection of each row (count, m) onto the l1 ball: all moduli shrink by one threshold."""
    moduli = _upcast(rows).abs()
    target = _radius_before_rounding(radius, rows)

    # The threshold, from the sorted moduli: the largest k entries stay above zero.
    ordered = moduli.sort(-1, descending=True).values
    thresholds = (ordered.cumsum(-1) - target) / torch.arange(1, rows.shape[-1] + 1, device=rows.device)
    k = (ordered > thresholds).sum(-1, keepdim=True).clamp(min=1)  # no entry stays in a row with a NaN
    shrunk = rows.sign() * (moduli - thresholds.gather(-1, k - 1)).clamp(min=0)

    # The sum of a long row may exceed the target by rounding.
    excess = shrunk.detach().abs().sum(-1, keepdim=True) / target
    projected = (shrunk / excess.clamp(min=1)).to(rows.dtype)
    return torch.where(moduli.sum(-1, keepdim=True) > radius, projected, rows)  # a row with a NaN stays


def _upcast(weight: Tensor) -> Tensor:
    """Return the weight in a precision that sums and torch's SVD can work with."""
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight


def _radius_before_rounding(radius: float, weight: Tensor) -> float:
    """Return a radius slightly smaller, so that what is projected onto it stays within `radius` after rounding.

    Sums round once per entry. If the result is stored in a coarser type, each entry is rounded by up to eps/2 of
    itself, and a matrix of m columns of norm r by up to sqrt(m) r eps/2 in all.
    """
    m = weight.shape[-1]
    computed_eps = torch.finfo(_upcast(weight[:0]).dtype).eps
    stored_eps = torch.finfo(weight.dtype).eps
    margin = max(16, m) * computed_eps
    if stored_eps > computed_eps:
        margin = margin + math.sqrt(m) * stored_eps / 2
    return radius * (1 - margin)


class _ClipSpectrum(torch.autograd.Function):
    """U S V^T -> U min(S, radius) V^T, differentiated as a projection.

    Differentiating through the SVD would divide by the differences of singular values, which may be equal; a second
    derivative does, and is defined only where they are not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, radius: float) -> Tensor:
        left, values, right = torch.linalg.svd(_upcast(matrix))
        clipped = (left * values.clamp(max=_radius_before_rounding(radius, matrix))[..., None, :]) @ right
        return torch.where((values[..., :1] <= radius)[..., None], matrix, clipped.to(matrix.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.radius = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # The derivative is a symmetric map, its own transpose.
        return _clip_derivative(ctx.saved_tensors[0], ctx.radius, grads[0]), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _clip_derivative(ctx.saved_tensors[0], ctx.radius, tangent)


def _clip_derivative(matrix: Tensor, radius: float, tangent: Tensor) -> Tensor:
    """Return the derivative of U g(S) V^T along `tangent`, with g = min(., radius).

    In the bases U and V it is (g_i - g_j)/(s_i - s_j) on the symmetric part, (g_i + g_j)/(s_i + s_j) on the skew part.
    """
    left, values, right = torch.linalg.svd(_upcast(matrix))
    in_basis = left.mT @ _upcast(tangent) @ right.mT
    tiny = torch.finfo(values.dtype).tiny

    # The larger and the smaller of s_i and s_j, and the two quotients; both are 1 where nothing is clipped.
    high = torch.maximum(values[..., :, None], values[..., None, :])
    low = torch.minimum(values[..., :, None], values[..., None, :])
    one_clipped = (radius - low) / (high - low).clamp(min=tiny)
    symmetric = torch.where(high <= radius, 1.0, torch.where(low > radius, 0.0, one_clipped))
    clipped_sum = high.clamp(max=radius) + low.clamp(max=radius)
    skew = torch.where(high <= radius, 1.0, clipped_sum / (high + low).clamp(min=tiny))

    moved = (symmetric * (in_basis + in_basis.mT) + skew * (in_basis - in_basis.mT)) / 2
    derivative = (left @ moved @ right).to(tangent.dtype)
    return torch.where((values[..., :1] <= radius)[..., None], tangent, derivative)


def _balls(
    layer: nn.Module, lam: float, input_bound: float, forget: float, lipschitz: float | None
) -> dict[str, SpectralBall | RowBalls]:
    """Return the set of each parameter that the layer's stability restricts, by the parameter's name."""
    if not 0 < lam <= 1:
        raise MnemoscopeError(f"lam must be above 0 and at most 1; got {lam}")
    if _is_rnn(layer):
        radius = lam / _lipschitz(layer, lipschitz)
        names = _parameter_names(layer, "weight_hh")
        balls: dict[str, SpectralBall | RowBalls] = {name: SpectralBall(radius) for name in names}
    elif _is_lstm(layer):
        balls = _lstm_balls(layer, lam, input_bound, forget)
    else:
        allowed = "LinearSystem, RNN, LSTM, nn.RNN or nn.LSTM without proj_size"
        raise TypeError(f"the stable sets are known for {allowed}; got {type(layer).__name__}")
    for name in balls:
        if parametrize.is_parametrized(layer, name):
            raise MnemoscopeError(f"{name} is parametrized already and cannot be projected")
    return balls


def _is_rnn(layer: nn.Module) -> bool:
    """True for a plain recurrence: layers that attend to past states or constrain weights change its equations."""
    if isinstance(layer, nn.RNN):
        return True
    return isinstance(layer, RNN) and layer.unchanged_from(RNN, "cell", "advance", "phi")


def _is_lstm(layer: nn.Module) -> bool:
    if isinstance(layer, nn.LSTM):
        return not layer.proj_size
    return isinstance(layer, LSTM) and not layer.proj_size and layer.unchanged_from(LSTM, "cell", "advance", "project")


def _parameter_names(layer: nn.Module, prefix: str) -> list[str]:
    """Return the names of the parameters with this prefix, in every layer and direction."""
    names = {name.removeprefix("parametrizations.").split(".")[0] for name, _ in layer.named_parameters()}
    return sorted(name for name in names if name.startswith(f"{prefix}_l"))


def _lipschitz(layer: Any, lipschitz: float | None) -> float:
    """Return the user's Lipschitz constant, or that of a known nonlinearity."""
    if lipschitz is not None:
        if not 0 < lipschitz < math.inf:
            raise MnemoscopeError(f"lipschitz must be positive and finite; got {lipschitz}")
        return lipschitz
    if not isinstance(layer.nonlinearity, str) or layer.nonlinearity not in LIPSCHITZ:
        raise MnemoscopeError(f"say the Lipschitz constant of {layer.nonlinearity!r}: stable(layer, lipschitz=...)")
    return LIPSCHITZ[layer.nonlinearity]


def _lstm_balls(layer: Any, lam: float, input_bound: float, forget: float) -> dict[str, SpectralBall | RowBalls]:
    """Proposition 5 for a forget gate of at most `forget`: f + (||W_i|| + ||c|| ||W_f|| + ||W_o||)/4 + ||W_g|| <= lam.

    Of sigmoid^-1(forget), W_f takes what its condition allows, U_f half of the rest and the two biases the other half.
    """
    # What the recurrent weights may use, and what is left of sigmoid^-1(forget) for inputs and biases.
    room = lam - forget
    rest = 0.0
    if 0.5 < forget < lam:
        rest = math.log(forget / (1 - forget)) - room * (1 - forget)
    if rest <= 0:
        raise MnemoscopeError(f"forget must lie between about 0.6 and lam = {lam}; got {forget:.6g}")
    if not 0 < input_bound < math.inf:
        raise MnemoscopeError(f"input_bound must be positive and finite; got {input_bound}")

    # All gates of the recurrent weights, in torch's order i, f, g, o.
    radii = (room, room * (1 - forget), room / 4, room)
    names = _parameter_names(layer, "weight_hh")
    balls: dict[str, SpectralBall | RowBalls] = {name: RowBalls(*radii) for name in names}

    # The forget gate's inputs: of the first layer, and of those above, which read |h| < 1, scaled up by dropout.
    hidden_bound = 1 / (1 - layer.dropout) if layer.dropout < 1 else 1.0
    share = rest / 2 if layer.bias else rest
    for name in _parameter_names(layer, "weight_ih"):
        bound = input_bound if name.startswith("weight_ih_l0") else hidden_bound
        balls[name] = _forget_only(share / bound)

    # Its biases.
    for name in _parameter_names(layer, "bias_ih") + _parameter_names(layer, "bias_hh"):
        balls[name] = _forget_only(rest / 4)
    return balls


def _forget_only(radius: float) -> RowBalls:
    return RowBalls(math.inf, radius, math.inf, math.inf)
