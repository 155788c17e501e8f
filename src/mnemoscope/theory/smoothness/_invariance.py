"""Sets that trajectories do not leave, and where contraction leads (Ribeiro et al. 2019, Theorem 1, Definition 2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.smoothness._sensitivity import Map, tanh_network


def origin_drift(f: Map, state_size: int, parameter_size: int, inputs: Tensor) -> float:
    """The largest ||f(0, u; 0)|| over inputs (N, d): zero says that {0} is invariant at theta = 0 (footnote 5).

    That is the simplest way to meet Theorem 1's premise that some choice of parameters has an invariant set.
    """
    x = inputs.new_zeros(state_size)
    theta = inputs.new_zeros(parameter_size)
    return max(float(f(x, u, theta).norm()) for u in inputs.unbind(0))


def invariant_ball(contraction: float, drive: float) -> float:
    """The radius drive / (1 - contraction) of a ball around 0 that no trajectory leaves; drive >= sup_u ||f(0, u)||."""
    if contraction >= 1:
        raise MnemoscopeError(f"an invariant ball follows from a contraction below 1 only; got {contraction:.6g}")
    return drive / (1 - contraction)


def leaves_box(f: Map, theta: Tensor, corner: Tensor, inputs: Tensor, trials: int = 256, seed: int = 0) -> float:
    """How far f carries random states, and vertices, of the box [-corner, corner] (n,) beyond it, at worst.

    A positive value proves that the box is not invariant; one of at most 0 proves nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(trials, len(corner), generator=generator, dtype=corner.dtype) - 1
    x = torch.cat([x, x.sign()]) * corner
    moved = torch.stack([torch.vmap(f, (0, None, None))(x, u, theta) for u in inputs.unbind(0)])
    return float((moved.abs() - corner).max())


@statement(
    "ribeiro-invariant-set",
    paper=PAPERS["smoothness"],
    where="Theorem 1, footnote 5",
    status="holds",
    claim="f(0, u; 0) = 0 gives Theorem 1 its invariant set; tanh networks have the unit box, contractive ones a ball",
)
def invariant_sets() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    f, _, size = tanh_network(4, 2, 1)
    u = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    yield Row("tanh RNN: ||f(0, u; 0)||", 0.0, origin_drift(f, 4, size, u), "==")
    theta = 5 * torch.randn(size, generator=generator, dtype=torch.float64)
    yield Row("tanh RNN, any theta: steps out of the unit box", 0.0, leaves_box(f, theta, torch.ones(4).double(), u))

    def affine(x: Tensor, u: Tensor, theta: Tensor) -> Tensor:
        return 0.8 * x + u[:1]

    radius = invariant_ball(0.8, float(u[:, 0].abs().max()))
    x = torch.full((1,), radius, dtype=torch.float64)
    sizes = [float(affine(s * x, v, theta).abs()) for s in (-1, 1) for v in u]
    yield Row("0.8 x + u: radius of the invariant interval", radius, max(sizes))


@statement(
    "ribeiro-definition-2",
    paper=PAPERS["smoothness"],
    where="Definition 2, section 3.2",
    status="holds",
    claim="a contractive system with constant input has one fixed point, which all trajectories approach like L^t",
)
def one_fixed_point() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(1)
    f, _, size = tanh_network(6, 1, 1)
    theta = torch.randn(size, generator=generator, dtype=torch.float64)
    theta[:36] *= 0.8 / torch.linalg.matrix_norm(theta[:36].view(6, 6), ord=2)
    u = torch.ones(1, dtype=torch.float64)
    x = torch.ones(6, dtype=torch.float64)
    y = -torch.ones(6, dtype=torch.float64)
    start = float((x - y).norm())
    for t in range(1, 41):
        x = f(x, u, theta)
        y = f(y, u, theta)
        if t in (1, 10, 40):
            yield Row(f"tanh RNN, L=0.8, t={t}: distance of two trajectories", 0.8**t * start, float((x - y).norm()))
