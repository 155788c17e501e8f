"""Any environment of gymnasium whose actions can be counted, as a fleet."""

from __future__ import annotations

import base64
import difflib
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mnemoscope.errors import MnemoscopeError, type_and_line
from mnemoscope.rl._environment import Fleet, Observation, Spec, Transition
from mnemoscope.rl._ppo import PPOConfig
from mnemoscope.rl._replay import Episode, fleet_state, restored, seeds
from mnemoscope.rl._task import Environment

if TYPE_CHECKING:
    import gymnasium

_SIDE = 200  # pixels of a picture in a page


@dataclass(frozen=True)
class Gym(Environment):
    """An environment that gymnasium knows by its id; what it shows is flattened into one vector."""

    name = "gym"
    ppo: ClassVar[PPOConfig] = PPOConfig(scale_rewards=True)  # of any size

    env: str = "CartPole-v1"
    """Which: any id with discrete actions. An id of your own is `module:Id-v0`; the module registers it."""

    def fleet(self, num_envs: int) -> GymFleet:
        return GymFleet([_make(self.env) for _ in range(num_envs)])

    def film_fleet(self) -> GymFleet:
        with closing(_make(self.env)) as env:
            options = {"render_mode": "rgb_array"} if "rgb_array" in env.metadata.get("render_modes", ()) else {}
        try:
            return GymFleet([_make(self.env, **options)])
        except Exception:  # it takes no render mode, whatever its metadata say, or draws by what is not installed
            return self.fleet(1)


class GymFleet(Fleet):
    """Environments of gymnasium, one after the other, each restored from its random numbers and actions."""

    def __init__(self, envs: Sequence[gymnasium.Env]) -> None:
        first = envs[0]
        self.num_envs = len(envs)
        self._envs = list(envs)
        self._kind = first.spec.id if first.spec is not None else type(first.unwrapped).__name__
        threshold = first.spec.reward_threshold if first.spec is not None else None
        self.spec = _spec(self._kind, first.observation_space, first.action_space, threshold)
        self._first_action = int(getattr(first.action_space, "start", 0))
        self._episodes: list[Episode] = []
        self._seen = np.zeros((self.num_envs, self.spec.vector), dtype=np.float32)

    def reset(self, seed: int) -> Observation:
        starts = seeds(seed, self.num_envs)
        self._episodes = [self._begin(row, start) for row, start in enumerate(starts)]
        return Observation(vector=self._seen.copy())

    def step(self, actions: np.ndarray) -> Transition:
        reward = np.zeros(self.num_envs, dtype=np.float32)
        terminated = np.zeros(self.num_envs, dtype=bool)
        truncated = np.zeros(self.num_envs, dtype=bool)
        for row, (env, action) in enumerate(zip(self._envs, np.asarray(actions).tolist(), strict=True)):
            action += self._first_action
            shown, reward[row], terminated[row], truncated[row] = self._episodes[row].step(env, action)
            self._show(row, shown)

        truncated &= ~terminated
        final = Observation(vector=self._seen[truncated]) if truncated.any() else None
        for row in np.flatnonzero(terminated | truncated).tolist():
            self._episodes[row] = self._begin(row)
        return Transition(Observation(vector=self._seen.copy()), reward, terminated, truncated, final)

    def state(self) -> dict[str, Any]:
        episodes = [episode.state() for episode in self._episodes]
        return fleet_state(self._kind, Observation(vector=self._seen), episodes=episodes)

    def restore(self, state: dict[str, Any]) -> Observation:
        def go() -> Observation:
            self._episodes = [Episode(**saved) for saved in state["episodes"]]
            for row, (env, episode) in enumerate(zip(self._envs, self._episodes, strict=True)):
                self._show(row, episode.replay(env))
            return Observation(vector=self._seen.copy())

        return restored(self._kind, state, go)

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def picture(self, row: int) -> np.ndarray | None:
        env = self._envs[row]
        if env.render_mode != "rgb_array":
            return None
        try:
            return _reduced(np.asarray(env.render()))
        except Exception:  # whatever keeps it from drawing, as a missing pygame, must not cost an examination
            return None

    def _begin(self, row: int, seed: int | None = None) -> Episode:
        episode, shown = Episode.begin(self._envs[row], seed)
        self._show(row, shown)
        return episode

    def _show(self, row: int, shown: Any) -> None:
        space = self._envs[row].observation_space
        try:
            self._seen[row : row + 1] = _flatten(space, shown).reshape(1, self.spec.vector)  # never spread over it
        except Exception as error:
            raise MnemoscopeError(f"{self._kind} shows what is not in {space}: {type_and_line(error)}") from error


class VectorFleet(Fleet):
    """A vector environment of gymnasium, whatever runs its environments.

    What it is inside is not known, so its state is the seed and every action since: exact, but the longer the run, the
    longer it takes to restore. Prefer `Gym` where there is an id. Vectors that can only begin an episode in the step
    after its end (gymnasium's CartPoleVectorEnv, and wrappers with a reset of their own, such as NormalizeObservation)
    show zeros in that step, in which actions do nothing.
    """

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

        self.num_envs = envs.num_envs
        self._envs = envs
        self._kind = (
            f"{type(envs.unwrapped).__name__} of {envs.spec.id}" if envs.spec else type(envs.unwrapped).__name__
        )
        self.spec = _spec(self._kind, envs.single_observation_space, envs.single_action_space, None)
        mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._same_step = mode is AutoresetMode.SAME_STEP
        # Others begin the next episode when they are stepped, even after a reset by a mask. So does AsyncVectorEnv
        # without shared memory (gymnasium 1.4), which would throw the episode away that the reset began. And a wrapper
        # with a reset of its own may refuse a mask, as NormalizeObservation does, or begin all rows anew.
        inner = envs.unwrapped
        keeps_reset = isinstance(inner, SyncVectorEnv) or (isinstance(inner, AsyncVectorEnv) and inner.shared_memory)
        keeps_reset = keeps_reset and not _resets_in_its_own_way(envs)
        self._takes_masks = keeps_reset or mode is AutoresetMode.DISABLED
        self._first_action = int(getattr(envs.single_action_space, "start", 0))
        self._seed = 0
        self._actions = bytearray()
        self._seen = Observation()

    def reset(self, seed: int) -> Observation:
        self._seed, self._actions = seed, bytearray()
        shown, _ = self._envs.reset(seed=seeds(seed, 1)[0])
        self._seen = self._flat(shown)
        return self._seen

    def step(self, actions: np.ndarray) -> Transition:
        actions = np.asarray(actions)
        self._actions += actions.astype("<u2").tobytes()
        shown, reward, terminated, truncated, info = self._envs.step(actions + self._first_action)
        terminated = np.array(terminated, dtype=bool)
        truncated = np.array(truncated, dtype=bool) & ~terminated
        done, final = terminated | truncated, None

        # The last observations of episodes that were cut off, and the first ones of the next.
        seen = self._flat(shown)
        if self._same_step:
            if truncated.any():
                lasts = info["final_obs"] if isinstance(info, dict) else [one.get("final_obs") for one in info]
                final = self._flat_rows([lasts[row] for row in np.flatnonzero(truncated)])
        elif done.any():
            final = seen.rows(truncated) if truncated.any() else None
            if self._takes_masks:
                seen = self._flat(self._envs.reset(options={"reset_mask": done})[0])
            else:
                seen = Observation(vector=np.where(done[:, None], np.float32(0), seen.vector))  # type: ignore[arg-type]
        self._seen = seen
        return Transition(seen, np.array(reward, dtype=np.float32), terminated, truncated, final)

    def state(self) -> dict[str, Any]:
        actions = base64.b64encode(self._actions).decode()
        return fleet_state(self._kind, self._seen, seed=self._seed, actions=actions)

    def restore(self, state: dict[str, Any]) -> Observation:
        def go() -> Observation:
            actions = np.frombuffer(base64.b64decode(state["actions"], validate=True), dtype="<u2")
            self.reset(state["seed"])
            for step in actions.reshape(-1, self.num_envs):
                self.step(step.astype(np.int64))
            return self._seen

        return restored(self._kind, state, go)

    def close(self) -> None:
        self._envs.close()

    def _flat(self, shown: Any) -> Observation:
        from gymnasium.vector.utils import iterate

        return self._flat_rows(list(iterate(self._envs.observation_space, shown)))

    def _flat_rows(self, rows: Sequence[Any]) -> Observation:
        space = self._envs.single_observation_space
        return Observation(vector=np.stack([_flatten(space, row) for row in rows]))


def _resets_in_its_own_way(envs: gymnasium.vector.VectorEnv) -> bool:
    """Whether a wrapper around vector environments has a reset of its own that matters here: infos do not."""
    from gymnasium.vector import VectorObservationWrapper, VectorWrapper
    from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

    known = (VectorWrapper, VectorObservationWrapper, DictInfoToList, RecordEpisodeStatistics)
    usual = [wrapper.reset for wrapper in known]
    while isinstance(envs, VectorWrapper):
        if type(envs).reset not in usual:
            return True
        envs = envs.env
    return False


def _flatten(space: Any, shown: Any) -> np.ndarray:
    from gymnasium.spaces.utils import flatten

    return np.asarray(flatten(space, shown), dtype=np.float32)


def _reduced(picture: np.ndarray) -> np.ndarray:
    """A picture (height, width, 3) of at most about `_SIDE` pixels: means of squares."""
    k = min(-(-max(picture.shape[:2]) // _SIDE), *picture.shape[:2])
    height, width = picture.shape[0] // k, picture.shape[1] // k
    total = np.zeros((height, width, 3), np.uint32)
    for i in range(k):
        for j in range(k):
            total += picture[i : height * k : k, j : width * k : k]
    return (total // k**2).astype(np.uint8)


def _spec(kind: str, observations: Any, actions: Any, threshold: float | None) -> Spec:
    """The spec of an environment with these spaces."""
    from gymnasium import spaces

    if not isinstance(actions, spaces.Discrete):
        raise MnemoscopeError(f"{kind} has actions that are {actions}; only discrete ones can be learned here")
    try:
        size = spaces.flatdim(observations)
    except (NotImplementedError, ValueError) as error:
        raise MnemoscopeError(f"{kind} shows {observations}, which cannot be made a vector of fixed size") from error
    # To gymnasium a return at the threshold is enough, as 1 is where 1 is the most there is; `Spec` asks for more.
    success = None if threshold is None else math.nextafter(threshold, -math.inf)
    return Spec(actions=int(actions.n), vector=size, success=success)


def _make(name: str, **options: Any) -> gymnasium.Env:
    try:
        import gymnasium
    except ImportError as error:
        raise MnemoscopeError("environments need gymnasium: pip install 'mnemoscope[rl]'") from error
    try:
        return gymnasium.make(name, disable_env_checker=True, **options)
    except ImportError as error:
        raise MnemoscopeError(f"{name} cannot be made: {error}") from error
    except gymnasium.error.Error as error:
        others = [known for known in gymnasium.registry if known != name]
        close = difflib.get_close_matches(name, others, n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        said = str(error).splitlines()[0].split(" Did you mean")[0].rstrip(".")  # it knows names without versions
        raise MnemoscopeError(f"gymnasium cannot make {name}: {said}{hint}") from error
    except Exception as error:  # its own code
        raise MnemoscopeError(f"{name} cannot be made: {type_and_line(error)}") from error
