"""Proposition 5: when an LSTM is stable."""

from __future__ import annotations

from mnemoscope.studies import statement_study, study

study(
    statement_study(
        "miller/prop5",
        "Proposition 5, Lemma 5, A.3.2",
        "small row sums make an LSTM stable",
        {
            "miller-hardt-proposition-5": "small row sums make an LSTM contractive in the infinity norm",
            "miller-hardt-lemma-5": "the LSTM's cell state is bounded by 1/(1 - ||f||_inf)",
            "miller-hardt-lstm-lemmas": "Lemmas 1-4 apply to the LSTM itself in the infinity norm of (c, h)",
        },
        corrected=("miller-hardt-proposition-5", "miller-hardt-lemma-5"),
        words="If the weights are small enough, r steps of an LSTM are a contraction.",
        errata=(
            "False as printed, by a constant: r needs log sqrt(2n), not log sqrt(n): the state is (c, h).",
            "False as printed: ||f||_inf must contain the bias of the forget gate.",
            "Sums of columns, as in the published code, are not enough.",
        ),
    )
)
