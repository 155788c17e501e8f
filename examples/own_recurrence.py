"""Examine a recurrence of your own: two methods are enough for every scope.

python examples/own_recurrence.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import mnemoscope


class Leaky(mnemoscope.Recurrence):
    """h_t = (1 - a) h_{t-1} + a tanh(V h_{t-1} + U x_t): a small `a` remembers for longer."""

    def __init__(self, input_size: int, hidden_size: int, a: float) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.a = a
        self.V = nn.Linear(hidden_size, hidden_size, bias=False)
        self.U = nn.Linear(input_size, hidden_size)

    def initial_state(self, batch: int) -> Tensor:
        return self.U.weight.new_zeros(1, batch, self.hidden_size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        (h,) = state  # (1, batch, hidden_size): a state of one layer
        h = (1 - self.a) * h + self.a * torch.tanh(self.V(h) + self.U(x))
        return h, h[None]


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(150, 8, 4)
    for a in (1.0, 0.3, 0.05):
        examination = mnemoscope.examine(Leaky(4, 32, a), inputs, scopes=["horizon", "lyapunov"])
        print(f"a = {a}: {examination['horizon'].sentence} {examination['lyapunov'].sentence}")


if __name__ == "__main__":
    main()
