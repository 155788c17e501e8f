"""Theorem 2: gradients under sparse attention, bounded by sparsity and dependency depth."""

from __future__ import annotations

from mnemoscope.studies import statement_study, study

study(
    statement_study(
        "kerg/theorem2",
        "Theorem 2, eq. 290",
        "gradients under sparse attention are at least lambda^d/kappa^(d + 1)",
        {
            "kerg-theorem-2": "||ds_{t+k}/dh_t|| >= lambda^d/kappa^(d + 1) for normal V with a positive eigenvalue",
            "kerg-remark-19": "with equal weights on the attended states the gradient is a sum over paths",
            "kerg-remark-20": "for normal V its norm is that of its eigenvalues",
            "kerg-remark-21": "with kappa = 1 it has a closed form, of lowest degree d",
        },
        seconds=4,
        words="Gradients decay like 1/kappa^d, with sparsity kappa and dependency depth d, whatever the length.",
    )
)
