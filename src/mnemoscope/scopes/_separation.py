"""Start-End separation rank: whether a model joins the start of a sequence to its end, and in how many ways."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from mnemoscope.adapters import WithReadout
from mnemoscope.errors import MnemoscopeError, check_count
from mnemoscope.finding import Finding, arrays
from mnemoscope.layers import RAC
from mnemoscope.scopes._frame.scope import not_applicable, scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.theory.separation import (
    PRIMES,
    Circuit,
    Spectrum,
    deep_rank_bound,
    distinct_sequences,
    exact_rank,
    separation_ceiling,
    separation_spectrum,
    shallow_rank,
    start_end_matrix,
)

MAX_OUTPUTS = 8  # whose exact ranks are computed
MAX_SEQUENCES = 512  # of Start, and of End, for an exact rank
EXACT_PRODUCTS = 3e8  # of residues, that an exact rank may take beyond `limit` sequences

HELP = """
Outputs on many beginnings and many endings form a matrix. If it has one singular value that
matters, beginning and end are treated apart; the slower the values fall, the more ways there are of
joining them.
"""


@scope(
    "In how many ways does the output join the start of a sequence to its end?",
    title="Start and end",
    help=HELP,
    needs=("outputs", "deterministic", "apart"),
    cost=30,
)
def separation(
    subject: Subject, *, templates: Tensor | None = None, length: int = 8, limit: int = 64, exact: bool = True
) -> Finding:
    """Measure the rank of the last output as a matrix of Start by End sequences (Levine et al. 2018, section 3).

    For any model: the singular values of the matrices of its outputs on sequences of template inputs, and their
    effective rank (the exponential of their entropy). For a `RAC`, alone or with an affine read-out, also a proved
    rank: its weights are rational numbers, and the rank of their matrix modulo a large prime is at most its true rank.
    It is the rank of the output with the largest one; of a RAC without read-out, that of a random linear read-out,
    which almost every other reaches too.

    Series: `singular_values`, of the output with the largest effective rank, relative to the largest.
    Figures: `effective_rank`, the mean over outputs; `numerical_rank`; `distance`, the part that no product of a
    function of Start and one of End can represent; `full_rank`, the most that these sequences could show; not if the
    outputs overflow. For a RAC: `exact_rank`, proved from below on up to 512 sequences a side; `ceiling`, which no
    circuit of these sizes exceeds; `theorem_1`, what Theorem 1 says of almost every circuit of the same sizes (depth 1)
    or guarantees it (depth 2); these three not if the rank is zero, which proves nothing. Labels: `output`, which one
    `exact_rank` is about.

    Args:
        templates: (M, features) or (M, ...), the inputs that sequences are made of; by default the distinct inputs of
            the given sequences, four at most.
        length: steps of a sequence, even; its first half is Start.
        limit: of Start, and of End sequences whose singular values are computed; beyond it a sample is drawn.
        exact: compute a RAC's exact rank (needs the extra `theory`).
    """
    check_count("length", length, 2)
    check_count("limit", limit)
    given = templates is not None
    shape = subject.features.shape[2:]
    wanted = f"(M, {', '.join(map(str, shape))})"
    if given and not isinstance(templates, Tensor):
        raise MnemoscopeError(f"templates must be a tensor {wanted}; got {type(templates).__name__}")
    templates = templates.to(subject.features) if templates is not None else _templates(subject)
    if not given and len(templates) < 2:
        why = "these sequences hold the same input at every step, so that no two starts differ; templates= gives others"
        return not_applicable("separation", why)
    if templates.dim() == 0 or len(templates) < 2 or templates.shape[1:] != shape:
        raise MnemoscopeError(f"templates must be at least 2 inputs, {wanted}; got {list(templates.shape)}")

    if subject.adapted.differs_by_sequence:
        why = (
            f"{subject.name} also reads arguments of each sequence, and sequences joined of two have none: give it one"
        )
        return not_applicable("separation", why)
    if not _reads(subject, length):
        why = f"{subject.name} does not read sequences of {length} steps; length= gives another number"
        return not_applicable("separation", why)

    # The exact rank of an arithmetic circuit.
    circuits = _circuits(subject, templates) if exact else []
    proved = _exact_rank(circuits, templates, length, limit, subject.seed) if circuits else None
    if proved is not None and proved.rank == 0:  # zero modulo a prime: that proves nothing of the output
        proved = None
    subject.report(0.5)

    # The singular values of any model's Start-End matrices.
    try:
        finding = _measured(separation_spectrum(subject.run, templates, length, limit=limit, seed=subject.seed), length)
    except MnemoscopeError:  # the outputs overflow, which does not touch the exact rank
        if proved is None:
            raise
        finding = Finding("separation", "", "estimated", method="the circuit modulo a prime")
    if proved is not None:
        finding = _with_proof(finding, subject, proved, templates, length)
    assumption = f"sequences of {length} steps over {len(templates)} inputs show how longer ones are joined"
    return replace(finding, assumptions=(assumption,))


def _measured(spectrum: Spectrum, length: int) -> Finding:
    """Return the finding of the singular values, for any model."""
    figures = {
        "effective_rank": float(spectrum.effective_rank.mean()),
        "numerical_rank": float(spectrum.rank.max()),
        "distance": float(spectrum.distance.mean()),
        "full_rank": float(min(spectrum.shape)),
    }
    return Finding(
        "separation",
        _sentence(figures, length, spectrum.ignored),
        "estimated",
        figures=figures,
        series=_singular_values(spectrum),
        warnings=_warnings(figures),
        method="outputs for {} first by {} second halves, singular values after equilibration".format(*spectrum.shape),
    )


def _with_proof(finding: Finding, subject: Subject, proved: ProvedRank, templates: Tensor, length: int) -> Finding:
    """Return the finding of a RAC: what was measured, and the rank that is proved."""
    subject.check_bound("the rank", float(proved.rank), _as_float(proved.ceiling), 0.0)
    return replace(
        finding,
        sentence=_proved_sentence(proved, length),
        status="certified",
        why=f"rank modulo {PRIMES[0]} of the circuit's own weights, start and read-out",
        figures=finding.figures | _proved_figures(subject, proved, templates, length),
        certified=("exact_rank", "ceiling"),
        labels={"output": proved.output},
    )


def _singular_values(spectrum: Spectrum) -> dict[str, np.ndarray]:
    """Return the singular values of the output with the largest effective rank, relative to the largest."""
    values = spectrum.singular_values[int(np.argmax(spectrum.effective_rank))]
    return arrays(singular_values=values / max(values[0], 1e-300))


@torch.no_grad()
def _reads(subject: Subject, length: int) -> bool:
    """True if the model runs on sequences of this length; some read one length only, or none so short."""
    x = subject.features
    try:
        subject.run(x[torch.arange(length) % len(x), :2])  # some models squeeze a batch of one
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return False
    return True


def _templates(subject: Subject) -> Tensor:
    """Return distinct inputs of the given sequences, four at most."""
    rows = subject.features.flatten(0, 1)
    distinct = torch.unique(rows[:4096], dim=0)
    order = torch.randperm(len(distinct), generator=subject.generator())[:4].to(distinct.device)
    return distinct[order]


@dataclass(frozen=True)
class ReadCircuit:
    """A circuit modulo a prime, one of its outputs by name, and the constant that is added to it."""

    circuit: Circuit
    output: str
    offset: int


@dataclass(frozen=True)
class ProvedRank:
    """A proved lower bound of a Start-End rank.

    Attributes:
        rank: modulo a prime; the true rank is at least this.
        ceiling: what no circuit of these sizes exceeds.
        output: of which output.
        sample: how many Start and End sequences were used, in words; empty if all were.
    """

    rank: int
    ceiling: int
    output: str
    sample: str


@torch.no_grad()
def _circuits(subject: Subject, templates: Tensor) -> list[ReadCircuit]:
    """Return the outputs of a model that is a RAC with at most an affine read-out, modulo a prime; else none."""
    if subject.missing("step") or not subject.adapted.recurrence_is_model:
        return []
    rac = subject.layer
    if not isinstance(rac, RAC) or not _is_plain_circuit(rac):
        return []

    # Its weights and its own start, as the fractions that floating-point numbers are.
    prime = PRIMES[0]
    start = rac.initial_state(2)
    if not torch.equal(start, rac.initial_state(2)) or not torch.equal(start[:, 0], start[:, 1]):
        return []  # random, or different for each sequence
    numbers = [start, templates, *rac.parameters()]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in numbers):
        return []
    weights = [rac.weights(index) for index in range(rac.num_layers)]
    hidden = tuple(residues(w.weight_hh, prime) for w in weights)
    initial = np.stack([_product(V, residues(h, prime), prime) for V, h in zip(hidden, start[:, 0], strict=True)])

    # Its outputs: the model's own, or of a bare circuit a random read-out of its state.
    readouts = _readouts(subject, templates)
    if readouts is None:
        rng = np.random.default_rng(subject.seed)
        row = rng.integers(1, prime, rac.hidden_size, dtype=np.uint64)
        named = [("almost every linear read-out of its state", row, 0)]
    else:
        named = readouts
    inputs = tuple(residues(w.weight_ih, prime) for w in weights)
    return [ReadCircuit(Circuit(inputs, hidden, row, initial, prime), name, offset) for name, row, offset in named]


def _product(matrix: np.ndarray, vector: np.ndarray, prime: int) -> np.ndarray:
    """Return a matrix times a vector modulo a prime, in whole numbers of any size."""
    return np.asarray(matrix.astype(object) @ vector.astype(object) % prime).astype(np.uint64)


def _is_plain_circuit(circuit: RAC) -> bool:
    """Return True if the exact rank's equations are the circuit's: no subclass, bias or feature map changes them."""
    unchanged = circuit.unchanged_from(RAC, "cell", "forward", "observe", "project", "weights", "step")
    return unchanged and not circuit.bias and not circuit.bidirectional and circuit.feature is None


def _readouts(subject: Subject, templates: Tensor) -> list[tuple[str, np.ndarray, int]] | None:
    """Return name, row of C and constant of the first outputs y = C h + c; None without a read-out.

    An empty list if y depends on h or x in another way.
    """
    recurrence = subject.recurrence
    if not isinstance(recurrence, WithReadout):
        return None
    matrix = getattr(recurrence.model, "affine_readout", None)
    if matrix is None:
        return []
    offsets = recurrence.read(templates.new_zeros(len(templates), matrix.shape[1]), templates)  # (M, m)
    if not torch.equal(offsets, offsets[:1].expand_as(offsets)):
        return []  # it reads the last input too
    prime = PRIMES[0]
    rows = residues(matrix[:MAX_OUTPUTS], prime)
    constants = residues(offsets[0, :MAX_OUTPUTS], prime)
    return [(f"output {i}", row, int(c)) for i, (row, c) in enumerate(zip(rows, constants, strict=True))]


def _exact_rank(circuits: list[ReadCircuit], templates: Tensor, length: int, limit: int, seed: int) -> ProvedRank:
    """Return the largest rank among the outputs, on as many sequences as an exact computation affords."""
    one = circuits[0].circuit
    rng = np.random.default_rng(seed)
    prime = PRIMES[0]
    products = length * one.depth * one.channels**2 * len(circuits)  # for one pair of sequences
    count = max(limit, min(MAX_SEQUENCES, int((EXACT_PRODUCTS / products) ** 0.5)))
    starts = distinct_sequences(len(templates), length // 2, count, rng)
    ends = distinct_sequences(len(templates), length // 2, count, rng)
    ceiling = separation_ceiling(one.depth, one.channels, one.inputs, length, len(templates))
    whole = len(starts) == len(templates) ** (length // 2)
    sample = "" if whole else f"{len(starts)} beginnings by {len(ends)} endings"

    best = None
    for read in circuits:
        matrix = start_end_matrix(read.circuit, starts, ends, residues(templates, prime))
        matrix = (matrix + np.uint64(read.offset)) % np.uint64(prime)
        found = ProvedRank(exact_rank(matrix, prime), ceiling + (read.offset != 0), read.output, sample)
        if best is None or found.rank > best.rank:
            best = found
    assert best is not None
    return best


def _proved_figures(subject: Subject, proved: ProvedRank, templates: Tensor, length: int) -> dict[str, float]:
    rac = subject.layer
    assert isinstance(rac, RAC)
    figures = {"exact_rank": float(proved.rank), "ceiling": _as_float(proved.ceiling)}
    if rac.num_layers <= 2:
        theorem_1 = shallow_rank if rac.num_layers == 1 else deep_rank_bound
        figures["theorem_1"] = _as_float(theorem_1(rac.hidden_size, min(rac.input_size, len(templates)), length))
    return figures


def _as_float(value: int) -> float:
    """Return a whole number as a float; infinity if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def residues(weights: Tensor, prime: int) -> np.ndarray:
    """Return floating-point numbers modulo a prime, exactly: each is a fraction whose denominator is a power of two."""
    fractions = [Fraction(float(w)) for w in weights.detach().double().flatten()]
    values = [f.numerator * pow(f.denominator, -1, prime) % prime for f in fractions]
    return np.array(values, dtype=np.uint64).reshape(weights.shape)


def _proved_sentence(proved: ProvedRank, length: int) -> str:
    subject = proved.output[0].upper() + proved.output[1:]
    joins = f"{subject} joins the start of {length} steps to their end in"
    if proved.rank == proved.ceiling:
        return f"{joins} exactly {proved.rank} independent ways, the most that a circuit of these sizes can have."
    seen = f" (seen on {proved.sample})" if proved.sample else ""
    most = str(proved.ceiling) if proved.ceiling < 10**9 else f"10^{len(str(proved.ceiling))}"
    return f"{joins} at least {proved.rank} independent ways{seen}; no circuit of these sizes has more than {most}."


def _warnings(figures: dict[str, float]) -> tuple[str, ...]:
    if figures["numerical_rank"] > 0:
        return ()
    return ("if outputs wait for a delay, or for an input that is rare: length= gives more steps, templates= others",)


def _sentence(figures: dict[str, float], length: int, ignored: tuple[str, ...] = ()) -> str:
    rank = figures["effective_rank"]
    if figures["numerical_rank"] == 0:
        return f"The output is zero on every sequence of {length} steps that was tried."
    if ignored:
        halves = " or ".join({"start": "first", "end": "second"}[half] for half in ignored)
        return f"The output after {length} steps does not depend on the {halves} half of them."
    if figures["numerical_rank"] == 1:
        return (
            f"The output treats start and end of {length} steps separately, as far as rounding can tell: it is a "
            "function of the start times a function of the end."
        )
    return (
        f"The table of outputs, starts of {length} steps by their ends, has effective rank {rank:.2g} (numerical rank "
        f"{figures['numerical_rank']:.0f} of at most {figures['full_rank']:.0f}); rank 1 is a function of the start "
        "times one of the end, rank 2 may be their sum."
    )
