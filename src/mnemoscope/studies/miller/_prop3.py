"""Proposition 3: without stability truncation can be arbitrarily bad."""

from __future__ import annotations

from mnemoscope.studies import statement_study, study

study(
    statement_study(
        "miller/prop3",
        "Proposition 3, A.4",
        "without stability truncation to any k can be arbitrarily bad",
        {"miller-hardt-proposition-3": "|y_t - y_t^k| = 2^(t-1) after an impulse"},
        words="There are unstable systems that no truncated model approximates.",
    )
)
