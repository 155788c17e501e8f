"""Theorem 1 and what it rests on: how steep and how curved the cost can be, in orders of the length."""

from __future__ import annotations

from mnemoscope.studies import statement_study, study

study(
    statement_study(
        "ribeiro/claims",
        "Theorem 1, Lemmas 1-2, Definition 2, appendix B",
        "how steep and how curved the cost can be, in orders of the length",
        {
            "ribeiro-theorem-1a": "the cost is Lipschitz, with L_V of eq. 4",
            "ribeiro-theorem-1b": "the cost's gradient is Lipschitz, with L'_V of eq. 5",
            "ribeiro-regimes": "both stay bounded for L_f < 1, grow like N and N^3 for 1, exponentially above",
            "ribeiro-lemma-1": "sums and products of bounded Lipschitz functions are Lipschitz",
            "ribeiro-lemma-2": "both losses are Lipschitz in the prediction",
            "ribeiro-definition-2": "a contractive system with constant input has one fixed point",
            "ribeiro-invariant-set": "f(0, u; 0) = 0 gives the invariant set",
            "ribeiro-sensitivities": "derivatives carried forward equal backpropagation",
            "ribeiro-chaotic-lstm": "the LSTM of Figure 1 is chaotic at s = 1",
        },
        corrected=(
            "ribeiro-lemma-2",
            "ribeiro-sensitivities",
            "ribeiro-chaotic-lstm",
        ),
        beside=("ribeiro-chaotic-lstm",),
        seconds=8,
        words="Longer memories make the cost steeper and more curved: bounded, polynomial or exponential in N.",
        errata=(
            "Not false, but a condition that says less than it seems to: L_f is joint in state and parameters: a "
            "system that contracts its state can have L_f above 1.",
            "False as printed, by an index and a transposition: eq. 22 is off by one, and eq. 13 needs J_t^T.",
            "False as printed: Lemma 2 needs a constant term for the cross-entropy. The orders of eqs 4 and 5 stand.",
            "Misprinted: two signs of the LSTM of Figure 1 are misprinted.",
        ),
    )
)
