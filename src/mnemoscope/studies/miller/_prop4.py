"""Proposition 4: gradient descent on an unstable system need not converge."""

from __future__ import annotations

from mnemoscope.studies import statement_study, study

study(
    statement_study(
        "miller/prop4",
        "Proposition 4, A.4, eq. 6",
        "gradient descent on an unstable system need not converge",
        {"miller-hardt-proposition-4": "from a = 1.5 the gradient of an identity task grows without bound"},
        words="Training an unstable system by gradient descent can diverge although the task is trivial.",
        errata=(
            "A slip in the proof, which leaves the statement as it is: h_t sums a^i over i, not a^t; for large T the "
            "gradient is about T a^(2T-1)/(a-1)^2.",
        ),
    )
)
