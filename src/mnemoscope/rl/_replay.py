"""Environments restored from JSON: the random numbers with which an episode began, and the actions since."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mnemoscope.errors import MnemoscopeError, type_and_line
from mnemoscope.rl._environment import Observation


@dataclass
class Episode:
    """How an environment came to where it is."""

    start: int | dict[str, Any]
    """The seed of its reset, or the state that its generator had before it."""

    actions: list[int] = field(default_factory=list)

    repeats: int = 0
    """How many episodes just before it began with the same numbers, as in a world that draws none."""

    @classmethod
    def begin(cls, env: Any, seed: int | None = None, before: Episode | None = None) -> tuple[Episode, Any]:
        """Reset a gymnasium environment; without a seed it goes on with its random numbers. Also what it shows."""
        start = env.unwrapped.np_random.bit_generator.state if seed is None else seed
        try:
            shown, _ = env.reset(seed=seed)
        except Exception as error:
            raise _failure(env, "begin an episode", error) from error
        repeats = before.repeats + 1 if before is not None and before.start == start else 0
        return cls(start, repeats=repeats), shown

    def step(self, env: Any, action: int) -> tuple[Any, float, bool, bool]:
        """Take a step of a gymnasium environment: what it shows, the reward, and whether it ended or was cut off."""
        try:
            shown, reward, terminated, truncated, _ = env.step(action)
            step = shown, float(reward), bool(terminated), bool(truncated)
        except Exception as error:
            raise _failure(env, "take a step", error) from error
        self.actions.append(action)
        return step

    def replay(self, env: Any) -> Any:
        """Bring an environment to where this episode is; returns what it shows there."""
        seed = self.start if isinstance(self.start, int) else None
        if not isinstance(self.start, int):
            env.unwrapped.np_random = generator(self.start)
        shown, _ = env.reset(seed=seed)
        for action in self.actions:
            shown, *_ = env.step(action)
        return shown

    def random(self) -> np.random.Generator:
        """Random numbers of the episode's own, far from those of its environment; the same after a restart."""
        start = np.random.default_rng(self.start) if isinstance(self.start, int) else generator(self.start)
        return np.random.Generator(start.bit_generator.jumped(1 + self.repeats))  # type: ignore[attr-defined]

    def state(self) -> dict[str, Any]:
        repeats = {"repeats": self.repeats} if self.repeats else {}
        return {"start": self.start, "actions": self.actions, **repeats}


def _failure(env: Any, what: str, error: Exception) -> MnemoscopeError:
    """An error of one line for a gymnasium environment whose own code failed."""
    return MnemoscopeError(f"{type(env.unwrapped).__name__} cannot {what}: {type_and_line(error)}")


def generator(state: dict[str, Any]) -> np.random.Generator:
    """A generator of numpy's that goes on from `state`."""
    made = np.random.Generator(getattr(np.random, state["bit_generator"])())
    made.bit_generator.state = state
    return made


def seeds(seed: int, count: int) -> list[int]:
    """Seeds of the environments of a fleet: different for each, and for each seed of the fleet."""
    return [int(word) for word in np.random.SeedSequence(seed).generate_state(count)]


def digest(observation: Observation) -> str:
    """A checksum of an observation, by which a restored fleet is known to be where it was."""
    parts = (observation.vector, observation.cells, observation.mission)
    made = hashlib.sha256()
    for part in parts:
        made.update(b"-" if part is None else np.ascontiguousarray(part).tobytes())
    return made.hexdigest()


def fleet_state(kind: str, observation: Observation, **parts: Any) -> dict[str, Any]:
    """What a fleet writes down: which it is, where it is, and how it came there."""
    return {"kind": kind, **parts, "observation": digest(observation)}


def restored(kind: str, state: dict[str, Any], go: Callable[[], Observation]) -> Observation:
    """The observation of a fleet of this kind after `go` has brought it to where `state` was taken."""
    if state.get("kind") != kind:
        raise MnemoscopeError(f"these environments are {kind}, but the state is one of {state.get('kind')}")
    try:
        observation = go()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MnemoscopeError(f"the state of {kind} is damaged: {type(error).__name__}: {error}") from error
    if digest(observation) != state.get("observation"):
        raise MnemoscopeError(
            f"{kind} did not come to where it was: it uses random numbers other than its np_random, or another "
            "version made the state; runs in it cannot be resumed"
        )
    return observation
