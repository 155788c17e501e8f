"""Rewards of any size: the unit that they are divided by, and agents that learn the same whatever it is."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from environments import WalkFleet, Walks

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl import Gym, Policy, PPOConfig, PPOLearner, TMaze
from mnemoscope.rl._reward_scale import RewardScale
from mnemoscope.training import NetworkConfig, RunConfig, train


def test_the_unit_is_the_root_mean_square_of_discounted_sums():
    random = np.random.default_rng(0)
    rewards = random.normal(size=(12, 3))
    ends = random.random((12, 3)) < 0.2
    gamma = 0.9
    squares = []
    scale = RewardScale(3, gamma)
    for begin, end in ((0, 5), (5, 12)):  # sums go on from one rollout to the next
        unit = scale.update(rewards[begin:end], ends[begin:end])
        for t in range(begin, end):
            for row in range(3):
                first = max((s + 1 for s in range(t) if ends[s, row]), default=0)
                squares.append(sum(gamma ** (t - s) * rewards[s, row] for s in range(first, t + 1)) ** 2)
        assert unit == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-12)


def test_without_rewards_nothing_is_divided():
    scale = RewardScale(2, 0.9)
    assert scale.update(np.zeros((4, 2)), np.zeros((4, 2), bool)) == 1.0
    assert scale.update(np.full((4, 2), 3.0), np.ones((4, 2), bool)) == pytest.approx(3 / math.sqrt(2))


@pytest.mark.parametrize("factor", [2.0**10, 2.0**-10])
@pytest.mark.parametrize("scaled", [True, False])
def test_an_agent_learns_the_same_whatever_the_unit_of_rewards_is(factor, scaled, monkeypatch):
    """By a power of two nothing is rounded otherwise: the weights are equal bit for bit."""
    plain = trained(scaled)
    step = WalkFleet.step

    def paid_otherwise(self, actions):
        transition = step(self, actions)
        transition.reward[:] *= factor
        return transition

    monkeypatch.setattr(WalkFleet, "step", paid_otherwise)
    assert torch.equal(trained(scaled), plain) == scaled


def trained(scaled: bool) -> torch.Tensor:
    torch.manual_seed(0)
    task = Walks()  # some of its episodes are cut off: their values are in the same unit
    config = PPOConfig(**{**vars(task.ppo), "scale_rewards": scaled})
    agent = PPOLearner(Policy(task.spec, NetworkConfig("GRU", 8)), task, config)
    for _ in range(3):
        agent.update()
    return torch.cat([parameter.detach().flatten() for parameter in agent.model.parameters()])


def test_returns_are_shown_as_they_are_paid():
    torch.manual_seed(0)
    task = TMaze(3)
    config = PPOConfig(envs=16, rollout=40, scale_rewards=True)
    agent = PPOLearner(Policy(task.spec, NetworkConfig("GRU", 8)), task, config)
    agent.update()
    assert set(np.unique([episode[0] for episode in agent.recent])) == {0.0, 1.0}


def test_restored_it_goes_on_exactly():
    random = np.random.default_rng(0)
    rewards, ends = random.normal(size=(2, 7, 3)), random.random((2, 7, 3)) < 0.2
    scale, other = RewardScale(3, 0.9), RewardScale(3, 0.9)
    scale.update(rewards[0], ends[0])
    other.restore(scale.state())
    assert scale.update(rewards[1], ends[1]) == other.update(rewards[1], ends[1])
    with pytest.raises(MnemoscopeError, match="3 environments where this run has 2"):
        RewardScale(2, 0.9).restore(scale.state())


def test_environments_of_gymnasium_may_pay_what_they_like():
    assert Gym.ppo.scale_rewards
    assert not TMaze.ppo.scale_rewards


@pytest.mark.slow
@pytest.mark.parametrize("model", ["LSTM", "GRU", "RelLSTM"])
def test_cart_pole_is_learnt_with_the_usual_settings(model):
    pytest.importorskip("gymnasium")
    task = Gym("CartPole-v1")
    summary = train(RunConfig(task, NetworkConfig(model, 64), replace(task.ppo, frames=80_000, seed=0, threads=1)))
    assert summary.best is not None
    assert summary.best > 450  # of 500
