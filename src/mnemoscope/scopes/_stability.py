"""Whether every step brings states nearer to each other: then the network is stable, and forgets."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mnemoscope.adapters import WithReadout
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import Recurrence
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.certificates import Certificate, certify, nearest_stable
from mnemoscope.scopes._measures.state_samples import StateSample, sample_states, stack_samples
from mnemoscope.scopes._measures.state_vectors import advance, carries_memory, flatten, jacobians, spectral_norms

JACOBIAN_NUMBERS = 2**24  # in all Jacobians together

HELP = """
Each point is the largest factor by which one step stretches a small difference of state. Below 1
everywhere: the network is contractive, and forgets at least that fast. Above 1: differences can
grow.

“Certified” means that a theorem's conditions were checked on the weights themselves, so that it
holds for every input of that size; “estimated” speaks of these sequences only.
"""


@scope(
    "Does every step bring states nearer to each other?",
    title="Stability",
    help=HELP,
    needs="step",
    cost=20,
)
def stability(subject: Subject, *, points: int = 32, lam: float = 0.99) -> Finding:
    """Measure the contraction factor lambda: ||phi(s, x) - phi(s', x)|| <= lambda ||s - s'||, and prove it if possible.

    Proved from the weights for LinearSystem, RNN (||V|| L_phi, Euclidean norm) and LSTM (Proposition 5, infinity norm
    of (c, h)), layer by layer. Measured, for all models, by the one-step Jacobians at states that the model reaches on
    the given sequences, and by the ratios of pairs of such states.

    Series: `jacobian_norm` (points,), spectral norms before the steps in `step` (points,); `ratio` (pairs,),
    ||phi(s, x) - phi(s', x)|| / ||s - s'|| in the certificate's norm; `factor` (layers,), the certified factors, if
    there are any. Labels: `regime`, `norm`.

    Figures: `lambda`, certified, or else the largest measured; `largest_jacobian`, `typical_jacobian` (median),
    `largest_ratio`; `bound`, the certificate's factor in its unweighted norm, which bounds every ratio, be it below 1
    or not; `distance` of the weights to the nearest `lam`-contractive ones, and `output_change` on these inputs if they
    were moved there, both relative.

    Args:
        points: at how many states the Jacobian is computed; fewer if the state is large.
        lam: the contraction factor of the nearest stable weights.
    """
    # What is proved, and what is measured at sampled states.
    certificates = certify(subject.layer, subject.recurrence_inputs)
    samples = list(sample_states(subject, min(points, _affordable_points(subject))))
    norms = spectral_norms(_jacobians(subject, samples))
    ratios = _ratios(subject.recurrence, samples, certificates)
    figures = _figures(norms, ratios, certificates) | _distance_to_stable(subject, lam)

    certified = bool(certificates) and all(certificate.lam < 1 for certificate in certificates)
    regime = _regime(certified, figures)
    return Finding(
        "stability",
        _sentence(certified, figures, certificates, regime),
        "certified" if certified else "estimated",
        why=_why(certified, certificates),
        figures=figures,
        certified=("lambda", "bound") if certified else (),
        series=arrays(
            jacobian_norm=norms,
            step=[sample.step for sample in samples for _ in sample.x],
            ratio=ratios,
            factor=[certificate.lam for certificate in certificates],
        ),
        labels={"regime": regime, "norm": certificates[0].norm if certificates else "Euclidean"},
        assumptions=_assumptions(certified, samples, certificates),
        method=f"the weights, and one-step Jacobians at {len(norms)} states on the given sequences",
    )


def _affordable_points(subject: Subject) -> int:
    """Return how many Jacobians fit into memory: those of a state of 2,048 numbers take 32 MB each."""
    size = flatten(subject.recurrence.initial_state(1)).shape[1]
    return max(2, JACOBIAN_NUMBERS // size**2)


def _jacobians(subject: Subject, samples: list[StateSample]) -> Tensor:
    """Return the one-step Jacobians (points, D, D) of those numbers of the state that the next step reads."""
    parts = []
    for i, sample in enumerate(samples):
        subject.report(i / len(samples))
        parts.append(jacobians(subject.recurrence, sample.x, sample.state).double())
    matrices = torch.cat(parts)
    is_read = matrices.abs().sum((0, 1)) > 0  # an attentive layer carries h along, but reads s
    return matrices[:, is_read][:, :, is_read] if bool(is_read.any()) else matrices


@torch.no_grad()
def _ratios(recurrence: Recurrence, samples: list[StateSample], certificates: list[Certificate]) -> Tensor:
    """Return by which factor one step changes the distance of each sampled state to the next, on the same input."""
    if carries_memory(samples[0].state):
        return torch.empty(0)
    state, x = stack_samples(samples)
    one = flatten(state)
    other = one.roll(1, 0)
    infinity_norm = len(certificates) == 1 and certificates[0].norm != "Euclidean"
    order = math.inf if infinity_norm else 2
    before = torch.linalg.vector_norm(one - other, ord=order, dim=1)
    change = advance(recurrence, x, one, state) - advance(recurrence, x, other, state)
    after = torch.linalg.vector_norm(change, ord=order, dim=1)
    different = before > 0
    return (after[different] / before[different]).double()


def _figures(norms: Tensor, ratios: Tensor, certificates: list[Certificate]) -> dict[str, float]:
    largest = float(norms.max())
    figures = {"lambda": largest, "largest_jacobian": largest, "typical_jacobian": float(norms.median())}
    if len(ratios):
        figures["largest_ratio"] = float(ratios.max())
    if certificates:
        figures["bound"] = max(certificate.unweighted for certificate in certificates)
        if all(certificate.lam < 1 for certificate in certificates):
            figures["lambda"] = max(certificate.lam for certificate in certificates)
    return figures


@torch.no_grad()
def _distance_to_stable(subject: Subject, lam: float) -> dict[str, float]:
    """Return how far the nearest stable weights are, and what they would change; nothing if no stable set is known."""
    layer = subject.layer
    moved = nearest_stable(layer, lam, subject.recurrence_inputs)
    if moved is None:
        return {}
    size = math.sqrt(sum(float(p.double().square().sum()) for p in layer.parameters()))
    pairs = zip(layer.parameters(), moved.parameters(), strict=True)
    distance = math.sqrt(sum(float((a - b).double().square().sum()) for a, b in pairs))
    before = _outputs(subject, layer)
    after = _outputs(subject, moved)
    change = float((after - before).norm() / before.norm().clamp(min=torch.finfo(before.dtype).tiny))
    return {"distance": distance / max(size, 1e-300), "output_change": change}


def _outputs(subject: Subject, layer: Recurrence) -> Tensor:
    """Return the model's outputs with this layer in the place of its own."""
    x = subject.recurrence_inputs
    h = layer(x)[0]
    return subject.recurrence.read(h, x) if isinstance(subject.recurrence, WithReadout) else h


def _regime(certified: bool, figures: dict[str, float]) -> str:
    largest, typical = figures["largest_jacobian"], figures["typical_jacobian"]
    if certified:
        return "contractive"
    if abs(largest - 1) < 1e-3 and abs(typical - 1) < 1e-3:
        return "isometric"
    if largest < 1:
        return "contractive on these sequences"
    if typical < 1:
        return "contractive on average"
    return "not contractive"


def _sentence(certified: bool, figures: dict[str, float], certificates: list[Certificate], regime: str) -> str:
    if certified:
        return f"It is stable, and so forgets: a step leaves at most {figures['lambda']:.3g} of two states' distance."
    measured = (
        f"a step multiplies the distance of two states by {figures['typical_jacobian']:.3g} typically, by "
        f"{figures['largest_jacobian']:.3g} at most"
    )
    proof = "its weights allow no proof of stability" if certificates else "no proof is known for such a model"
    return f"It is {regime}: {measured}; {proof}."


def _why(certified: bool, certificates: list[Certificate]) -> str:
    if not certificates:
        return "proofs are known for LinearSystem, RNN (tanh, relu, sigmoid, identity) and LSTM"
    worst = max(certificates, key=lambda certificate: certificate.lam)
    return worst.condition if certified else f"not below 1: {worst.condition}"


def _assumptions(certified: bool, samples: list[StateSample], certificates: list[Certificate]) -> tuple[str, ...]:
    assumptions = [] if certified else ["these sequences lead through typical states"]
    if carries_memory(samples[0].state):
        assumptions.append("the memory is constant: Jacobians are those of the present state")
    if len(certificates) > 1:
        assumptions.append("each layer on its own: the stack contracts in a norm that weighs lower layers more")
    if certified and certificates[0].norm != "Euclidean":
        assumptions.append("inputs are no larger than these")
    return tuple(assumptions)
