"""Theorem 1: depth raises the Start-End separation rank from min(R, M^(T/2)) to more than exponential in min(R, M)."""

from __future__ import annotations

from mnemoscope.studies import statement_study, study

study(
    statement_study(
        "levine/theorem1",
        "Theorem 1, claims 1, 2, 5, 6, lemmas 1-3",
        "the Start-End separation rank of shallow and deep circuits, by exact arithmetic",
        {
            "levine-theorem-1-shallow": "almost every circuit of depth 1 has rank min(R, M^(T/2))",
            "levine-theorem-1-deep": "almost every circuit of depth 2 has rank ((min(M, R), T/2)) or more",
            "levine-theorem-1-assignment": "the proof's explicit circuit has exactly that rank",
            "levine-claim-1": "grid tensor and weights tensor have the same Start-End rank",
            "levine-claim-2": "on any templates the grid tensor's rank is at most the separation rank",
            "levine-claim-5": "a rank that one choice of weights reaches is reached by almost all",
            "levine-claim-6": "the End product is a sum over the states of a bucket of balls",
            "levine-lemma-1": "determinants of polynomials vanish at few points",
            "levine-lemma-2": "no other permutation reaches the sum of squares",
            "levine-lemma-3": "only the bucket of the colors reaches the largest reward",
            "levine-footnote-3": "theorem 1.2's bound is at least 4^k/(4 sqrt k)",
            "levine-equation-7": "a shallow circuit is its tensor train, whose first core is W_H W_I",
        },
        corrected=("levine-equation-7",),
        beside=("levine-footnote-3", "levine-equation-7"),
        seconds=15,
        modules=("flint", "opt_einsum"),
        words="A deep circuit's Start-End rank grows combinatorially, a shallow one's is bounded by R.",
        errata=(
            "False as printed: eq. 7 as printed starts one W_H short, and is not the network's tensor from T = 2 on.",
        ),
    )
)
