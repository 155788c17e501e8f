"""Lyapunov exponents: how fast neighbouring states diverge or converge."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import Recurrence, State, map_state
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.state_vectors import advance, carries_memory, differences, flatten

BLOCKS = 20  # of the run, for the standard error and the running estimate
SMALL = 32  # numbers in a state whose whole spectrum is cheap
WORKSPACE = 2**27  # numbers that the carried directions may take at once

HELP = """
An exponent is the mean logarithm of the factor by which a small difference grows per step, in one
direction. All negative: states converge and the past is forgotten. The largest zero within its
error: the edge, where memory is longest. Positive: gradients explode. If states stay bounded and do
not come to rest this is chaos; else the state diverges, or sits on an unstable fixed point.

The second chart should be level at its right end; if it is not, give longer sequences.
"""


@scope(
    "Do neighbouring states converge, keep their distance or diverge?",
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

    Series: `exponents` (k,), largest first (spread: their standard error over blocks and sequences; identical
    sequences count once, and blocks that resemble the one before count for less);
    `running` (blocks, k), the estimates as the run went on, after `running_steps` steps.
    Figures: `largest`, its `standard_error`, `kaplan_yorke`, the attractor's dimension (NaN if too few exponents were
    asked for), `horizon_of_prediction`, steps after which the digits of the dtype are used up, and `steps`.
    Labels: `regime`, contractive, edge, chaotic, diverging or unstable fixed point (the run itself grows without bound,
    or does not move); for a layer with a memory, that of the recurrence beside it.

    Args:
        exponents: how many, from the largest; by default the whole spectrum of a small state, 16 of a large one.
        steps: how long to run; shorter inputs are repeated. The length of the inputs by default.
        discard: steps before counting starts, for state and directions to settle; a tenth by default.
        sequences: of the batch, at most.
    """
    if steps is None:
        steps = subject.steps
    if discard is None:
        discard = steps // 10
    if not 0 <= discard < steps:
        raise MnemoscopeError(f"lyapunov needs steps > discard >= 0; got steps={steps}, discard={discard}")
    size = flatten(subject.recurrence.initial_state(subject.batch)).shape[1]
    count = exponents
    if count is None:
        count = size if size <= SMALL else 16
    if not 1 <= count <= size:
        raise MnemoscopeError(f"exponents must lie between 1 and the state's size {size}; got {exponents!r}")
    x = subject.recurrence_inputs[:, :sequences]
    block_means, orbit = _block_means(subject, x, count, steps, discard)
    return _finding(subject, block_means, orbit, steps, discard, size)


@dataclass(frozen=True)
class Orbit:
    """How the state itself moved: its size, and the length of its steps, (steps, B)."""

    sizes: Tensor
    moves: Tensor

    def is_at_rest(self, dtype: torch.dtype) -> bool:
        """True if no state moves in the second half, up to rounding."""
        half = len(self.sizes) // 2
        return bool((self.moves[half:] <= 100 * torch.finfo(dtype).eps * self.sizes[half:]).all())

    def different_sequences(self) -> list[int]:
        """Return the numbers of the sequences without those whose states are as long, at every step, as another's."""
        different: list[int] = []
        for b, sizes in enumerate(self.sizes.unbind(1)):
            if not any(torch.allclose(sizes, self.sizes[:, other], rtol=1e-6, atol=1e-12) for other in different):
                different.append(b)
        return different

    def growth(self) -> float:
        """Return the mean growth of ln ||state|| per step over the second half, the median of the sequences."""
        half = len(self.sizes) // 2
        logs = self.sizes.clamp(min=1e-300).log()
        return float(((logs[-1] - logs[half]) / max(1, len(logs) - 1 - half)).median())


@torch.no_grad()
def _block_means(subject: Subject, x: Tensor, count: int, steps: int, discard: int) -> tuple[Tensor, Orbit]:
    """Return the mean logarithms of R's diagonal over blocks of the run, (blocks, B, k), and how the state moved."""
    # Random orthonormal directions at the initial state.
    recurrence = subject.recurrence
    batch = x.shape[1]
    state = recurrence.initial_state(batch)
    vector = flatten(state)
    size = vector.shape[1]
    frame = torch.randn(batch, size, count, generator=subject.generator(), dtype=torch.float64)
    frame = torch.linalg.qr(frame).Q.to(vector)  # (B, N, k)
    chunk = max(1, WORKSPACE // (batch * size * 16))

    # Carried from step to step and made orthonormal again.
    block_ends = _block_ends(steps - discard, min(BLOCKS, steps - discard))
    means = []
    total = torch.zeros(batch, count, dtype=torch.float64)
    counted = 0
    sizes, moves = [], []
    for t in range(steps):
        before = vector
        state, carried = push_forward(recurrence, x[t % len(x)], state, frame.permute(2, 0, 1), chunk)
        _check_finite(carried, t + 1)
        vector = flatten(state)
        sizes.append(vector.norm(dim=1).double().cpu())
        moves.append((vector - before).norm(dim=1).double().cpu())
        frame, upper = torch.linalg.qr(carried.permute(1, 2, 0))
        if t >= discard:
            diagonal = upper.diagonal(dim1=-2, dim2=-1).abs().double().cpu()
            total += torch.log(diagonal.clamp(min=1e-300))
            counted += 1
        if t - discard + 1 in block_ends:
            means.append(total / counted)
            total = torch.zeros_like(total)
            counted = 0
        subject.report((t + 1) / steps, f"step {t + 1} of {steps}")
    return torch.stack(means), Orbit(torch.stack(sizes), torch.stack(moves))


def _block_ends(steps: int, blocks: int) -> np.ndarray:
    """Return the last step of each of the nearly equal blocks, (blocks,)."""
    return np.linspace(0, steps, blocks + 1).astype(int)[1:]


def push_forward(
    recurrence: Recurrence, x: Tensor, state: State, directions: Tensor, chunk: int
) -> tuple[State, Tensor]:
    """Return the state after a step, and the directions (k, B, N) times the step's Jacobian."""
    carried = [_push_forward(recurrence, x, state, part) for part in directions.split(chunk)]
    return recurrence.step(x, state)[1], torch.cat(carried)


def _push_forward(recurrence: Recurrence, x: Tensor, state: State, directions: Tensor) -> Tensor:
    """Differentiate one step in forward mode on a copy of the batch per direction: cheaper than vmap."""
    copies, batch, _ = directions.shape
    like = map_state(lambda t: torch.cat([t] * copies, 1), state)
    with forward_ad.dual_level():
        point = forward_ad.make_dual(flatten(state).repeat(copies, 1), directions.reshape(copies * batch, -1))
        tangent = forward_ad.unpack_dual(advance(recurrence, x.repeat(copies, 1), point, like)).tangent
    if tangent is None or not bool(tangent.any()):
        return differences(recurrence, x, state, directions)
    return tangent.view_as(directions)


def rounding_warnings(subject: Subject) -> tuple[str, ...]:
    """Return a warning if rounding errors grow to the size of the state within the sequences; nothing without a step.

    From the largest exponent along one sequence: a cost over that many steps is then noise.
    """
    if subject.missing("step"):
        return ()
    try:
        block_means, _ = _block_means(subject, subject.recurrence_inputs[:, :1], 1, len(subject.recurrence_inputs), 0)
    except MnemoscopeError:  # the state is NaN or infinite: the cost itself says so
        return ()
    largest = block_means.mean().item()
    digits = -math.log(torch.finfo(subject.dtype).eps)
    if largest * subject.steps <= digits:
        return ()
    name = str(subject.dtype).removeprefix("torch.")
    return (
        f"rounding errors in {name} grow to the size of the state within {digits / largest:.0f} of {subject.steps} "
        "steps: the cost is partly noise; use float64 or shorter sequences",
    )


def _check_finite(carried: Tensor, steps: int) -> None:
    if not bool(carried.isfinite().all()):
        raise MnemoscopeError(
            f"after {steps} steps the state is NaN or infinite: give shorter or smaller inputs, or float64"
        )


def _finding(subject: Subject, block_means: Tensor, orbit: Orbit, steps: int, discard: int, size: int) -> Finding:
    # The spectrum: means over the run, weighted by the lengths of the blocks, and over sequences.
    ends = _block_ends(steps - discard, len(block_means))
    lengths = np.diff(ends, prepend=0)
    weight = torch.from_numpy(lengths / lengths.sum()).view(-1, 1, 1)
    spectrum = (block_means * weight).sum(0).mean(0)  # (k,)
    order = torch.argsort(spectrum, descending=True)
    spectrum = spectrum[order]
    block_means = block_means[..., order]

    # Its standard error over blocks and sequences, and the estimates as the run went on.
    error = standard_error(block_means[:, orbit.different_sequences()])
    sums = torch.cumsum(block_means.mean(1) * torch.from_numpy(lengths).view(-1, 1), 0)
    running = sums / torch.from_numpy(ends).view(-1, 1)

    # In words.
    largest, largest_error = spectrum[0].item(), error[0].item()
    regime = _regime(largest, largest_error, orbit, subject.dtype)
    has_memory = carries_memory(subject.recurrence.initial_state(1))
    beside = " beside its memory" if has_memory else ""
    predictable = -math.log(torch.finfo(subject.dtype).eps) / largest if largest > 0 else math.inf
    assumptions = ["the run is long enough for the mean to settle: see the running estimates"]
    if has_memory:
        assumptions.append("states in memory are constant: the exponents are those of the recurrence beside them")
    return Finding(
        "lyapunov",
        _sentence(regime, beside, largest, largest_error),
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


def standard_error(block_means: Tensor) -> Tensor:
    """Return the standard error (k,) of the mean of (blocks, B, k) over blocks and sequences; NaN from a single block.

    Blocks that are correlated with the one before by rho count for (1 - rho) / (1 + rho) of a block each. If three or
    more sequences differ by more than twice what their blocks explain, their own spread is taken.
    """
    blocks, sequences = block_means.shape[:2]
    if blocks < 2:
        return torch.full_like(block_means[0, 0], torch.nan)
    deviation = block_means - block_means.mean(0)
    variance = deviation.square().sum(0) / (blocks - 1)  # (sequences, k)
    covariance = (deviation[1:] * deviation[:-1]).sum(0) / (blocks - 1)
    rho = (covariance.mean(0) / variance.mean(0).clamp(min=1e-300)).clamp(0.0, 0.95)
    effective = blocks * sequences * (1 - rho) / (1 + rho)
    error = (variance.mean(0) / effective).sqrt()
    if sequences < 3:
        return error
    of_sequences = block_means.mean(0).std(0) / math.sqrt(sequences)
    return torch.where(of_sequences > 2 * error, of_sequences, error)


def _regime(largest: float, error: float, orbit: Orbit, dtype: torch.dtype) -> str:
    """Return contractive, edge, chaotic, diverging or unstable fixed point; within two standard errors of 0, edge."""
    rounding = 100 * torch.finfo(dtype).eps
    margin = rounding if math.isnan(error) else max(2 * error, rounding)
    if abs(largest) <= margin:
        return "edge"
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


def _sentence(regime: str, beside: str, largest: float, error: float) -> str:
    figure = f"largest exponent {largest:.3g}"
    if not math.isnan(error):
        figure += f" ± {2 * error:.1g}"
    if regime == "contractive":
        halved = math.log(2) / -largest
        return f"Contractive{beside}: the distance of neighbouring states halves every {halved:.3g} steps ({figure})."
    if regime == "chaotic":
        doubled = math.log(2) / largest
        return f"Chaotic{beside}: the distance of neighbouring states doubles every {doubled:.3g} steps ({figure})."
    if regime == "diverging":
        grown = math.exp(largest)
        return f"Diverging{beside}: states grow without bound, about {grown:.3g} times per step ({figure})."
    if regime == "unstable fixed point":
        doubled = math.log(2) / largest
        return (
            f"On an unstable fixed point{beside}: the state does not move, but a small disturbance doubles every "
            f"{doubled:.3g} steps ({figure})."
        )
    return f"At the edge{beside}: neighbouring states neither converge nor diverge ({figure})."


def _warnings(subject: Subject, regime: str, predictable: float) -> tuple[str, ...]:
    if regime == "diverging":
        return ("the state grows without bound: scale the recurrent weights down, or use a stable layer",)
    if regime == "unstable fixed point":
        return ("the run stays on an unstable fixed point: give inputs or a start that leave it",)
    if regime != "chaotic" or predictable > subject.steps:
        return ()
    name = str(subject.dtype).removeprefix("torch.")
    return (
        f"after {predictable:.0f} steps rounding errors in {name} have grown to the size of the state itself: results "
        f"over {subject.steps} steps mean nothing; use float64 or shorter sequences",
    )
