"""What an agent needs of its environments: many of one kind, stepped together, and restored from JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.schema import check_fields


@dataclass(frozen=True)
class Observation:
    """What every environment of a fleet shows at one moment, one row each. A part that there is not is None."""

    vector: np.ndarray | None = None
    """(rows, size) float32."""

    cells: np.ndarray | None = None
    """(rows, width, height, channels) uint8: what lies in each cell, as a category in each channel."""

    mission: np.ndarray | None = None
    """(rows, words) int64: what is to be done. 0 stands for no word, i for the i-th word of the vocabulary."""

    def rows(self, index: Any) -> Observation:
        """The observations of some rows; `index` is anything that numpy indexes by."""
        return Observation(*(None if part is None else part[index] for part in self._parts))

    def with_rows(self, index: np.ndarray, others: Observation) -> Observation:
        """The same with other observations in some rows."""
        made = []
        for mine, theirs in zip(self._parts, others._parts, strict=True):
            part = None if mine is None else mine.copy()
            if part is not None:
                part[index] = theirs
            made.append(part)
        return Observation(*made)

    @property
    def _parts(self) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        return self.vector, self.cells, self.mission


@dataclass(frozen=True)
class Spec:
    """What observations and actions look like."""

    actions: int
    """Number of actions: 0, ..., actions - 1."""

    vector: int = 0
    """Size of the vector of an observation; 0: there is none."""

    cells: tuple[int, int] | None = None
    """Width and height of the cells of an observation; None: there are none."""

    categories: tuple[int, ...] = ()
    """How many categories each channel of a cell has."""

    vocabulary: tuple[str, ...] = ()
    """The words of which missions are made; word i has the id i + 1."""

    words: int = 0
    """The length of the longest mission; 0: there is none."""

    reading: Literal["bag", "gru"] = "bag"
    """How a network reads missions: as a bag of words, or one word after another."""

    encoder: Literal["table", "conv"] = "table"
    """How a network reads cells: each for itself by a table, or all in the same way by convolutions."""

    success: float | None = None
    """An episode whose return is above it has succeeded. None: returns only."""

    def __post_init__(self) -> None:
        check_fields(self, "reading", "encoder")

    def differences(self, other: Spec) -> str:
        """What is different here than in `other`, in words; empty if nothing is."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return "; ".join(
            f"another {name}" if name == "vocabulary" else f"{name} = {mine}, not {theirs}"
            for name, (mine, theirs) in pairs.items()
            if mine != theirs
        )


@dataclass(frozen=True)
class Transition:
    """What a step of a fleet led to. Where an episode ended, the observation is already the first of the next one."""

    observation: Observation
    reward: np.ndarray
    """(rows,) float32."""

    terminated: np.ndarray
    """(rows,) bool: the episode came to its end; nothing lies behind it."""

    truncated: np.ndarray
    """(rows,) bool: the episode was cut off by a limit of time and did not terminate in the same step."""

    final: Observation | None = None
    """The last observations of the episodes that were cut off, in the order of `truncated.nonzero()`; None: of none."""

    def __post_init__(self) -> None:
        for name in ("terminated", "truncated"):
            ends = np.asarray(getattr(self, name))
            if ends.dtype != bool or ends.shape != (len(self.reward),):
                raise MnemoscopeError(
                    f"{name} must be of bool, one for each of {len(self.reward)} rewards; got {list(ends.shape)} of "
                    f"{ends.dtype}"
                )
        both = self.terminated & self.truncated
        if both.any():
            raise MnemoscopeError(
                f"environment {both.argmax()} terminated and was cut off in one step; nothing lies behind its end: "
                "truncated must be False there"
            )

    @property
    def done(self) -> np.ndarray:
        """(rows,) bool: a new episode has begun."""
        return self.terminated | self.truncated


class Fleet(ABC):
    """Environments of one kind that are stepped together."""

    num_envs: int
    spec: Spec

    @abstractmethod
    def reset(self, seed: int) -> Observation:
        """Begin an episode in every environment. The seed decides about everything that is random from here on."""

    @abstractmethod
    def step(self, actions: np.ndarray) -> Transition:
        """Take actions (num_envs,) int64. An environment whose episode ends begins the next one at once."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that decides about what follows, to be written as JSON."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what the environments hold, such as windows and processes. They cannot be stepped any more."""

    def picture(self, row: int) -> np.ndarray | None:
        """What one environment looks like now, (height, width, 3) uint8; None if it cannot be drawn."""
        return None

    def shows_cue(self, row: int) -> bool | None:
        """Whether one environment shows now what must be remembered; None if it is not known what that is."""
        return None

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> Observation:
        """Go on from where `state` was taken, on a fleet of the same kind and size. Returns the observation there."""
