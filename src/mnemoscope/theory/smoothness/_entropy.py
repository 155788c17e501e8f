"""How much a network's state can tell (Ribeiro et al. 2019, section 4).

A density of states p_t is carried by x_{t+1} = f(x_t, u_t); its differential entropy H_t changes by E log|det df/dx|.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement


def entropy_change(jacobians: Tensor) -> Tensor:
    """log|det df/dx| (...) of Jacobians (..., n, n); its mean over states drawn from p_t is H_{t+1} - H_t.

    Exact where f is injective; where states meet, H_{t+1} - H_t is at most that mean. -inf for a singular Jacobian.
    """
    # One matrix at a time: torch with MKL gives wrong determinants of a batch of large ones in two threads.
    matrices = jacobians.reshape(-1, *jacobians.shape[-2:])
    found = [torch.linalg.slogdet(matrix).logabsdet for matrix in matrices]
    return torch.stack(found).view(jacobians.shape[:-2]) if found else jacobians.new_zeros(jacobians.shape[:-2])


def hadamard_bound(jacobians: Tensor) -> Tensor:
    """sum_i log||v_i|| >= log|det df/dx| (eq. 8): the columns' lengths, (...) of Jacobians (..., n, n)."""
    return torch.linalg.vector_norm(jacobians, dim=-2).log().sum(-1)


def entropy_bound(L_f: float, state_size: int) -> float:
    """N_x log L_f, the most by which a step can raise the entropy: H_{t+1} <= H_t + N_x log L_f (eq. 9, corrected)."""
    if L_f < 0:
        raise MnemoscopeError(f"a Lipschitz constant is not negative; got L_f = {L_f}")
    return state_size * math.log(L_f) if L_f else -math.inf


def gaussian_entropy(covariance: Tensor) -> float:
    """The entropy of a Gaussian, 1/2 log det(2 pi e covariance)."""
    return float(0.5 * torch.linalg.slogdet(2 * math.pi * math.e * covariance).logabsdet)


@statement(
    "ribeiro-equation-9",
    paper=PAPERS["smoothness"],
    where="section 4, eqs 7-9, fig. 2",
    status="corrected",
    claim="one step raises the entropy of the state by at most N_x log L_f",
    correction="Eq. 9 is printed the other way round: Hadamard's inequality bounds log|det| from above. So the entropy "
    "must fall for L_f < 1 and may, but need not, grow for L_f > 1; a contractive system's tends to -inf, not to 0.",
)
def equation_9() -> Iterator[Row]:
    half = 0.5 * _rotation(1.0)
    yield Row("half a rotation: N_x log L_f is reached", entropy_bound(0.5, 2), float(entropy_change(half)), "==")
    yield Row("half a rotation: Hadamard's bound is reached", float(hadamard_bound(half)), 2 * math.log(0.5), "==")
    for name, A in (("rotation by 1 rad", _rotation(1.0)), ("diag(2, 0.1)", torch.tensor([2.0, 0.1]).diag().double())):
        before = torch.tensor([[1.0, 0.3], [0.3, 2.0]], dtype=torch.float64)
        change = gaussian_entropy(A @ before @ A.T) - gaussian_entropy(before)
        L_f = float(torch.linalg.matrix_norm(A, ord=2))
        yield Row(f"{name}, Gaussian: change less E log|det|", 1e-12, abs(change - float(entropy_change(A))))
        yield Row(f"{name}: bound", entropy_bound(L_f, 2) + 1e-12, change)
        if L_f > 1.5:
            yield Row(f"{name}: eq. 9 as printed asks for more", -entropy_bound(L_f, 2), -change, ">=")
    one = torch.eye(1, dtype=torch.float64)
    fallen = gaussian_entropy(one) - 50 * math.log(2)
    yield Row("x/2, 50 steps: entropy falls without end", fallen, gaussian_entropy(0.25**50 * one), "==")
    yield from _one_dimension()


def _rotation(angle: float) -> Tensor:
    c = math.cos(angle)
    s = math.sin(angle)
    return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def _one_dimension() -> Iterator[Row]:
    """tanh(w x) of a standard Gaussian, by quadrature of -p log p; and the tent map, where pairs of states meet."""
    x = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    p = (-x.square() / 2).exp() / math.sqrt(2 * math.pi)
    w = 1.3
    z = torch.tanh(w * x)
    slope = w * (1 - z.square())
    after = -torch.trapezoid((p / slope) * (p / slope).log(), z)  # the density of z is p(x) / slope
    before = -torch.trapezoid(p * p.log(), x)
    expected = torch.trapezoid(p * entropy_change(slope[:, None, None]), x)
    change = float(after - before)
    yield Row("tanh(1.3 x), Gaussian: change by quadrature", float(expected), change, "==", tolerance=1e-6)
    yield Row("tanh(1.3 x): bound", entropy_bound(w, 1), change)
    tent = entropy_change(torch.tensor([[[2.0]], [[-2.0]]], dtype=torch.float64)).mean()
    yield Row("tent map, uniform stays uniform: change 0", float(tent), 0.0)
