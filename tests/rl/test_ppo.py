"""The agent's arithmetic: pieces, resets, the replay of a rollout, advantages, values behind a limit of time."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from environments import WalkFleet, Walks, learner
from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence, leaves, select
from mnemoscope.rl import Policy, PPOConfig, PPOLearner, TMaze, advantages, play_episodes, play_randomly
from mnemoscope.rl._environment import Transition
from mnemoscope.rl._evaluation import _means
from mnemoscope.rl._pieces import cut, first_states
from mnemoscope.training import FitConfig, NetworkConfig, fit, models


@pytest.mark.parametrize("model", models())
@pytest.mark.parametrize("task", [Walks(), Walks(cells=True), TMaze(3)], ids=["walks", "cells", "tmaze"])
def test_replay_repeats_play(model, task):
    """Log-probabilities and values of the first minibatch are the rollout's, with episodes that begin inside it."""
    precision = "64-true" if model == "RAC" else "32-true"  # its outputs are products, and large: float32 rounds more
    agent = learner(task, model, rollout=7, envs=6, minibatches=2, precision=precision)
    for _ in range(3):
        agent.update()
        assert agent.figures()["replay_gap"] <= 1e-5
        assert agent.figures()["kl"] >= 0


class Decay(Recurrence):
    """A recurrence of one's own: a sum of maps of what was seen, that fades. It reads no packed sequences."""

    def __init__(self, size):
        super().__init__()
        self.input_size, self.hidden_size = size, 8
        self.map = nn.Linear(size, 8)

    def initial_state(self, batch):
        return torch.zeros(1, batch, 8, dtype=self.map.weight.dtype)

    def step(self, x, state):
        h = 0.5 * state[0] + self.map(x)
        return h, h[None]


@pytest.mark.parametrize("task", [Walks(), Walks(cells=True), TMaze(3)], ids=["walks", "cells", "tmaze"])
@pytest.mark.parametrize("layer", [Decay, "LSTM", "MemLSTM"], ids=["own", "LSTM", "MemLSTM"])
def test_replay_repeats_play_of_layers_that_read_no_packed_sequences(layer, task):
    """A recurrence of one's own, and those of a window of inputs."""
    torch.manual_seed(0)
    network = NetworkConfig("LSTM", 8) if layer is Decay else NetworkConfig(layer, 8, truncated=3)
    policy = Policy(task.spec, network)
    if layer is Decay:
        policy.layer = Decay(policy.layer.input_size)
    agent = PPOLearner(policy, task, dataclasses.replace(task.ppo, rollout=7, envs=6, minibatches=2))
    before = [weight.clone() for weight in policy.layer.parameters()]
    for _ in range(3):
        agent.update()
        assert agent.figures()["replay_gap"] <= 1e-5
    assert all(not torch.equal(*pair) for pair in zip(before, policy.layer.parameters(), strict=True))


def test_replay_gap_sees_a_memory_that_is_not_reset(monkeypatch):
    agent = learner(Walks())
    monkeypatch.setattr("mnemoscope.rl._play.begin_anew", lambda model, state, rows: state)
    agent.update()
    agent.update()
    assert agent.figures()["replay_gap"] > 1e-4


class Learned(Policy):
    """An LSTM's policy that learns the h and c with which episodes begin."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.first = nn.Parameter(torch.randn(2, 1, 1, 8))

    def initial_state(self, batch):
        return tuple(self.first.expand(-1, -1, batch, -1))


@pytest.mark.parametrize("memoryless", [False, True])
@pytest.mark.parametrize("task", [Walks(), TMaze(3)], ids=["some begin", "all begin"])
def test_replay_begins_with_the_policys_own_initial_state(task, memoryless):
    torch.manual_seed(0)
    policy = Learned(task.spec, NetworkConfig("LSTM", 8), memoryless=memoryless)
    agent = PPOLearner(policy, task, dataclasses.replace(task.ppo, memoryless=memoryless))
    before = policy.first.clone()
    for _ in range(2):
        agent.update()
        assert agent.figures()["replay_gap"] <= 1e-5
    assert not torch.equal(policy.first, before)  # it is learnt


def test_advantages_are_normalized_unless_told_otherwise():
    """At the first minibatch all ratios are 1: without entropy and values the loss is minus the mean advantage."""
    losses = {}
    for normalize in (True, False):
        agent = learner(Walks(), entropy=0.0, value=0.0, normalize_advantages=normalize, precision="64-true")
        rollout = agent.play()
        rollout = dataclasses.replace(rollout, advantages=1e-4 * rollout.advantages + 1e-3)
        losses[normalize], _ = agent.loss(rollout, torch.arange(agent.config.envs))
    assert abs(losses[True].item()) < 1e-9
    torch.testing.assert_close(losses[False], -rollout.advantages.mean(), rtol=1e-9, atol=0)


def test_pieces_hold_every_frame_once_and_begin_where_episodes_do():
    starts = torch.rand(11, 5, generator=torch.Generator().manual_seed(0)) < 0.3
    pieces = cut(starts)
    assert sorted(pieces.frames.tolist()) == list(range(55))
    assert pieces.batch_sizes.sum() == 55
    assert pieces.batch_sizes.tolist() == sorted(pieces.batch_sizes.tolist(), reverse=True)
    assert len(pieces.row) == pieces.batch_sizes[0] == int(starts[1:].sum()) + 5
    # The frames of a piece follow each other in one environment, and only its first may be a start.
    columns = pieces.frames.split(pieces.batch_sizes.tolist())
    for piece in range(len(pieces.row)):
        frames = torch.stack([column[piece] for column in columns if len(column) > piece])
        time, row = frames // 5, frames % 5
        assert (row == pieces.row[piece]).all()
        assert (time.diff() == 1).all()
        assert starts[time, row].tolist() == [bool(pieces.fresh[piece])] + [False] * (len(frames) - 1)
        assert time[0] == 0 or pieces.fresh[piece]


def test_pieces_are_separate_runs():
    """Outputs and gradients of the packed pieces are those of a loop that resets the rows."""
    torch.manual_seed(0)
    policy = Policy(Walks().spec, NetworkConfig("RelLSTM", 6, options={"buffer": 2, "relevant": 2})).double()
    x = torch.randn(8, 3, 5, dtype=torch.float64)
    starts = torch.rand(8, 3) < 0.4
    _, state = policy(torch.randn(4, 3, 5, dtype=torch.float64))
    pieces = cut(starts)
    packed = policy.replay(x.flatten(0, 1)[pieces.frames], pieces.batch_sizes, first_states(policy, state, pieces))
    together = torch.empty_like(packed)
    together[pieces.frames] = packed

    rows = []
    for row in range(3):
        now = select(state, row)
        for t in range(8):
            now = policy.initial_state(1) if starts[t, row] else now
            output, now = policy.step(x[t, row : row + 1], now)
            rows.append((t * 3 + row, output[0]))
    apart = torch.stack([output for _, output in sorted(rows, key=lambda pair: pair[0])])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-12)
    weights = list(policy.parameters())
    direction = torch.randn_like(apart)
    for one, other in zip(
        torch.autograd.grad((together * direction).sum(), weights, retain_graph=True),
        torch.autograd.grad((apart * direction).sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_advantages_are_the_sums_that_define_them():
    random = torch.Generator().manual_seed(1)
    rewards, values = torch.randn(2, 9, 4, generator=random, dtype=torch.float64)
    ends = torch.rand(9, 4, generator=random) < 0.25
    last = torch.randn(4, generator=random, dtype=torch.float64)
    gamma, lam = 0.9, 0.8
    found = advantages(rewards, values, ends, last, gamma, lam)
    for row in range(4):
        for t in range(9):
            # Mean over n of the n-step advantages, weighted by lam, until the episode or the rollout ends.
            total, weight = 0.0, 1.0
            for k in range(t, 9):
                following = 0.0 if ends[k, row] else (values[k + 1, row] if k < 8 else last[row])
                total += weight * (rewards[k, row] + gamma * following - values[k, row])
                weight *= gamma * lam
                if ends[k, row]:
                    break
            assert found[t, row] == pytest.approx(float(total), abs=1e-12)


def test_loss_is_the_clipped_objective():
    """With probabilities that moved by known ratios, clipped on the side that would pay for moving further."""
    agent = learner(
        Walks(), rollout=9, envs=6, minibatches=1, clip_range=0.2, value=0.7, entropy=0.3, precision="64-true"
    )
    rollout = agent.play()
    shift = torch.linspace(-0.6, 0.9, 54, dtype=torch.float64).view(9, 6)
    moved = dataclasses.replace(
        rollout, log_probabilities=rollout.log_probabilities - shift, returns=rollout.values + 2
    )
    loss, about = agent.loss(moved, torch.arange(6))

    gain = rollout.advantages
    gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
    ratio = shift.exp()
    paid = torch.where(gain > 0, ratio.clamp(max=1.2) * gain, ratio.clamp(min=0.8) * gain)
    assert float(about["value_loss"]) == pytest.approx(2.0)
    assert float(about["kl"]) == pytest.approx(float((ratio - 1 - shift).mean()))
    assert float(about["clipped"]) == pytest.approx(float(((ratio - 1).abs() > 0.2).double().mean()))
    wanted = -paid.mean() + 0.7 * 2.0 - 0.3 * about["entropy"]
    assert float(loss.detach()) == pytest.approx(float(wanted))
    assert about["entropy"] > 0


def test_what_a_limit_of_time_cut_off_counts_with_its_value():
    """Values are 7 everywhere: the last reward of a cut-off episode grows by gamma * 7, of others by nothing."""

    def rewards_minus_values(bootstrap: bool) -> torch.Tensor:
        agent = learner(Walks(), gae_lambda=0.0, gamma=0.5, bootstrap_truncated=bootstrap, rollout=30)
        with torch.no_grad():
            agent.model.readout.weight.zero_()
            agent.model.readout.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 7.0]))
        return agent.play().advantages

    difference = rewards_minus_values(True) - rewards_minus_values(False)
    assert set(difference.unique().tolist()) == {0.0, 3.5}


def test_wiped_memory_is_a_network_without_memory():
    """The same equations, but step t of a sequence depends on nothing before it."""
    torch.manual_seed(0)
    policy = Policy(TMaze(4).spec, NetworkConfig("RelLSTM", 8), memoryless=True)
    x = torch.randn(6, 3, 4)
    outputs, state = policy(x)
    stepped = [policy.step(row, state)[0] for row in x]
    torch.testing.assert_close(outputs, torch.stack(stepped))
    torch.testing.assert_close(policy(x.flip(0))[0].flip(0), outputs)
    assert all(not leaf.is_floating_point() or not leaf.any() for leaf in leaves(state))


def test_episodes_of_an_evaluation_are_counted_per_environment():
    """Twelve episodes on ten environments; the same ones every time, and the global random state stays as it was."""
    task = Walks(limit=3)
    policy = learner(task).model
    before = torch.get_rng_state()
    first = play_episodes(policy, task, 12)
    assert torch.equal(before, torch.get_rng_state())
    assert first == play_episodes(policy, task, 12)
    assert first != play_episodes(policy, task, 12, split="valid")
    assert 1 <= first["length"] <= 3
    assert 0 <= first["success"] <= 1


def test_means_are_over_the_first_episodes_of_each_environment():
    """Row 0 ends at every step, row 1 at every third: two episodes of each, not the four that end first."""
    steps = iter(range(1, 100))

    def step() -> Transition:
        ends = np.array([True, next(steps) % 3 == 0])
        return Transition(np.zeros(2), np.ones(2, np.float32), ends, np.zeros(2, bool))

    fleet = SimpleNamespace(num_envs=2, spec=SimpleNamespace(success=1.0))
    found = _means(step, fleet, 4, 100, lambda done, total: None)
    assert found == {"return": 2.0, "length": 2.0, "success": 0.5}  # a return of 1 is no success: more is


def test_an_environment_that_never_ends_is_cut_off(monkeypatch):
    """Rows 0 to 9 play one episode of seven steps each; without the limit the evaluation would not return."""
    task = Walks(limit=10**9)
    step = WalkFleet.step

    def endless(self: WalkFleet, actions: np.ndarray) -> Transition:
        ones, never = np.ones(self.num_envs, np.float32), np.zeros(self.num_envs, bool)
        return dataclasses.replace(step(self, actions), reward=ones, terminated=never)

    monkeypatch.setattr(WalkFleet, "step", endless)
    policy = learner(task).model
    with pytest.warns(UserWarning, match="10 of 10 episodes did not end in 7 steps"):
        found = play_episodes(policy, task, 10, max_steps=7)
    with pytest.warns(UserWarning, match="10 of 10 episodes did not end in 7 steps"):
        assert play_randomly(task, 10, max_steps=7) == found
    assert found == {"return": 7.0, "length": 7.0, "success": 1.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minibatches": 3}, "a divisor of envs"),
        ({"gamma": 1.5}, "between 0 and 1"),
        ({"precision": "bf16-mixed"}, "32-true"),
        ({"precision": "tf32-true"}, "32-true"),
        ({"frames": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(MnemoscopeError, match=words):
        PPOConfig(**options)


def test_what_agents_do_not_have_is_refused():
    with pytest.raises(MnemoscopeError, match="dropout is not for agents"):
        Policy(TMaze(3).spec, NetworkConfig(dropout=0.5))
    with pytest.raises(MnemoscopeError, match="init = 'system' needs the task gaussian"):
        Policy(TMaze(3).spec, NetworkConfig("RNN", init="system"))
    with pytest.raises(MnemoscopeError, match="tmaze is trained with a PPOConfig; got a FitConfig"):
        fit(Policy(TMaze(3).spec, NetworkConfig()), TMaze(3), FitConfig(3))


@pytest.mark.parametrize("memoryless", [False, True])
def test_a_policy_is_memoryless_if_its_configuration_says_so(memoryless):
    """Else config.json would say so of an agent that remembers."""
    policy = Policy(TMaze(3).spec, NetworkConfig("LSTM", 8), memoryless=not memoryless)
    with pytest.raises(
        MnemoscopeError, match=f"memoryless = {memoryless}, but the policy was made with .* = {not memoryless}"
    ):
        fit(policy, TMaze(3), dataclasses.replace(TMaze.ppo, updates=1, memoryless=memoryless))


class Clocks(WalkFleet):
    """Its first number is how many steps old an episode is."""

    def _see(self):
        seen = super()._see()
        seen.vector[:, 0] = self.age
        return seen


@pytest.mark.parametrize(("limit", "steps"), [(1, [1]), (8, [4, 5, 6, 7, 8]), (1000, range(4, 20))])
def test_what_is_examined_of_an_agent_lies_within_episodes(limit, steps, monkeypatch):
    """There is no reset in a batch: a sequence over two episodes would show a memory that no agent has."""
    task = Walks(limit=limit)
    monkeypatch.setattr(Walks, "fleet", lambda self, num_envs: Clocks(num_envs, self.limit, self.cells))
    batch = task.played_batch(Policy(task.spec, NetworkConfig("LSTM", 8)), 3)
    assert len(batch.inputs) in steps
    assert batch.inputs.shape[1:] == (3, 5)
    assert batch.targets.shape == batch.inputs.shape[:2]
    assert (batch.inputs[..., 0] == torch.arange(len(batch.inputs))[:, None]).all()


def test_tmaze_asks_for_its_cue_after_exactly_L_steps():
    task = TMaze(4)
    fleet = task.fleet(50)
    observation = fleet.reset(5)
    cue = observation.vector.argmax(1)
    assert set(cue.tolist()) == {0, 1}
    for t in range(5):
        seen = observation.vector.argmax(1)
        assert set(seen.tolist()) == ({0, 1} if t == 0 else {2} if t < 4 else {3})
        transition = fleet.step(cue)
        assert transition.terminated.all() == (t == 4)
        assert (transition.reward == (t == 4)).all()
        observation = transition.observation
    assert task.needs == 4
    assert not np.array_equal(observation.vector.argmax(1), cue)  # a new episode

    # Its batches are what a fleet shows.
    inputs, targets = task.batch(0, 3)
    assert inputs[0].argmax(-1).tolist() == targets.tolist()
    assert inputs[1:].argmax(-1).tolist() == [[2] * 3] * 3 + [[3] * 3]


def test_policy_of_torchs_own_layer_is_trained():
    agent = learner(TMaze(2), "torch.LSTM")
    assert isinstance(agent.model.layer, nn.LSTM)
    before = agent.model.readout.weight.clone()
    agent.update()
    assert not torch.equal(before, agent.model.readout.weight)
