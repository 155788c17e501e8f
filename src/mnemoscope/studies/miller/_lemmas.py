"""Lemmas 1-4, Propositions 1 and 2, Theorem 1: stable models are approximated by truncated ones."""

from __future__ import annotations

from mnemoscope.studies import statement_study, study

study(
    statement_study(
        "miller/lemmas",
        "Lemmas 1-4, Propositions 1-2, Theorem 1",
        "stable models and their truncations stay together, also while they are trained",
        {
            "miller-hardt-lemma-1": "a stable system forgets what lies k steps back like lambda^k",
            "miller-hardt-proposition-1": "predictions differ by at most L_f lambda^k sup||h||",
            "miller-hardt-section-6": "linear systems and tanh RNNs with ||V|| < 1 meet every assumption",
            "miller-hardt-lemma-2": "truncation changes the gradient by at most gamma k lambda^(k-1)",
            "miller-hardt-lemma-3": "the loss of a stable system is smooth",
            "miller-hardt-lemma-4": "close weights give close trajectories",
            "miller-hardt-proposition-2": "after N steps of size a/i the weights differ by at most a gap N^(ab)",
            "miller-hardt-theorem-1": "both models, each trained for N steps, predict the same up to eps",
        },
        corrected=("miller-hardt-lemma-2", "miller-hardt-proposition-2"),
        beside=("miller-hardt-section-6",),
        seconds=6,
        words="A stable recurrent model can be replaced by a feed-forward one, in inference and in training.",
        errata=(
            "False as printed, by a factor: Lemma 2 is an inequality, and its power is k - 1; at lambda = 0 and k = 1 "
            "the printed bound is 0. Proposition 2 has the same factor.",
            "Not false, but hidden in the O(.): the k of Lemma 1 has a factor 1/ln(1/lambda).",
            "Not false, but too large: tanh' is 0.77-Lipschitz; the text says 1 and 2.",
            "Not false, but too large: Proposition 2's last step gives away a power of N.",
            "A slip in the proof, which leaves the statement as it is: Theorem 1's last display loses gamma.",
        ),
    )
)
