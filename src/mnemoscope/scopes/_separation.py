"""Start-End separation rank: whether a model joins the start of a sequence to its end, and in how many ways."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.layers import RAC
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.theory.separation import (
    PRIMES,
    Circuit,
    deep_rank_bound,
    distinct_sequences,
    exact_rank,
    separation_ceiling,
    separation_spectrum,
    shallow_rank,
    start_end_matrix,
)

HELP = """
Outputs on many beginnings and many endings form a matrix. If it has one singular value that
matters, beginning and end are treated apart; the slower the values fall, the more ways there are of
joining them.
"""


@scope(
    "In how many ways does the output join the start of a sequence to its end?",
    title="Start and end",
    help=HELP,
    needs="outputs",
    cost=30,
)
def separation(
    subject: Subject, *, templates: Tensor | None = None, length: int = 8, limit: int = 64, exact: bool = True
) -> Finding:
    """Measure the rank of the last output as a matrix of Start by End sequences (Levine et al. 2018, section 3).

    For a `RAC` it is exact: its weights are rational numbers, and the rank modulo a large prime is a certified lower
    bound on theirs, for a random read-out. For any model: the singular values of the matrices of its outputs on
    sequences of template inputs, and their effective rank (the exponential of their entropy).

    Series: `singular_values`, of the output with the largest effective rank, relative to the largest.
    Figures: `effective_rank`, the mean over outputs; `numerical_rank`; `distance`, the part that no product of a
    function of Start and one of End can represent; `full_rank`, the most that these sequences could show; `exact_rank`
    and `ceiling` for a RAC; `theorem_1`, what Theorem 1 says of almost every circuit of the same sizes (depth 1) or
    guarantees it (depth 2).

    Args:
        templates: (M, features), the inputs that sequences are made of; by default the distinct inputs of the given
            sequences, four at most.
        length: steps of a sequence, even; its first half is Start.
        limit: of Start, and of End sequences; beyond it a sample is drawn.
        exact: compute a RAC's exact rank (needs the extra `theory`).
    """
    templates = _templates(subject) if templates is None else templates.to(subject.features)
    if templates.dim() != 2 or len(templates) < 2 or templates.shape[1] != subject.features.shape[2]:
        raise MnemoscopeError(
            f"templates must be at least 2 inputs, (M, {subject.features.shape[2]}); got {list(templates.shape)}"
        )
    # The singular values of any model's Start-End matrices.
    spectrum = separation_spectrum(subject.run, templates, length, limit=limit, seed=subject.seed)
    best = int(np.argmax(spectrum.effective_rank))
    singular_values = spectrum.singular_values[best]
    figures = {
        "effective_rank": spectrum.effective_rank.mean(),
        "numerical_rank": spectrum.rank.max(),
        "distance": spectrum.distance.mean(),
        "full_rank": min(spectrum.shape),
    }
    subject.report(0.5)

    # The exact rank of an arithmetic circuit.
    recurrence = subject.adapted.recurrence
    certified = exact and isinstance(recurrence, RAC) and _is_plain_circuit(recurrence)
    if certified:
        assert isinstance(recurrence, RAC)
        figures |= _exact_figures(recurrence, templates, length, limit, subject.seed)
    return Finding(
        "separation",
        _sentence(figures, length),
        "certified" if certified else "estimated",
        why=f"rank modulo {PRIMES[0]} of the circuit's own weights, with a random read-out" if certified else "",
        figures={name: float(value) for name, value in figures.items()},
        certified=tuple(name for name in ("exact_rank", "ceiling", "theorem_1") if name in figures),
        series=arrays(singular_values=singular_values / max(singular_values[0], 1e-300)),
        assumptions=(f"sequences of {length} steps over {len(templates)} inputs show how longer ones are joined",),
        method="outputs on {} Starts by {} Ends, singular values after equilibration".format(*spectrum.shape),
    )


def _templates(subject: Subject) -> Tensor:
    """Return distinct inputs of the given sequences, four at most."""
    rows = subject.features.flatten(0, 1)
    distinct = torch.unique(rows[:4096], dim=0)
    order = torch.randperm(len(distinct), generator=subject.generator())[:4].to(distinct.device)
    return distinct[order]


def _is_plain_circuit(circuit: RAC) -> bool:
    """Return True if the exact rank's equations are the circuit's: no subclass, bias or feature map changes them."""
    unchanged = circuit.unchanged_from(RAC, "cell", "forward", "observe", "project", "initial_cell_state")
    return unchanged and not circuit.bias and not circuit.bidirectional and circuit.feature is None


def _exact_figures(rac: RAC, templates: Tensor, length: int, limit: int, seed: int) -> dict[str, float]:
    # The circuit modulo a prime, with a random read-out.
    rng = np.random.default_rng(seed)
    prime = PRIMES[0]
    L, R, M = rac.num_layers, rac.hidden_size, rac.input_size
    circuit = Circuit(
        input_weights=tuple(residues(getattr(rac, f"weight_ih_l{k}"), prime) for k in range(L)),
        hidden_weights=tuple(residues(getattr(rac, f"weight_hh_l{k}"), prime) for k in range(L)),
        output_weights=rng.integers(1, prime, R, dtype=np.uint64),
        initial=np.ones((L, R), np.uint64),
        prime=prime,
    )

    # Its Start-End matrix, and the bounds that the same sequences allow.
    starts = distinct_sequences(len(templates), length // 2, limit, rng)
    ends = distinct_sequences(len(templates), length // 2, limit, rng)
    matrix = start_end_matrix(circuit, starts, ends, residues(templates, prime))
    ceiling = min(separation_ceiling(L, R, M, length, len(templates)), *matrix.shape)
    figures = {"exact_rank": exact_rank(matrix, prime), "ceiling": ceiling}
    if L <= 2:
        theorem_1 = shallow_rank if L == 1 else deep_rank_bound
        figures["theorem_1"] = min(theorem_1(R, min(M, len(templates)), length), *matrix.shape)
    return figures


def residues(weights: Tensor, prime: int) -> np.ndarray:
    """Return floating-point numbers modulo a prime, exactly: each is a fraction whose denominator is a power of two."""
    fractions = [Fraction(float(w)) for w in weights.detach().double().flatten()]
    values = [f.numerator * pow(f.denominator, -1, prime) % prime for f in fractions]
    return np.array(values, dtype=np.uint64).reshape(weights.shape)


def _sentence(figures: dict[str, float], length: int) -> str:
    if "exact_rank" in figures:
        return (
            f"The output joins the start of {length} steps to their end in exactly {figures['exact_rank']:.0f} "
            f"independent ways, of {figures['ceiling']:.0f} that a circuit of these sizes can have."
        )
    rank = figures["effective_rank"]
    if rank < 1.05:
        return f"The output treats start and end of {length} steps separately: effective separation rank {rank:.2f}."
    return (
        f"The output joins the start of {length} steps to their end in about {rank:.1f} independent ways, of "
        f"{figures['full_rank']:.0f} that these sequences could show."
    )
