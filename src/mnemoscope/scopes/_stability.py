"""Whether every step brings states nearer to each other: then the network is stable, and forgets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.adapters import WithReadout
from mnemoscope.errors import MnemoscopeError, check_count, is_number
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import Recurrence
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.certificates import (
    EUCLIDEAN,
    Certificate,
    StateNorm,
    certify,
    nearest_stable,
    rounding,
)
from mnemoscope.scopes._measures.state_samples import StateSample, affordable_points, sample_states
from mnemoscope.scopes._measures.state_vectors import (
    advance,
    carries_memory,
    flatten,
    jacobians,
    part_sizes,
    spectral_norms,
)

LAYER = "Its recurrent layer"  # which may forget inside a model that does not

HELP = """
Each point is the largest factor by which one step stretches a small difference of state: the
spectral norm of its Jacobian. Below 1 everywhere: the network is contractive, and forgets at least
that fast. Above 1: differences can grow. The other chart shows how much pairs of sampled states
came nearer, or parted, in one step.

“Certified” means that a theorem's conditions were checked on the weights themselves, so that it
holds for every input of that size; “estimated” speaks of these sequences only. A certified factor
holds in the norm that the sentence names. In a weighted norm, Euclidean distances may grow at first.
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
    of (c, h)), for a stack as one system; where the plain norm gives no factor below 1, in a weighted one. Measured,
    for all models, by the ratios of pairs of states that the model reaches on the given sequences, and by the one-step
    Jacobians there. Every proved bound is compared with every measurement in the same norm.

    Series: `jacobian_norm` (points,), spectral norms before the steps in `step` (points,); `ratio` (pairs,),
    ||phi(s, x) - phi(s', x)|| / ||s - s'|| in the norm of the label; `factor` (layers,), each layer's own factor, if
    known. Labels: `regime`, `norm`.

    Figures: `lambda`, certified in the norm of the label, or else the largest spectral norm; `euclidean_constant`
    kappa, where lambda is certified: t steps leave at most kappa lambda^t of two states' Euclidean distance; `bound`,
    the proved factor in the norm without weights (Euclidean, for an LSTM infinity), be it below 1 or not;
    `typical_ratio` (median), `largest_ratio`; `typical_jacobian` (median), `largest_jacobian`; `distance` of the
    weights to the nearest `lam`-contractive ones, and `output_change` on these inputs if they were moved there, both
    relative.

    Args:
        points: at how many states the Jacobian is computed; fewer if the state is large.
        lam: the contraction factor of the nearest stable weights.

    Examples:
        >>> from mnemoscope.layers import project_
        >>> from mnemoscope.scopes import stability
        >>> finding = stability(project_(nn.RNN(3, 16), 0.9), torch.randn(20, 4, 3))
        >>> finding.status, round(finding.figures["lambda"], 3)
        ('certified', 0.9)
    """
    check_count("points", points)
    if not (is_number(lam) and 0 < lam <= 1):
        raise MnemoscopeError(f"lam must be above 0 and at most 1; got {lam!r}")

    # What is proved, and what is measured at sampled states.
    certificate = certify(subject.layer, subject.recurrence_inputs, subject.adapted.starts_itself)
    samples = list(sample_states(subject, min(points, affordable_points(subject))))
    matrices = _jacobians(subject, samples)
    read = _of_read_parts(matrices, part_sizes(samples[0].state))
    norms = spectral_norms(read)
    pairs = _pairs(subject.recurrence, samples)
    if certificate is not None:
        _check(subject, certificate, samples, pairs, matrices)
    norm = certificate.norm if certificate is not None and certificate.stable else EUCLIDEAN
    ratios = pairs.ratios(norm)
    figures = _figures(norms, ratios, certificate) | _distance_to_stable(subject, lam)

    certified = certificate is not None and certificate.stable
    mean_stretch = float(read.square().sum((1, 2)).mean() / read.shape[2]) ** 0.5
    regime = _regime(certified, figures, mean_stretch)
    return Finding(
        "stability",
        _sentence(figures, certificate, regime, "It" if subject.adapted.recurrence_is_model else LAYER),
        "certified" if certified else "estimated",
        why=_why(certificate),
        figures=figures,
        certified=_proved(certificate),
        series=arrays(
            jacobian_norm=norms,
            step=[sample.step for sample in samples for _ in sample.x],
            ratio=ratios,
            factor=() if certificate is None else certificate.factors,
        ),
        labels={"regime": regime, "norm": norm.name},
        assumptions=_assumptions(certified, samples, norm),
        method=f"the weights, and pairs of states and one-step Jacobians at {len(norms)} states on the given sequences",
    )


def _jacobians(subject: Subject, samples: list[StateSample]) -> Tensor:
    """Return the one-step Jacobians (points, D, D)."""
    parts = []
    for i, sample in enumerate(samples):
        subject.report(i / len(samples))
        parts.append(jacobians(subject.recurrence, sample.x, sample.state).double())
    return torch.cat(parts)


def _of_read_parts(matrices: Tensor, sizes: list[int]) -> Tensor:
    """Return the Jacobians of those parts of the state, of these sizes, that the next step reads.

    An attentive layer carries h along, but reads s. A part of which a step reads some numbers only, as one with units
    that feed no other, stays whole: its other numbers belong to the distance of two states.
    """
    parts = (matrices.abs().sum((0, 1)) > 0).split(sizes)
    is_read = torch.cat([part.any().expand(len(part)) for part in parts])
    return matrices[:, is_read][:, :, is_read] if bool(is_read.any()) else matrices


@dataclass(frozen=True)
class Pairs:
    """Differences of pairs of states (pairs, D) before a step and after it, on the same input."""

    before: Tensor
    after: Tensor

    def ratios(self, norm: StateNorm) -> Tensor:
        """Return by which factor the step changes the distance of each pair of different states."""
        before = norm.of(self.before)
        different = before > 0
        return norm.of(self.after)[different] / before[different]


def _states(samples: list[StateSample]) -> Tensor:
    """Return all sampled states as vectors (rows, D)."""
    return torch.cat([flatten(sample.state) for sample in samples])


@torch.no_grad()
def _pairs(recurrence: Recurrence, samples: list[StateSample]) -> Pairs:
    """Return each sampled state beside the next one; none for a model that carries past states along."""
    if carries_memory(samples[0].state):
        return Pairs(torch.empty(0, 1), torch.empty(0, 1))
    one = _states(samples)
    other = one.roll(1, 0)

    def step(states: Tensor) -> Tensor:
        parts = states.split([len(sample.x) for sample in samples])  # a state may know the step that it is at
        return torch.cat([advance(recurrence, s.x, part, s.state) for s, part in zip(samples, parts, strict=True)])

    after = step(one).double() - step(other)
    before = one.double() - other
    sizes = torch.maximum(one.double().norm(dim=1), other.double().norm(dim=1))
    differ = before.norm(dim=1) > 1e3 * torch.finfo(one.dtype).eps * sizes  # more than rounding makes of equal ones
    kept = differ & after.isfinite().all(1)  # a step may overflow
    return Pairs(before[kept], after[kept])


def _check(
    subject: Subject, certificate: Certificate, samples: list[StateSample], pairs: Pairs, matrices: Tensor
) -> None:
    """Compare both proved factors with every ratio and every Jacobian, each in its own norm."""
    x = torch.cat([sample.x for sample in samples])
    error = rounding(subject.layer, x, _states(samples))
    eps = torch.finfo(x.dtype).eps  # that of the recurrence, which runs in float32 if the model is in half precision
    size = pairs.before.shape[1]
    for norm, factor in ((certificate.norm, certificate.lam), (certificate.plain, certificate.bound)):
        before = norm.of(pairs.before)
        before = before[before > 0]
        loose = eps**0.5 * factor
        error_of_norm = error * size**0.5 / float(norm.weights.min())
        subject.check_bound(f"a pair's ratio in the {norm.name}", pairs.ratios(norm), factor, error_of_norm / before)
        subject.check_bound(f"a Jacobian in the {norm.name}", norm.stretch(matrices), factor, loose + eps**0.5 * error)


def _figures(norms: Tensor, ratios: Tensor, certificate: Certificate | None) -> dict[str, float]:
    largest = float(norms.max())
    figures = {"lambda": largest, "largest_jacobian": largest, "typical_jacobian": float(norms.median())}
    if len(ratios):
        figures["largest_ratio"] = float(ratios.max())
        figures["typical_ratio"] = float(ratios.median())
    if certificate is not None:
        figures["bound"] = certificate.bound
        if certificate.stable:
            figures["lambda"] = certificate.lam
            figures["euclidean_constant"] = certificate.norm.euclidean
    return figures


def _proved(certificate: Certificate | None) -> tuple[str, ...]:
    """Return the names of the figures that are proved."""
    if certificate is None:
        return ()
    if certificate.stable:
        return ("lambda", "euclidean_constant", "bound")
    return ("bound",) if math.isfinite(certificate.bound) else ()


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


def _regime(certified: bool, figures: dict[str, float], mean_stretch: float) -> str:
    """Return in words how a step changes distances, of sampled pairs and of small differences.

    `mean_stretch` is the root mean square of the Jacobians' singular values: 1 of an isometry.
    """
    if certified:
        return "contractive"
    jacobians = (figures["largest_jacobian"], figures["typical_jacobian"], mean_stretch)
    if all(abs(stretch - 1) < 1e-3 for stretch in jacobians) and abs(figures.get("typical_ratio", 1.0) - 1) < 1e-2:
        return "isometric"
    largest = max(figures["largest_jacobian"], figures.get("largest_ratio", 0.0))
    if largest < 1:
        return "contractive on these sequences"
    if largest <= 1 + 1e-3:
        return "non-expansive on these sequences"
    if max(figures["typical_jacobian"], figures.get("typical_ratio", 0.0)) < 1:
        return "contractive on average"
    return "not contractive"


def _sentence(figures: dict[str, float], certificate: Certificate | None, regime: str, what: str = "It") -> str:
    if certificate is not None and certificate.stable:
        return _certified_sentence(certificate, what)
    factors = (
        f"small differences by up to {figures['typical_jacobian']:.3g} at the median state, by up to "
        f"{figures['largest_jacobian']:.3g} at the worst (spectral norm of the Jacobian)"
    )
    if "largest_ratio" in figures:
        pairs = (
            f"the distance of sampled pairs of states by {figures['typical_ratio']:.3g} in the median, by "
            f"{figures['largest_ratio']:.3g} at most"
        )
        # Pairs far apart may all come nearer although some small differences grow.
        came_nearer = regime == "not contractive" and figures["largest_ratio"] < 1 <= figures["typical_jacobian"]
        factors = f"{factors}, although it multiplied {pairs}" if came_nearer else f"{pairs}, and {factors}"
        regime = f"{regime} in every direction" if came_nearer else regime
    proof = "no proof applies to it" if certificate is None else "its weights do not prove it stable"
    return f"{what} is {regime}: a step multiplied {factors}; {proof}."


def _certified_sentence(certificate: Certificate, what: str) -> str:
    # As many digits as show that it is below 1.
    lam = next(text for digits in range(3, 18) if float(text := round_up(certificate.lam, digits)) < 1)
    if len(certificate.norm.weights) == 1:
        return f"{what} is stable, and so forgets: a step leaves at most {lam} of two states' Euclidean distance."
    return (
        f"{what} is stable, and so forgets: a step leaves at most {lam} of two states' distance in the "
        f"{certificate.norm.name}; t steps leave at most {round_up(certificate.norm.euclidean)} x {lam}^t of their "
        "Euclidean distance."
    )


def round_up(value: float, digits: int = 3) -> str:
    """Return a positive number with so many digits, never below itself, as "at most" needs it."""
    text = f"{value:.{digits}g}"
    if float(text) >= value:
        return text
    return f"{value + 10.0 ** (math.floor(math.log10(value)) - digits + 1):.{digits}g}"


def _why(certificate: Certificate | None) -> str:
    if certificate is None:
        return "proofs are known for LinearSystem, RNN (tanh, relu, sigmoid, identity) and LSTM from a known start"
    return certificate.condition if certificate.stable else f"not below 1: {certificate.condition}"


def _assumptions(certified: bool, samples: list[StateSample], norm: StateNorm) -> tuple[str, ...]:
    assumptions = [] if certified else ["these sequences lead through typical states"]
    if carries_memory(samples[0].state):
        assumptions.append("the memory is constant: Jacobians are those of the present state")
    if certified and "infinity" in norm.name:
        assumptions.append("inputs are no larger than these, and states begin at the model's own start")
    return tuple(assumptions)
