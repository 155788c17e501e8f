"""Proximal policy optimization (Schulman et al. 2017) of a policy with memory.

An update plays `rollout` steps in all environments, then makes `epochs` passes over them. Each minibatch is some of the
environments with all their steps. These are cut where episodes begin; the pieces are the rows of one packed sequence,
which a fused kernel runs from the states that the memory had in play. So nothing is stored but the state before the
rollout, gradients flow through whole pieces, and the replayed probabilities are those of play: `replay_gap`, their
largest difference before the first step of the optimizer, is a rounding error, or something is wrong.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import State, select
from mnemoscope.rl._curriculum import CurriculumFleet
from mnemoscope.rl._evaluation import Episodes, play_episodes
from mnemoscope.rl._pieces import cut, first_states
from mnemoscope.rl._play import Frame, Player
from mnemoscope.rl._policy import Policy, split_outputs
from mnemoscope.rl._reward_scale import RewardScale
from mnemoscope.schema import added_later
from mnemoscope.training import Learner, LoopConfig, require, select_device

if TYPE_CHECKING:
    from mnemoscope.rl._task import Environment

WINDOW = 100  # training episodes whose mean return and success are shown


@dataclass(frozen=True, kw_only=True)
class PPOConfig(LoopConfig):
    """How an agent is trained: proximal policy optimization."""

    updates: int = field(default=0, kw_only=False)
    """Maximum number of rollouts, instead of `frames`; 0 uses `frames`."""
    frames: int = 1_000_000
    """Maximum number of frames: steps of all environments together."""
    envs: int = 16
    """Environments that are played together."""
    rollout: int = 0
    """Steps of each environment between updates: as far as gradients reach back. 0 takes the task's own: a whole
    episode of the T-maze, else 128."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 4
    """Parts of a rollout in a pass, each with its step of the optimizer: whole environments, so it divides envs."""
    gamma: float = 0.99
    """Discount of later rewards."""
    gae_lambda: float = 0.95
    """Weight of later advantages: 0 trusts the value of the next step, 1 the rewards until the end."""
    clip_range: float = 0.2
    """How far the probability of an action may move in an update, as a share of it."""
    entropy: float = 0.01
    """Weight of the policy's entropy, which keeps it trying."""
    value: float = 0.5
    """Weight of the loss of the values."""
    bootstrap_truncated: bool = True
    """Whether an episode that a limit of time cut off counts on with its value there; else it counts as ended."""
    normalize_advantages: bool = added_later(True)
    """Whether advantages are shifted and scaled to mean 0 and variance 1 in each minibatch. Where rewards are rare
    most minibatches have none, and their noise is scaled up."""
    scale_rewards: bool = added_later(False)
    """Whether rewards are divided by the root mean square of their discounted sums so far. Where returns are in the
    hundreds the loss of the values leaves no room for that of the policy."""
    memoryless: bool = False
    """Whether the memory is reset at every step: the same network without memory, to compare with."""
    evaluate_episodes: int = 200
    """Held-out episodes in an evaluation, with sampled actions."""
    lr: float = 1e-3
    """Learning rate, before its schedule."""
    clip: float = 0.5
    """Largest norm of the gradient; a larger one is scaled down to it. 0 does not clip."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Where to train; auto takes a GPU if there is one. For small networks the CPU is faster."""
    evaluate_every: int = 10
    """Updates between evaluations on held-out episodes."""
    log_every: int = 1
    """Updates that one line of metrics.jsonl averages."""
    checkpoint_every: int = 20
    """Updates between checkpoints: the most that a killed run loses."""
    seed: int = 0
    """Seed of the initial weights, of the actions and, with the task's own, of the episodes that are trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("frames", "envs", "epochs", "minibatches", "evaluate_episodes"):
            require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("updates", "rollout", "entropy", "value"):
            require(self, name, getattr(self, name) >= 0, "at least 0")
        for name in ("gamma", "gae_lambda"):
            require(self, name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        require(self, "clip_range", self.clip_range > 0, "above 0")
        require(self, "minibatches", self.envs % self.minibatches == 0, f"a divisor of envs, {self.envs}")
        require(self, "precision", self.precision in ("32-true", "64-true"), "32-true, 64-true")


@dataclass(frozen=True)
class Rollout:
    """What was played: tensors (time, environments, ...)."""

    state: State
    """The memory before the first step."""
    observations: Tensor
    starts: Tensor
    actions: Tensor
    log_probabilities: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


def advantages(rewards: Tensor, values: Tensor, ends: Tensor, last: Tensor, gamma: float, lam: float) -> Tensor:
    """Return the generalized advantages (time, rows) of Schulman et al. 2016, equation 16.

    Args:
        rewards: (time, rows); that of an episode which a limit of time cut off already holds its value there.
        values: (time, rows), of the observation before each step.
        ends: (time, rows), whether the episode ended with that step.
        last: (rows,), the value of the observation after the last step.
        gamma: discount.
        lam: weight of later advantages.
    """
    if ends.dtype is not torch.bool:  # ~1 is -2
        raise MnemoscopeError(f"ends must be a mask of bool; got {ends.dtype}")
    found = torch.empty_like(rewards)
    advantage = torch.zeros_like(last)  # of the next step
    goes_on = (~ends).to(rewards)
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * goes_on[t] * last - values[t]
        advantage = delta + gamma * lam * goes_on[t] * advantage
        found[t] = advantage
        last = values[t]  # from here on the value of the next observation
    return found


class PPOLearner(Learner):
    """A policy in training: its environments, and one update after another."""

    config: PPOConfig
    model: Policy
    task: Environment

    def __init__(self, model: Policy, task: Environment, config: PPOConfig) -> None:
        if model.memoryless != config.memoryless:
            raise MnemoscopeError(
                f"the configuration says memoryless = {config.memoryless}, but the policy was made with memoryless = "
                f"{model.memoryless}; give both the same"
            )
        self.config = config
        dtype = torch.float64 if config.precision == "64-true" else torch.float32
        model.to(select_device(config), dtype)
        super().__init__(model, task)
        self.steps = config.rollout or task.rollout
        self.player = Player(model, task.training_fleet(config.envs))
        self.player.begin(task.fleet_seed("train", config.seed))
        self.episodes = Episodes(config.envs, task.spec.success)
        self.reward_scale = RewardScale(config.envs, config.gamma) if config.scale_rewards else None
        self.recent: deque[list[float]] = deque(maxlen=WINDOW)
        self._last: dict[str, float] = {}

    @property
    def total(self) -> int:
        """The budget in updates: rollouts, the last of which may go beyond `frames`."""
        return self.config.updates or math.ceil(self.config.frames / self.frames_per_update)

    @property
    def frames_per_update(self) -> int:
        """Steps of all environments between two updates."""
        return self.config.envs * self.steps

    def update(self) -> tuple[Tensor, Tensor]:
        rollout = self.play()
        losses, norms, statistics = [], [], []
        for _ in range(self.config.epochs):
            for rows in torch.randperm(self.config.envs).chunk(self.config.minibatches):
                loss, found = self.loss(rollout, rows)
                self._optimizer.zero_grad()
                loss.backward()
                norms.append(clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf))
                self._optimizer.step()
                losses.append(loss.detach())
                statistics.append(found)
        self.advance_schedule()
        names = ("entropy", "value_loss", "kl", "clipped")
        self._last = {name: float(torch.stack([found[name] for found in statistics]).mean()) for name in names}
        self._last["replay_gap"] = float(statistics[0]["replay_gap"])  # later, the policy is no longer that of play
        return torch.stack(losses).mean(), torch.stack(norms).mean()

    def play(self) -> Rollout:
        """Play `steps` steps in every environment."""
        state = self.player.state
        frames: list[Frame] = []
        for _ in range(self.steps):
            frame = self.player.step(bootstrap=self.config.bootstrap_truncated)
            self.recent.extend(self.episodes.add(frame.transition).values())
            frames.append(frame)

        values = torch.stack([frame.value for frame in frames])
        ends = np.stack([frame.transition.done for frame in frames])
        rewards = self._rewards(frames, ends)
        found = advantages(
            rewards,
            values,
            torch.from_numpy(ends).to(values.device),
            self.player.value(),
            self.config.gamma,
            self.config.gae_lambda,
        )
        return Rollout(
            state,
            torch.stack([frame.observation for frame in frames]),
            torch.stack([frame.starts for frame in frames]),
            torch.stack([frame.action for frame in frames]),
            torch.stack([frame.log_probability for frame in frames]),
            values,
            advantages=found,
            returns=found + values,
        )

    def _rewards(self, frames: list[Frame], ends: np.ndarray) -> Tensor:
        """The rewards (time, environments) to learn from, with the values of what a limit of time cut off."""
        paid = np.stack([frame.transition.reward for frame in frames])
        rewards = torch.from_numpy(paid).to(frames[0].value)
        if self.reward_scale is not None:
            rewards = rewards / self.reward_scale.update(paid, ends)
        for reward, frame in zip(rewards, frames, strict=True):
            if frame.final_value is not None:
                rows = torch.from_numpy(frame.transition.truncated.nonzero()[0])
                reward[rows] += self.config.gamma * frame.final_value
        return rewards

    def loss(self, rollout: Rollout, rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of some environments' part of a rollout, and statistics by name."""
        # Their pieces, replayed.
        pieces = cut(rollout.starts[:, rows])
        step, row = pieces.frames // len(rows), rows[pieces.frames % len(rows)]
        frames = (step * self.config.envs + row).to(rollout.values.device)  # in the flattened (time, environments)
        state = first_states(self.model, select(rollout.state, rows), pieces)

        def of_frames(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, 1)[frames]

        outputs = self.model.replay(of_frames(rollout.observations), pieces.batch_sizes, state)
        log_probabilities, values = split_outputs(outputs)
        log_probability = log_probabilities.gather(-1, of_frames(rollout.actions)[:, None]).squeeze(-1)

        # The clipped objective, the loss of the values, the entropy.
        advantage = of_frames(rollout.advantages)
        if self.config.normalize_advantages:
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        log_ratio = log_probability - of_frames(rollout.log_probabilities)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.config.clip_range, 1 + self.config.clip_range)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * (values - of_frames(rollout.returns)).square().mean()
        entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
        loss = policy_loss + self.config.value * value_loss - self.config.entropy * entropy

        with torch.no_grad():
            value_gap = (values - of_frames(rollout.values)).abs().max()
            statistics = {
                "entropy": entropy.detach(),
                "value_loss": value_loss.detach(),
                "kl": (ratio - 1 - log_ratio).mean(),
                "clipped": (ratio != clipped).to(ratio).mean(),
                "replay_gap": torch.maximum(log_ratio.abs().max(), value_gap),
            }
        return loss, statistics

    def figures(self) -> dict[str, float]:
        """Return how play went: frames so far, the lesson, and the means over the last 100 episodes that ended."""
        figures: dict[str, float] = {"frames": self.updates_done * self.frames_per_update}
        if isinstance(self.player.fleet, CurriculumFleet):
            figures["lesson"] = self.player.fleet.lesson
        return figures | self.episodes.means(list(self.recent)) | self._last

    def evaluate(self) -> dict[str, float]:
        """Return the means over held-out episodes; they are the same episodes every time."""
        metrics = play_episodes(self.model, self.task, self.config.evaluate_episodes, split="valid")
        self.note_evaluation(-metrics[self.task.metric])
        return metrics

    # For checkpoints.

    def carried(self) -> dict[str, Tensor]:
        return {str(i): tensor for i, tensor in enumerate(self.player.tensors())}

    def numbers(self) -> dict[str, Any]:
        play = {"fleet": self.player.fleet_state(), "episodes": self.episodes.state(), "recent": list(self.recent)}
        if self.reward_scale is not None:
            play["rewards"] = self.reward_scale.state()
        return {**super().numbers(), "play": play}

    def restore_carried(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        play = numbers["play"]
        self.player.restore(list(tensors.values()), play["fleet"])
        self.episodes.restore(play["episodes"])
        if any(len(episode) != len(self.episodes.NAMES) for episode in play["recent"]):
            raise MnemoscopeError("its recent episodes are not those of this version")
        self.recent = deque(play["recent"], maxlen=WINDOW)
        if self.reward_scale is not None:
            self.reward_scale.restore(play["rewards"])
