"""Recurrent arithmetic circuits (eqs 1, 3 and 4) over the reals or modulo a prime, on whole grids of inputs at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation._grid import all_sequences
from mnemoscope.theory.separation._modular import apply, residues, times

Array = np.ndarray

_BLOCK = 2**16  # pairs of half sequences run at once: their states stay in the cache


@dataclass(frozen=True)
class Circuit:
    """A recurrent arithmetic circuit with one output (one row of W_O), eqs 3 and 4:

        h_t^l = (W_H^l h_{t-1}^l) * (W_I^l h_t^{l-1}),   h_t^0 = f(x_t),   y = W_O h_T^L.

    `initial` holds W_H^l h_0^l, the vector that layer l's first product meets (all ones in eq. 7 and footnote 4). With
    a `prime` all weights are residues modulo it (uint64), otherwise float64.
    """

    input_weights: tuple[Array, ...]  # W_I^l: (R, M), then (R, R)
    hidden_weights: tuple[Array, ...]  # W_H^l: (R, R)
    output_weights: Array  # (R,)
    initial: Array  # (L, R)
    prime: int | None = None

    def __post_init__(self) -> None:
        square = (self.channels, self.channels)
        shapes = [w.shape for w in (*self.input_weights[1:], *self.hidden_weights)]
        if len(self.hidden_weights) != self.depth or any(shape != square for shape in shapes):
            raise MnemoscopeError(f"{self.depth} layers of {self.channels} channels need {square}, got {shapes}")
        if self.output_weights.shape != square[:1] or self.initial.shape != (self.depth, self.channels):
            given = (self.output_weights.shape, self.initial.shape)
            raise MnemoscopeError(f"W_O must be {square[:1]} and initial {(self.depth, self.channels)}, got {given}")

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return len(self.input_weights)

    @property
    def channels(self) -> int:
        """R, the size of a layer's state."""
        return int(self.input_weights[0].shape[0])

    @property
    def inputs(self) -> int:
        """M, the size of an input vector."""
        return int(self.input_weights[0].shape[1])


def random_circuit(
    depth: int, channels: int, inputs: int, rng: np.random.Generator, prime: int | None = None, free_start: bool = False
) -> Circuit:
    """A circuit with independent weights: uniform residues modulo `prime`, or normal of variance 1 / fan-in.

    `free_start` also draws the initial states (theorem 1 speaks of almost every theta and h_0); otherwise W_H h_0 = 1.
    """
    shapes = [(channels, inputs)] + [(channels, channels)] * (depth - 1)
    return Circuit(
        input_weights=tuple(_draw(shape, rng, prime) for shape in shapes),
        hidden_weights=tuple(_draw((channels, channels), rng, prime) for _ in range(depth)),
        output_weights=_draw((channels,), rng, prime),
        initial=_draw((depth, channels), rng, prime) if free_start else ones((depth, channels), prime),
        prime=prime,
    )


def _draw(shape: tuple[int, ...], rng: np.random.Generator, prime: int | None) -> Array:
    if prime is None:
        return rng.standard_normal(shape) / np.sqrt(shape[-1])
    return rng.integers(0, prime, size=shape, dtype=np.uint64)


def random_templates(count: int, inputs: int, rng: np.random.Generator, prime: int | None = None) -> Array:
    """`count` template vectors f(x^(i)), one a row: (count, inputs)."""
    return _draw((count, inputs), rng, prime)


def ones(shape: tuple[int, ...], prime: int | None) -> Array:
    return np.ones(shape, dtype=np.float64 if prime is None else np.uint64)


def identity(size: int, prime: int | None) -> Array:
    return np.eye(size, dtype=np.float64 if prime is None else np.uint64)


def circuit_outputs(circuit: Circuit, x: Array) -> Array:
    """y after T steps, (B,), for sequences of input vectors f(x_t): x (B, T, M)."""
    drive = apply(circuit.input_weights[0], _as_field(x, circuit.prime), circuit.prime)  # (B, T, R)
    carry = [np.broadcast_to(vector, drive[:, 0].shape) for vector in circuit.initial]
    for t in range(drive.shape[1]):
        states = list(_layers(circuit, drive[:, t], carry))
        carry = _carry(circuit, states)
    return _read(circuit, states[-1])


def start_end_matrix(circuit: Circuit, starts: Array, ends: Array, templates: Array | None = None) -> Array:
    """y on every pair of a Start sequence and an End sequence: (len(starts), len(ends)).

    `starts` and `ends` (., T/2) hold indices of `templates` (n, M), the vectors f(x^(i)); by default these are the M
    unit vectors, which loses nothing for M templates with a non-singular F (claim 1). Common prefixes of the ends are
    run once.
    """
    table = identity(circuit.inputs, circuit.prime) if templates is None else _as_field(templates, circuit.prime)
    drive = apply(circuit.input_weights[0], table, circuit.prime)  # (n, R)
    carry = [np.broadcast_to(vector, (len(starts), circuit.channels)) for vector in circuit.initial]
    for symbols in starts.T:
        carry = _carry(circuit, list(_layers(circuit, drive[symbols], carry)))
    rows = max(1, _BLOCK // len(ends))
    blocks = ([vectors[first : first + rows, None] for vectors in carry] for first in range(0, len(starts), rows))
    return np.concatenate([_run_ends(circuit, drive, block, ends) for block in blocks])


def _run_ends(circuit: Circuit, drive: Array, carry: list[Array], ends: Array) -> Array:
    """y for every row of the W_H^l h_{T/2}^l in `carry` (rows, 1, R) and every End sequence: (rows, len(ends))."""
    values = len(drive)
    prefix_of_end = np.zeros(len(ends), dtype=np.int64)  # which of the different prefixes each End begins with
    states: list[Array] = []
    for symbols in ends.T:
        # A longer prefix is a shorter one and a symbol.
        prefixes, prefix_of_end = np.unique(prefix_of_end * values + symbols, return_inverse=True)
        carry = _carry(circuit, states) if states else carry
        shorter = [vectors[:, prefixes // values] for vectors in carry]
        states = list(_layers(circuit, drive[prefixes % values], shorter))
    return _read(circuit, states[-1])[:, prefix_of_end]


def grid_matrix(circuit: Circuit, length: int, templates: Array | None = None) -> Array:
    """The Start-End matricisation of the circuit's whole grid tensor: (n^(T/2), n^(T/2))."""
    if length < 2 or length % 2:
        raise MnemoscopeError(f"a Start-End partition needs an even number of time steps, got {length}")
    halves = all_sequences(circuit.inputs if templates is None else len(templates), length // 2)
    return start_end_matrix(circuit, halves, halves, templates)


def _layers(circuit: Circuit, drive: Array, carry: list[Array]) -> Iterator[Array]:
    """h_t^1, ..., h_t^L from W_I^1 f(x_t) and the W_H^l h_{t-1}^l (eq. 4)."""
    for layer, vectors in enumerate(carry):
        if layer:
            drive = apply(circuit.input_weights[layer], drive, circuit.prime)
        drive = times(vectors, drive, circuit.prime)
        yield drive


def _carry(circuit: Circuit, states: list[Array]) -> list[Array]:
    return [apply(w, h, circuit.prime) for w, h in zip(circuit.hidden_weights, states, strict=True)]


def _read(circuit: Circuit, state: Array) -> Array:
    return apply(circuit.output_weights[None], state, circuit.prime)[..., 0]


def _as_field(values: Array, prime: int | None) -> Array:
    return np.asarray(values, dtype=np.float64) if prime is None else residues(values, prime)
