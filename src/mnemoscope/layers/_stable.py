"""Recurrences kept stable while they are trained (Miller & Hardt 2018, sections 6 and 7.2).

`project_` moves a layer's weights to the nearest ones of a convex set of contractive systems, after each step of the
optimiser; `stable` makes the layer compute its weights that way, so that any optimiser stays inside. Within the set
both change nothing, to the last bit. In contrast to the published code, the set is strictly contractive (lam < 1), rows
are summed, not columns, weights are projected, not rescaled, and biases count.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers._plain import LSTM, RNN

M = TypeVar("M", bound=nn.Module)

LIPSCHITZ = {"tanh": 1.0, "relu": 1.0, "identity": 1.0, "sigmoid": 0.25}


def project_(
    layer: M, lam: float = 0.99, *, input_bound: float = 1.0, forget: float = 2 / 3, lipschitz: float | None = None
) -> M:
    """Move the weights of `layer`, in place, to the nearest lam-contractive ones. Call it after each optimiser step.

    Args:
        layer: a `LinearSystem`, `RNN` or `LSTM`, or torch's nn.RNN or nn.LSTM, of any depth and direction.
        lam: the part of two states' distance that one step may keep, below 1; in the Euclidean norm for an RNN, in the
            infinity norm of (c, h) for an LSTM.
        input_bound: the largest modulus of an input's entry (LSTM only).
        forget: the largest value that an LSTM's forget gate may take; a higher one lets cells remember longer and
            leaves less to the recurrent weights, whose row sums share lam - forget.
        lipschitz: the Lipschitz constant of an RNN's non-linearity, where that is a function of the user's.

    Returns:
        The layer.
    """
    with torch.no_grad():
        for name, ball in _balls(layer, lam, input_bound, forget, lipschitz).items():
            weight = getattr(layer, name)
            nearest = ball(weight)
            if not torch.equal(nearest, weight):
                weight.copy_(nearest)
    return layer


def stable(
    layer: M, lam: float = 0.99, *, input_bound: float = 1.0, forget: float = 2 / 3, lipschitz: float | None = None
) -> M:
    """Parametrize the weights of `layer` so that it is lam-contractive whatever the optimiser does.

    The arguments are `project_`'s. The trained parameters are those before projection; the gradient is that of the
    projection. torch's own nn.RNN and nn.LSTM read their weights past any parametrization: use `project_` for them.
    """
    if isinstance(layer, nn.RNNBase):
        kind = type(layer).__name__
        raise TypeError(f"stable needs a layer of mnemoscope's; torch's {kind} ignores parametrizations: use project_")
    for name, ball in _balls(layer, lam, input_bound, forget, lipschitz).items():
        parametrize.register_parametrization(layer, name, ball)
    return layer


class SpectralBall(nn.Module):
    """The nearest matrix whose largest singular value is at most `radius`."""

    def __init__(self, radius: float) -> None:
        super().__init__()
        self.radius = radius

    def forward(self, matrix: Tensor) -> Tensor:
        return _ClipSpectrum.apply(matrix, self.radius)

    def right_inverse(self, matrix: Tensor) -> Tensor:
        return matrix

    def extra_repr(self) -> str:
        return f"radius={self.radius:.6g}"


class RowBalls(nn.Module):
    """The nearest weight whose rows have an l1 norm of at most `radii[gate]`; a radius of inf leaves the gate alone."""

    def __init__(self, *radii: float) -> None:
        super().__init__()
        self.radii = radii

    def forward(self, weight: Tensor) -> Tensor:
        gates = weight.view(len(weight), -1).chunk(len(self.radii))
        pairs = zip(gates, self.radii, strict=True)
        return torch.cat([g if math.isinf(r) else project_rows(g, r) for g, r in pairs]).view_as(weight)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight

    def extra_repr(self) -> str:
        return ", ".join(f"{radius:.6g}" for radius in self.radii)


def project_rows(rows: Tensor, radius: float) -> Tensor:
    """The Euclidean projection of each row (count, m) onto the l1 ball: shrink all moduli by one threshold."""
    size = _wide(rows).abs()
    ordered = size.sort(-1, descending=True).values
    inside = _inside(radius, rows)
    excess = (ordered.cumsum(-1) - inside) / torch.arange(1, rows.shape[-1] + 1, device=rows.device)
    kept = (ordered > excess).sum(-1, keepdim=True).clamp(min=1)  # how many entries stay; none does where one is nan
    shrunk = rows.sign() * (size - excess.gather(-1, kept - 1)).clamp(min=0)
    over = shrunk.detach().abs().sum(-1, keepdim=True) / inside  # 1 but for rounding, which a long row adds up
    return torch.where(size.sum(-1, keepdim=True) <= radius, rows, (shrunk / over.clamp(min=1)).to(rows.dtype))


def _wide(weight: Tensor) -> Tensor:
    """The weight in a precision that sums and torch's SVD can work with."""
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight


def _inside(radius: float, weight: Tensor) -> float:
    """A radius so little smaller that what is projected onto it stays within `radius` when it is rounded.

    Sums round once an entry; where the result is stored more coarsely, each entry is rounded by up to eps/2 of itself,
    and a matrix of m columns of norm r by up to sqrt(m) r eps/2 in all.
    """
    m, wide, stored = weight.shape[-1], torch.finfo(_wide(weight[:0]).dtype).eps, torch.finfo(weight.dtype).eps
    return radius * (1 - max(16, m) * wide - (math.sqrt(m) * stored / 2 if stored > wide else 0))


class _ClipSpectrum(torch.autograd.Function):
    """U S V^T -> U min(S, radius) V^T, differentiated as a projection.

    Differentiating through the SVD would divide by the differences of singular values, which may be equal; a second
    derivative does, and is defined only where they are not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, radius: float) -> Tensor:
        left, values, right = torch.linalg.svd(_wide(matrix))
        clipped = (left * values.clamp(max=_inside(radius, matrix))[..., None, :]) @ right
        return torch.where((values[..., :1] <= radius)[..., None], matrix, clipped.to(matrix.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.radius = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _clip_derivative(ctx.saved_tensors[0], ctx.radius, grads[0]), None  # a symmetric map: its own transpose

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _clip_derivative(ctx.saved_tensors[0], ctx.radius, tangent)


def _clip_derivative(matrix: Tensor, radius: float, tangent: Tensor) -> Tensor:
    """The derivative of U g(S) V^T along `tangent`, with g = min(., radius).

    In the bases U and V it is (g_i - g_j)/(s_i - s_j) on the symmetric part, (g_i + g_j)/(s_i + s_j) on the skew part.
    """
    left, values, right = torch.linalg.svd(_wide(matrix))
    turned = left.mT @ _wide(tangent) @ right.mT
    high, low = torch.maximum(*_pairs(values)), torch.minimum(*_pairs(values))
    across = (radius - low) / (high - low).clamp(min=torch.finfo(values.dtype).tiny)
    symmetric = torch.where(high <= radius, 1.0, torch.where(low > radius, 0.0, across))
    clipped = high.clamp(max=radius) + low.clamp(max=radius)
    skew = torch.where(high <= radius, 1.0, clipped / (high + low).clamp(min=torch.finfo(values.dtype).tiny))
    moved = (symmetric * (turned + turned.mT) + skew * (turned - turned.mT)) / 2
    return torch.where((values[..., :1] <= radius)[..., None], tangent, (left @ moved @ right).to(tangent.dtype))


def _pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    one, other = torch.broadcast_tensors(values[..., :, None], values[..., None, :])
    return one, other


def _balls(
    layer: nn.Module, lam: float, input_bound: float, forget: float, lipschitz: float | None
) -> dict[str, SpectralBall | RowBalls]:
    """The set of each parameter that the layer's stability restricts, by the parameter's name."""
    if not 0 < lam < 1:
        raise MnemoscopeError(f"lam must be between 0 and 1, both excluded; got {lam}")
    if _is_rnn(layer):
        radius = lam / _lipschitz(layer, lipschitz)
        balls: dict[str, SpectralBall | RowBalls] = {name: SpectralBall(radius) for name in _named(layer, "weight_hh")}
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
    """A plain recurrence: layers that attend or constrain their weights change its equations or are parametrized."""
    return isinstance(layer, nn.RNN) or (isinstance(layer, RNN) and layer.unchanged_from(RNN, "cell", "advance", "phi"))


def _is_lstm(layer: nn.Module) -> bool:
    return (isinstance(layer, nn.LSTM) and not layer.proj_size) or (
        isinstance(layer, LSTM) and layer.unchanged_from(LSTM, "cell", "advance", "project")
    )


def _named(layer: nn.Module, start: str) -> list[str]:
    """Names of parameters of the given kind, in every layer and direction."""
    names = {name.removeprefix("parametrizations.").split(".")[0] for name, _ in layer.named_parameters()}
    return sorted(name for name in names if name.startswith(f"{start}_l"))


def _lipschitz(layer: Any, given: float | None) -> float:
    known = LIPSCHITZ.get(layer.nonlinearity) if isinstance(layer.nonlinearity, str) else None
    if given is None and known is None:
        raise MnemoscopeError(f"say the Lipschitz constant of {layer.nonlinearity!r}: stable(layer, lipschitz=...)")
    return known if given is None else given  # type: ignore[return-value]


def _lstm_balls(layer: Any, lam: float, input_bound: float, forget: float) -> dict[str, SpectralBall | RowBalls]:
    """Proposition 5 for a forget gate of at most `forget`: f + (||W_i|| + ||c|| ||W_f|| + ||W_o||)/4 + ||W_g|| <= lam.

    Of sigmoid^-1(forget), W_f takes what its condition allows, U_f half of the rest and the two biases the other half.
    """
    room = lam - forget
    rest = math.log(forget / (1 - forget)) - room * (1 - forget) if 0.5 < forget < lam else 0.0
    if rest <= 0:
        raise MnemoscopeError(f"forget must lie between about 0.6 and lam = {lam}; got {forget:.6g}")
    if input_bound <= 0:
        raise MnemoscopeError(f"input_bound must be positive; got {input_bound}")
    radii = (room, room * (1 - forget), room / 4, room)
    balls: dict[str, SpectralBall | RowBalls] = {name: RowBalls(*radii) for name in _named(layer, "weight_hh")}
    above = 1 / (1 - layer.dropout) if layer.dropout < 1 else 1.0  # |h| < 1, and what dropout keeps is scaled up
    for name in _named(layer, "weight_ih"):
        bound = input_bound if name.startswith("weight_ih_l0") else above
        balls[name] = _forget_only(rest / (2 if layer.bias else 1) / bound)
    for name in _named(layer, "bias_ih") + _named(layer, "bias_hh"):
        balls[name] = _forget_only(rest / 4)
    return balls


def _forget_only(radius: float) -> RowBalls:
    return RowBalls(math.inf, radius, math.inf, math.inf)
