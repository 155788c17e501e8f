"""Lessons: left when they are passed, with the last observations of what was cut off, and restored amid them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from environments import Walks

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl import MiniGrid, TMaze
from mnemoscope.rl._curriculum import CurriculumFleet

FIRST, SECOND = Walks(limit=3), Walks(limit=8)
ACTIONS = np.zeros(6, np.int64)


@pytest.fixture
def easy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lessons are passed with one success in ten episodes."""
    monkeypatch.setattr("mnemoscope.rl._curriculum.WINDOW", 10)
    monkeypatch.setattr("mnemoscope.rl._curriculum.PASSED", 0.1)


def same(one, other) -> bool:
    """Whether two observations, or two that are None, are equal."""
    return one is other or np.array_equal(one.vector, other.vector)


@pytest.mark.usefixtures("easy")
@pytest.mark.parametrize("seed", range(5))
def test_the_next_lesson_begins_in_every_environment(seed: int) -> None:
    """Until then all is as in the first lesson alone; then every episode has ended, cut off if it had not."""
    fleet, alone, following = CurriculumFleet([FIRST, SECOND], 6), FIRST.fleet(6), SECOND.fleet(6)
    assert same(fleet.reset(seed), alone.reset(seed))
    while True:
        found, expected = fleet.step(ACTIONS), alone.step(ACTIONS)
        if fleet.lesson:
            break
        assert same(found.observation, expected.observation)
        assert same(found.final, expected.final)
        assert (found.truncated == expected.truncated).all()

    assert found.done.all()
    assert (found.terminated == expected.terminated).all()
    assert (found.reward == expected.reward).all()
    assert same(found.observation, following.reset(seed + 1))
    last = expected.observation.vector.copy()
    if expected.final is not None:
        last[expected.truncated] = expected.final.vector
    assert np.array_equal(found.final.vector, last[~found.terminated])
    for _ in range(100):  # the last lesson is never left
        assert same(fleet.step(ACTIONS).observation, following.step(ACTIONS).observation)
    assert fleet.lesson == 1


@pytest.mark.usefixtures("easy")
@pytest.mark.parametrize("steps", [3, 12, 60])
def test_restored_from_json_it_goes_on_exactly(steps: int) -> None:
    one, other = (CurriculumFleet([FIRST, SECOND, FIRST], 6) for _ in range(2))
    one.reset(3)
    for _ in range(steps):
        one.step(ACTIONS)
    other.reset(9)
    other.restore(json.loads(json.dumps(one.state())))
    for _ in range(60):
        mine, theirs = one.step(ACTIONS), other.step(ACTIONS)
        assert one.lesson == other.lesson
        assert same(mine.observation, theirs.observation)
        assert same(mine.final, theirs.final)
        assert (mine.done == theirs.done).all()


def test_a_lesson_is_not_left_before_19_of_20_episodes_succeed() -> None:
    fleet = CurriculumFleet([TMaze(1), TMaze(2)], 4)
    fleet.reset(0)

    def play(episodes: int, wrong: int) -> None:
        """Episodes in each of the four mazes; in `wrong` of the mazes the other side is taken."""
        for _ in range(episodes):
            cue = fleet.state()["fleet"]["cue"]
            turn = np.array([side if row >= wrong else 1 - side for row, side in enumerate(cue)])
            fleet.step(turn)
            fleet.step(turn)

    play(125, wrong=1)
    assert fleet.lesson == 0  # 75 % of 500
    play(99, wrong=0)
    assert fleet.lesson == 0  # 94.8 %
    play(1, wrong=0)
    assert fleet.lesson == 1  # 95 %


def test_a_lesson_that_is_not_passed_is_left_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemoscope.rl._curriculum.LIMIT", 60)
    fleet = CurriculumFleet([FIRST, SECOND, FIRST], 6)
    fleet.reset(0)
    lessons = []
    for _ in range(25):
        fleet.restore(json.loads(json.dumps(fleet.state())))  # frames are saved, too
        fleet.step(ACTIONS)
        lessons.append(fleet.lesson)
    assert lessons == [0] * 9 + [1] * 10 + [2] * 6


def test_lessons_with_other_observations_are_refused() -> None:
    with pytest.raises(MnemoscopeError, match=r"than Walks.*: vector = 2, not 5; .*; words = 3, not 0$"):
        CurriculumFleet([Walks(cells=True), Walks()], 2)
    with pytest.raises(MnemoscopeError, match=r"than Walks.*: success = None, not 0[.]0$"):
        CurriculumFleet([Endless(), Walks()], 2)
    fleet = CurriculumFleet([FIRST, SECOND], 2)
    with pytest.raises(MnemoscopeError, match="the state is in lesson 2; there are 2"):
        fleet.restore({**fleet.state(), "lesson": 2})


def test_without_successes_there_are_no_lessons() -> None:
    with pytest.raises(MnemoscopeError, match="does not say what a success is"):
        CurriculumFleet([Endless(), Endless()], 2)


@dataclass(frozen=True)
class Endless(Walks):
    def fleet(self, num_envs: int):
        fleet = super().fleet(num_envs)
        fleet.spec = replace(fleet.spec, success=None)
        return fleet


def test_worlds_of_minigrid() -> None:
    pytest.importorskip("minigrid", reason="minigrid is not installed (extra `rl`)")
    task = MiniGrid("MemoryS11", moves_only=True, curriculum=("MemoryS7",))
    assert task.spec.actions == 3
    lessons = task.training_fleet(2)
    assert isinstance(lessons, CurriculumFleet)
    lessons.reset(0)
    assert [fleet.envs[0].width for fleet in lessons._fleets] == [7, 11]
    assert task.fleet(2).envs[0].width == 11
    assert not isinstance(replace(task, curriculum=()).training_fleet(2), CurriculumFleet)
