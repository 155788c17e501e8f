"""Run a model twice before anything is said about it: does it give the same outputs for the same inputs?"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mnemoscope.scopes._frame.snapshot import Snapshot

Kind = Literal["", "keeps state between calls", "is random", "changes between calls"]
"""Why a model does not repeat its outputs; the last if it can neither be reset nor be given the same random numbers."""

SEED = 3_141_592_653  # of a random model's numbers in every run; one that nobody has set before


@dataclass(frozen=True)
class Repetition:
    """Whether a model repeats its outputs, and how to make it repeat them.

    Attributes:
        kind: empty if it does.
        difference: of the outputs of two runs, relative to the largest output.
        prepare: to be called before each run, so that all runs give the same.
        seconds: how long one run takes; 0 if it was not measured.
        not_finite_from: the first step whose output is NaN or infinite; None if there is none.
    """

    kind: Kind = ""
    difference: float = 0.0
    prepare: Callable[[], None] | None = None
    seconds: float = 0.0
    not_finite_from: int | None = None

    @property
    def remedy(self) -> str:
        """What is done about it, in words; empty if nothing is or can be."""
        if self.kind == "keeps state between calls":
            return "it keeps state between calls, and was reset before each run"
        return "it is random, and its random numbers were the same in each run" if self.kind == "is random" else ""


@torch.no_grad()
def find_repetition(
    run: Callable[[Tensor], Tensor], features: Tensor, before: Snapshot, outputs: Tensor | None = None
) -> Repetition:
    """Run a model on the same inputs again, and find out why its outputs differ if they do.

    Twice; one run less if the outputs of one are given, two or three more if outputs differ.

    Args:
        run: features -> outputs; run without restoring what it changes.
        before: the model as it was before the first run.
        outputs: of the first run, if there was one.
    """

    def fix_random_numbers() -> None:
        _seed(features.device)
        before.restore_generators()

    def reset() -> None:
        before.restore()
        _seed(features.device)

    def run_after(prepare: Callable[[], None]) -> Tensor:
        prepare()
        return run(features)

    # Another state of the global random generators than in the first run; the model's own have moved on.
    first = run(features) if outputs is None else outputs
    start = time.perf_counter()
    difference = _difference(first, run_after(lambda: _seed(features.device)))
    seconds = time.perf_counter() - start
    limit = min(1e3 * torch.finfo(first.dtype).eps, 0.05)  # in half precision a thousand rounding errors are everything
    if difference <= limit:
        return Repetition(difference=difference, seconds=seconds, not_finite_from=_first_not_finite(first))

    # The same random numbers from the model as it was, then from what that run left, then as it was again.
    fresh = run_after(reset)
    if _difference(fresh, run_after(fix_random_numbers)) <= limit:
        if not (before.holds_generators or _has_drawn(features.device)):
            # It is not chance: state that is hidden, as in a global, is now what these inputs leave behind.
            return Repetition("changes between calls", difference, seconds=seconds)
        return Repetition("is random", difference, fix_random_numbers, seconds)
    if _difference(fresh, run_after(reset)) <= limit:
        return Repetition("keeps state between calls", difference, reset, seconds)
    return Repetition("changes between calls", difference, seconds=seconds)


def _difference(y: Tensor, other: Tensor) -> float:
    """Return the largest difference relative to the largest output; NaN and infinity equal themselves."""
    if y.shape != other.shape:
        return torch.inf
    same = (y == other) | (y.isnan() & other.isnan())
    change = (y - other).abs().masked_fill(same, 0).nan_to_num(torch.inf)
    if not bool((change > 0).any()):
        return 0.0
    finite = torch.cat([y[y.isfinite()], other[other.isfinite()]]).abs()
    size = float(finite.max()) if finite.numel() else 0.0
    return float(change.max()) / max(size, torch.finfo(y.dtype).tiny)


def _first_not_finite(y: Tensor) -> int | None:
    """Return the first step of (T, B, m) at which a number is NaN or infinite."""
    bad = ~torch.isfinite(y).flatten(1).all(1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


def _has_drawn(device: torch.device) -> bool:
    """True if a number was drawn from a global generator since `_seed`; seeds them anew."""
    drawn = _generator_states(device)
    _seed(device)
    return drawn != _generator_states(device)


def _generator_states(device: torch.device) -> list[Any]:
    """Return the states of the generators that `_seed` seeds, to be compared."""
    of_numpy: Any = np.random.get_state()  # noqa: NPY002
    states = [random.getstate(), of_numpy[1].tobytes(), *of_numpy[2:]]
    states.append(torch.default_generator.get_state().numpy().tobytes())
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device).numpy().tobytes())
    return states


def _seed(device: torch.device) -> None:
    """Seed the global generators that a model may draw from; the caller restores them, see `untouched`."""
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002
    torch.default_generator.manual_seed(SEED)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(SEED)
