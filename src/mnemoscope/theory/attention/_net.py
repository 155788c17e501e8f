"""The self-attentive recurrence of Kerg et al. 2020 exactly as printed (equations 9-10, 50-53, 95), in full generality.

Any non-linearity, any f, any set of attended states: what the statements are about, and what their checks run.
The trainable layers are in `mnemoscope.layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from mnemoscope import equations
from mnemoscope.theory._statement import Row
from mnemoscope.theory.attention._jacobians import AttentionBlocks, additive_scores

Pointwise = Callable[[Tensor], Tensor]
Mix = Callable[[Tensor, Tensor], Tensor]


class Run(NamedTuple):
    hidden: Tensor  # h: (T, n)
    macro: Tensor  # s: (T, n)
    weight: Tensor  # alpha_{i,t} at [t, i]: (T, T)


@dataclass(frozen=True)
class SelfAttentiveNet:
    """h_t = phi(V s_{t-1} + U x_t + b), s_t = f(h_t, c_t), with additive attention over `attended`, default all h_i."""

    V: Tensor  # (n, n)
    U: Tensor  # (n, inputs)
    b: Tensor  # (n,)
    W_a: Tensor  # (n, n)
    U_a: Tensor  # (n, n)
    v: Tensor  # (n,)
    phi: Pointwise = torch.tanh
    f: Mix = torch.add
    attended: Tensor | None = None  # (T, T) booleans: may step t attend h_i? at least one a step

    def hidden(self, macro: Tensor, x: Tensor) -> Tensor:
        """Return h_t of s_{t-1} and x_t."""
        return self.phi(self.V @ macro + self.U @ x + self.b)

    def run(self, x: Tensor, replaced: dict[int, Tensor] | None = None) -> Run:
        """Run over x (T, inputs). `replaced` sets some h_t, so that one can differentiate with respect to them."""
        hidden: list[Tensor] = []
        macro = [torch.zeros_like(self.b)]
        weights = []
        for t, x_t in enumerate(x.unbind(0)):
            hidden.append((replaced or {}).get(t, self.hidden(macro[-1], x_t)))
            H = torch.stack(hidden)  # (t + 1, n)
            scores = equations.additive_scores(self.W_a @ macro[-1], H @ self.U_a.T, self.v)
            if self.attended is not None:
                scores = scores.masked_fill(~self.attended[t, : t + 1], -torch.inf)
            alpha = scores.softmax(0)
            macro.append(self.f(hidden[-1], alpha @ H))
            weights.append(torch.nn.functional.pad(alpha, (0, len(x) - t - 1)))
        return Run(torch.stack(hidden), torch.stack(macro[1:]), torch.stack(weights))

    def blocks(self, x: Tensor) -> AttentionBlocks:
        """The Jacobian blocks of a run, by Lemmas 5 and 6; f's own derivatives and J by differentiation."""
        hidden, macro, weight = self.run(x)
        before = torch.cat([torch.zeros_like(macro[:1]), macro[:-1]])
        scores = additive_scores(self.W_a, self.U_a, self.v, before, hidden.expand(len(x), *hidden.shape))
        steps = torch.arange(len(x))
        origin = torch.where(weight > 0, steps, -1)
        context = weight @ hidden
        return AttentionBlocks(
            hidden=hidden,
            origin=origin,
            weight=weight,
            score_by_hidden=scores.by_hidden,
            score_by_macro=scores.by_macro,
            J=vmap(jacrev(self.hidden))(macro[:-1], x[1:]),
            f1=vmap(jacrev(self.f, 0))(hidden, context),
            f2=vmap(jacrev(self.f, 1))(hidden, context),
        )

    def differentiated(self, x: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """dh_{t+k}/dh_t and ds_{t+k}/dh_t for every k by automatic differentiation: (T - t, n, n) each."""

        def later(h_t: Tensor) -> tuple[Tensor, Tensor]:
            run = self.run(x, {t: h_t})
            return run.hidden[t:], run.macro[t:]

        dh, ds = jacrev(later)(self.run(x).hidden[t])
        return dh, ds


def random_net(n: int, inputs: int, seed: int, **options: Pointwise | Mix | Tensor) -> SelfAttentiveNet:
    """A net in float64 whose gradients neither die nor explode within a few steps."""
    shapes = dict(V=(n, n), U=(n, inputs), b=(n,), W_a=(n, n), U_a=(n, n), v=(n,))
    weights = {name: standard_normal(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
    weights["V"] *= 0.5 / n**0.5
    return SelfAttentiveNet(**{**weights, **options})  # type: ignore[arg-type]


def standard_normal(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers in float64, from a generator of their own."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def example_nets() -> Iterator[tuple[str, SelfAttentiveNet, Tensor]]:
    """The nets on which the checks compare formulas with automatic differentiation, each with its inputs."""
    x = standard_normal(12, 3, seed=0)
    recent = torch.ones(12, 12).triu(-2).bool()
    every_fourth = torch.arange(12) % 4 == 0
    yield "tanh, f = h + c", random_net(6, 3, seed=1), x
    yield "tanh, f = tanh(h c) + c/3", random_net(6, 3, seed=2, f=lambda h, c: torch.tanh(h * c) + c / 3), x
    sparse = random_net(6, 3, seed=3, phi=torch.nn.functional.softplus, attended=(recent | every_fourth).tril())
    yield "softplus, the last three and every fourth", sparse, x


def relative_error_row(case: str, computed: Tensor, expected: Tensor) -> Row:
    """A row that bounds the relative error of `computed` by rounding."""
    error = (computed - expected).norm() / expected.norm().clamp(min=1e-300)
    return Row(f"{case}: relative error", 1e-10, float(error))
