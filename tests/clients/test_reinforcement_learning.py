"""Recurrent policies: CleanRL's way with states, which keeps the memory, and two libraries that store h and c alone."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import mnemoscope
from mnemoscope.layers import CarryingTensor

STEPS, ENVIRONMENTS, INPUT, HIDDEN = 9, 4, 3, 8


def cleanrl_states(layer: Any, x: Tensor, state: Any, done: Tensor) -> tuple[Tensor, Any]:
    """Agent.get_states of CleanRL's ppo_atari_lstm.py: one step at a time, begun anew where an episode is done."""
    outputs = []
    for h, d in zip(x, done, strict=True):
        mask = (1.0 - d).view(1, -1, 1)
        h, state = layer(h.unsqueeze(0), (mask * state[0], mask * state[1]))
        outputs.append(h)
    return torch.cat(outputs), state


@pytest.mark.parametrize("kind", [mnemoscope.RelLSTM, mnemoscope.MemLSTM])
def test_cleanrl_trains_the_network_that_plays(kind: type) -> None:
    """CleanRL's handling of states (ppo_atari_lstm.py, written anew): updates compute what was played."""
    layer = kind(INPUT, HIDDEN)
    x, done = torch.randn(2 * STEPS, ENVIRONMENTS, INPUT), (torch.rand(2 * STEPS, ENVIRONMENTS) < 0.2).float()
    zeros = torch.zeros(1, ENVIRONMENTS, HIDDEN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            _, state = cleanrl_states(layer, x[:STEPS], (zeros, zeros), done[:STEPS])
            kept = (state[0].clone(), state[1].clone())
            played, _ = cleanrl_states(layer, x[STEPS:], state, done[STEPS:])
        for rows in torch.randperm(ENVIRONMENTS).split(2):  # minibatches of environments
            trained, _ = cleanrl_states(
                layer, x[STEPS:, rows], (kept[0][:, rows], kept[1][:, rows]), done[STEPS:, rows]
            )
            torch.testing.assert_close(trained, played[:, rows])


@pytest.mark.clients
def test_recurrent_ppo_plays_with_the_memory_and_says_that_updates_lose_it(monkeypatch) -> None:
    """RecurrentPPO plays with the memory. Its buffer stores h and c alone: updates begin without it, with a warning."""
    sb3 = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed (extra `clients`)")
    policies = pytest.importorskip("sb3_contrib.common.recurrent.policies")

    class Layers:  # torch.nn as the policy sees it, with our layer in place of nn.LSTM
        LSTM = mnemoscope.RelLSTM

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.nn, name)

    monkeypatch.setattr(policies, "nn", Layers())
    model = sb3.RecurrentPPO(
        "MlpLstmPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=1, seed=0, device="cpu",
        policy_kwargs=dict(lstm_hidden_size=8, net_arch=[8]),
    )  # fmt: skip
    assert type(model.policy.lstm_actor) is mnemoscope.RelLSTM
    with pytest.warns(UserWarning, match="RelLSTM got a state of h and c without its memory"):
        model.learn(32)
    assert isinstance(model._last_lstm_states.pi[0], CarryingTensor)
    states = model._last_lstm_states
    before = int(states.pi[0].memory.clock)
    with torch.no_grad():
        for _ in range(3):
            *_, states = model.policy.forward(torch.zeros(1, 4), states, torch.zeros(1))
    assert int(states.pi[0].memory.clock) == before + 3  # one memory through all steps of an episode


@pytest.mark.clients
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchrl_says_that_it_loses_the_memory() -> None:
    """LSTMModule stores h and c alone: the memory is lost from call to call, with a warning."""
    modules = pytest.importorskip("torchrl.modules", reason="torchrl is not installed (extra `clients`)")
    tensordict = pytest.importorskip("tensordict", reason="tensordict is not installed (extra `clients`)")
    layer = mnemoscope.RelLSTM(INPUT, HIDDEN, batch_first=True)
    module = modules.LSTMModule(lstm=layer, in_keys=["x", "h", "c"], out_keys=["y", ("next", "h"), ("next", "c")])

    def step(begins: bool) -> Any:
        parts = {"x": torch.randn(ENVIRONMENTS, INPUT), "is_init": torch.full((ENVIRONMENTS, 1), begins)}
        return tensordict.TensorDict(parts, [ENVIRONMENTS])

    first = module(step(True))
    assert first["y"].shape == (ENVIRONMENTS, HIDDEN)
    following = step(False)
    following["h"], following["c"] = first["next", "h"], first["next", "c"]
    with pytest.warns(UserWarning, match="RelLSTM got a state of h and c without its memory"):
        module(following)
