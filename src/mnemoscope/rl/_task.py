"""Environments as tasks: what `mnemoscope train` takes by name, and how they are learnt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.rl._environment import Fleet, Spec
from mnemoscope.rl._evaluation import play_episodes
from mnemoscope.rl._play import Frame, Player
from mnemoscope.rl._policy import Policy, observation_size, to_tensor
from mnemoscope.rl._ppo import PPOConfig, PPOLearner
from mnemoscope.tasks import Batch, Split, Task
from mnemoscope.training import Learner, LoopConfig, Method, NetworkConfig, SequenceModel

_TRIED = 4  # times as many episodes as are wanted: the longest of them are looked at


class PPO(Method):
    """Proximal policy optimization of a `Policy`."""

    config_type = PPOConfig

    def default_config(self, task: Task) -> LoopConfig:
        assert isinstance(task, Environment)
        return task.ppo

    def network(self, task: Task, config: NetworkConfig, fit: LoopConfig | None = None) -> SequenceModel:
        assert isinstance(task, Environment)
        return Policy(task.spec, config, memoryless=isinstance(fit, PPOConfig) and fit.memoryless)

    def learner(self, model: Any, task: Task, config: Any) -> Learner:
        assert isinstance(task, Environment)
        return PPOLearner(model, task, config)

    def evaluate(
        self,
        model: Any,
        task: Task,
        *,
        batch_size: int,
        batches: int | None,
        split: Split,
        callback: Callable[[int, int], object],
    ) -> dict[str, float]:
        assert isinstance(task, Environment)
        episodes = batch_size * (batches or 4)
        means = play_episodes(model, task, episodes, split=split, callback=callback)
        return {**means, "episodes": episodes}


@dataclass(frozen=True)
class Environment(Task):
    """A kind of environment. Its fields are the options of `mnemoscope train`.

    A subclass is a frozen dataclass with a `fleet`. As a task it also gives batches: what players see who act at
    random, with the actions that they take as targets.
    """

    metric = "return"
    method: ClassVar[Method] = PPO()
    ppo: ClassVar[PPOConfig] = PPOConfig()
    """How an agent is trained here if nothing is said about it."""

    @abstractmethod
    def fleet(self, num_envs: int) -> Fleet:
        """Return environments of this kind; call `reset` first."""

    def training_fleet(self, num_envs: int) -> Fleet:
        """Return the environments of a training run: those of `fleet`, unless easier ones come first."""
        return self.fleet(num_envs)

    def film_fleet(self) -> Fleet:
        """Return one environment for a film: one that draws itself, if it must be told so when it is made."""
        return self.fleet(1)

    @cached_property
    def spec(self) -> Spec:
        """What observations and actions look like."""
        with closing(self.fleet(1)) as fleet:
            return fleet.spec

    @property
    def rollout(self) -> int:
        """Steps between updates where the configuration leaves them open."""
        return 128

    @property
    def input_size(self) -> int:
        return observation_size(self.spec)

    @property
    def output_size(self) -> int:
        """A logit for each action, and a value."""
        return self.spec.actions + 1

    @property
    def length(self) -> int:
        return self.rollout

    @property
    def needs(self) -> int | None:
        return None

    def fleet_seed(self, split: Split, seed: int) -> int:
        """Return the seed of a fleet: of the task's and the run's own, and unrelated for train, valid and test."""
        return self.generator("fleet", split, seed).initial_seed() % 2**31

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        random = self.generator(split, step)
        actions = torch.randint(0, self.spec.actions, (self.length, size), generator=random, device="cpu")
        inputs = []
        with closing(self.fleet(size)) as fleet:
            observation = fleet.reset(self.fleet_seed(split, step))
            for action in actions:
                inputs.append(to_tensor(observation))
                observation = fleet.step(action.numpy()).observation
        return Batch(torch.stack(inputs), actions)

    @torch.no_grad()
    def played_batch(self, policy: Policy, size: int, split: Split = "valid") -> Batch:
        """Return what a policy sees and does in held-out episodes, from their first step on.

        Memory is reset between episodes and there are no resets in a batch, so each sequence lies within one episode:
        of four times `size` episodes the longest, cut to the length of the shortest of these, at most `length`.
        """
        player = Player(policy, self.fleet(_TRIED * size), self.generator(split, "played"))
        player.begin(self.fleet_seed(split, 0))
        lengths = np.full(player.fleet.num_envs, self.length)
        frames: list[Frame] = []
        while (lengths > len(frames)).sum() >= size:
            frames.append(player.step())
            ended = frames[-1].transition.done & (lengths > len(frames))
            lengths[ended] = len(frames)
        player.fleet.close()
        rows = torch.from_numpy(np.sort(np.argsort(-lengths, kind="stable")[:size]))
        inputs = torch.stack([frame.observation[rows] for frame in frames])
        return Batch(inputs, torch.stack([frame.action[rows] for frame in frames]))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-probability of the actions."""
        return F.cross_entropy(outputs[..., :-1].flatten(0, 1), targets.flatten())

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        agreement = (outputs[..., :-1].argmax(-1) == targets).float().mean()
        return {"loss": float(self.loss(outputs, targets)), self.metric: float(agreement)}
