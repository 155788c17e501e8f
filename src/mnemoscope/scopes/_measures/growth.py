"""Growth of small differences along a run: what `lyapunov` reports, and others warn of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence, State, map_state
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.state_vectors import (
    advance,
    differences,
    flatten,
    jacobians,
    passes_gradient,
    state_not_finite,
)

BLOCKS = 20  # of the run, for the standard error and the running estimate
WORKSPACE = 2**27  # numbers that the carried directions may take at once


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
def block_means(
    subject: Subject, x: Tensor, count: int, steps: int, discard: int, *, by_differences: bool = False
) -> tuple[Tensor, Orbit]:
    """Return the mean logarithms of R's diagonal over blocks of the run, (blocks, B, k), and how the state moved.

    By differences of states if that is asked for, or if the first counted step does not pass its whole gradient.
    """
    # Random orthonormal directions at the initial state.
    recurrence = subject.recurrence
    batch = x.shape[1]
    state = recurrence.initial_state(batch)
    vector = flatten(state)
    _check_finite(vector, 0)
    size = vector.shape[1]
    frame = torch.randn(batch, size, count, generator=subject.generator(), dtype=torch.float64)
    frame = torch.linalg.qr(frame).Q.to(vector)  # (B, N, k)
    chunk = max(1, WORKSPACE // (batch * size * 16))

    # Carried from step to step and made orthonormal again.
    ends = block_ends(steps - discard, min(BLOCKS, steps - discard))
    means = []
    total = torch.zeros(batch, count, dtype=torch.float64)
    counted = 0
    sizes, moves = [], []
    for t in range(steps):
        x_t, before, state_before = x[t % len(x)], vector, state
        directions = frame.permute(2, 0, 1)
        state, carried = push_forward(recurrence, x_t, state, directions, chunk, by_differences)
        if t == discard and not by_differences:
            passed = passes_gradient(recurrence, x_t, state_before, directions[0], carried[0])
            if not bool(passed.any()):
                return block_means(subject, x, count, steps, discard, by_differences=True)
        vector = flatten(state)
        _check_finite(carried, t + 1)
        _check_finite(vector, t + 1)
        sizes.append(vector.double().norm(dim=1).cpu())
        moves.append((vector.double() - before).norm(dim=1).cpu())
        frame, upper = torch.linalg.qr(carried.permute(1, 2, 0))
        if t >= discard:
            diagonal = upper.diagonal(dim1=-2, dim2=-1).abs().double().cpu()
            total += torch.log(diagonal)  # -infinity if a step makes states equal
            counted += 1
        if t - discard + 1 in ends:
            means.append(total / counted)
            total = torch.zeros_like(total)
            counted = 0
        subject.report((t + 1) / steps, f"step {t + 1} of {steps}")
    found = torch.stack(means)
    ended = found.isneginf().any(0)  # (B, k)
    if bool((ended.any(1) & ~ended.all(1)).any()):
        found[:, _forget_all(subject, x, steps)] = -torch.inf
    return found, Orbit(torch.stack(sizes), torch.stack(moves))


def _forget_all(subject: Subject, x: Tensor, steps: int) -> Tensor:
    """Return (B,), True where steps make a random direction zero, within as many as there are numbers in a state.

    Then nothing is left of any direction, as in a shift register, although QR goes on: in place of those that have
    ended it puts arbitrary ones. The direction is carried without QR, whose rounding would end one on its own.
    """
    recurrence = subject.recurrence
    state = recurrence.initial_state(x.shape[1])
    size = flatten(state).shape[1]
    found = torch.zeros(x.shape[1], dtype=torch.bool)
    generator = subject.generator()
    for t in range(steps):
        if t % size == 0:
            carried = torch.randn(1, x.shape[1], size, generator=generator, dtype=torch.float64).to(flatten(state))
        state, carried = push_forward(recurrence, x[t % len(x)], state, carried, 1)
        largest = carried.abs().amax(-1, keepdim=True)
        found |= (largest == 0).flatten().cpu()
        carried = carried / largest.where(largest > 0, 1)
    return found


def block_ends(steps: int, blocks: int) -> np.ndarray:
    """Return the last step of each of the nearly equal blocks, (blocks,)."""
    return np.linspace(0, steps, blocks + 1).astype(int)[1:]


def push_forward(
    recurrence: Recurrence, x: Tensor, state: State, directions: Tensor, chunk: int, by_differences: bool = False
) -> tuple[State, Tensor]:
    """Return the state after a step, and the directions (k, B, N) times the step's Jacobian."""
    carry = differences if by_differences else _push_forward
    carried = [carry(recurrence, x, state, part) for part in directions.split(chunk)]
    return recurrence.step(x, state)[1], torch.cat(carried)


def _push_forward(recurrence: Recurrence, x: Tensor, state: State, directions: Tensor) -> Tensor:
    """Differentiate one step in forward mode on a copy of the batch per direction: cheaper than vmap.

    A user's own function, as of a surrogate gradient, may have a backward pass alone: then by the whole Jacobian.
    """
    copies, batch, _ = directions.shape
    like = map_state(lambda t: torch.cat([t] * copies, 1), state)
    try:
        with forward_ad.dual_level():
            point = forward_ad.make_dual(flatten(state).repeat(copies, 1), directions.reshape(copies * batch, -1))
            tangent = forward_ad.unpack_dual(advance(recurrence, x.repeat(copies, 1), point, like)).tangent
    except NotImplementedError:
        with torch.enable_grad():
            matrices = jacobians(recurrence, x, state)
        return torch.einsum("bij,kbj->kbi", matrices, directions)
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
        means, _ = block_means(subject, subject.recurrence_inputs[:, :1], 1, len(subject.recurrence_inputs), 0)
    except MnemoscopeError:  # the state is NaN or infinite: the cost itself says so
        return ()
    largest = means.mean().item()
    digits = -math.log(torch.finfo(subject.dtype).eps)
    if largest * subject.steps <= digits:
        return ()
    name = str(subject.dtype).removeprefix("torch.")
    return (
        f"rounding errors in {name} grow to the size of the state within {digits / largest:.0f} of {subject.steps} "
        f"steps: the cost is partly noise; {against_rounding(subject.dtype)}",
    )


def against_rounding(dtype: torch.dtype) -> str:
    """What to do where rounding errors grow too large: more digits, if there are any."""
    return "use shorter sequences" if dtype == torch.float64 else "use float64 or shorter sequences"


def _check_finite(numbers: Tensor, steps: int) -> None:
    if not bool(numbers.isfinite().all()):
        raise state_not_finite(steps)


def standard_error(means: Tensor) -> Tensor:
    """Return the standard error (k,) of the mean of (blocks, B, k) over blocks and sequences; NaN from a single block.

    Blocks that are correlated with the one before by rho count for (1 - rho) / (1 + rho) of a block each. If three or
    more sequences differ by more than twice what their blocks explain, their own spread is taken. If the later half of
    the run lies further from the mean than that, the mean has not settled, and the distance is taken: where the rate
    settles like 1 / t, as that of a Jordan block, the mean is 2.1 distances away from its limit.
    """
    blocks, sequences = means.shape[:2]
    if blocks < 2:
        return torch.full_like(means[0, 0], torch.nan)
    deviation = means - means.mean(0)
    variance = deviation.square().sum(0) / (blocks - 1)  # (sequences, k)
    covariance = (deviation[1:] * deviation[:-1]).sum(0) / (blocks - 1)
    rho = (covariance.mean(0) / variance.mean(0).clamp(min=1e-300)).clamp(0.0, 0.95)
    effective = blocks * sequences * (1 - rho) / (1 + rho)
    error = (variance.mean(0) / effective).sqrt()
    if sequences >= 3:
        of_sequences = means.mean(0).std(0) / math.sqrt(sequences)
        error = torch.where(of_sequences > 2 * error, of_sequences, error)
    drift = (means[-(blocks // 2) :].mean((0, 1)) - means.mean((0, 1))).abs()
    return torch.maximum(error, 1.1 * drift)  # so that two errors cover 2.1 distances
