"""Episodes that are counted: in training as they end, and held-out ones for an evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl._environment import Fleet, Transition
from mnemoscope.rl._play import Player
from mnemoscope.rl._policy import Policy
from mnemoscope.tasks import Split

if TYPE_CHECKING:
    from mnemoscope.rl._task import Environment

MAX_ENVS = 64  # that an evaluation plays together
MAX_STEPS = 30_000  # of an episode in an evaluation: more than any limit of Atari's games, which is 27,000


class Episodes:
    """The return and length of every environment's episode so far."""

    NAMES = ("return", "length", "success")

    def __init__(self, rows: int, success: float | None) -> None:
        self.success = success
        self._return = np.zeros(rows)
        self._length = np.zeros(rows, np.int64)

    def add(self, transition: Transition) -> dict[int, list[float]]:
        """Count a step; return (return, length, success) of the episodes that ended with it, by row."""
        self._return += transition.reward
        self._length += 1
        rows = transition.done.nonzero()[0].tolist()
        ended = {row: self._so_far(row) for row in rows}
        self._return[rows] = 0.0
        self._length[rows] = 0
        return ended

    def too_long(self, limit: int) -> dict[int, list[float]]:
        """Return what episodes of `limit` steps or more have so far, by row."""
        rows = (self._length >= limit).nonzero()[0].tolist()
        return {row: self._so_far(row) for row in rows}

    def _so_far(self, row: int) -> list[float]:
        total = float(self._return[row])
        return [total, float(self._length[row]), float(self.success is not None and total > self.success)]

    def means(self, episodes: Sequence[Sequence[float]]) -> dict[str, float]:
        """Return the means of episodes by name; none of no episode, and no success where it is not defined."""
        if not episodes:
            return {}
        means = np.mean(episodes, axis=0).tolist()
        named = dict(zip(self.NAMES, means, strict=True))
        if self.success is None:
            del named["success"]
        return named

    def state(self) -> dict[str, Any]:
        """Return what the next steps depend on, for JSON."""
        return {"return": self._return.tolist(), "length": self._length.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        returns, lengths = np.array(state["return"], np.float64), np.array(state["length"], np.int64)
        if returns.shape != self._return.shape or lengths.shape != self._length.shape:
            raise MnemoscopeError(f"{len(returns)} episodes are under way where this run has {len(self._return)}")
        self._return, self._length = returns, lengths


def play_episodes(
    policy: Policy,
    task: Environment,
    episodes: int = 200,
    *,
    split: Split = "test",
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    callback: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, float]:
    """Return the mean return, length and success of episodes that the policy was not trained on.

    Every environment plays its share of the episodes and those are counted that it plays first: to count whichever end
    first would prefer short ones. An episode that does not end is cut off after `max_steps`, with a warning; it counts
    with what it has got, and its environment plays no further ones.

    Args:
        policy: its actions are sampled.
        task: the kind of environment, which may be another than the policy was trained in.
        episodes: how many.
        split: "valid" or "test": which seeds the environments have.
        seed: decides, with the task's own, which episodes they are.
        max_steps: of an episode; environments that have a limit of time of their own end before.
        callback: called as `callback(done, total)` when episodes have ended.
    """
    with closing(_fleet(task, episodes)) as fleet:
        if unlike := replace(fleet.spec, success=None).differences(replace(policy.spec, success=None)):
            raise MnemoscopeError(f"{task} has other observations or actions than the policy was made for: {unlike}")
        player = Player(policy, fleet, task.generator(split, "actions", seed))
        player.begin(task.fleet_seed(split, seed))
        return _means(lambda: player.step().transition, fleet, episodes, max_steps, callback)


def play_randomly(
    task: Environment,
    episodes: int = 200,
    *,
    split: Split = "test",
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    callback: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, float]:
    """Return the same of an agent that draws each action at random: what there is without learning."""
    random = np.random.default_rng([seed, 1])
    with closing(_fleet(task, episodes)) as fleet:
        fleet.reset(task.fleet_seed(split, seed))
        actions = fleet.spec.actions

        def step() -> Transition:
            return fleet.step(random.integers(actions, size=fleet.num_envs))

        return _means(step, fleet, episodes, max_steps, callback)


def _fleet(task: Environment, episodes: int) -> Fleet:
    if episodes < 1:
        raise MnemoscopeError(f"episodes = {episodes} is not allowed; it must be at least 1")
    return task.fleet(min(episodes, MAX_ENVS))


def _means(
    step: Callable[[], Transition],
    fleet: Fleet,
    episodes: int,
    max_steps: int,
    callback: Callable[[int, int], object],
) -> dict[str, float]:
    """The means over the first episodes of each environment, its share of all."""
    envs = fleet.num_envs
    share = [episodes // envs + (row < episodes % envs) for row in range(envs)]
    count = Episodes(envs, fleet.spec.success)
    found: list[list[float]] = []
    cut_off = 0
    with torch.no_grad():
        while any(share):
            ended = count.add(step())
            for row, episode in ended.items():
                if share[row]:
                    share[row] -= 1
                    found.append(episode)

            # Environments that cannot be reset one by one: this is the last episode of those.
            for row, episode in count.too_long(max_steps).items():
                if share[row]:
                    share[row] = 0
                    found.append(episode)
                    cut_off += 1
            if ended:
                callback(len(found), episodes)
    if cut_off:
        warnings.warn(
            f"{cut_off} of {len(found)} episodes did not end in {max_steps:,} steps and count with what they had got; "
            "give the environment a limit of time (gymnasium: max_episode_steps)",
            stacklevel=3,
        )
    return count.means(found)
