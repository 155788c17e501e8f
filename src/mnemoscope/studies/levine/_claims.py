"""Claims 3 and 4: no tensor network copies a vector; how often Start meets End in layer 1."""

from __future__ import annotations

from mnemoscope.studies import statement_study, study

study(
    statement_study(
        "levine/claim3",
        "Claim 3, eq. 12",
        "no tensor network duplicates vectors",
        {"levine-claim-3": "the only candidate that copies every basis vector fails on the vector 2"},
        modules=("flint", "opt_einsum"),
        words="No tensor exists that maps every vector to two copies of itself.",
    )
)

study(
    statement_study(
        "levine/claim4",
        "Claim 4, A.3, A.4",
        "layer 1 joins Start to End in ((T/2, L - 1)) basic units",
        {
            "levine-claim-4": "layer 1 joins Start to End in exactly ((T/2, L - 1)) basic units",
            "levine-input-copies": "a network of depth L holds x_t ((T - t + 1, L - 1)) times",
            "levine-tensor-network": "the network with duplicated inputs contracts to the circuit's output",
            "levine-min-cut-shallow": "the shallow network's minimal cut is min(R, M^(T/2))",
            "levine-min-cut": "a cut bounds the rank of the network's tensor",
        },
        modules=("flint", "opt_einsum"),
        seconds=6,
        words="The number of basic units is the multiset coefficient of T/2 and L - 1.",
        errata=(
            "The proof's last summand is 1, not t_2: with t_2 it counts 15 for T = 6, L = 2, where the claim says 3.",
        ),
    )
)
