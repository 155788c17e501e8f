"""What goes wrong without stability (Miller & Hardt 2018, section 5 and appendix A.4)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from mnemoscope.recurrence import Recurrence, State
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.stability._truncation import Truncated


class ScalarSystem(Recurrence):
    """h_t = a h_{t-1} + b x_t, the system of both proofs (eqs 4-5); its output is h_t. Stable exactly for |a| < 1."""

    input_size = hidden_size = 1

    def __init__(self, a: float, b: float = 1.0) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in (a, b))

    def initial_state(self, batch: int) -> Tensor:
        return self.a.new_zeros(1, batch, 1)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, Tensor]:
        h = self.a * state + self.b * x
        return h[0], h


def impulse(steps: int) -> Tensor:
    """The input 1, 0, 0, ... of Proposition 3: (steps, 1, 1)."""
    return torch.zeros(steps, 1, 1, dtype=torch.float64).index_fill(0, torch.tensor([0]), 1.0)


def truncation_error(a: float, k: int, steps: int) -> Tensor:
    """|y_t - y_t^k| (steps,) of the system with b = 1 after an impulse: 0 for t <= k, then |a|^(t-1)."""
    system = ScalarSystem(a)
    x = impulse(steps)
    with torch.no_grad():
        return (system(x)[0] - Truncated(system, k)(x)[0]).abs().flatten()


def identity_gradient(a: float, T: int) -> float:
    """d/da of 1/2 (h_T - 1)^2 for x = 1 and b = 1, where h_T = sum_{i<T} a^i (eq. 6; the text sums a^t).

    The task is the identity, so a = 0 is wanted. Summed term by term: eq. 6 divides by (1 - a)^2 and cancels near 1.
    """
    error = sum(a**i for i in range(1, T))
    return error * sum(i * a ** (i - 1) for i in range(1, T))


def identity_descent(a: float, T: int, steps: int, bound: float | None = None) -> list[tuple[float, float]]:
    """(a^i, gradient) over gradient descent with step size 1/i from `a`, projected onto [-bound, bound] where given.

    Ends early, before the next gradient would overflow.
    """
    path = []
    for i in range(1, steps + 1):
        gradient = identity_gradient(a, T)
        path.append((a, gradient))
        if abs(gradient) > 1e300 ** (1 / (2 * T)):
            break
        a -= gradient / i
        a = a if bound is None else min(max(a, -bound), bound)
    return path


@statement(
    "miller-hardt-proposition-3",
    paper=PAPERS["stability"],
    where="Proposition 3, A.4",
    status="holds",
    claim="without stability truncation to any k can be arbitrarily bad: |y_t - y_t^k| = 2^(t-1) after an impulse",
)
def proposition_3() -> Iterator[Row]:
    for k in (1, 10, 40):
        error = truncation_error(2.0, k, 80)
        yield Row(f"a=2, k={k}, t={k}", 0.0, float(error[k - 1]), "==")
        yield Row(f"a=2, k={k}, t=80", 2.0**79, float(error[-1]), "==")


@statement(
    "miller-hardt-proposition-4",
    paper=PAPERS["stability"],
    where="Proposition 4, A.4, eq. 6",
    status="holds",
    claim="gradient descent on an unstable system need not converge: from a = 1.5 the gradient of an identity task "
    "grows without bound, while projected onto |a| <= 0.9 it reaches 0",
    remark="In the proof h_t sums a^i over i, not a^t. For large T the gradient is about T a^(2T-1)/(a-1)^2; the "
    "text's T a^(2T-3) is its value for large a only.",
)
def proposition_4() -> Iterator[Row]:
    path = identity_descent(1.5, T=10, steps=3)
    for (_, before), (a, after) in pairwise(path):
        yield Row(f"T=10, a={a:.3g}: |gradient| against 1e20 times the last", 1e20 * abs(before), abs(after), ">=")
    _, projected = identity_descent(1.5, T=10, steps=400, bound=0.9)[-1]
    yield Row("T=10, projected, step 400: |gradient|", 1e-2, abs(projected))
    for a in (1.5, 50.0):
        limit = 60 * a**119 / (a - 1) ** 2
        yield Row(f"T=60, a={a}: gradient", limit, identity_gradient(a, 60), "==", tolerance=0.06)
    printed = 60 * 1.5**117
    yield Row("T=60, a=1.5: eight times the printed T a^(2T-3)", 8 * printed, identity_gradient(1.5, 60), ">=")
