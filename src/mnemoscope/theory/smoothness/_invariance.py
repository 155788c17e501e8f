"""Sets that trajectories do not leave, and where contraction leads (Ribeiro et al. 2019, Theorem 1, Definition 2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.smoothness._sensitivity import Map, simulate, tanh_network


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


def contraction_factor(f: Map, theta: Tensor, inputs: Tensor, states: Tensor) -> float:
    """The largest ||df/dx|| over inputs (N, d) and states (S, n): a lower bound of the L that Definition 2 asks for."""
    jacobian = torch.vmap(torch.func.jacrev(f), (0, None, None))
    return max(float(torch.linalg.matrix_norm(jacobian(states, u, theta), ord=2).max()) for u in inputs.unbind(0))


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
    yield Row("0.8 x + u: the interval is mapped onto itself", radius, max(sizes), "==")
    outside = leaves_box(affine, theta, 0.5 * x, u)
    yield Row("0.8 x + u: how far half the interval is left", 0.5 * radius * 0.2, outside, "==", tolerance=1e-6)
    constant = origin_drift(affine, 1, size, u)
    yield Row("0.8 x + u: ||f(0, u; 0)||", float(u[:, 0].abs().max()), constant, "==")


@statement(
    "ribeiro-definition-2",
    paper=PAPERS["smoothness"],
    where="Definition 2, section 3.2",
    status="holds",
    claim="a contractive system with constant input has one fixed point, which all trajectories approach like L^t",
)
def one_fixed_point() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(1)
    f, g, size = tanh_network(6, 1, 1)
    theta = torch.randn(size, generator=generator, dtype=torch.float64)
    theta[:36] *= 0.8 / torch.linalg.matrix_norm(theta[:36].view(6, 6), ord=2)
    u = torch.ones(101, 1, dtype=torch.float64)
    starts = torch.stack([torch.ones(6), -torch.ones(6)]).double()

    # ||V|| is reached at the origin without input, where every tanh' is 1.
    L = contraction_factor(f, theta, 0 * u[:1], torch.cat([starts, 0 * starts]))
    yield Row("tanh RNN: the largest ||df/dx||, at the origin", 0.8, L, "==")

    # Two trajectories, their distance, and the point where both end.
    (x, _), (y, _) = (simulate(f, g, theta, start, u) for start in starts)
    for t in (1, 10, 40):
        apart = float((x[t] - y[t]).norm())
        yield Row(f"tanh RNN, t={t}: distance of two trajectories", L**t * float((x[0] - y[0]).norm()), apart)
    yield Row("tanh RNN: distance of their ends", 1e-9, float((x[-1] - y[-1]).norm()))
    fixed = x[-1]
    yield Row("tanh RNN: ||f(x) - x|| there", 1e-9, float((f(fixed, u[0], theta) - fixed).norm()))
    drive = origin_drift(lambda x, u, _: f(x, u, theta), 6, size, u)
    yield Row("tanh RNN: ||x|| there, against the invariant ball", invariant_ball(L, drive), float(fixed.norm()))

    # A linear system loses nothing: the distance is L^t, and its fixed point on the border of the ball.
    def affine(x: Tensor, u: Tensor, theta: Tensor) -> Tensor:
        return 0.8 * x + u

    L = contraction_factor(affine, theta, u[:1], torch.ones(1, 1).double())
    (x, _), (y, _) = (simulate(affine, affine, theta, torch.full((1,), s).double(), u) for s in (-3.0, 3.0))
    yield Row("0.8 x + u, t=40: distance of two trajectories", L**40 * 6, float((x[40] - y[40]).norm()), "==")
    radius = invariant_ball(L, origin_drift(affine, 1, size, u))
    yield Row(
        "0.8 x + u: the fixed point, on the border of the ball", radius, float(x[-1].norm()), "==", tolerance=1e-8
    )
