"""Memories of exactly known length: a delay line and a leaky sum."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError, check_count
from mnemoscope.systems._system import Known, RandomlyDriven


class DelayLine(RandomlyDriven):
    """Repeats its input `delay` steps later, y_t = x_{t - delay}: a shift register.

    Every gradient of an output but the one by the input `delay` steps ago is zero.
    """

    input_size = 1
    steps = 100

    def __init__(self, delay: int = 10) -> None:
        super().__init__()
        check_count("delay", delay)
        self.delay = self.hidden_size = delay
        self.steps = max(self.steps, 4 * delay)  # shorter sequences never reach the output
        self.gain = nn.Parameter(torch.ones(1, dtype=torch.float64))

    @property
    def output_size(self) -> int:
        return 1

    def initial_state(self, batch: int) -> Tensor:
        return self.gain.detach().new_zeros(1, batch, self.delay)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        output = self.gain * state[0, :, -1:]
        state = torch.cat([x[None], state[..., :-1]], -1)
        return output, state

    def known(self) -> tuple[Known, ...]:
        return (
            Known("horizon", "horizon", float(self.delay), 0.0, "the one input that the output repeats"),
            Known("truncation", "window", self.delay + 1.0, 0.0, "the delay and the present step"),
            Known("lyapunov", "largest", -math.inf, 0.0, "after `delay` steps nothing is left of a start"),
            Known("stability", "largest_jacobian", float(self.delay > 1), 1e-9, "a shift, and one number that is lost"),
            Known("attractors", "stable_fixed_points", 1.0, 0.0, "the input, repeated"),
        )


class LeakySum(RandomlyDriven):
    """A leaky sum and the present input beside it, h' = decay h + x, y = h' + present x.

    The output's gradient by the input k steps ago is decay^k, and 1 + present for the present one.
    """

    input_size = hidden_size = 1
    steps = 200

    def __init__(self, decay: float = 0.95, present: float = 0.0) -> None:
        super().__init__()
        if not 0 < decay < 1:
            raise MnemoscopeError(f"LeakySum needs 0 < decay < 1; got decay = {decay!r}")
        self.decay = nn.Parameter(torch.tensor([float(decay)], dtype=torch.float64))
        self.present = float(present)

    def initial_state(self, batch: int) -> Tensor:
        return self.decay.detach().new_zeros(1, batch, 1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.decay * state + x
        return state[0] + self.present * x, state

    def known(self) -> tuple[Known, ...]:
        decay = self.decay.item()
        last = 1 + math.floor(math.log(0.01) / math.log(decay))
        known = [
            Known("lyapunov", "largest", math.log(decay), 1e-6, "ln decay"),
            Known("entropy", "change", math.log(decay), 1e-9, "ln decay"),
            Known("stability", "largest_ratio", decay, 1e-9, "decay"),
            Known("stability", "largest_jacobian", decay, 1e-9, "decay"),
            Known("smoothness", "L_x", decay, 1e-9, "decay"),
        ]
        if last < self.steps:  # else the sequences end before the gradient does, and orbits before they settle
            known.insert(2, Known("horizon", "horizon", float(last), 0.0, "the last k with decay^(k - 1) >= 0.01"))
            known.append(Known("attractors", "attractors", 1.0, 0.0, "x / (1 - decay)"))
        return tuple(known)
