"""Lyapunov exponents: how fast neighbouring states part, or meet."""

from __future__ import annotations

import math

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

BLOCKS = 20  # in which the run is cut, for the standard error and the running estimate
SMALL = 32  # numbers in a state whose whole spectrum is cheap
WORKSPACE = 2**27  # numbers that the carried directions may take at once

HELP = """
An exponent is the mean logarithm, a step, by which a small difference grows in one direction. All
negative: states meet and the past is forgotten. The largest about zero: the edge, where memory is
longest. Positive: chaos, and gradients explode.

The second chart should be level at its right end; if it is not, give longer sequences.
"""


@scope(
    "Do neighbouring states meet, stay or part?",
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
    """The Lyapunov spectrum along the given inputs, by QR of carried directions (Benettin's method).

    Orthonormal directions are carried through each step's Jacobian, by Jacobian-vector products and never by the
    Jacobian itself, and orthonormalised again; the mean logarithms of the diagonal of R are the exponents.

    Series: `exponents` (k,), largest first (spread: their standard error over blocks and sequences);
    `running` (blocks, k), the estimates as the run went on, after `running_steps` steps.
    Figures: `largest`, its `standard_error`, `kaplan_yorke`, the attractor's dimension (nan where too few exponents
    were asked for), `horizon_of_prediction`, steps after which the number format's digits are used up, and `steps`.
    Labels: `regime`, contractive, edge or chaotic; of a layer with a memory, that of the recurrence beside it.

    Args:
        exponents: how many, from the largest; by default the whole spectrum of a small state, 16 of a large one.
        steps: how long to run; the inputs are repeated where they are shorter. Their own length by default.
        discard: steps before counting starts, for state and directions to settle; a tenth by default.
        sequences: of the batch, at most.
    """
    steps = subject.steps if steps is None else steps
    discard = steps // 10 if discard is None else discard
    if not 0 <= discard < steps:
        raise MnemoscopeError(f"lyapunov needs steps > discard >= 0; got steps={steps}, discard={discard}")
    size = flatten(subject.recurrence.initial_state(subject.batch)).shape[1]
    count = (size if size <= SMALL else 16) if exponents is None else exponents
    if not 1 <= count <= size:
        raise MnemoscopeError(f"exponents must lie between 1 and the state's size {size}; got {exponents!r}")
    x = subject.recurrence_inputs[:, :sequences]
    logs = _carry(subject, x, count, steps, discard)  # (blocks, B, k) means over blocks
    return _finding(subject, logs, steps, discard, size)


@torch.no_grad()
def _carry(subject: Subject, x: Tensor, count: int, steps: int, discard: int) -> Tensor:
    recurrence, batch = subject.recurrence, x.shape[1]
    state = recurrence.initial_state(batch)
    size = flatten(state).shape[1]
    frame = torch.randn(batch, size, count, generator=subject.generator(), dtype=torch.float64)
    frame = torch.linalg.qr(frame).Q.to(flatten(state))  # (B, N, k)
    chunk = max(1, WORKSPACE // (batch * size * 16))
    edges = np.linspace(0, steps - discard, min(BLOCKS, steps - discard) + 1).astype(int)[1:]
    blocks, total, counted = [], torch.zeros(batch, count, dtype=torch.float64), 0
    for t in range(steps):
        state, carried = push(recurrence, x[t % len(x)], state, frame.permute(2, 0, 1), chunk)
        _check_finite(carried, t + 1)
        frame, upper = torch.linalg.qr(carried.permute(1, 2, 0))
        if t >= discard:
            diagonal = upper.diagonal(dim1=-2, dim2=-1).abs().double().cpu()
            total += torch.log(diagonal.clamp(min=1e-300))
            counted += 1
        if t - discard + 1 in edges:
            blocks.append(total / counted)
            total, counted = torch.zeros_like(total), 0
        subject.report((t + 1) / steps, f"step {t + 1} of {steps}")
    return torch.stack(blocks)


def push(recurrence: Recurrence, x: Tensor, state: State, directions: Tensor, chunk: int) -> tuple[State, Tensor]:
    """The state after a step, and each direction (k, B, N) carried through the step's Jacobian."""
    carried = [_push(recurrence, x, state, part) for part in directions.split(chunk)]
    return recurrence.step(x, state)[1], torch.cat(carried)


def _push(recurrence: Recurrence, x: Tensor, state: State, directions: Tensor) -> Tensor:
    """Forward-mode differentiation of one step on a copy of the batch for each direction: cheaper than mapping over."""
    copies, batch, _ = directions.shape
    like = map_state(lambda t: torch.cat([t] * copies, 1), state)
    with forward_ad.dual_level():
        point = forward_ad.make_dual(flatten(state).repeat(copies, 1), directions.reshape(copies * batch, -1))
        tangent = forward_ad.unpack_dual(advance(recurrence, x.repeat(copies, 1), point, like)).tangent
    if tangent is None or not bool(tangent.any()):
        return differences(recurrence, x, state, directions)
    return tangent.view_as(directions)


def _check_finite(carried: Tensor, steps: int) -> None:
    if not bool(carried.isfinite().all()):
        raise MnemoscopeError(
            f"after {steps} steps the state is NaN or infinite: give shorter or smaller inputs, or float64"
        )


def _finding(subject: Subject, logs: Tensor, steps: int, discard: int, size: int) -> Finding:
    lengths = np.diff(np.linspace(0, steps - discard, len(logs) + 1).astype(int))
    weight = torch.from_numpy(lengths / lengths.sum()).view(-1, 1, 1)
    spectrum = (logs * weight).sum(0).mean(0)  # (k,)
    order = torch.argsort(spectrum, descending=True)
    spectrum, logs = spectrum[order], logs[..., order]
    samples = logs.flatten(0, 1)
    error = samples.std(0) / math.sqrt(len(samples)) if len(samples) > 1 else torch.full_like(spectrum, torch.nan)
    shares = torch.from_numpy(np.cumsum(lengths)).view(-1, 1)
    running = torch.cumsum(logs.mean(1) * torch.from_numpy(lengths).view(-1, 1), 0) / shares
    largest, deviation = spectrum[0].item(), error[0].item()
    regime = _regime(largest, deviation, steps - discard)
    beside = " beside its memory" if carries_memory(subject.recurrence.initial_state(1)) else ""
    predictable = -math.log(torch.finfo(subject.dtype).eps) / largest if largest > 0 else math.inf
    figures = {
        "largest": largest, "standard_error": deviation, "kaplan_yorke": kaplan_yorke(spectrum.numpy(), size),
        "horizon_of_prediction": predictable, "steps": float(steps),
    }  # fmt: skip
    return Finding(
        "lyapunov", _sentence(regime, beside, largest, deviation), "estimated", figures=figures,
        series=arrays(exponents=spectrum, running=running, running_steps=discard + np.cumsum(lengths)),
        spread=arrays(exponents=error), labels={"regime": regime + beside},
        warnings=_warnings(subject, regime, predictable), assumptions=_assumptions(subject),
        method=f"QR of {len(spectrum)} directions carried through {steps} steps, the first {discard} not counted",
    )  # fmt: skip


def _assumptions(subject: Subject) -> tuple[str, ...]:
    settled = "the run is long enough for the mean to settle: see the running estimates"
    if carries_memory(subject.recurrence.initial_state(1)):
        return settled, "states held in memory stay as they are: the exponents are those of the recurrence beside them"
    return (settled,)


def _regime(largest: float, error: float, steps: int) -> str:
    margin = 2 * (0.0 if math.isnan(error) else error) + 1 / steps
    return "edge" if abs(largest) <= margin else "chaotic" if largest > 0 else "contractive"


def kaplan_yorke(exponents: np.ndarray, size: int) -> float:
    """The dimension of the attractor: j + (sum of the first j exponents) / |exponent j+1|, j the last with a sum >= 0.

    nan where every sum of the exponents at hand is non-negative and there are more that are not known.
    """
    sums = np.cumsum(exponents)
    if sums[-1] >= 0:
        return float(size) if len(exponents) == size else math.nan
    j = int(np.argmax(sums < 0))
    before = sums[j - 1] if j else 0.0
    return j + before / abs(exponents[j])


def _sentence(regime: str, beside: str, largest: float, error: float) -> str:
    figure = f"largest exponent {largest:.3g}" + ("" if math.isnan(error) else f" ± {2 * error:.1g}")
    match regime:
        case "contractive":
            halved = math.log(2) / -largest
            return f"Contractive{beside}: neighbouring states halve their distance every {halved:.3g} steps ({figure})."
        case "chaotic":
            doubled = math.log(2) / largest
            return f"Chaotic{beside}: neighbouring states double their distance every {doubled:.3g} steps ({figure})."
    return f"At the edge{beside}: neighbouring states neither meet nor part ({figure})."


def _warnings(subject: Subject, regime: str, predictable: float) -> tuple[str, ...]:
    if regime != "chaotic" or predictable > subject.steps:
        return ()
    name = str(subject.dtype).removeprefix("torch.")
    return (
        f"after {predictable:.0f} steps rounding in {name} has grown to the size of the state itself: results over "
        f"{subject.steps} steps mean nothing; use float64 or shorter sequences",
    )
