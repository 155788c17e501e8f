"""Colours that colour-blind readers can tell apart (Okabe and Ito 2008), on light and on dark ground."""

from __future__ import annotations

LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B37400", "#2B8FC9", "#222222")
DARK = ("#56B4E9", "#E69F00", "#2CC79A", "#C86AA8", "#F0E442", "#8AA8FF", "#EEEEEE")
"""The same order on dark ground, each with a contrast of at least 5 to it."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross")
SCALE = "Cividis"  # made for readers with any colour vision; also matplotlib's name, in small letters


def turn(names: tuple[str, ...], place: int) -> str:
    """The entry at a place, going round."""
    return names[place % len(names)]
