"""Colors, dashes and symbols, the same on the page and in the figures.

The colors can be told apart by color-blind readers (Okabe and Ito 2008), on a light and on a dark ground.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6B3A00", "#5B3FD6", "#222222")
DARK = ("#56B4E9", "#E69F00", "#2CC79A", "#C86AA8", "#F0E442", "#A58BFF", "#EEEEEE")
"""The same order on dark ground, each with a contrast of at least 5 to it."""

NEUTRAL = len(LIGHT) - 1  # black or white: of what belongs to no model

COLOR_SCALE = "Cividis"  # readable with any color vision; matplotlib's name is the same in lower case

PLOTLY_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MATPLOTLIB_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 3, 1, 3)))
PLOTLY_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross")
MATPLOTLIB_SYMBOLS = ("o", "D", "s", "^", "x", "+")
"""Dashes and symbols in the words of each library, in one order."""


def cycle(choices: Sequence[T], index: int) -> T:
    """Return the choice at `index`, starting again at the first after the last."""
    return choices[index % len(choices)]
