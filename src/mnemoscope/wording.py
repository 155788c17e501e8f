"""Numbers with their nouns, for sentences that users read."""

from __future__ import annotations


def counted(number: float, noun: str) -> str:
    """Return a whole number and its noun: "1 step", "2 steps"."""
    return f"{number:.0f} {noun}" if number == 1 else f"{number:.0f} {noun}s"
