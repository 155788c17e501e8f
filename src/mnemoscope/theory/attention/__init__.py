"""Gradient propagation in self-attentive recurrences (Kerg et al. 2020, appendix A).

A trained layer, taken apart: ``blocks = attention_blocks(model, x)``, then ``decompose(blocks, t, k)`` or
``gradient_by_hops(blocks, gradient)``. Uniform and sparse attention in closed form: `uniform_chi` and `chi`,
`growth_exponent`, `dependency_depth`, `depth_bound`.
"""

from mnemoscope.theory.attention import _lemmas as _lemmas
from mnemoscope.theory.attention._growth import (
    growth_constant,
    growth_exponent,
    keeps_inverse_rate,
    paper_exponent,
    uniform_gain,
    uniform_norm,
)
from mnemoscope.theory.attention._hops import decompose, gradient_by_hops, state_gradients
from mnemoscope.theory.attention._jacobians import (
    AttentionBlocks,
    X,
    Y,
    additive_scores,
    hidden_partial,
    macro_partial,
    path_factors,
    split_factors,
)
from mnemoscope.theory.attention._net import SelfAttentiveNet
from mnemoscope.theory.attention._parameters import alignment_gradient, recurrence_gradient, score_gradient
from mnemoscope.theory.attention._paths import by_hops, total_derivatives, transfers
from mnemoscope.theory.attention._sparse import (
    attention_pattern,
    chain_gain,
    chi,
    dependency_depth,
    depth_bound,
    effective_sparsity,
    gain,
    path_weights,
    sparsity,
    uniform_weights,
)
from mnemoscope.theory.attention._symmetric import (
    deltas,
    elementary_sums,
    lemma_9,
    newton_sums,
    power_sums,
    proposition_3,
    psis,
    reciprocals,
)
from mnemoscope.theory.attention._traced import OtherAttention, attention_blocks
from mnemoscope.theory.attention._uniform import (
    chi_bounds,
    chi_by_theta,
    theta_bounds,
    theta_recursion,
    uniform_chi,
    uniform_theta,
)

__all__ = [
    "AttentionBlocks",
    "OtherAttention",
    "SelfAttentiveNet",
    "X",
    "Y",
    "additive_scores",
    "alignment_gradient",
    "attention_blocks",
    "attention_pattern",
    "by_hops",
    "chain_gain",
    "chi",
    "chi_bounds",
    "chi_by_theta",
    "decompose",
    "deltas",
    "dependency_depth",
    "depth_bound",
    "effective_sparsity",
    "elementary_sums",
    "gain",
    "gradient_by_hops",
    "growth_constant",
    "growth_exponent",
    "hidden_partial",
    "keeps_inverse_rate",
    "lemma_9",
    "macro_partial",
    "newton_sums",
    "paper_exponent",
    "path_factors",
    "path_weights",
    "power_sums",
    "proposition_3",
    "psis",
    "reciprocals",
    "recurrence_gradient",
    "score_gradient",
    "sparsity",
    "split_factors",
    "state_gradients",
    "theta_bounds",
    "theta_recursion",
    "total_derivatives",
    "transfers",
    "uniform_chi",
    "uniform_gain",
    "uniform_norm",
    "uniform_theta",
    "uniform_weights",
]
