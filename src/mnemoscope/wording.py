"""Numbers as sentences for users have them: with their nouns, or told from 1."""

from __future__ import annotations


def counted(number: float, noun: str) -> str:
    """Return a whole number and its noun: "1 step", "2 steps"."""
    return f"{number:.0f} {noun}" if number == 1 else f"{number:.0f} {noun}s"


def told_from_one(number: float) -> str:
    """Return a number with 3 significant digits, or with as many more as tell it from 1."""
    texts = [f"{number:.{digits}g}" for digits in range(3, 18)]
    return next((text for text in texts if float(text) != 1), "1")
