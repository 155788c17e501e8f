"""Rewards in a unit of their own, so that values are about 1 whatever an environment pays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnemoscope.errors import MnemoscopeError


class RewardScale:
    """The root mean square of the discounted sums of rewards, over all steps of all episodes so far.

    R_t = r_t + gamma R_{t-1}, from 0 in each episode. Rewards are divided by sqrt(mean R_t^2): the loss of the values
    is then about as large as that of the policy, with which it shares a network and a limit on the gradient's norm.
    gymnasium's NormalizeReward divides by the standard deviation of R_t, which is almost 0 in the first steps of an
    environment that pays the same for every step; the root mean square is not.
    """

    def __init__(self, rows: int, gamma: float) -> None:
        self.gamma = gamma
        self._sums = np.zeros(rows)
        self._squares = 0.0
        self._count = 0

    def update(self, rewards: np.ndarray, ends: np.ndarray) -> float:
        """Count the steps of a rollout, rewards and ends (time, rows), and return the unit to divide rewards by.

        It is 1 as long as all rewards were 0.
        """
        for reward, end in zip(rewards, ends, strict=True):
            self._sums = reward + self.gamma * self._sums
            self._squares += float(self._sums @ self._sums)
            self._sums[end] = 0.0
        self._count += rewards.size
        return float(np.sqrt(self._squares / self._count)) or 1.0

    def state(self) -> dict[str, Any]:
        """Return what the next rollouts depend on, for JSON."""
        return {"sums": self._sums.tolist(), "squares": self._squares, "count": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        sums = np.array(state["sums"], np.float64)
        if sums.shape != self._sums.shape:
            raise MnemoscopeError(f"it has rewards of {len(sums)} environments where this run has {len(self._sums)}")
        self._sums, self._squares, self._count = sums, float(state["squares"]), int(state["count"])
