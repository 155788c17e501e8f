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
        words="If the weights are small enough, r steps of an LSTM are a contraction.",
        errata=(
            "A slip in the proof, which leaves r = O(log n) as it is: r needs log sqrt(2n), not log sqrt(n), as the "
            "state is (c, h).",
            "Not false: the paper's LSTM has no biases; with them ||f||_inf must contain that of the forget gate.",
            "Sums of columns, as in the published code, are not enough.",
        ),
    )
)
