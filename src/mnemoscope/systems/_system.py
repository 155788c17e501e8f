"""A recurrence with known answers: what an instrument is calibrated with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence

ROUNDING = 1e-9  # beside a stated error of zero


@dataclass(frozen=True)
class Known:
    """A figure of a finding whose true value is known.

    Attributes:
        scope: name of the scope that measures it.
        figure: name of the figure in that scope's Finding.
        value: the true value.
        tolerance: how far a correct measurement may lie from it, absolute. Beside it, a measurement that states a
            standard error must lie within three of them.
        source: the closed form, or where the value was published.
        options: options that the scope needs for it.
        uncertainty: how far the value itself may be off: digits that were published, a flow's discretization.
    """

    scope: str
    figure: str
    value: float
    tolerance: float
    source: str
    options: Mapping[str, Any] = field(default_factory=dict)
    uncertainty: float = 0.0

    def holds(self, measured: float, standard_error: float = math.nan) -> bool:
        """True if a measured figure agrees with the known one, and with the error that it states itself."""
        if measured == self.value:  # infinity too
            return True
        stated = self.tolerance if math.isnan(standard_error) else 3 * standard_error + self.uncertainty + ROUNDING
        return abs(measured - self.value) <= min(self.tolerance, stated)


class KnownSystem(Protocol):
    """What every system has, whatever it is built from."""

    steps: int

    def known(self) -> tuple[Known, ...]:
        """Return what is known of the system, figure by figure."""

    def inputs(self, steps: int | None = None, batch: int = ..., seed: int = 0) -> Tensor:
        """Return sequences (steps, batch, features) to examine it with."""


class System(Recurrence):
    """A dynamical system in float64, driven by an input that is zero unless given.

    A subclass gives `initial_state`, `step`, and `known`, the answers for `inputs()`.
    """

    steps: int = 1000  # length of the sequences on which the known answers were worked out

    def known(self) -> tuple[Known, ...]:
        """Return the answers that are known for these parameters."""
        return ()

    def inputs(self, steps: int | None = None, batch: int = 1, seed: int = 0) -> Tensor:
        """Return the sequences to examine the system on, (steps, batch, input_size): zeros for an autonomous map."""
        return torch.zeros(steps or self.steps, batch, self.input_size, dtype=torch.float64)


class RandomlyDriven(System):
    """A system that is examined on normal inputs, because without them nothing happens."""

    def inputs(self, steps: int | None = None, batch: int = 4, seed: int = 0) -> Tensor:
        """Return standard normal sequences (steps, batch, input_size)."""
        generator = torch.Generator().manual_seed(seed)
        shape = (steps or self.steps, batch, self.input_size)
        return torch.randn(shape, generator=generator, dtype=torch.float64)


def check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise MnemoscopeError(f"{name} must be above 0; got {value!r}")
