"""What environments of one's own must give, and what becomes of it: ends, last observations, arrays, states."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from environments import WalkFleet, Walks, learner

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl import advantages
from mnemoscope.rl._environment import Observation, Transition


@pytest.mark.parametrize("count", [0, 2])
def test_a_fleet_that_forgets_what_was_seen_last_is_told(count, monkeypatch):
    """Else nothing would be learnt of what lies behind the limit, as if the episodes had ended."""
    step = WalkFleet.step

    def forgets(self, actions):
        transition = step(self, actions)
        final = transition.observation.rows(slice(count)) if count else None
        return dataclasses.replace(transition, final=final)

    monkeypatch.setattr(WalkFleet, "step", forgets)
    agent = learner(Walks(limit=1), envs=6, minibatches=2, rollout=30)
    with pytest.raises(MnemoscopeError, match=f"of [3-6] episodes that were cut off a transition has {count} final"):
        agent.play()
    assert learner(Walks(limit=1), bootstrap_truncated=False).play() is not None


def test_an_episode_terminates_or_is_cut_off():
    seen, yes = Observation(np.zeros((2, 1), np.float32)), np.array([False, True])
    with pytest.raises(MnemoscopeError, match="environment 1 terminated and was cut off in one step"):
        Transition(seen, np.zeros(2, np.float32), terminated=yes, truncated=yes, final=seen.rows([1]))


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize("wrong", [np.zeros(2, np.int64), np.zeros((2, 1), bool), np.zeros(3, bool)])
def test_ends_are_a_mask(name, wrong):
    """As numbers they would be read as indices: in one environment alone, 0 would reset the memory at every step."""
    ends = {"terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool), name: wrong}
    with pytest.raises(MnemoscopeError, match=rf"{name} must be of bool, one for each of 2 rewards; got \["):
        Transition(Observation(np.zeros((2, 1), np.float32)), np.zeros(2, np.float32), **ends)
    with pytest.raises(MnemoscopeError, match=r"ends must be a mask of bool; got torch.int64"):
        advantages(torch.ones(3, 2), torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.int64), torch.ones(2), 0.9, 0.9)


def test_the_state_of_a_fleet_comes_back_as_it_was(monkeypatch):
    """Numbers of 128 bits, which files do not hold, and texts that look like what is written for them."""
    state = {"large": [2**63 - 1, 2**63, 2**127 + 1], "text": ["0x10", "=0x10", "=", "10", "0x"], "other": [None, 1.5]}
    given = {}
    agent = learner(Walks())
    monkeypatch.setattr(WalkFleet, "state", lambda self: state)
    monkeypatch.setattr(WalkFleet, "restore", lambda self, state: given.update(state) or self.seen)
    written = json.loads(json.dumps(agent.player.fleet_state()))
    assert max(number for number in written["large"] if isinstance(number, int)) < 2**63
    agent.player.restore(agent.player.tensors(), written)
    assert given == state


def test_a_fleet_may_write_over_its_arrays(monkeypatch):
    """A rollout is learnt from after its last step: else every reward would be that of the last."""
    wanted = learner(Walks()).play()
    step = WalkFleet.step

    def same_arrays(self, actions):
        found = step(self, actions)
        parts = {name: getattr(found, name) for name in ("reward", "terminated", "truncated")}
        if not hasattr(self, "kept"):
            self.kept = {name: part.copy() for name, part in parts.items()}
        for name, part in parts.items():
            self.kept[name][:] = part
        return dataclasses.replace(found, **self.kept)

    monkeypatch.setattr(WalkFleet, "step", same_arrays)
    assert torch.equal(learner(Walks()).play().advantages, wanted.advantages)


def test_what_was_seen_last_is_finite(monkeypatch):
    step = WalkFleet.step

    def broken(self, actions):
        transition = step(self, actions)
        if transition.final is not None:
            transition.final.vector[-1, 1] = np.nan
        self.cut_off = transition.truncated
        return transition

    monkeypatch.setattr(WalkFleet, "step", broken)
    agent = learner(Walks(limit=2))
    with pytest.raises(MnemoscopeError, match=r"environment \d shows a number that is not finite: nan") as caught:
        agent.play()
    assert f"environment {agent.player.fleet.cut_off.nonzero()[0][-1]} " in str(caught.value)
