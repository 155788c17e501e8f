"""Theorem 1 and the claims around it, checked by exact ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from mnemoscope.theory._statement import PAPERS, Relation, Row, statement
from mnemoscope.theory.separation._bounds import (
    deep_rank_bound,
    exponential_floor,
    multiset_coefficient,
    separation_ceiling,
    shallow_rank,
)
from mnemoscope.theory.separation._circuit import random_templates
from mnemoscope.theory.separation._grid import grid_tensor, start_end
from mnemoscope.theory.separation._modular import PRIMES, apply, exact_rank, reduce
from mnemoscope.theory.separation._rank import generic_rank

Array = np.ndarray


def separable_sum(starts: Array, ends: Array, prime: int) -> Callable[[Array], Array]:
    """A sum of K terms g_v(Start) g'_v(End), each a product of linear forms, as a function of x (B, T, M) modulo prime.

    `starts`, `ends` (K, T/2, M) -> y(x) = sum_v prod_t <starts_vt, x_t> prod_t <ends_vt, x_{T/2+t}>, as in eq. 5.
    """
    forms = np.concatenate([starts, ends], axis=1)  # (K, T, M)

    def function(x: Array) -> Array:
        total = np.zeros(len(x), dtype=np.uint64)
        for term in forms:
            value = np.ones(len(x), dtype=np.uint64)
            for t, form in enumerate(term):
                value = reduce(value * apply(form[None], x[:, t], prime)[:, 0], prime)
            total = reduce(total + value, prime)
        return total

    return function


@statement(
    "levine-claim-2",
    paper=PAPERS["separation"],
    where="claim 2, eqs 5 and 9, B.2",
    status="holds",
    claim="on any template vectors the grid tensor's Start-End rank is at most the separation rank",
)
def claim_2() -> Iterator[Row]:
    rng = np.random.default_rng(2)
    prime = PRIMES[0]
    inputs = 3
    for terms, values, length in product((1, 2, 5, 12), (2, 3, 5), (2, 4)):
        starts, ends = rng.integers(0, prime, size=(2, terms, length // 2, inputs), dtype=np.uint64)
        templates = random_templates(values, inputs, rng, prime)
        tensor = grid_tensor(separable_sum(starts, ends, prime), templates, length)
        case = f"sum of {terms} separable terms, {values} templates, T={length}"
        yield Row(case, terms, exact_rank(start_end(tensor)))


@statement(
    "levine-theorem-1-shallow",
    paper=PAPERS["separation"],
    where="theorem 1.1, B.3.1",
    status="holds",
    claim="almost every circuit of depth 1 has Start-End separation rank min{R, M^(T/2)}, whatever its length",
)
def theorem_1_shallow() -> Iterator[Row]:
    for channels, inputs, length in product((1, 2, 3, 4, 6, 9), (2, 3, 4), (2, 4, 6, 8)):
        found = generic_rank(1, channels, inputs, length, free_start=True)
        yield Row(f"R={channels} M={inputs} T={length}", shallow_rank(channels, inputs, length), found.rank, "==")


@statement(
    "levine-theorem-1-deep",
    paper=PAPERS["separation"],
    where="theorem 1.2, B.3.2",
    status="holds",
    claim="almost every circuit of depth 2 has Start-End separation rank at least ((min{M, R}, T/2))",
)
def theorem_1_deep() -> Iterator[Row]:
    cases = [*product((2, 3, 4), (2, 3, 4), (2, 4, 6, 8)), *product((2, 3, 4), (2,), (12, 16)), (3, 3, 12), (2, 2, 20)]
    for channels, inputs, length in cases:
        primes = PRIMES[: 2 if length < 12 else 1]
        found = generic_rank(2, channels, inputs, length, primes=primes)
        yield Row(f"R={channels} M={inputs} T={length}", deep_rank_bound(channels, inputs, length), found.rank, ">=")


@statement(
    "levine-section-4-2",
    paper=PAPERS["separation"],
    where="section 4.2",
    status="holds",
    claim="almost every circuit of depth L > 2, too, has Start-End separation rank at least ((min{M, R}, T/2))",
)
def deeper_than_two() -> Iterator[Row]:
    for depth, channels, inputs, length in product((3, 4, 6), (1, 2, 3, 4), (2, 3), (2, 4, 6)):
        bound = deep_rank_bound(channels, inputs, length)
        found = generic_rank(depth, channels, inputs, length, primes=PRIMES[:1], free_start=True)
        relation: Relation = "==" if length == 2 and channels >= inputs else ">="  # M, and the grid has no more rows
        yield Row(f"L={depth} R={channels} M={inputs} T={length}", bound, found.rank, relation)


@statement(
    "levine-separation-ceiling",
    paper=PAPERS["separation"],
    where="beside theorem 1 (the paper gives no upper bound for L >= 2)",
    status="holds",
    claim="no circuit's separation rank exceeds the coefficients that its middle states and its inputs can carry",
)
def ceiling() -> Iterator[Row]:
    for depth, channels, inputs, length in product((1, 2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 4, 6)):
        for values in (inputs, inputs + 2):
            found = generic_rank(depth, channels, inputs, length, values=values, primes=PRIMES[:1])
            case = f"L={depth} R={channels} M={inputs} T={length}, {values} values"
            yield Row(case, separation_ceiling(depth, channels, inputs, length, values), found.rank)


@statement(
    "levine-claim-5",
    paper=PAPERS["separation"],
    where="claim 5, B.3.3",
    status="holds",
    claim="a rank that one choice of weights reaches is reached by almost all",
)
def claim_5() -> Iterator[Row]:
    draws = 20
    for depth, channels, inputs, length in [(1, 3, 2, 8), (2, 2, 2, 8), (2, 3, 3, 6), (3, 2, 3, 6)]:
        found = generic_rank(depth, channels, inputs, length, draws=draws, primes=PRIMES[:1], free_start=True).ranks
        case = f"draws of rank {max(found)}, L={depth} R={channels} M={inputs} T={length}"
        yield Row(case, draws, found.count(max(found)), "==")


@statement(
    "levine-footnote-3",
    paper=PAPERS["separation"],
    where="footnote 3",
    status="holds",
    claim="for T > 2 (k - 1), k = min{M, R}, theorem 1.2's bound is at least 4^k / (4 sqrt k)",
)
def footnote_3() -> Iterator[Row]:
    for kinds in (1, 2, 4, 8, 16, 32):
        relation: Relation = "==" if kinds == 1 else ">="  # one kind: nothing is lost
        yield Row(f"k={kinds} T={2 * kinds}", exponential_floor(kinds), multiset_coefficient(kinds, kinds), relation)
