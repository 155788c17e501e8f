"""The explicit weights with which appendix B.3.2 proves theorem 1.2, and the lemmas that the proof rests on (B.3.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations_with_replacement, permutations, product

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.separation._bounds import multiset_coefficient
from mnemoscope.theory.separation._circuit import Circuit, grid_matrix, identity, ones
from mnemoscope.theory.separation._grid import all_sequences
from mnemoscope.theory.separation._modular import PRIMES, apply, exact_rank, inverse, reduce

Array = np.ndarray


def power_matrix(channels: int, inputs: int, length: int, z: int, prime: int) -> Array:
    """Z of B.3.2, (R, M): Z_rd = z^(Omega^r delta_rd) for r <= M, else 0; lemma 3 asks for Omega > (T/2)^2."""
    omega = (length // 2) ** 2 + 1
    matrix = np.zeros((channels, inputs), dtype=np.uint64)
    matrix[: min(channels, inputs)] = 1
    for r in range(min(channels, inputs)):
        matrix[r, r] = pow(z, omega ** (r + 1), prime)
    return matrix


def theorem_1_circuit(
    channels: int, inputs: int, length: int, z: int = 3, prime: int = PRIMES[0], templates: Array | None = None
) -> Circuit:
    """The circuit of depth 2 of B.3.2: its Start-End rank on `templates` F (M, M) is exactly ((min{M, R}, T/2)).

    W_I^1 = Z (F^T)^-1, W_I^2 has ones in its first row, W_H^1 = W_H^2 = I, W_O reads the first channel, h_0 = 1.
    """
    if z % prime == 0:
        raise MnemoscopeError(f"z must not be a multiple of {prime} (B.3.2 takes it from R \\ {{0}}), got {z}")
    weights = power_matrix(channels, inputs, length, z, prime)
    if templates is not None:
        weights = apply(inverse(templates, prime), weights, prime)  # (F^-1 Z^T)^T = Z (F^T)^-1
    return Circuit(
        input_weights=(weights, _first_row(channels)),
        hidden_weights=(identity(channels, prime),) * 2,
        output_weights=_first_row(channels)[:, 0],
        initial=ones((2, channels), prime),
        prime=prime,
    )


def _first_row(size: int) -> Array:
    matrix = np.zeros((size, size), dtype=np.uint64)
    matrix[0] = 1
    return matrix


def bucket_states(colors: int, balls: int) -> list[tuple[int, ...]]:
    """states(R, K) of claim 6: how many balls of each color a bucket of K balls may hold; ((R, K)) of them."""
    buckets = combinations_with_replacement(range(colors), balls)
    return [tuple(bucket.count(color) for color in range(colors)) for bucket in buckets]


def end_product(z: Array, half: int, prime: int) -> Array:
    """B of B.3.2, (M^(T/2), M^(T/2)): prod_{t > T/2} sum_r prod_{j <= t} Z_{r d_j}, Start by row and End by column."""
    sequences = all_sequences(z.shape[1], half)
    start = _running_products(z, sequences, prime)[-1]  # (R, M^(T/2))
    matrix = np.ones((len(sequences),) * 2, dtype=np.uint64)
    for end in _running_products(z, sequences, prime):
        matrix = reduce(matrix * apply(end.T, start.T, prime), prime)
    return matrix


def start_factors(z: Array, half: int, prime: int) -> Array:
    """u of claim 6, (M^(T/2), N): prod_r prod_{j <= T/2} Z_{r d_j}^{p_r}, one column a state p of the bucket."""
    start = _running_products(z, all_sequences(z.shape[1], half), prime)[-1]  # (R, M^(T/2))
    return np.stack([_monomial(start, state, prime) for state in bucket_states(len(z), half)], axis=1)


def end_factors(z: Array, half: int, prime: int) -> Array:
    """v of claim 6, (N, M^(T/2)): the sum over all ways to empty the bucket of prod_r prod_j Z_{r d_j}^{p_r^(T-j+1)}.

    By recursion on the number of balls, not over trajectories: take one ball of color r, then empty the rest.
    """
    values = {(0,) * len(z): np.ones(1, dtype=np.uint64)}
    for balls in range(1, half + 1):
        values = {
            state: _outer(_monomial(z, state, prime), _emptied(values, state, prime), prime)
            for state in bucket_states(len(z), balls)
        }
    return np.stack([values[state] for state in bucket_states(len(z), half)])


def _running_products(z: Array, sequences: Array, prime: int) -> list[Array]:
    running = np.ones((len(z), len(sequences)), dtype=np.uint64)
    products = []
    for symbols in sequences.T:
        running = reduce(running * z[:, symbols], prime)
        products.append(running)
    return products


def _monomial(variables: Array, exponents: Sequence[int], prime: int) -> Array:
    """prod_r variables_r^exponents_r: (R, n) -> (n,)."""
    value = np.ones(variables.shape[1], dtype=np.uint64)
    for row, exponent in zip(variables, exponents, strict=True):
        for _ in range(exponent):
            value = reduce(value * row, prime)
    return value


def _emptied(values: dict[tuple[int, ...], Array], state: tuple[int, ...], prime: int) -> Array:
    fewer = [(*state[:r], state[r] - 1, *state[r + 1 :]) for r in range(len(state)) if state[r]]
    return reduce(np.stack([values[bucket] for bucket in fewer]).sum(axis=0), prime)


def _outer(first: Array, rest: Array, prime: int) -> Array:
    return reduce(first[:, None] * rest, prime).ravel()


def best_reward(colors: Sequence[int], state: Sequence[int], omega: int) -> int:
    """f(d, p) of lemma 3: the largest sum of Omega^{d_j} p_{d_j} while the bucket p is emptied ball by ball.

    `colors` d_{T/2+1} <= ... <= d_T, counted from 1, one for each ball.
    """

    @cache
    def reward(step: int, bucket: tuple[int, ...]) -> int:
        if step == len(colors):
            return 0
        color = colors[step]
        fewer = [(*bucket[:r], bucket[r] - 1, *bucket[r + 1 :]) for r in range(len(bucket)) if bucket[r]]
        return omega**color * bucket[color - 1] + max(reward(step + 1, rest) for rest in fewer)

    if sum(state) != len(colors):
        raise MnemoscopeError(f"a bucket of {sum(state)} balls needs as many colors, got {len(colors)}")
    return reward(0, tuple(state))


def permuted_products(vectors: Array, permutation: Sequence[int]) -> float:
    """sum_i <v^(i), v^(sigma(i))>, which lemma 2 compares with sum_i |v^(i)|^2."""
    return float((vectors * vectors[list(permutation)]).sum())


@statement(
    "levine-theorem-1-assignment",
    paper=PAPERS["separation"],
    where="B.3.2",
    status="holds",
    claim="the proof's explicit circuit of depth 2 has Start-End rank exactly ((min{M, R}, T/2))",
)
def explicit_assignment() -> Iterator[Row]:
    for channels, inputs, length in [*product((1, 2, 3, 4), (1, 2, 3), (2, 4, 6, 8)), (2, 2, 16), (3, 3, 12)]:
        found = exact_rank(grid_matrix(theorem_1_circuit(channels, inputs, length), length))
        bound = multiset_coefficient(min(channels, inputs), length // 2)
        yield Row(f"R={channels} M={inputs} T={length}", bound, found, "==")


@statement(
    "levine-claim-6",
    paper=PAPERS["separation"],
    where="claim 6, B.3.3",
    status="holds",
    claim="the End product is a sum over the states of a bucket of balls of products of a Start and an End factor",
)
def claim_6() -> Iterator[Row]:
    rng = np.random.default_rng(6)
    prime = PRIMES[1]
    for channels, inputs, half in product((1, 2, 3), (2, 3), (1, 2, 4)):
        z = rng.integers(0, prime, size=(channels, inputs), dtype=np.uint64)
        factored = apply(end_factors(z, half, prime).T, start_factors(z, half, prime), prime)
        equal = factored == end_product(z, half, prime)
        yield Row(f"equal entries, R={channels} M={inputs} T={2 * half}", equal.size, int(equal.sum()), "==")


@statement(
    "levine-lemma-1",
    paper=PAPERS["separation"],
    where="lemma 1, B.3.3",
    status="holds",
    claim="polynomials with one summand of highest degree t in their determinant are singular at t points at most",
)
def lemma_1() -> Iterator[Row]:
    rng = np.random.default_rng(1)
    prime = 101
    points = 101
    for size, degree in product((2, 4, 6), (1, 2, 3)):
        coefficients = rng.integers(0, prime, size=(size, size, degree + 1), dtype=np.uint64)
        coefficients[..., degree] = identity(size, prime)  # only the diagonal reaches the full degree
        powers = np.array([[pow(x, k, prime) for k in range(degree + 1)] for x in range(points)], dtype=np.uint64)
        matrices = np.moveaxis(apply(powers, coefficients, prime), -1, 0)
        singular = sum(exact_rank(matrix, prime) < size for matrix in matrices)
        yield Row(f"singular points of {prime}, {size} x {size}, degree {degree}", size * degree, singular)


@statement(
    "levine-lemma-2",
    paper=PAPERS["separation"],
    where="lemma 2, eqs 14 and 15",
    status="holds",
    claim="no permutation but the identity brings sum <v_i, v_sigma(i)> up to sum |v_i|^2, for different vectors",
)
def lemma_2() -> Iterator[Row]:
    rng = np.random.default_rng(2)
    for count, size in product((2, 3, 5), (1, 2, 4)):
        vectors = rng.random((count, size))
        others = list(permutations(range(count)))[1:]
        largest = max(permuted_products(vectors, permutation) for permutation in others)
        squares = permuted_products(vectors, range(count))
        yield Row(f"{count} vectors of R^{size}", squares, largest)
        yield Row(f"{count} vectors of R^{size}: sum |v_i|^2", float((vectors**2).sum()), squares, "==")


@statement(
    "levine-lemma-3",
    paper=PAPERS["separation"],
    where="lemma 3, eqs 18 and 19",
    status="holds",
    claim="for Omega > (T/2)^2 only the bucket that holds the colors d reaches the largest reward for d",
)
def lemma_3() -> Iterator[Row]:
    for colors, half in product((1, 2, 3, 4), (1, 2, 3, 4)):
        omega = half**2 + 1
        buckets = bucket_states(colors, half)
        winners = 0
        for d in combinations_with_replacement(range(1, colors + 1), half):
            rewards = {bucket: best_reward(d, bucket, omega) for bucket in buckets}
            own = tuple(d.count(r) for r in range(1, colors + 1))
            winners += all(rewards[own] > rewards[bucket] for bucket in buckets if bucket != own)
        yield Row(f"sequences won by their own bucket, R={colors} T={2 * half}", len(buckets), winners, "==")
