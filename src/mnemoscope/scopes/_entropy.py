"""What a state can still tell of where it came from: the change of its entropy, step by step."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.state_samples import visits
from mnemoscope.scopes._measures.state_vectors import flatten, jacobians, spectral_norms
from mnemoscope.theory.smoothness import entropy_bound, entropy_change, hadamard_bound

HELP = """
Below zero a step presses states together: what set them apart is lost, and no read-out brings it
back. Far below zero a network forgets fast. The bounds lie above the measured change.
"""


@scope(
    "Does a step spread states out or press them together?",
    title="Entropy of the state",
    help=HELP,
    needs="map",
    cost=40,
)
def entropy(subject: Subject, *, points: int = 64) -> Finding:
    """H_{t+1} - H_t = E log|det df/dx| at states along the run (Ribeiro et al. 2019, section 4, eq. 9 corrected).

    H is the differential entropy of the state over sequences. It can rise by at most N_x log L_f in a step, L_f the
    Lipschitz constant of the step in the state; Hadamard's inequality, with the lengths of the Jacobian's columns, is
    tighter. A map that presses states together beyond recall has a singular Jacobian, and the change is -infinity.

    Series by step: `steps` (S,), the steps looked at; `change` (S,), the mean over sequences in nats (spread: standard
    deviation); `hadamard` (S,), its bound; `log_norm` (S,), N_x log ||df/dx||, the coarser bound.
    Figures: `change`, the mean a step; `a_number`, the same for each number of the state; `bound`, N_x log L_f with the
    largest norm seen; `hadamard`, the mean; `singular`, the share of Jacobians that are.

    Args:
        points: states at which the Jacobian is taken.
    """
    size = flatten(subject.recurrence.initial_state(1)).shape[1]
    steps, change, hadamard, norms = [], [], [], []
    seen = list(visits(subject, points))
    for k, visit in enumerate(seen):
        J = jacobians(subject.recurrence, visit.x, visit.state).double()
        steps.append(visit.step)
        change.append(entropy_change(J))
        hadamard.append(hadamard_bound(J))
        norms.append(spectral_norms(J))
        subject.report((k + 1) / len(seen))
    return _finding(np.array(steps), torch.stack(change), torch.stack(hadamard), torch.stack(norms), size)


def _finding(steps: np.ndarray, change: Tensor, hadamard: Tensor, norms: Tensor, size: int) -> Finding:
    finite = change.isfinite()
    mean = change.mean().item()
    figures = {
        "change": mean, "a_number": mean / size, "bound": entropy_bound(norms.max().item(), size),
        "hadamard": hadamard.mean().item(), "singular": (~finite).double().mean().item(),
    }  # fmt: skip
    bounds = arrays(hadamard=hadamard.mean(1), log_norm=size * norms.log().mean(1))
    return Finding(
        "entropy", _sentence(figures), "estimated", figures=figures,
        series=arrays(steps=steps, change=change.mean(1)) | bounds,
        spread=arrays(change=change.std(1) if change.shape[1] > 1 else torch.zeros(len(change))),
        assumptions=("the step is injective: where states meet, the entropy falls by more",),
        method=f"log|det| of the step's Jacobian at {change.numel()} states along the run",
    )  # fmt: skip


def _sentence(figures: dict[str, float]) -> str:
    if figures["singular"] > 0:
        at = "" if figures["singular"] == 1 else f" at {100 * figures['singular']:.2g} % of these states"
        singular = f"its Jacobian is singular{at}, and the entropy falls to -inf"
        return f"A step presses states together beyond recall: {singular}."
    each = figures["a_number"]
    if abs(each) < 1e-3:
        return "A step keeps the entropy of the state: nothing is pressed together and nothing is spread out."
    if figures["change"] < 0:
        halved = math.log(2) / -each
        return f"A step takes {-each:.3g} nats from each number of the state, which halves every {halved:.2g} steps."
    return f"A step adds {each:.3g} nats to each number of the state: it spreads states out."
