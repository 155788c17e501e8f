"""A policy at play: observations in, actions out, the memory reset where an episode begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import State, leaves, rebuild, select
from mnemoscope.rl._environment import Fleet, Observation, Transition
from mnemoscope.rl._pieces import begin_anew
from mnemoscope.rl._policy import Policy, split_outputs, to_tensor


class Frame(NamedTuple):
    """One step of all environments, as the policy saw it: tensors (rows, ...) on the policy's device."""

    observation: Tensor
    starts: Tensor
    action: Tensor
    log_probability: Tensor
    value: Tensor
    transition: Transition
    final_value: Tensor | None
    """(rows that were cut off,) the value of what lay behind the limit of time; None: none was."""


class Player:
    """A policy in a fleet of environments.

    What everybody gets wrong: the memory is reset in those rows whose observation is the first of an episode, before
    the step that reads it, and in no others.
    """

    def __init__(self, policy: Policy, fleet: Fleet, generator: torch.Generator | None = None) -> None:
        self.policy = policy
        self.fleet = fleet
        self.generator = generator

    def begin(self, seed: int) -> None:
        """Begin an episode in every environment."""
        self._see(self.fleet.reset(seed), np.ones(self.fleet.num_envs, bool))
        self.state: State = self.policy.initial_state(self.fleet.num_envs)

    def _see(self, observation: Observation, starts: np.ndarray) -> None:
        self.observation = self._read(observation, np.arange(self.fleet.num_envs))
        self.starts = torch.from_numpy(starts)

    def _read(self, observation: Observation, rows: np.ndarray) -> Tensor:
        """Return what these environments show, as the policy takes it."""
        seen = to_tensor(observation)
        _check_finite("shows", seen.numpy(), rows)
        weight = self.policy.readout.weight
        return seen.to(weight.device, weight.dtype)

    @torch.no_grad()
    def step(self, *, bootstrap: bool = False) -> Frame:
        """Act once in every environment; with `bootstrap`, also value what a limit of time cut off."""
        observation, starts = self.observation, self.starts
        self.state = begin_anew(self.policy, self.state, starts)
        outputs, self.state = self.policy.step(observation, self.state)
        log_probabilities, value = split_outputs(outputs)
        action = self._sample(log_probabilities)
        transition = _kept(self.fleet.step(action.cpu().numpy()))
        _check_finite("gives as a reward", transition.reward, np.arange(self.fleet.num_envs))
        final_value = self._final_value(transition) if bootstrap and transition.truncated.any() else None
        self._see(transition.observation, transition.done)
        log_probability = log_probabilities.gather(-1, action[:, None]).squeeze(-1)
        return Frame(observation, starts, action, log_probability, value, transition, final_value)

    def _sample(self, log_probabilities: Tensor) -> Tensor:
        """Return an action (rows,) by its probability: the first of independent exponential clocks to ring."""
        clocks = torch.empty(log_probabilities.shape).exponential_(generator=self.generator)
        return (log_probabilities - clocks.to(log_probabilities).log()).argmax(-1)

    def _final_value(self, transition: Transition) -> Tensor:
        rows = transition.truncated.nonzero()[0]
        count = 0 if transition.final is None else len(to_tensor(transition.final))
        if transition.final is None or count != len(rows):
            raise MnemoscopeError(
                f"of {len(rows)} episodes that were cut off a transition has {count} final observations; give "
                "the last of each, or count them as ended (bootstrap_truncated = False)"
            )
        final = self._read(transition.final, rows)
        outputs, _ = self.policy.step(final, select(self.state, torch.from_numpy(rows)))
        return split_outputs(outputs)[1]

    @torch.no_grad()
    def value(self) -> Tensor:
        """Return the value (rows,) of the present observations, without acting."""
        outputs, _ = self.policy.step(self.observation, begin_anew(self.policy, self.state, self.starts))
        return split_outputs(outputs)[1]

    # For a checkpoint.

    def tensors(self) -> list[Tensor]:
        """Return the memory and where episodes begin; the environments' own state is `fleet_state`."""
        return [self.starts, *leaves(self.state)]

    def fleet_state(self) -> Any:
        """Return the environments' state for JSON."""
        return _in_hexadecimal(self.fleet.state())

    def restore(self, tensors: list[Tensor], fleet_state: Any) -> None:
        """Go on from where `tensors` and `fleet_state` were taken."""
        observation = self.fleet.restore(_from_hexadecimal(fleet_state))
        template = self.policy.initial_state(self.fleet.num_envs)
        starts, *memory = tensors
        if starts.dtype != torch.bool or len(starts) != self.fleet.num_envs:
            raise MnemoscopeError(f"it does not say which of {self.fleet.num_envs} episodes begin")
        for tensor, like in zip(memory, leaves(template), strict=True):
            if tensor.dim() != like.dim() or tensor.shape[:2] != like.shape[:2] or tensor.dtype != like.dtype:
                raise MnemoscopeError(f"its memory has {list(tensor.shape)} where this policy has {list(like.shape)}")
        device = self.policy.readout.weight.device
        self._see(observation, starts.numpy())
        self.state = rebuild(template, [tensor.to(device) for tensor in memory])


def _kept(transition: Transition) -> Transition:
    """Return a transition that stays as it is when the fleet writes over its arrays in the next step."""
    return replace(
        transition,
        reward=np.array(transition.reward),
        terminated=np.array(transition.terminated),
        truncated=np.array(transition.truncated),
    )


def _check_finite(does: str, numbers: np.ndarray, rows: np.ndarray) -> None:
    """Refuse what would make every weight NaN, and look like a training that diverged. It is of these environments."""
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        row, number = rows[bad[0][0]], numbers[tuple(bad[0])]
        raise MnemoscopeError(f"environment {row} {does} a number that is not finite: {number}")


def _in_hexadecimal(value: Any) -> Any:
    """Return JSON data with whole numbers of numpy's generators, of 128 bits, as text: files hold 64 bits.

    A text that looks like one of these gets a sign in front, "=0x10".
    """
    if isinstance(value, dict):
        return {name: _in_hexadecimal(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_in_hexadecimal(item) for item in value]
    if isinstance(value, str) and value.startswith(("0x", "=")):
        return f"={value}"
    return hex(value) if type(value) is int and value >= 2**63 else value


def _from_hexadecimal(value: Any) -> Any:
    """Return what `_in_hexadecimal` was given."""
    if isinstance(value, dict):
        return {name: _from_hexadecimal(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_from_hexadecimal(item) for item in value]
    if isinstance(value, str) and value.startswith("="):
        return value[1:]
    return int(value, 16) if isinstance(value, str) and value.startswith("0x") else value
