"""What is exact of a horizon: which inputs an output depends on, and that gradients do not explode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures import decay
from mnemoscope.scopes._measures.gradients import JacobianNorms, by_inputs
from mnemoscope.scopes._measures.rounding import negligible


def exact_figures(subject: Subject, norms: JacobianNorms, figures: dict[str, float]) -> dict[str, float]:
    """Return the receptive field if it is exact, and no explosion for an output that belongs to the first steps."""
    smallest = float(torch.finfo(subject.dtype).tiny) ** 0.5
    field = decay.receptive_field(norms.frobenius, smallest)
    last = int(figures["lags"])
    by_chance = subject.repetition.kind == "is random"  # other random numbers drop other units
    if by_chance or norms.measured == "changes" or not _is_same_from_all_ends(norms, field):
        field = np.inf
    if np.isfinite(field) and _reads_before(subject, int(last + 1 - field), last):
        field = np.inf
    exact = {"receptive_field": field}
    if figures["explodes_at"] < np.inf and _reads_from_the_front(subject, norms, figures["growth"]):
        exact["explodes_at"] = np.inf
    return exact


def _is_same_from_all_ends(norms: JacobianNorms, field: float) -> bool:
    """True if all output steps that could read as far back as the field do: within blocks each reads as far as it can.

    Then other output steps may read further than these.
    """
    ends = norms.ends.flatten()
    felt = norms.frobenius > 0
    reach = {end: np.flatnonzero(felt[:, ends == end].any(1)).max(initial=-1) for end in set(ends)}
    return all(last == field - 1 for end, last in reach.items() if end >= field and last >= 0)


@torch.no_grad()
def unread_at_end(subject: Subject, norms: JacobianNorms) -> np.ndarray:
    """Return how many of the last inputs the one output of each sequence does not read, if that differs; else nothing.

    That there is no gradient is not enough, as for the largest of all inputs: others in their place change nothing.
    """
    felt = norms.frobenius > 0
    unread = felt.argmax(0)
    if not norms.one_output or len(set(unread)) == 1:
        return np.empty(0, int)
    x = subject.features
    from_end = torch.arange(len(x) - 1, -1, -1)[:, None]
    mask = (from_end < torch.from_numpy(unread)).to(x.device).view(*x.shape[:2], *[1] * (x.dim() - 2))
    y = subject.run(x)
    for move in (3 * x.abs().max(), -3 * x.abs().max()):
        change = (subject.run(torch.where(mask, x + move, x)) - y).abs().max()
        if bool(change > negligible(y.dtype) * y.abs().max()):
            return np.empty(0, int)
    return unread


@torch.no_grad()
def _reads_before(subject: Subject, steps: int, last: int) -> bool:
    """True if the output at a step changes with the first inputs: a detached state is carried on without a gradient."""
    other = subject.features.clone()
    other[:steps] = other[:steps].flip(0) + 1
    y = subject.run(subject.features)
    at = last if len(y) == subject.steps else -1
    change = (subject.run(other)[at] - y[at]).abs().max()
    return bool(change > negligible(y.dtype) * y[at].abs().max())


def _reads_from_the_front(subject: Subject, norms: JacobianNorms, growth: float) -> bool:
    """True if one output per sequence is read off the first steps, so that gradients are small at the last ones.

    Without the last quarter of the steps, the gradient by the first is then the same; one that explodes is smaller.
    """
    with torch.no_grad():
        if len(subject.run(subject.features)) != 1:
            return False
    kept = subject.steps - max(1, subject.steps // 4)
    shorter = replace(subject, adapted=replace(subject.adapted, features=subject.features[:kept]))
    try:
        by_first = decay.typical(by_inputs(shorter).frobenius)[-1]
    except Exception:  # it reads sequences of one length only: it knows where their first step is
        return True
    return bool(decay.typical(norms.frobenius)[-1] < by_first * growth ** (1 / 8))
