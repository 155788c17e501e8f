"""A statement's check fails if the function that it is about is wrong, by little and in either direction."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from mnemoscope.theory import load

STATEMENTS = load()

# (statement, function of its module, factors): the check must fail with the function's result times each factor.
BOTH = (0.8, 1.25)
CASES: list[tuple[str, str, tuple[float, ...]]] = [
    ("kerg-lemma-1", "hidden_partial", BOTH),
    ("kerg-lemma-1", "macro_partial", BOTH),
    ("kerg-lemma-2", "total_derivatives", BOTH),
    ("kerg-lemma-3", "transfers", BOTH),
    ("kerg-lemma-3", "total_derivatives", BOTH),
    ("kerg-lemma-4", "by_hops", BOTH),
    ("kerg-proposition-1", "by_hops", BOTH),
    ("kerg-lemma-5", "macro_partial", BOTH),
    ("kerg-lemma-5", "Y", BOTH),
    ("kerg-lemma-6", "hidden_partial", BOTH),
    ("kerg-corollary-1", "path_factors", BOTH),
    ("kerg-proposition-2", "split_factors", BOTH),
    ("kerg-remark-4", "X", BOTH),
    ("kerg-remark-4", "path_factors", BOTH),
    ("kerg-remark-5", "additive_scores", BOTH),
    ("kerg-lemma-7", "alignment_gradient", BOTH),
    ("kerg-lemma-8", "recurrence_gradient", BOTH),
    ("kerg-remark-6", "state_gradients", BOTH),
    ("kerg-remark-8", "uniform_chi", BOTH),
    ("kerg-remark-11", "power_sums", BOTH),
    ("kerg-remark-11", "elementary_sums", BOTH),
    ("kerg-lemma-9", "lemma_9", BOTH),
    ("kerg-proposition-3", "proposition_3", BOTH),
    ("kerg-remark-14", "theta_recursion", BOTH),
    ("kerg-remark-14", "uniform_theta", BOTH),
    ("kerg-remark-16", "chi_by_theta", BOTH),
    ("kerg-lemma-10", "theta_bounds", BOTH),
    ("kerg-lemma-10", "uniform_theta", BOTH),
    ("kerg-lemma-11", "chi_bounds", BOTH),
    ("kerg-lemma-11", "uniform_chi", BOTH),
    ("kerg-lemma-12", "remainder", BOTH),
    ("kerg-theorem-1", "keeps_inverse_rate", (0.0,)),
    ("kerg-theorem-1", "uniform_norm", BOTH),
    ("kerg-remark-17", "uniform_norm", BOTH),
    ("kerg-remark-19", "chi", BOTH),
    ("kerg-remark-20", "gain", BOTH),
    ("kerg-theorem-2", "depth_bound", BOTH),
    ("kerg-theorem-2", "dependency_depth", (0, 2)),
    ("kerg-remark-21", "chain_gain", BOTH),
    ("ribeiro-lemma-1", "product_lipschitz", BOTH),
    ("ribeiro-lemma-1", "sum_lipschitz", BOTH),
    ("ribeiro-lemma-2", "squared_error", BOTH),
    ("ribeiro-lemma-2", "cross_entropy", BOTH),
    ("ribeiro-regimes", "cost_lipschitz", BOTH),
    ("ribeiro-regimes", "gradient_lipschitz", BOTH),
    ("ribeiro-equation-9", "entropy_change", BOTH),
    ("ribeiro-equation-9", "entropy_bound", BOTH),
    ("ribeiro-equation-9", "gaussian_entropy", BOTH),
    ("ribeiro-equation-9", "hadamard_bound", BOTH),
    ("ribeiro-sensitivities", "cost_gradient", BOTH),
    ("ribeiro-sensitivities", "unrolled", BOTH),
    ("ribeiro-invariant-set", "origin_drift", (2.0,)),
    ("ribeiro-invariant-set", "leaves_box", (2.0,)),
    ("ribeiro-invariant-set", "invariant_ball", BOTH),
    ("ribeiro-definition-2", "contraction_factor", BOTH),
    ("ribeiro-definition-2", "invariant_ball", BOTH),
    ("ribeiro-chaotic-lstm", "largest_exponent", BOTH),
    ("ribeiro-chaotic-lstm", "stability_limit", BOTH),
    ("miller-hardt-lemma-1", "state_gap", BOTH),
    ("miller-hardt-lemma-1", "context_length", (0.5, 2)),
    ("miller-hardt-proposition-1", "prediction_gap", BOTH),
    ("miller-hardt-section-6", "rnn_constants", BOTH),
    ("miller-hardt-section-6", "linear_constants", BOTH),
    ("miller-hardt-lemma-2", "gradient_gap", BOTH),
    ("miller-hardt-lemma-3", "loss_smoothness", BOTH),
    ("miller-hardt-lemma-4", "trajectory_gap", BOTH),
    ("miller-hardt-proposition-2", "weight_gap", BOTH),
    ("miller-hardt-proposition-2", "weight_gap_closed", BOTH),
    ("miller-hardt-proposition-3", "truncation_error", BOTH),
    ("miller-hardt-proposition-4", "identity_gradient", BOTH),
    ("miller-hardt-lemma-5", "forget_bound", BOTH),
    ("miller-hardt-proposition-5", "lstm_certificate", BOTH),
    ("miller-hardt-proposition-5", "euclidean_iterations", (0, 2)),
    ("levine-theorem-1-shallow", "shallow_rank", BOTH),
    ("levine-section-4-2", "deep_rank_bound", BOTH),
    ("levine-footnote-3", "exponential_floor", BOTH),
    ("levine-footnote-3", "multiset_coefficient", BOTH),
    ("levine-input-copies", "input_degree", BOTH),
    ("levine-claim-4", "basic_units", BOTH),
    ("levine-min-cut-shallow", "shallow_rank", BOTH),
    ("levine-equation-7", "weights_tensor", (0, 2)),
    ("levine-lemma-2", "permuted_products", BOTH),
    ("nabli-question-1", "variances_through_layers", BOTH),
    ("nabli-question-2", "expected_loss", BOTH),
    ("nabli-question-2", "dropout_minimizer", BOTH),
    ("nabli-question-3", "running_average", BOTH),
    ("nabli-question-3", "bias_corrected", BOTH),
    ("nabli-question-3", "as_running_average", BOTH),
    ("nabli-question-4", "normalized_gradient", BOTH),
    ("nabli-question-4", "norm_after_step", BOTH),
    ("nabli-question-4", "batch_normalized", BOTH),
    ("nabli-question-5", "gradient_bound", BOTH),
    ("nabli-question-5", "common_spectrum", BOTH),
    ("nabli-question-5", "activation_states", BOTH),
    ("nabli-question-6", "bidirectional_gradients", BOTH),
]


def scaled(result: Any, factor: float) -> Any:
    """A result times a factor, number by number; a boolean becomes False for a factor of 0."""
    if isinstance(result, bool):
        return bool(result * factor)
    if isinstance(result, tuple):
        parts = [scaled(part, factor) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if is_dataclass(result) and not isinstance(result, type):
        numbers = {f.name: getattr(result, f.name) * factor for f in fields(result) if f.type in ("float", "Tensor")}
        return replace(result, **numbers)
    if isinstance(result, int):
        return int(result * factor) if factor < 1 else -int(-result * factor // 1)
    return result * factor


def fails(name: str, function: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if a row of the statement's check fails with `function` times `factor`."""
    check = STATEMENTS[name].check
    module = sys.modules[check.__module__]
    right: Callable[..., Any] = getattr(module, function)
    monkeypatch.setattr(module, function, lambda *args, **options: scaled(right(*args, **options), factor))
    try:
        return any(not row.holds for row in check())
    except Exception:  # a figure that no bound can be computed from is noticed too
        return True


@pytest.mark.parametrize(("name", "function", "factors"), CASES, ids=[f"{name}-{f}" for name, f, _ in CASES])
def test_check_fails_with_a_wrong_function(
    name: str, function: str, factors: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor in factors:
        with monkeypatch.context() as patch:
            assert fails(name, function, factor, patch), f"{function} times {factor} is not noticed"
