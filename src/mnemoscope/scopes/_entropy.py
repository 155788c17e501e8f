"""The change of the state's entropy per step: how much a state can still tell about where it came from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError, check_count
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.growth import standard_error
from mnemoscope.scopes._measures.state_samples import affordable_points, sample_states
from mnemoscope.scopes._measures.state_vectors import flatten, jacobians, spectral_norms
from mnemoscope.theory.smoothness import entropy_bound, entropy_change, hadamard_bound
from mnemoscope.wording import with_error

UNSURE = 0.05  # two standard errors, above which a change of about zero is not known well enough
TIMES = 8  # at which states are looked at, along the run
READABLE = 7.0  # a larger change of the logarithm is said as such: nobody can picture 1e-154

HELP = """
The logarithm of the factor by which a step multiplies the volume of a small cloud of states. Below
zero a step presses states together: what set them apart is lost, and no read-out brings it back.
Far below zero a network forgets fast. Above zero it pulls neighboring states apart; if states stay
bounded, it also folds the cloud over itself. The bounds lie above the measured change.
"""


@scope(
    "Does a step pull neighboring states apart or press them together?",
    title="Entropy of the state",
    help=HELP,
    needs="map",
    cost=40,
)
def entropy(subject: Subject, *, points: int = 64) -> Finding:
    """Measure H_{t+1} - H_t = E log|det df/dx| along the run (Ribeiro et al. 2019, section 4, eq. 9 corrected).

    H is the differential entropy of the state over sequences. It can rise by at most N_x log L_f in a step, L_f the
    Lipschitz constant of the step in the state; Hadamard's inequality, with the lengths of the Jacobian's columns, is
    tighter. Where the Jacobian is singular a step makes neighboring states equal, and the change is -infinity.

    Series by step: `steps` (S,), the steps looked at; `change` (S,), the mean over sequences in nats (spread: standard
    deviation); `hadamard` (S,), its bound; `log_norm` (S,), N_x log ||df/dx||, the coarser bound.
    Figures: `change`, the mean per step, and its `standard_error`; `per_dimension`, change / N_x; `volume`,
    exp(change), by which a small cloud's volume is multiplied per step; `bound`, N_x log L_f with the largest norm
    seen; `hadamard`, the mean; `singular`, the fraction of Jacobians that are.

    Args:
        points: states at which the Jacobian is computed; fewer if the state is large.
    """
    check_count("points", points)
    points = min(points, affordable_points(subject))
    samples = list(sample_states(subject, points, rows=max(1, points // TIMES)))
    change, hadamard, norms = [], [], []
    for k, sample in enumerate(samples):
        J = jacobians(subject.recurrence, sample.x, sample.state).double()
        if not bool(J.isfinite().all()):
            raise MnemoscopeError(f"the Jacobian of step {sample.step} is NaN or infinite: there is no determinant")
        change.append(entropy_change(J))
        hadamard.append(hadamard_bound(J))
        norms.append(spectral_norms(J))
        subject.report((k + 1) / len(samples))
    steps = np.array([sample.step for sample in samples])
    size = flatten(subject.recurrence.initial_state(1)).shape[1]
    found = _finding(steps, torch.stack(change), torch.stack(hadamard), torch.stack(norms), size)
    return replace(found, sentence=subject.of_layer(found.sentence))


def _finding(steps: np.ndarray, change: Tensor, hadamard: Tensor, norms: Tensor, size: int) -> Finding:
    """Sum up tensors (S, sequences), of the steps (S,) that were looked at."""
    mean = change.mean().item()
    different = torch.unique(change, dim=1)  # identical sequences count once
    figures = {
        "change": mean,
        "standard_error": standard_error(different.unsqueeze(2)).item(),
        "volume": math.exp(min(mean, 700.0)),
        "per_dimension": mean / size,
        "bound": entropy_bound(norms.max().item(), size),
        "hadamard": hadamard.mean().item(),
        "singular": (~change.isfinite()).double().mean().item(),
    }
    one_sequence = change.shape[1] == 1
    return Finding(
        "entropy",
        _sentence(figures, size),
        "estimated",
        figures=figures,
        series=arrays(
            steps=steps,
            change=change.mean(1),
            hadamard=hadamard.mean(1),
            log_norm=size * norms.log().mean(1),
        ),
        spread=arrays(change=torch.zeros(len(change)) if one_sequence else change.std(1)),
        assumptions=("the step is injective: if different states become equal, the entropy falls by more",),
        method=f"log|det| of the step's Jacobian at {change.numel()} states along the run",
    )


def _sentence(figures: dict[str, float], size: int) -> str:
    singular, change = figures["singular"], figures["change"]
    if singular > 0:
        where = "" if singular == 1 else f" at {100 * singular:.2g} % of these states"
        loss = "A step removes some differences between states"
        return f"{loss}: its Jacobian is singular{where}, and the volume of a cloud of states there becomes 0."
    error = figures["standard_error"]
    margin = max(2 * error, 1e-3 * size) if math.isfinite(error) else 1e-3 * size
    if abs(change) <= margin > max(UNSURE, 1e-3 * size):
        return (
            "These states are too few to tell if a step presses neighboring states together or pulls them apart: on "
            f"average the logarithm of the volume of a small cloud of them changes by {with_error(change, 2 * error)}."
        )
    if abs(change) <= margin:
        return "A step keeps the volume of a small cloud of states: on average it neither compresses nor expands it."
    what = "presses neighboring states together" if change < 0 else "pulls neighboring states apart"
    logarithm = with_error(change, 2 * error)
    factor = math.exp(figures["per_dimension"])
    cloud = f"A step {what}: on average"
    if abs(change) > READABLE:
        each = f", as if each of {size} dimensions were multiplied by {factor:.3g}" if size > 1 else ""
        return f"{cloud} the logarithm of the volume of a small cloud of them changes by {logarithm}{each}."
    each = f", each of {size} dimensions by {factor:.3g}" if size > 1 else ""
    return (
        f"{cloud} the volume of a small cloud of them is multiplied by {math.exp(change):.3g}{each} "
        f"(logarithm of the volume {logarithm})."
    )
