r"""Conjecture 1: true where the input takes many values, false where it takes M and R < M.

**Many values.** Let k = min{M, R}, P = ((T/2, L - 1)) and N = ((k, P)), and let the input space hold N points on which
the N monomials of degree P in f_1, ..., f_k are independent. Choose any point x* and weights with u = W_I^1 f(x) in
k coordinates, u(x*) = 1, W_H^l = I, W_I^2 summing the channels and the layers above passing the first channel on.
Then y = prod_t (sum_r h_{t,r}^1)^{m_t} with h_t^1 = prod_{j <= t} u(x_j) and m_t = ((T - t + 1, L - 2)). On sequences
Start = (x, x*, ..., x*), End = (x', x*, ..., x*) every h_t^1 past the middle is u(x) * u(x'), and the exponents m_t
there add up to P, so that

    y = (sum_r u_r(x))^c  <u(x), u(x')>^P = (sum_r u_r(x))^c  sum_{|a| = P} (P! / a!)  u(x)^a  u(x')^a,

a matrix of rank N, the number of monomials. (A generic change of the k coordinates keeps the sums and u(x*) from
vanishing.) By claims 2 and 5 almost every circuit has separation rank at least N: conjecture 1 without its cap M^(T/2).

**M values, R < M.** y is linear in W_I^1 f(x_T), a vector of R numbers, so the rank is at most R M^(T/2 - 1), while the
conjecture's bound tends to M^(T/2) with depth. `separation_ceiling` holds the sharper form.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.separation._bounds import basic_units, conjectured_rank, multiset_coefficient, separation_ceiling
from mnemoscope.theory.separation._circuit import Circuit, identity, ones, random_templates, start_end_matrix
from mnemoscope.theory.separation._modular import PRIMES, exact_rank
from mnemoscope.theory.separation._rank import generic_rank

Array = np.ndarray


def power_circuit(depth: int, channels: int, templates: Array, prime: int) -> Circuit:
    """The circuit of the proof above; the first of `templates` (n, M) is x*."""
    kinds = min(channels, templates.shape[1])
    if not templates[0, :kinds].all():
        raise MnemoscopeError(f"the first template must be non-zero in its first {kinds} entries, got {templates[0]}")
    weights = np.zeros((channels, templates.shape[1]), dtype=np.uint64)
    for r in range(kinds):
        weights[r, r] = pow(int(templates[0, r]), -1, prime)
    total, first = np.zeros((2, channels, channels), dtype=np.uint64)
    total[0] = 1
    first[0, 0] = 1
    return Circuit(
        input_weights=(weights, total, *[first] * (depth - 2))[:depth],
        hidden_weights=(identity(channels, prime),) * depth,
        output_weights=total[0] if depth == 1 else first[0],
        initial=ones((depth, channels), prime),
        prime=prime,
    )


def power_matrix_rank(
    depth: int, channels: int, inputs: int, length: int, prime: int = PRIMES[0], seed: int = 0
) -> int:
    """The rank that the proof's circuit reaches on N + 3 random template vectors: ((min{M, R}, ((T/2, L - 1))))."""
    count = multiset_coefficient(min(inputs, channels), basic_units(depth, length)) + 3
    templates = random_templates(count, inputs, np.random.default_rng(seed), prime)
    halves = np.zeros((count, length // 2), dtype=np.int64)  # x* everywhere ...
    halves[:, 0] = np.arange(count)  # ... but in the first place
    circuit = power_circuit(depth, channels, templates, prime)
    return exact_rank(start_end_matrix(circuit, halves, halves, templates), prime)


@statement(
    "levine-conjecture-1-many-values",
    paper=PAPERS["separation"],
    where="conjecture 1, A.4",
    status="holds",
    claim="explicit weights reach the bound at every depth if the input takes enough values: there it is true",
)
def many_values() -> Iterator[Row]:
    for depth, channels, inputs, length in product((1, 2, 3, 4, 5), (2, 3, 4), (2, 3), (2, 4, 6)):
        bound = multiset_coefficient(min(channels, inputs), basic_units(depth, length))
        if bound <= 150:
            found = power_matrix_rank(depth, channels, inputs, length)
            yield Row(f"L={depth} R={channels} M={inputs} T={length}", bound, found, "==")


@statement(
    "levine-conjecture-1-few-channels",
    paper=PAPERS["separation"],
    where="conjecture 1",
    status="corrected",
    claim="for an input of exactly M values and R < M the cap is not M^(T/2) but the ceiling R M^(T/2 - 1) or less",
    correction="as printed it fails: R=2, M=3, T=4, L=6 has rank 6 at most, whatever the weights, and not 7",
)
def few_channels() -> Iterator[Row]:
    for depth, channels, inputs, length in [(6, 2, 3, 4), (6, 2, 3, 6), (4, 3, 4, 4), (5, 3, 4, 6), (8, 2, 4, 4)]:
        printed = conjectured_rank(depth, channels, inputs, length)
        cap = separation_ceiling(depth, channels, inputs, length, inputs)
        found = generic_rank(depth, channels, inputs, length).rank
        case = f"L={depth} R={channels} M={inputs} T={length}"
        yield Row(f"{case}: rank found, against the ceiling", cap, found, "==")
        yield Row(f"{case}: the printed bound, above it", cap + 1, printed, ">=")


@statement(
    "levine-conjecture-1",
    paper=PAPERS["separation"],
    where="conjecture 1",
    status="open",
    claim="for an input of exactly M values and R >= M almost every circuit reaches ((M, ((T/2, L - 1)))), or M^(T/2)",
)
def few_values() -> Iterator[Row]:
    two_values = product((3, 4, 5), (2, 3, 4), (2,), (4, 6, 8, 10, 12, 16))
    more_values = product((3, 4), (3, 4), (3,), (4, 6, 8, 10))
    for depth, channels, inputs, length in [*two_values, *more_values, (3, 4, 4, 8), (4, 2, 2, 20)]:
        found = generic_rank(depth, channels, inputs, length, primes=PRIMES[:1])
        case = f"L={depth} R={channels} M={inputs} T={length}"
        yield Row(case, conjectured_rank(depth, channels, inputs, length), found.rank, ">=")
