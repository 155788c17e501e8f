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
    """The rank of the last output as a matrix of Start sequences by End sequences (Levine et al. 2018, section 3).

    For a `RAC` it is exact: its weights are rational numbers, and the rank modulo a large prime is a certified lower
    bound on theirs, for a random read-out. For any model, the singular values of the matrices of its outputs on
    sequences of template inputs, and their effective rank (the exponential of their entropy).

    Series: `singular_values`, of the output with the largest effective rank, relative to the largest.
    Figures: `effective_rank`, the mean over outputs; `numerical_rank`; `distance`, the share that no product of a
    function of Start and one of End can take over; `full_rank`, the most that these sequences could show; `exact_rank`
    and `ceiling` for a RAC; `theorem_1`, what Theorem 1 says of almost every circuit of the same sizes (depth 1) or
    guarantees it (depth 2).

    Args:
        templates: (M, features), the inputs that sequences are made of; by default the distinct inputs at hand, four at
            most.
        length: steps of a sequence, even; its first half is Start.
        limit: of Start, and of End sequences; beyond it a sample is drawn.
        exact: whether to compute a RAC's exact rank (needs the extra `theory`).
    """
    templates = _templates(subject) if templates is None else templates.to(subject.features)
    if templates.dim() != 2 or len(templates) < 2 or templates.shape[1] != subject.features.shape[2]:
        raise MnemoscopeError(
            f"templates must be at least 2 inputs, (M, {subject.features.shape[2]}); got {list(templates.shape)}"
        )
    found = separation_spectrum(subject.run, templates, length, limit=limit, seed=subject.seed)
    best = int(np.argmax(found.effective_rank))
    spectrum = found.singular_values[best]
    figures = {
        "effective_rank": found.effective_rank.mean(), "numerical_rank": found.rank.max(),
        "distance": found.distance.mean(), "full_rank": min(found.shape),
    }  # fmt: skip
    subject.report(0.5)
    recurrence = subject.adapted.recurrence
    circuit = recurrence if exact and isinstance(recurrence, RAC) and _arithmetic(recurrence) else None
    if circuit is not None:
        figures |= _exactly(circuit, templates, length, limit, subject.seed)
    return Finding(
        "separation", _sentence(figures, length), "certified" if circuit is not None else "estimated",
        why="" if circuit is None else f"rank modulo {PRIMES[0]} of the circuit's own weights, with a random read-out",
        figures={name: float(value) for name, value in figures.items()},
        series=arrays(singular_values=spectrum / max(spectrum[0], 1e-300)),
        assumptions=(f"sequences of {length} steps over {len(templates)} inputs tell how longer ones are joined",),
        method=f"outputs on {found.shape[0]} Starts by {found.shape[1]} Ends, singular values after equilibration",
    )  # fmt: skip


def _templates(subject: Subject) -> Tensor:
    """Distinct inputs at hand, four at most."""
    rows = subject.features.flatten(0, 1)
    chosen = torch.unique(rows[:4096], dim=0)
    order = torch.randperm(len(chosen), generator=subject.generator())[:4].to(chosen.device)
    return chosen[order]


def _arithmetic(circuit: RAC) -> bool:
    own = circuit.unchanged_from(
        RAC, "cell", "forward", "observe", "project", "initial_cell_state"
    )  # and not those of a subclass
    return own and not circuit.bias and not circuit.bidirectional and circuit.feature is None


def _exactly(circuit: RAC, templates: Tensor, length: int, limit: int, seed: int) -> dict[str, float]:
    rng, prime = np.random.default_rng(seed), PRIMES[0]
    L, R, M = circuit.num_layers, circuit.hidden_size, circuit.input_size
    exactly = Circuit(
        input_weights=tuple(residues(getattr(circuit, f"weight_ih_l{k}"), prime) for k in range(L)),
        hidden_weights=tuple(residues(getattr(circuit, f"weight_hh_l{k}"), prime) for k in range(L)),
        output_weights=rng.integers(1, prime, R, dtype=np.uint64), initial=np.ones((L, R), np.uint64), prime=prime,
    )  # fmt: skip
    starts, ends = (distinct_sequences(len(templates), length // 2, limit, rng) for _ in range(2))
    matrix = start_end_matrix(exactly, starts, ends, residues(templates, prime))
    ceiling = min(separation_ceiling(L, R, M, length, len(templates)), *matrix.shape)
    figures = {"exact_rank": exact_rank(matrix, prime), "ceiling": ceiling}
    if L <= 2:
        inputs = min(M, len(templates))
        bound = (shallow_rank if L == 1 else deep_rank_bound)(R, inputs, length)
        figures["theorem_1"] = min(bound, *matrix.shape)
    return figures


def residues(weights: Tensor, prime: int) -> np.ndarray:
    """Floating-point numbers modulo a prime, exactly: each is a fraction whose denominator is a power of two."""
    fractions = [Fraction(float(w)) for w in weights.detach().double().flatten()]
    values = [f.numerator * pow(f.denominator, -1, prime) % prime for f in fractions]
    return np.array(values, dtype=np.uint64).reshape(weights.shape)


def _sentence(figures: dict[str, float], length: int) -> str:
    if "exact_rank" in figures:
        return (
            f"The output joins the start of {length} steps to their end in exactly {figures['exact_rank']:.0f} "
            f"independent ways, of {figures['ceiling']:.0f} that a circuit of these sizes can have."
        )
    joined = figures["effective_rank"]
    if joined < 1.05:
        return f"The output treats start and end of {length} steps apart: effective separation rank {joined:.2f}."
    return (
        f"The output joins the start of {length} steps to their end in about {joined:.1f} independent ways, of "
        f"{figures['full_rank']:.0f} that these sequences could show."
    )
