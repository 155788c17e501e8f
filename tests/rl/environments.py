"""An environment for tests whose episodes have random lengths, so that rows are reset one by one, and are cut off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from mnemoscope.rl import Environment, Fleet, Observation, Policy, PPOConfig, PPOLearner, Spec, Transition
from mnemoscope.training import NetworkConfig


@dataclass(frozen=True)
class Walks(Environment):
    """Walks of random length: each step ends with probability 1/5, and `limit` steps are cut off."""

    name = "walks"
    ppo: ClassVar[PPOConfig] = PPOConfig(envs=6, minibatches=2, rollout=9, evaluate_episodes=10)
    limit: int = 8
    cells: bool = False

    def fleet(self, num_envs: int) -> WalkFleet:
        return WalkFleet(num_envs, self.limit, self.cells)


class WalkFleet(Fleet):
    """Observations are random; so are rewards."""

    def __init__(self, num_envs: int, limit: int, cells: bool) -> None:
        self.num_envs = num_envs
        self.limit = limit
        if cells:
            words = ("go", "stay", "left")
            self.spec = Spec(3, vector=2, cells=(2, 3), categories=(4, 2), vocabulary=words, words=3, success=0.0)
        else:
            self.spec = Spec(3, vector=5, success=0.0)
        self.reset(0)

    def reset(self, seed: int) -> Observation:
        self.random = np.random.default_rng(seed)
        self.age = np.zeros(self.num_envs, np.int64)
        self.seen = self._see()
        return self.seen

    def _see(self) -> Observation:
        vector = self.random.normal(size=(self.num_envs, self.spec.vector)).astype(np.float32)
        if self.spec.cells is None:
            return Observation(vector)
        channels = [self.random.integers(0, n, (self.num_envs, 2, 3)) for n in self.spec.categories]
        mission = self.random.integers(1, 4, (self.num_envs, 3))
        mission[:, 2] = 0
        return Observation(vector, np.stack(channels, -1).astype(np.uint8), mission)

    def step(self, actions: np.ndarray) -> Transition:
        assert actions.shape == (self.num_envs,)
        self.age += 1
        terminated = self.random.random(self.num_envs) < 0.2
        truncated = (self.age >= self.limit) & ~terminated
        self.age[terminated | truncated] = 0
        reward = self.random.normal(size=self.num_envs).astype(np.float32)
        final = self._see().rows(truncated.nonzero()[0]) if truncated.any() else None
        self.seen = self._see()
        return Transition(self.seen, reward, terminated, truncated, final)

    def state(self) -> dict[str, Any]:
        parts = {name: part.tolist() for name, part in vars(self.seen).items() if part is not None}
        return {"random": self.random.bit_generator.state, "age": self.age.tolist(), "seen": parts}

    def restore(self, state: dict[str, Any]) -> Observation:
        self.random.bit_generator.state = state["random"]
        self.age = np.array(state["age"], np.int64)
        kinds = {"vector": np.float32, "cells": np.uint8, "mission": np.int64}
        self.seen = Observation(**{name: np.array(part, kinds[name]) for name, part in state["seen"].items()})
        return self.seen


def learner(task: Environment, model: str = "LSTM", **options: Any) -> PPOLearner:
    """An agent of 8 units that has not learnt yet; `network` are options of its layer."""
    torch.manual_seed(0)
    network = NetworkConfig(model, 8, options=options.pop("network", {}))
    config = PPOConfig(**{**vars(task.ppo), **options})
    return PPOLearner(Policy(task.spec, network, memoryless=config.memoryless), task, config)
