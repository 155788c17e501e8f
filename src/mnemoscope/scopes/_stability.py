"""Does every step bring states nearer to each other? Then the network is stable, and forgets."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from mnemoscope.adapters import WithReadout
from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, Status, arrays
from mnemoscope.layers import Layer, project_
from mnemoscope.recurrence import Recurrence
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.certificates import Certified, certify
from mnemoscope.scopes._measures.state_samples import Visit, together, visits
from mnemoscope.scopes._measures.state_vectors import advance, carries_memory, flatten, jacobians, spectral_norms

NUMBERS = 2**24  # of all Jacobians together

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
    """The contraction factor lambda: ||phi(s, x) - phi(s', x)|| <= lambda ||s - s'||, proved or measured.

    Proved from the weights for LinearSystem, RNN (||V|| L_phi, Euclidean norm) and LSTM (Proposition 5, infinity norm
    of (c, h)), layer by layer; measured, for all, by the one-step Jacobians at states that the model reaches on the
    given sequences, and by the ratios of pairs of such states.

    Series: `jacobian_norm` (points,), spectral norms before the steps in `step` (points,); `ratio` (pairs,),
    ||phi(s, x) - phi(s', x)|| / ||s - s'|| in the certificate's norm; `factor` (layers,), the certified factors, where
    there are any. Labels: `regime`, `norm`.

    Figures: `lambda`, certified, or else the largest measured; `largest_jacobian`, `typical_jacobian` (median),
    `largest_ratio`; `bound`, the certificate's factor in its plain norm, which bounds every ratio, be it below 1 or
    not; `distance` of the weights to the nearest `lam`-contractive ones, and `output_change` on these inputs if they
    were moved there, both relative.

    Args:
        points: how many states the Jacobian is taken at; fewer where the state is large.
        lam: the contraction that the nearest stable weights are to have.
    """
    layer = subject.layer
    proofs = certify(layer, subject.recurrence_inputs)
    seen = list(visits(subject, min(points, _affordable(subject))))
    norms = spectral_norms(_jacobians(subject, seen))
    ratios = _ratios(subject.recurrence, seen, proofs)
    figures = _figures(norms, ratios, proofs) | _projection(subject, layer, lam)
    certified = bool(proofs) and figures["lambda"] < 1 and all(proof.lam < 1 for proof in proofs)
    status: Status = "certified" if certified else "estimated"
    regime = _regime(certified, figures)
    return Finding(
        "stability", _sentence(certified, figures, proofs, regime), status, _why(certified, proofs), figures,
        series=arrays(
            jacobian_norm=norms, step=[visit.step for visit in seen for _ in visit.x], ratio=ratios,
            factor=[proof.lam for proof in proofs],
        ),
        labels={"regime": regime, "norm": proofs[0].norm if proofs else "Euclidean"},
        assumptions=_assumptions(certified, seen, proofs),
        method=f"the weights, and one-step Jacobians at {len(norms)} states on the given sequences",
    )  # fmt: skip


def _affordable(subject: Subject) -> int:
    """How many Jacobians fit: those of a state of 2,048 numbers take 32 MB each."""
    size = flatten(subject.recurrence.initial_state(1)).shape[1]
    return max(2, NUMBERS // size**2)


def _jacobians(subject: Subject, seen: list[Visit]) -> Tensor:
    """The one-step Jacobians (points, D, D) of those numbers of the state that the next step reads."""
    found = []
    for i, visit in enumerate(seen):
        subject.report(i / len(seen))
        found.append(jacobians(subject.recurrence, visit.x, visit.state).double())
    together = torch.cat(found)
    read = together.abs().sum((0, 1)) > 0  # an attentive layer carries h along, and reads s
    return together[:, read][:, :, read] if bool(read.any()) else together


@torch.no_grad()
def _ratios(recurrence: Recurrence, seen: list[Visit], proofs: list[Certified]) -> Tensor:
    """How much nearer one step brings each visited state to the next one, both reading the same input."""
    if carries_memory(seen[0].state):
        return torch.empty(0)
    state, x = together(seen)
    one = flatten(state)
    other = one.roll(1, 0)
    order = math.inf if len(proofs) == 1 and proofs[0].norm != "Euclidean" else 2
    before = torch.linalg.vector_norm(one - other, ord=order, dim=1)
    after = advance(recurrence, x, one, state) - advance(recurrence, x, other, state)
    apart = before > 0
    return (torch.linalg.vector_norm(after, ord=order, dim=1)[apart] / before[apart]).double()


def _figures(norms: Tensor, ratios: Tensor, proofs: list[Certified]) -> dict[str, float]:
    figures = {"largest_jacobian": float(norms.max()), "typical_jacobian": float(norms.median())}
    if len(ratios):
        figures["largest_ratio"] = float(ratios.max())
    if proofs:
        figures["bound"] = max(proof.plain for proof in proofs)
    proved = proofs and all(proof.lam < 1 for proof in proofs)
    return {"lambda": max(proof.lam for proof in proofs) if proved else figures["largest_jacobian"], **figures}


@torch.no_grad()
def _projection(subject: Subject, layer: Recurrence, lam: float) -> dict[str, float]:
    """How far the nearest stable weights are, and what they would change; nothing for layers without a stable set."""
    if not isinstance(layer, Layer):
        return {}
    moved = copy.deepcopy(layer)
    try:
        project_(moved, lam, input_bound=max(float(subject.recurrence_inputs.abs().max()), 1e-6))
    except (MnemoscopeError, TypeError):
        return {}
    size = math.sqrt(sum(float(p.double().square().sum()) for p in layer.parameters()))
    pairs = zip(layer.parameters(), moved.parameters(), strict=True)
    distance = math.sqrt(sum(float((a - b).double().square().sum()) for a, b in pairs))
    before, after = (_outputs(subject, each) for each in (layer, moved))
    change = float((after - before).norm() / before.norm().clamp(min=torch.finfo(before.dtype).tiny))
    return {"distance": distance / max(size, 1e-300), "output_change": change}


def _outputs(subject: Subject, layer: Layer) -> Tensor:
    h, recurrence = layer(subject.recurrence_inputs)[0], subject.recurrence
    return recurrence.read(h, subject.recurrence_inputs) if isinstance(recurrence, WithReadout) else h


def _regime(certified: bool, figures: dict[str, float]) -> str:
    if certified:
        return "contractive"
    if abs(figures["largest_jacobian"] - 1) < 1e-3 and abs(figures["typical_jacobian"] - 1) < 1e-3:
        return "isometric"
    if figures["largest_jacobian"] < 1:
        return "contractive on these sequences"
    return "contractive on average" if figures["typical_jacobian"] < 1 else "not contractive"


def _sentence(certified: bool, figures: dict[str, float], proofs: list[Certified], regime: str) -> str:
    if certified:
        return f"It is stable, and so forgets: a step leaves at most {figures['lambda']:.3g} of two states' distance."
    measured = (
        f"a step multiplies the distance of two states by {figures['typical_jacobian']:.3g} typically, by "
        f"{figures['largest_jacobian']:.3g} at most"
    )
    proof = "its weights allow no proof of stability" if proofs else "no proof is known for such a model"
    return f"It is {regime}: {measured}; {proof}."


def _why(certified: bool, proofs: list[Certified]) -> str:
    if not proofs:
        return "proofs are known for LinearSystem, RNN (tanh, relu, sigmoid, identity) and LSTM"
    worst = max(proofs, key=lambda proof: proof.lam)
    return worst.condition if certified else f"not below 1: {worst.condition}"


def _assumptions(certified: bool, seen: list[Visit], proofs: list[Certified]) -> tuple[str, ...]:
    said = [] if certified else ["these sequences lead through typical states"]
    if carries_memory(seen[0].state):
        said.append("memory is held fixed: Jacobians are those of the present state")
    if len(proofs) > 1:
        said.append("each layer on its own: the stack contracts in a norm that weighs lower layers more")
    if certified and proofs[0].norm != "Euclidean":
        said.append("inputs are no larger than these")
    return tuple(said)
