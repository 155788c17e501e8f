"""Low-dimensional maps and flows whose Lyapunov exponents are in every textbook."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.systems._system import Known, System, check_positive


def _scalar(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(float(value), dtype=torch.float64))


class LogisticMap(System):
    """The logistic map, x' = r x (1 - x) + u; chaotic at r = 4.

    Its exponent is ln 2 at r = 4, ln|2 - r| on the fixed point (1 < r < 3), and half of ln|4 + 2r - r^2| on the cycle
    of two (3 < r < 1 + sqrt 6).
    """

    input_size = hidden_size = 1
    steps = 2000  # at r = 4, ln|f'| - ln 2 is a difference g(x) - g(f(x)), so its mean settles as 1 / steps

    def __init__(self, r: float = 4.0) -> None:
        super().__init__()
        if not 0 < r <= 4:
            raise MnemoscopeError(f"LogisticMap needs 0 < r <= 4, where [0, 1] is mapped into itself; got r = {r!r}")
        self.r = _scalar(r)

    def initial_state(self, batch: int) -> Tensor:
        return self.r.detach().new_full((1, batch, 1), 0.3)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.r * state * (1 - state) + x
        return state[0], state

    def known(self) -> tuple[Known, ...]:
        r = self.r.item()
        if r == 4:
            return (
                Known("lyapunov", "largest", math.log(2), 0.01, "ln 2 (Ulam & von Neumann 1947)"),
                Known("lyapunov", "kaplan_yorke", 1.0, 1e-9, "chaos fills the interval"),
                Known("entropy", "change", math.log(2), 0.2, "ln 2: one dimension", {"points": 512}),
            )
        if 1 < r < 3 and r != 2:
            exponent = math.log(abs(2 - r))
            source = "ln|2 - r| at the fixed point 1 - 1/r"
            return (
                Known("lyapunov", "largest", exponent, 0.01, source),
                Known("attractors", "attractors", 1.0, 0.0, "the fixed point 1 - 1/r"),
                Known("attractors", "fixed_points", 2.0, 0.0, "0 and 1 - 1/r"),
                Known("attractors", "stable_fixed_points", 1.0, 0.0, "1 - 1/r"),
            )
        if 3 < r < 1 + math.sqrt(6):
            slope = abs(4 + 2 * r - r * r)
            known = (
                Known("attractors", "attractors", 1.0, 0.0, "the cycle of two"),
                Known("attractors", "periods", 2.0, 0.0, "the cycle of two"),
                Known("attractors", "stable_fixed_points", 0.0, 0.0, "|2 - r| > 1"),
            )
            if slope < 1e-6:  # at r = 1 + sqrt 5 the cycle passes 1/2, as the fixed point does at r = 2
                return known
            source = "ln|4 + 2r - r^2| / 2 on the cycle of two"
            return (Known("lyapunov", "largest", math.log(slope) / 2, 0.01, source), *known)
        return ()


class HenonMap(System):
    """Hénon's map, x' = 1 - a x^2 + y + u, y' = b x; a strange attractor at a = 1.4, b = 0.3."""

    input_size = 1
    hidden_size = 2
    steps = 3000

    def __init__(self, a: float = 1.4, b: float = 0.3) -> None:
        super().__init__()
        self.a, self.b = _scalar(a), _scalar(b)

    def initial_state(self, batch: int) -> Tensor:
        return self.a.detach().new_full((1, batch, 2), 0.1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        first, second = state.unbind(-1)
        state = torch.stack([1 - self.a * first**2 + second + x[:, 0], self.b * first], -1)
        return state[0], state

    def known(self) -> tuple[Known, ...]:
        contraction = float(self.b.detach().abs().log())  # -inf for b = 0
        known = [Known("entropy", "change", contraction, 1e-9, "ln|b|: the Jacobian's determinant is -b everywhere")]
        if (self.a.item(), self.b.item()) == (1.4, 0.3):
            known += [
                Known("lyapunov", "largest", 0.41922, 0.01, "Sprott 2003, Chaos and Time-Series Analysis"),
                Known("lyapunov", "kaplan_yorke", 1.25826, 0.01, "1 + 0.41922 / 1.62319"),
            ]
        return tuple(known)


class CatMap(System):
    """Arnold's cat map on the torus, (x, y)' = (2x + y + u, x + y) mod 1: it stretches, folds and loses nothing."""

    input_size = 1
    hidden_size = 2
    steps = 500
    matrix: Tensor

    def __init__(self) -> None:
        super().__init__()
        matrix = torch.tensor([[2.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
        self.register_buffer("matrix", matrix)

    def initial_state(self, batch: int) -> Tensor:
        start = torch.tensor([0.2, math.sqrt(2) - 1], dtype=torch.float64)
        return start.to(self.matrix).expand(1, batch, 2).clone()

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        moved = state @ self.matrix.T
        moved = torch.stack([moved[..., 0] + x[:, 0], moved[..., 1]], -1)
        state = torch.remainder(moved, 1.0)
        return state[0], state

    def known(self) -> tuple[Known, ...]:
        golden = math.log((3 + math.sqrt(5)) / 2)
        return (
            Known("lyapunov", "largest", golden, 1e-3, "ln((3 + sqrt 5) / 2), the larger eigenvalue"),
            Known("lyapunov", "kaplan_yorke", 2.0, 1e-3, "the exponents add up to 0"),
            Known("stability", "largest_jacobian", math.exp(golden), 1e-9, "the matrix is symmetric"),
            Known("entropy", "change", 0.0, 1e-9, "the determinant is 1"),
        )


class Lorenz(System):
    """Lorenz's flow over a time dt, by one Runge-Kutta step of order four; u pushes on x."""

    input_size = 1
    hidden_size = 3
    steps = 2000

    def __init__(self, sigma: float = 10.0, rho: float = 28.0, beta: float = 8 / 3, dt: float = 0.04) -> None:
        super().__init__()
        check_positive("dt", dt)
        self.sigma, self.rho, self.beta = _scalar(sigma), _scalar(rho), _scalar(beta)
        self.dt = dt

    def initial_state(self, batch: int) -> Tensor:
        start = torch.tensor([1.0, 1.0, 20.0], dtype=torch.float64)
        return start.to(self.sigma).expand(1, batch, 3).clone()

    def velocity(self, state: Tensor) -> Tensor:
        """d(x, y, z)/dt = (sigma (y - x), x (rho - z) - y, x y - beta z)."""
        x, y, z = state.unbind(-1)
        return torch.stack([self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z], -1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        k1 = self.velocity(state)
        k2 = self.velocity(state + self.dt / 2 * k1)
        k3 = self.velocity(state + self.dt / 2 * k2)
        k4 = self.velocity(state + self.dt * k3)
        state = state + self.dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        push = torch.nn.functional.pad(self.dt * x, (0, 2))
        state = state + push
        return state[0], state

    def known(self) -> tuple[Known, ...]:
        if (self.sigma.item(), self.rho.item(), round(self.beta.item(), 6)) != (10.0, 28.0, 2.666667):
            return ()
        if not 0.01 <= self.dt <= 0.05:  # shorter steps end before a mean settles; longer ones are another map
            return ()
        divergence = -(10 + 1 + 8 / 3) * self.dt
        discretization = 0.004 * (self.dt / 0.04) ** 4 * abs(divergence)  # 0.0025 was seen, against dt / 4
        source = "0.9056 a unit of time (Sprott 2003)"
        return (
            Known("lyapunov", "largest", 0.9056 * self.dt, 0.15 * self.dt, source, uncertainty=0.01 * self.dt),
            Known("lyapunov", "kaplan_yorke", 2.062, 0.01, "2 + 0.9056 / 14.5723 (Sprott 2003)"),
            Known(
                "entropy",
                "change",
                divergence,
                5e-3 * abs(divergence),
                "-(sigma + 1 + beta) dt; a Runge-Kutta step shrinks volumes a little less",
                uncertainty=discretization,
            ),
            Known("attractors", "fixed_points", 3.0, 0.0, "0 and (+-sqrt 72, +-sqrt 72, 27)"),
            Known("attractors", "stable_fixed_points", 0.0, 0.0, "all three are unstable at rho = 28"),
        )
