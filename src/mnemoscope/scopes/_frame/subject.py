"""What lies under the scope: a model, the sequences it reads, and what the examination may know and ask."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mnemoscope.adapters import Adapted, Between, adapt, made
from mnemoscope.adapters._adapted import time_first
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence
from mnemoscope.scopes._frame.untouched import untouched
from mnemoscope.scopes._measures.state_vectors import carries_memory

Progress: TypeAlias = Callable[[str, float, str], None]
"""Called with the scope's name, the share done in [0, 1], and the current figure in words."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""loss(outputs, targets) -> a number; outputs in the layout in which the model gives them."""


class OutOfTime(Exception):
    """The budget of seconds is spent."""


@dataclass
class Subject:
    """A model made ready to be measured; time comes first everywhere.

    Attributes:
        model: as it was given.
        adapted: what can be examined of it.
        targets, loss: what the model is taught, where known; `loss(outputs, targets)` with outputs (T, B, m).
        needs: how many steps back the task needs, where known.
        seed: of every random choice that a scope makes; the global random state is never used.
        progress: called as a scope advances.
        deadline: the `time.monotonic()` at which to stop.
        pace: seconds of one forward pass, as far as known.
    """

    model: Any
    adapted: Adapted
    targets: Tensor | None = None
    loss: Loss | None = None
    needs: float | None = None
    seed: int = 0
    progress: Progress | None = None
    deadline: float | None = None
    scope: str = field(default="", init=False)  # the one that is running, for progress
    pace: float = field(default=0.0, init=False)

    @property
    def name(self) -> str:
        return self.adapted.name

    @property
    def features(self) -> Tensor:
        """(T, B, d): what the whole model reads; real, so that outputs can be differentiated by it."""
        return self.adapted.features

    @property
    def steps(self) -> int:
        return self.features.shape[0]

    @property
    def batch(self) -> int:
        return self.features.shape[1]

    def run(self, features: Tensor) -> Tensor:
        """The whole model: features (T, B, d) -> outputs (T, B, m), or (1, B, m) for one output a sequence."""
        return self.adapted.run(features)

    @property
    def recurrence(self) -> Recurrence:
        """The part with a step. A scope that declares ``needs="step"`` is only called where there is one."""
        if self.adapted.recurrence is None:
            raise MnemoscopeError(self.adapted.no_step)
        return self.adapted.recurrence

    @property
    def layer(self) -> Recurrence:
        """The recurrent layer itself, without the read-out after it."""
        return self.recurrence.layer if isinstance(self.recurrence, Between) else self.recurrence

    @property
    def drive(self) -> Tensor:
        """(T, B, input_size): what the recurrence reads."""
        if self.adapted.drive is None:
            raise MnemoscopeError(self.adapted.no_step)
        return self.adapted.drive

    @property
    def dtype(self) -> torch.dtype:
        return self.features.dtype

    def loss_of(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """The loss of outputs (T, B, m), handed over in the layout that the model itself gives, on any targets."""
        if self.loss is None or self.targets is None:
            raise MnemoscopeError("the loss is not known: pass targets= and loss=")
        given = outputs[0] if len(outputs) == 1 < self.steps else time_first(outputs, self.adapted.batch_first)
        return self.loss(given, self.targets if targets is None else targets)

    def generator(self) -> torch.Generator:
        """A fresh generator on the CPU, seeded; draw there and move, so that every device sees the same numbers."""
        return torch.Generator().manual_seed(self.seed)

    def check_time_for(self, passes: float) -> None:
        """Ends the scope before it begins where the budget does not suffice for so many forward passes."""
        if self.deadline is not None and self.deadline - time.monotonic() < passes * self.pace:
            raise OutOfTime

    def report(self, done: float, note: str = "") -> None:
        """Say how far the running scope has come; ends it when the budget is spent."""
        if self.progress is not None:
            self.progress(self.scope, done, note)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime

    def missing(self, need: str) -> str:
        """Why the model cannot give what a scope needs; empty where it can."""
        if need == "outputs":
            return ""
        if need == "loss":
            return "" if self.loss is not None and self.targets is not None else "it needs targets= and loss="
        if self.adapted.recurrence is None:
            return self.adapted.no_step
        if need == "map":
            remembers = carries_memory(self.recurrence.initial_state(1))
            return f"{self.name} carries past states along: its map changes from step to step" if remembers else ""
        return "" if need == "step" or self._attends() else f"{self.name} does not attend to its own past states"

    def _attends(self) -> bool:
        with torch.no_grad():
            x, recurrence = self.drive[:1], self.recurrence
            return recurrence.observe(x[0], recurrence.initial_state(x.shape[1]))[2] is not None


def subject_of(
    model: Any,
    inputs: Tensor | None = None,
    *,
    targets: Tensor | None = None,
    loss: Loss | None = None,
    needs: float | None = None,
    batch_first: bool | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    deadline: float | None = None,
) -> Subject:
    """Make a model ready to be measured on given sequences; see `Subject` and `mnemoscope.adapters.adapt`."""
    if isinstance(model, Subject):
        return model
    if inputs is None:
        raise MnemoscopeError("a scope needs sequences to look at: pass inputs, (time, batch, features)")
    if needs is not None and not 0 <= needs < math.inf:
        raise MnemoscopeError(f"needs is a number of steps back, at least 0; got {needs!r}")
    model = made(model)
    batch_first = _layout_of(inputs, targets) if batch_first is None else batch_first
    with untouched(model):
        adapted = adapt(model, inputs, batch_first)
    return Subject(model, adapted, targets, loss, needs, seed, progress, deadline)


def _layout_of(inputs: Any, targets: Any) -> bool | None:
    """Whether inputs are batch first, where one target a sequence gives it away."""
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor) or targets.dim() != 1 or inputs.dim() < 2:
        return None
    first, second = inputs.shape[:2]
    return len(targets) == first if first != second and len(targets) in (first, second) else None
