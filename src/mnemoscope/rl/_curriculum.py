"""Lessons: environments that are learnt one after the other, the last of them the one that counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl._environment import Fleet, Observation, Transition
from mnemoscope.rl._evaluation import Episodes

if TYPE_CHECKING:
    from mnemoscope.rl._task import Environment

WINDOW = 500  # episodes of a lesson that are looked at
PASSED = 0.95  # the share of them that must succeed before the next lesson begins
LIMIT = 200_000  # frames after which it begins anyway: an agent without a memory may never pass


class CurriculumFleet(Fleet):
    """Environments that go from lesson to lesson together: when 95 % of the last 500 episodes have succeeded.

    A lesson that is not passed is left after 200,000 frames. Episodes that are under way then are cut off, as by a
    limit of time.
    """

    def __init__(self, lessons: Sequence[Environment], num_envs: int) -> None:
        self.num_envs = num_envs
        self._lessons = tuple(lessons)
        self._fleets = [lesson.training_fleet(num_envs) for lesson in self._lessons]
        self.spec = self._fleets[-1].spec
        for lesson, fleet in zip(self._lessons, self._fleets, strict=True):
            if unlike := fleet.spec.differences(self.spec):
                last = self._lessons[-1]
                raise MnemoscopeError(f"{lesson} has other observations or actions than {last}: {unlike}")
        if self.spec.success is None:
            raise MnemoscopeError(f"{self._lessons[-1]} does not say what a success is, by which lessons are left")
        self._seed = 0
        self._begin_lesson(0)

    def _begin_lesson(self, lesson: int) -> None:
        self.lesson = lesson
        self._episodes = Episodes(self.num_envs, self.spec.success)
        self._succeeded: deque[float] = deque(maxlen=WINDOW)
        self._frames = 0

    @property
    def _fleet(self) -> Fleet:
        return self._fleets[self.lesson]

    def reset(self, seed: int) -> Observation:
        self._seed = seed
        self._begin_lesson(0)
        return self._fleet.reset(seed)

    def step(self, actions: np.ndarray) -> Transition:
        transition = self._fleet.step(actions)
        self._succeeded.extend(success for _, _, success in self._episodes.add(transition).values())
        self._frames += self.num_envs
        is_last = self.lesson == len(self._lessons) - 1
        passed = len(self._succeeded) == WINDOW and np.mean(self._succeeded) >= PASSED
        if is_last or not (passed or self._frames >= LIMIT):
            return transition
        self._begin_lesson(self.lesson + 1)
        return _cut_off(transition, self._fleet.reset(self._seed + self.lesson))

    def state(self) -> dict[str, Any]:
        return {
            "lesson": self.lesson,
            "seed": self._seed,
            "frames": self._frames,
            "succeeded": list(self._succeeded),
            "episodes": self._episodes.state(),
            "fleet": self._fleet.state(),
        }

    def restore(self, state: dict[str, Any]) -> Observation:
        lesson = state["lesson"]
        if type(lesson) is not int or not 0 <= lesson < len(self._lessons):
            raise MnemoscopeError(f"the state is in lesson {lesson}; there are {len(self._lessons)}")
        self._begin_lesson(lesson)
        self._seed = state["seed"]
        self._frames = state["frames"]
        self._succeeded.extend(state["succeeded"])
        self._episodes.restore(state["episodes"])
        return self._fleet.restore(state["fleet"])

    def close(self) -> None:
        for fleet in self._fleets:
            fleet.close()


def _cut_off(transition: Transition, following: Observation) -> Transition:
    """Return the transition with every episode at its end, and the first observations of the next lesson."""
    final = transition.observation
    if transition.final is not None:  # those that were cut off anyway show what they saw last
        final = final.with_rows(transition.truncated.nonzero()[0], transition.final)
    truncated = ~transition.terminated
    return replace(
        transition,
        observation=following,
        truncated=truncated,
        final=final.rows(truncated.nonzero()[0]) if truncated.any() else None,
    )
