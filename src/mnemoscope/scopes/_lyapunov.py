"""Lyapunov exponents: how fast neighboring states diverge or converge."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError, check_count
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.growth import Orbit, against_rounding, block_ends, block_means, standard_error
from mnemoscope.scopes._measures.state_vectors import carries_memory, flatten
from mnemoscope.wording import counted, with_error

SMALL = 32  # numbers in a state whose whole spectrum is cheap
ENOUGH_FOR_CHAOS = 20  # steps along which states move apart; over fewer they may still come together again
UNSURE = 0.05  # two standard errors, above which an exponent of about zero is not known well enough

HELP = """
An exponent is the mean logarithm of the factor by which a small difference grows per step, in one
direction. All negative: states converge and the past is forgotten. The largest zero within its
error: marginally stable, where memory is longest. Positive: gradients explode. If states stay bounded and do
not come to rest this is chaos; else the state diverges, or sits on an unstable fixed point.

The second chart should be level at its right end; if it is not, give longer sequences.
"""


@scope(
    "Do neighboring states converge, keep their distance or diverge?",
    title="Lyapunov exponents",
    help=HELP,
    needs="step",
    cost=50,
)
def lyapunov(
    subject: Subject,
    *,
    exponents: int | None = None,
    steps: int | None = None,
    discard: int | None = None,
    sequences: int = 4,
) -> Finding:
    """Measure the Lyapunov spectrum along the given inputs, by QR of carried directions (Benettin's method).

    Orthonormal directions are multiplied by each step's Jacobian, by Jacobian-vector products and never by the
    Jacobian itself, and orthonormalized again. The mean logarithms of the diagonal of R are the exponents.

    Sequences in which a step makes all states equal, as where all units are off, are left out if there are others.

    Series: `exponents` (k,), largest first (spread: their standard error over blocks and sequences; identical
    sequences count once, blocks that resemble the one before count for less, and a mean that has not settled has the
    error of its drift);
    `running` (blocks, k), the estimates as the run went on, after `running_steps` steps.
    Figures: `largest`, its `standard_error`, `kaplan_yorke`, the attractor's dimension (NaN if too few exponents were
    asked for), `horizon_of_prediction`, steps after which the digits of the dtype are used up, and `steps`.
    Labels: `regime`, contractive, marginally stable, chaotic, diverging or unstable fixed point (the run itself grows
    without bound, or does not move), expanding (the run is too short to call it chaotic), unclear (too short to tell
    any of these); for a layer with a memory, that of the recurrence beside it.

    Args:
        exponents: how many, from the largest; by default the whole spectrum of a small state, 16 of a large one.
        steps: how long to run; shorter inputs are repeated. The length of the inputs by default.
        discard: steps before counting starts, for state and directions to settle; a tenth by default.
        sequences: of the batch, at most.
    """
    check_count("sequences", sequences)
    if steps is None:
        subject.check_steps(2)
        steps = subject.steps
    check_count("steps", steps)
    if discard is None:
        discard = steps // 10
    check_count("discard", discard, 0)
    if not 0 <= discard <= steps - 2:
        raise MnemoscopeError(
            f"discard must be at least 0, with at least 2 more steps; got steps={steps}, discard={discard}"
        )
    size = flatten(subject.recurrence.initial_state(subject.batch)).shape[1]
    count = exponents
    if count is None:
        count = size if size <= SMALL else 16
    check_count("exponents", count)
    if not 1 <= count <= size:
        raise MnemoscopeError(f"exponents must lie between 1 and the state's size {size}; got {exponents!r}")
    x = subject.recurrence_inputs[:, :sequences]
    means, orbit = block_means(subject, x, count, steps, discard)
    return _finding(subject, means, orbit, steps, discard, size)


def _finding(subject: Subject, means: Tensor, orbit: Orbit, steps: int, discard: int, size: int) -> Finding:
    # Directions that a step has made zero come last in their own sequence. One without any other has the exponent
    # -infinity: it is left out if there are others.
    ended = means.isneginf().any(0)  # (B, k)
    means = means.gather(2, torch.argsort(ended.int(), dim=1, stable=True).expand_as(means))
    alive = ~ended.all(1)
    if bool(alive.any()):
        means = means[:, alive]
        orbit = Orbit(orbit.sizes[:, alive], orbit.moves[:, alive])

    # The spectrum: means over the run, weighted by the lengths of the blocks, and over sequences.
    ends = block_ends(steps - discard, len(means))
    lengths = np.diff(ends, prepend=0)
    weight = torch.from_numpy(lengths / lengths.sum()).view(-1, 1, 1)
    spectrum = (means * weight).sum(0).mean(0)  # (k,)
    order = torch.argsort(spectrum, descending=True)
    spectrum = spectrum[order]
    means = means[..., order]

    # Its standard error over blocks and sequences, and the estimates as the run went on.
    error = standard_error(means[:, orbit.different_sequences()])
    sums = torch.cumsum(means.mean(1) * torch.from_numpy(lengths).view(-1, 1), 0)
    running = sums / torch.from_numpy(ends).view(-1, 1)

    # In words.
    largest, largest_error = spectrum[0].item(), error[0].item()
    regime = _regime(largest, largest_error, orbit, subject.recurrence_inputs.dtype)
    if regime == "chaotic" and steps - discard < ENOUGH_FOR_CHAOS:
        regime = "expanding"
    has_memory = carries_memory(subject.recurrence.initial_state(1))
    beside = " between remembered states" if has_memory else ""
    predictable = -math.log(torch.finfo(subject.dtype).eps) / largest if largest > 0 else math.inf
    assumptions = ["the run is long enough for the mean to settle: see the running estimates"]
    if has_memory:
        assumptions.append("remembered states are constant: the exponents are those of the recurrence between them")
    return Finding(
        "lyapunov",
        _sentence(regime, beside + subject.in_layer, largest, largest_error, steps - discard) + _left_out(alive),
        "estimated",
        figures={
            "largest": largest,
            "standard_error": largest_error,
            "kaplan_yorke": kaplan_yorke(spectrum.numpy(), size),
            "horizon_of_prediction": predictable,
            "steps": float(steps),
        },
        series=arrays(exponents=spectrum, running=running, running_steps=discard + ends),
        spread=arrays(exponents=error),
        labels={"regime": regime + beside},
        warnings=_warnings(subject, regime, predictable),
        assumptions=tuple(assumptions),
        method=f"QR of {len(spectrum)} directions carried through {steps} steps, the first {discard} not counted",
    )


def _regime(largest: float, error: float, orbit: Orbit, dtype: torch.dtype) -> str:
    """Return contractive, marginally stable, chaotic, diverging or unstable fixed point.

    Within two standard errors of 0 it is marginally stable; unclear if the error itself is large. So it is within the
    rounding of float32, from which the weights of a model in float64 may come: an orthogonal matrix is one up to that.
    """
    rounding = 100 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    margin = rounding if math.isnan(error) else max(2 * error, rounding)
    if abs(largest) <= margin:
        return "unclear" if 2 * error > UNSURE else "marginally stable"
    if largest < 0:
        return "contractive"
    if orbit.is_at_rest(dtype):
        return "unstable fixed point"
    return "diverging" if orbit.growth() > largest / 2 else "chaotic"


def kaplan_yorke(exponents: np.ndarray, size: int) -> float:
    """Return the attractor's dimension: j + (sum of the first j exponents) / |exponent j+1|.

    j is the last number for which that sum is not negative.
    NaN if all sums of the known exponents are non-negative and there are more exponents that are not known.
    """
    sums = np.cumsum(exponents)
    if sums[-1] >= 0:
        return float(size) if len(exponents) == size else math.nan
    j = int(np.argmax(sums < 0))
    before = sums[j - 1] if j else 0.0
    return j + before / abs(exponents[j])


def _sentence(regime: str, beside: str, largest: float, error: float, steps: int) -> str:
    figure = f"largest exponent {'-infinity' if largest == -math.inf else with_error(largest, 2 * error)}"
    if largest == -math.inf:
        return f"Contractive{beside}: neighboring states become equal to the last digit along the run ({figure})."
    if regime == "contractive":
        return f"Contractive{beside}: the distance of neighboring states {_pace(largest)} ({figure})."
    if regime == "chaotic":
        return f"Chaotic{beside}: the distance of neighboring states {_pace(largest)} ({figure})."
    if regime == "expanding":
        apart = f"Expanding{beside}: the distance of neighboring states {_pace(largest)} along {counted(steps, 'step')}"
        return f"{apart}, which are too few to call it chaos ({figure})."
    if regime == "diverging":
        apart = f"the distance of neighboring ones {_pace(largest)}"
        return f"Diverging{beside}: states grow without bound, and {apart} ({figure})."
    if regime == "unstable fixed point":
        still = f"On an unstable fixed point{beside}: the state does not move"
        return f"{still}, but a small disturbance {_pace(largest)} ({figure})."
    if regime == "unclear":
        return f"Too short to tell if neighboring states converge or diverge{beside}: both are possible ({figure})."
    return f"Marginally stable{beside}: neighboring states neither converge nor diverge ({figure})."


def _left_out(alive: Tensor) -> str:
    """Say in how many sequences states become equal, if that was left out; `alive` (B,) are the others."""
    if not bool(alive.any()) or bool(alive.all()):
        return ""
    return f" Left out: {int((~alive).sum())} of {len(alive)} sequences, where a step makes all states equal."


def _pace(exponent: float) -> str:
    """Say how fast exp(exponent * steps) changes: by the step, or by the steps to its half or double if it is slow."""
    steps = math.log(2) / abs(exponent)
    if steps < 2:
        return f"is multiplied by {math.exp(exponent):.2g} at every step"
    return f"{'halves' if exponent < 0 else 'doubles'} every {counted(steps, 'step')}"


def _warnings(subject: Subject, regime: str, predictable: float) -> tuple[str, ...]:
    if regime == "diverging":
        return ("the state grows without bound: scale the recurrent weights down, or use a stable layer",)
    if regime == "unstable fixed point":
        return ("the run stays on an unstable fixed point: give inputs or a start that leave it",)
    if regime != "chaotic" or predictable > subject.steps:
        return ()
    name = str(subject.dtype).removeprefix("torch.")
    return (
        f"after {predictable:.0f} steps rounding errors in {name} have grown to the size of the state itself: states "
        "after that are not those of exact arithmetic, and only averages over them hold; "
        f"{against_rounding(subject.dtype)}",
    )
