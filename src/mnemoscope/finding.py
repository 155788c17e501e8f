"""What a scope found: data, not a plot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Status = Literal["certified", "estimated", "not applicable", "failed"]


@dataclass(frozen=True)
class Finding:
    """One measurement of one model.

    `figures` are the few numbers that matter (``{"horizon": 38.0}``), `series` the arrays a chart is drawn from, and
    `spread` their variation over sequences or seeds under the same names. Arrays are numpy's, on the CPU.
    """

    scope: str
    sentence: str
    status: Status
    why: str = ""  # for `certified` the condition that was checked, for `not applicable` and `failed` the reason
    figures: dict[str, float] = field(default_factory=dict)
    series: dict[str, np.ndarray] = field(default_factory=dict)
    spread: dict[str, np.ndarray] = field(default_factory=dict)
    labels: dict[str, str | list[str]] = field(default_factory=dict)  # words: a regime's name, the names of a series' rows
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # with the way to mend it
    method: str = ""  # one line
    seconds: float = 0.0
