"""What Levine, Sharir & Shashua (2018) say of Start-End separation ranks, and a ceiling that they do not give.

Throughout: `depth` L layers of `channels` R, an input map f into R^M (`inputs` M), `length` T time steps.
"""

from __future__ import annotations

import math

from mnemoscope.errors import MnemoscopeError


def multiset_coefficient(kinds: int, size: int) -> int:
    """((kinds, size)) = C(kinds + size - 1, size): the multisets of `size` elements of `kinds` kinds (theorem 1)."""
    if kinds < 0 or size < 0:
        raise MnemoscopeError(f"a multiset coefficient needs numbers >= 0, got (({kinds}, {size}))")
    return math.comb(kinds + size - 1, size) if kinds else int(size == 0)


def shallow_rank(channels: int, inputs: int, length: int) -> int:
    """Theorem 1.1: min{R, M^(T/2)}, the rank of almost every circuit of depth 1."""
    half = half_length(length, channels, inputs)
    return min(channels, inputs**half)


def deep_rank_bound(channels: int, inputs: int, length: int) -> int:
    """Theorem 1.2: min{((min{M, R}, T/2)), M^(T/2)}, a lower bound for almost every circuit of depth 2."""
    half = half_length(length, channels, inputs)
    return min(multiset_coefficient(min(inputs, channels), half), inputs**half)


def conjectured_rank(depth: int, channels: int, inputs: int, length: int) -> int:
    """Conjecture 1, as printed: min{((min{M, R}, ((T/2, L - 1)))), M^(T/2)}.

    At L = 1 this is min{M, R}: below theorem 1's value when R > M, although the paper says that the two coincide.
    """
    half = half_length(length, channels, inputs, depth)
    return min(multiset_coefficient(min(inputs, channels), basic_units(depth, length)), inputs**half)


def basic_units(depth: int, length: int, layer: int = 1) -> int:
    """Claim 4: how often layer 1 of the circuit's tensor network joins Start to End, ((T/2, L - 1)).

    These are the chains T/2 < t_2 <= ... <= t_L <= T. Layer l is joined ((T/2, L - l)) times, by the same count.
    """
    if not 1 <= layer <= depth:
        raise MnemoscopeError(f"layer must lie in 1..{depth}, got {layer}")
    return multiset_coefficient(half_length(length, depth), depth - layer)


def input_degree(depth: int, length: int, time: int) -> int:
    """How often x_t enters the output, ((T - t + 1, L - 1)): y is a form of this degree in W_I f(x_t) (A.3)."""
    if not 1 <= time <= length:
        raise MnemoscopeError(f"time must lie in 1..{length}, got {time}")
    return multiset_coefficient(length - time + 1, depth - 1)


def separation_ceiling(depth: int, channels: int, inputs: int, length: int, values: int | None = None) -> int:
    """An upper bound on the separation rank of every circuit whose input takes `values` values (None: any number).

    y is a form of degree ((T/2, L - l)) in the state h^l of the middle, and of degree ((T - t + 1, L - 1)) in the
    min{M, R} coordinates of W_I f(x_t); a form of degree d in k variables has ((k, d)) coefficients, and a function
    of x_t alone has as many as x_t has values. The rank is at most the number of such coefficients that can cross the
    middle, and that End's inputs can make; Start's can make more, as their degrees are higher.
    """
    half = half_length(length, channels, inputs, depth)
    kinds = min(inputs, channels)

    def input_ceiling(time: int) -> int:
        count = multiset_coefficient(kinds, input_degree(depth, length, time))
        return count if values is None else min(values, count)

    end = math.prod(input_ceiling(time) for time in range(half + 1, length + 1))
    forms = min(kinds, values or kinds)
    return min(end, _middle_ceiling(depth, channels, length, forms))


def _middle_ceiling(depth: int, channels: int, length: int, forms: int) -> int:
    """How many coefficients the states of the middle can carry from Start to End.

    For L = 2 every term of y holds, for some i, the factors (W_H^2 h^2)_i and (W_I^2 h^1_{T/2+1})_i. Over the values of
    x_{T/2+1} the latter are at most `forms` independent linear forms in h^1, and the degree-T/2 part of the ideal that
    k linear forms in R variables generate lacks ((R - k, T/2)) dimensions.
    """
    if depth == 2:
        half = length // 2
        missing = multiset_coefficient(channels - forms, half)
        return channels * (multiset_coefficient(channels, half) - missing)
    layers = range(1, depth + 1)
    return math.prod(multiset_coefficient(channels, basic_units(depth, length, layer)) for layer in layers)


def exponential_floor(kinds: int) -> float:
    """Footnote 3 with an explicit constant: ((k, T/2)) >= 4^k / (4 sqrt k) as soon as T > 2 (k - 1), k = min{M, R}."""
    half_length(2, kinds)
    return 4.0**kinds / (4.0 * math.sqrt(kinds))


def half_length(length: int, *counts: int) -> int:
    """T / 2, after checking that T is even and that depth, channels and inputs are at least 1."""
    if length < 2 or length % 2:
        raise MnemoscopeError(f"a Start-End partition needs an even number of time steps, got {length}")
    if min(counts) < 1:
        raise MnemoscopeError(f"depth, channels and inputs must be at least 1, got {min(counts)}")
    return length // 2
