"""The T-maze: a cue, a corridor, a choice. What memory it needs is known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl._environment import Fleet, Observation, Spec, Transition
from mnemoscope.rl._policy import Policy
from mnemoscope.rl._ppo import PPOConfig
from mnemoscope.rl._task import Environment
from mnemoscope.tasks import Batch, Split, require_at_least

CUES = 2
_CORRIDOR, _JUNCTION = CUES, CUES + 1
_WALL, _FLOOR, _SIGN = (96, 96, 96), (225, 225, 225), (214, 93, 14)  # colors of its picture
_TILE = 8  # pixels of a cell of it


@dataclass(frozen=True)
class TMaze(Environment):
    """See a cue, walk L steps down a corridor in which nothing happens, and turn to the side that the cue named.

    An episode has L + 1 steps. Step 0 shows the cue, left or right; step L shows the junction, and only the action
    there counts: reward 1 for the cue's side, else 0. So the cue must be remembered for exactly L steps, and without
    memory one in two is right, whatever the policy. Actions in the corridor do not matter: nothing has to be explored.
    (bsuite's memory_len; Bakker 2002.)

    Examples:
        >>> import numpy
        >>> from mnemoscope.rl import TMaze
        >>> fleet = TMaze(L=10).fleet(4)
        >>> observation = fleet.reset(seed=0)
        >>> transition = fleet.step(numpy.zeros(4, dtype=numpy.int64))
    """

    name = "tmaze"
    metric = "success"
    ppo: ClassVar[PPOConfig] = PPOConfig(envs=64, lr=2e-3, entropy=0.001, evaluate_every=5)  # nothing to explore

    L: int = 100
    """Steps between the cue and the choice."""

    def __post_init__(self) -> None:
        require_at_least(self, L=1)

    def fleet(self, num_envs: int) -> TMazeFleet:
        return TMazeFleet(self.L, num_envs)

    @property
    def rollout(self) -> int:
        """A whole episode: gradients must reach from the choice back to the cue."""
        return self.length

    @property
    def length(self) -> int:
        return self.L + 1

    @property
    def needs(self) -> int:
        return self.L

    @property
    def solved(self) -> float:
        return 0.98

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        """Return whole episodes, in which actions change nothing, with the right side as the target (size,)."""
        cues = torch.randint(0, CUES, (size,), generator=self.generator(split, step), device="cpu")
        shown = torch.full((self.length, size), _CORRIDOR, device="cpu")
        shown[-1] = _JUNCTION
        shown[0] = cues
        inputs = F.one_hot(shown, CUES + 2).to(torch.float32)
        return Batch(inputs, cues)

    def played_batch(self, policy: Policy, size: int, split: Split = "valid") -> Batch:
        """Return whole episodes: what a policy does in the corridor changes nothing."""
        return self.batch(0, size, split)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-probability of the right turn."""
        return F.cross_entropy(outputs[-1, :, :CUES], targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        right = (outputs[-1, :, :CUES].argmax(-1) == targets).float().mean()
        return {"loss": float(self.loss(outputs, targets)), "success": float(right)}


class TMazeFleet(Fleet):
    """T-mazes that begin and end together."""

    def __init__(self, L: int, num_envs: int) -> None:
        self.L = L
        self.num_envs = num_envs
        self.spec = Spec(actions=CUES, vector=CUES + 2, success=0.5)
        self._random = np.random.default_rng(0)
        self._cue = np.zeros(num_envs, np.int64)
        self._step = 0

    def reset(self, seed: int) -> Observation:
        self._random = np.random.default_rng(seed)
        return self._begin()

    def _begin(self) -> Observation:
        self._cue = self._random.integers(0, CUES, self.num_envs)
        self._step = 0
        return self._observation()

    def _observation(self) -> Observation:
        shown = np.zeros((self.num_envs, CUES + 2), np.float32)
        if self._step == 0:
            shown[np.arange(self.num_envs), self._cue] = 1
        else:
            shown[:, _JUNCTION if self._step == self.L else _CORRIDOR] = 1
        return Observation(vector=shown)

    def step(self, actions: np.ndarray) -> Transition:
        ends = np.full(self.num_envs, self._step == self.L)
        reward = (ends & (actions == self._cue)).astype(np.float32)
        if ends[0]:
            observation = self._begin()
        else:
            self._step += 1
            observation = self._observation()
        return Transition(observation, reward, terminated=ends, truncated=np.zeros_like(ends))

    def picture(self, row: int) -> np.ndarray:
        """The corridor from above, at its beginning with a sign beside it that points left or right, at its end a T."""
        cells = np.full((7, 7, 3), _WALL, dtype=np.uint8)
        cells[:, 3] = _FLOOR
        if self._step == self.L:
            cells[0] = _WALL
            cells[1] = _FLOOR
        elif self._step == 0:
            side = slice(None) if self._cue[row] == 0 else slice(None, None, -1)
            for column in range(3):
                cells[:, side][3 - column : 4 + column, column] = _SIGN
        return cells.repeat(_TILE, 0).repeat(_TILE, 1)

    def shows_cue(self, row: int) -> bool:
        return self._step == 0

    def state(self) -> dict[str, Any]:
        return {"random": self._random.bit_generator.state, "cue": self._cue.tolist(), "step": self._step}

    def restore(self, state: dict[str, Any]) -> Observation:
        cue, step = np.array(state["cue"], np.int64), state["step"]
        inside = type(step) is int and 0 <= step <= self.L
        if cue.shape != self._cue.shape or not inside or not ((cue >= 0) & (cue < CUES)).all():
            raise MnemoscopeError(f"the state is not one of {self.num_envs} T-mazes with L = {self.L}")
        self._random.bit_generator.state = state["random"]
        self._cue, self._step = cue, step
        return self._observation()
