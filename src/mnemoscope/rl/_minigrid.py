"""minigrid's environments, with observations that are made for all of them at once."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl._curriculum import CurriculumFleet
from mnemoscope.rl._environment import Fleet, Observation, Spec, Transition
from mnemoscope.rl._ppo import PPOConfig
from mnemoscope.rl._replay import Episode, fleet_state, restored, seeds
from mnemoscope.rl._task import Environment
from mnemoscope.rl._views import pack, unpack, view_coordinates, view_distances, visible_cells
from mnemoscope.schema import added_later, check_fields

# Every word of minigrid's and BabyAI's missions: a policy from one world of minigrid can read those of another.
_WORDS = """
, a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway in key lava
left matching must near next object of on open opening pick purple put reach red right room rooms square the then to
traverse unlock up use yellow you your
"""
VOCABULARY = tuple(_WORDS.split())

_MOVES = 3  # left, right, forward: the first actions
_CHANGES = frozenset((3, 4, 5))  # pickup, drop, toggle: the actions that change the cell in front
_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # right, down, left, up
TILE = 8  # pixels of a cell in pictures
OBJECTS = (5, 6)  # a key, a ball: cues and goals of Memory environments
_COMPARED_AT_FIRST = 16  # steps in which every environment is compared with minigrid's own observation
_COMPARED_EVERY = 64  # steps after which one of them is compared again


@dataclass(frozen=True)
class MiniGrid(Environment):
    """A gridworld of minigrid or BabyAI, seen through a window of 7 by 7 cells."""

    name = "minigrid"
    ppo: ClassVar[PPOConfig] = PPOConfig(minibatches=8, entropy=0.004, normalize_advantages=False)  # rare rewards

    env: str = "MemoryS7"
    """Which: MemoryS13, DoorKey-5x5, ..., or a full id such as BabyAI-GoToLocal-v0."""

    mission: bool = True
    """Show the mission's words."""

    compass: bool = False
    """Show in which direction the agent looks."""

    observations: Literal["fleet", "own"] = "fleet"
    """Made for all environments at once, or by each environment's own code, which is ten times slower."""

    target: float | None = None
    """The mean return in held-out episodes at which it counts as solved; by default none."""

    moves_only: bool = added_later(False)
    """Only the actions that move the agent: turn left, turn right, go forward. In Memory worlds the others do nothing
    but take time."""

    reading: Literal["bag", "gru"] = added_later("bag")
    """How the network reads missions: as a bag of words, or one word after another by a GRU, for BabyAI's missions in
    which the order matters."""

    curriculum: tuple[str, ...] = added_later(())
    """Worlds to train in before `env`, the easiest first: each until 95 % of the last 500 episodes succeeded, but
    no longer than 200,000 frames. Held-out episodes are always those of `env`."""

    encoder: Literal["table", "conv"] = added_later("table")
    """How the network reads cells: each for itself by a table, which is faster, or all in the same way by convolutions,
    with which a thing is the same wherever it lies."""

    short_sight: float = added_later(0.0)
    """The share of training episodes in which the agent sees only as far as a distance that is drawn for each, from 1
    cell on: it must search there, as in a larger world. Held-out episodes are seen as they are."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.short_sight <= 1:
            raise MnemoscopeError(f"short_sight = {self.short_sight} is not allowed; it must be between 0 and 1")

    @property
    def solved(self) -> float | None:
        return self.target

    def fleet(self, num_envs: int) -> MiniGridFleet:
        return self._fleet(num_envs, short_sight=0.0)

    def _fleet(self, num_envs: int, short_sight: float) -> MiniGridFleet:
        return MiniGridFleet(
            [make_minigrid(self.env) for _ in range(num_envs)],
            mission=self.mission,
            compass=self.compass,
            own=self.observations == "own",
            moves_only=self.moves_only,
            reading=self.reading,
            encoder=self.encoder,
            short_sight=short_sight,
        )

    def training_fleet(self, num_envs: int) -> Fleet:
        if not self.curriculum:
            return self._fleet(num_envs, self.short_sight)
        lessons = [replace(self, env=env, curriculum=()) for env in (*self.curriculum, self.env)]
        return CurriculumFleet(lessons, num_envs)


class MiniGridFleet(Fleet):
    """Environments of minigrid of one kind: their own dynamics and random numbers, their observations all at once.

    A step of minigrid spends nine tenths of its time on the observation. Here the grids are kept as one array of
    numbers. A step changes at most the cell in front of the agent, so that one cell is encoded anew, and the views of
    all agents are cut out of the array together. Environments for which that is not so (other things move too) are
    found by comparison with minigrid's own observation and refused: all of them in the first steps, then one now and
    then.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        *,
        mission: bool = True,
        compass: bool = False,
        own: bool = False,
        moves_only: bool = False,
        reading: Literal["bag", "gru"] = "bag",
        encoder: Literal["table", "conv"] = "table",
        short_sight: float = 0.0,
    ) -> None:
        """`envs` are MiniGridEnv objects of one id, without wrappers; their `gen_obs` is switched off."""
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        first = envs[0]
        self.num_envs = len(envs)
        self._envs = list(envs)
        self._kind = first.spec.id if first.spec is not None else type(first).__name__
        self._mission, self._compass, self._own = mission, compass, own
        view = first.agent_view_size
        self.spec = Spec(
            actions=_MOVES if moves_only else int(first.action_space.n),
            vector=4 if compass else 0,
            cells=(view, view),
            categories=(len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX)),
            vocabulary=VOCABULARY if mission else (),
            words=_words(self._kind) if mission else 0,
            reading=reading,
            encoder=encoder,
            success=0.0,
        )

        # Each grid lies in a frame of walls, so that a view at its edge needs no other treatment.
        self._see_through = first.see_through_walls
        self._wall = pack(OBJECT_TO_IDX["wall"], COLOR_TO_IDX["grey"], 0, True)
        self._empty = pack(OBJECT_TO_IDX["empty"], 0, 0, False)
        self._frame = view
        width, height = first.width + 2 * view, first.height + 2 * view
        self._grids = np.full((self.num_envs, width, height), self._wall, dtype=np.uint32)
        self._offsets = (view_coordinates(view) @ np.array([height, 1])).reshape(4, view * view)
        self._first_cells = np.arange(self.num_envs) * (width * height) + view * height + view
        self._column = height

        # In a share of the episodes cells that are further away than some distance are not seen.
        self._short_sight = short_sight
        self._distances = view_distances(view)
        self._sight = np.full(self.num_envs, view)

        self._positions = [0] * self.num_envs  # x * column + y
        self._directions = [0] * self.num_envs
        self._carried = np.full(self.num_envs, self._empty, dtype=np.uint32)
        self._words = np.zeros((self.num_envs, self.spec.words), dtype=np.int64)
        self._ids: dict[str, np.ndarray] = {}
        self._episodes: list[Episode] = []
        self._steps = 0
        for env in self._envs:
            env.gen_obs = lambda: None

    @property
    def envs(self) -> list[Any]:
        """minigrid's own environments, to look at."""
        return self._envs

    def picture(self, row: int) -> np.ndarray:
        env = self._envs[row]
        return np.asarray(env.get_frame(highlight=True, tile_size=TILE), dtype=np.uint8)

    def shows_cue(self, row: int) -> bool | None:
        env = self._envs[row]
        return sees_cue(env) if isinstance(getattr(env, "success_pos", None), tuple) else None

    def reset(self, seed: int) -> Observation:
        self._episodes = [self._begin(row, start) for row, start in enumerate(seeds(seed, self.num_envs))]
        self._steps = 0
        return self._compared(self._observe())

    def step(self, actions: np.ndarray) -> Transition:
        reward = np.zeros(self.num_envs, dtype=np.float32)
        terminated = np.zeros(self.num_envs, dtype=bool)
        truncated = np.zeros(self.num_envs, dtype=bool)
        for row, (env, action) in enumerate(zip(self._envs, np.asarray(actions).tolist(), strict=True)):
            ahead = self._ahead(row) if action in _CHANGES else -1
            _, reward[row], terminated[row], truncated[row] = self._episodes[row].step(env, action)
            if ahead >= 0:
                self._encode_cell(row, ahead)
            self._follow(row)

        # The last views of episodes that were cut off are made before the next ones begin.
        truncated &= ~terminated
        final = None
        if truncated.any():
            final = self._observe().rows(truncated.nonzero()[0])
        for row in np.flatnonzero(terminated | truncated).tolist():
            self._episodes[row] = self._begin(row, before=self._episodes[row])
        self._steps += 1
        return Transition(self._compared(self._observe()), reward, terminated, truncated, final)

    def state(self) -> dict[str, Any]:
        return fleet_state(self._kind, self._observe(), episodes=[episode.state() for episode in self._episodes])

    def restore(self, state: dict[str, Any]) -> Observation:
        def go() -> Observation:
            self._episodes = [Episode(**saved) for saved in state["episodes"]]
            for row, (env, episode) in enumerate(zip(self._envs, self._episodes, strict=True)):
                with contextlib.redirect_stdout(io.StringIO()):
                    episode.replay(env)
                self._sight[row] = self._sight_of(episode)
                self._encode(row)
            return self._observe()

        return restored(self._kind, state, go)

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _begin(self, row: int, seed: int | None = None, before: Episode | None = None) -> Episode:
        with contextlib.redirect_stdout(io.StringIO()):  # BabyAI prints the missions that it rejects
            episode, _ = Episode.begin(self._envs[row], seed, before)
        self._sight[row] = self._sight_of(episode)
        self._encode(row)
        return episode

    def _sight_of(self, episode: Episode) -> int:
        """How far the agent sees in an episode; it is the same when the episode is restored."""
        if not self._short_sight:
            return self._frame
        random = episode.random()
        short = random.random() < self._short_sight
        return int(random.integers(1, self._frame - 1)) if short else self._frame

    def _encode(self, row: int) -> None:
        """Take over an environment's grid, agent and mission."""
        env = self._envs[row]
        self._grid(row)[:] = self._grid_of(env)
        self._carried[row] = self._number(env.carrying)
        self._follow(row)

    def _grid(self, row: int) -> np.ndarray:
        frame = self._frame
        return self._grids[row, frame:-frame, frame:-frame]

    def _grid_of(self, env: Any) -> np.ndarray:
        numbers = [self._empty if cell is None else self._number(cell) for cell in env.grid.grid]
        return np.array(numbers, dtype=np.uint32).reshape(env.grid.height, env.grid.width).T

    def _number(self, cell: Any) -> int:
        if cell is None:
            return self._empty
        kind, color, state = cell.encode()
        return pack(kind, color, state, not cell.see_behind())

    def _ahead(self, row: int) -> int:
        """The cell in front of the agent: y * width + x."""
        env = self._envs[row]
        x, y = env.agent_pos
        dx, dy = _STEPS[env.agent_dir]
        return int((y + dy) * env.width + x + dx)

    def _encode_cell(self, row: int, place: int) -> None:
        env = self._envs[row]
        self._grid(row)[place % env.width, place // env.width] = self._number(env.grid.grid[place])
        self._carried[row] = self._number(env.carrying)

    def _follow(self, row: int) -> None:
        env = self._envs[row]
        x, y = env.agent_pos
        self._positions[row] = x * self._column + y
        self._directions[row] = env.agent_dir
        if self._mission:
            self._words[row] = self._mission_ids(env.mission)

    def _observe(self) -> Observation:
        """What every agent sees now."""
        size = self._frame
        directions = np.array(self._directions)
        if self._own:
            cells = np.stack([own_image(env) for env in self._envs])
        else:
            corners = self._first_cells + np.array(self._positions)
            view = self._grids.reshape(-1)[corners[:, None] + self._offsets[directions]].reshape(-1, size, size)
            seen = None if self._see_through else visible_cells(view >> 24)
            view[:, size // 2, size - 1] = self._carried  # the agent sees what it carries where it stands itself
            cells = unpack(view if seen is None else np.where(seen, view, 0))
        if self._short_sight:
            cells = cells * self._in_sight[..., None]
        return Observation(
            vector=np.eye(4, dtype=np.float32)[directions] if self._compass else None,
            cells=cells,
            mission=self._words.copy() if self._mission else None,
        )

    @property
    def _in_sight(self) -> np.ndarray:
        """(rows, size, size) bool: which cells of a view are near enough to be seen."""
        return self._distances <= self._sight[:, None, None]

    def _compared(self, observation: Observation) -> Observation:
        """The observation, if minigrid's own is the same; compared in the first steps, and then now and then."""
        if self._own:
            return observation
        if self._steps < _COMPARED_AT_FIRST:
            rows = range(self.num_envs)
        elif self._steps % _COMPARED_EVERY == 0:
            row = self._steps // _COMPARED_EVERY % self.num_envs
            rows = range(row, row + 1)
        else:
            return observation
        for row in rows:
            env = self._envs[row]
            same_grid = np.array_equal(self._grid(row), self._grid_of(env))
            image = own_image(env) * self._in_sight[row, ..., None]
            if not (same_grid and np.array_equal(observation.cells[row], image)):  # type: ignore[index]
                raise MnemoscopeError(
                    f"{self._kind} changes more than the cell in front of the agent in a step: its observations cannot "
                    "be made for all environments at once; use --task.observations own, which is slower"
                )
        return observation

    def _mission_ids(self, mission: str) -> np.ndarray:
        if mission not in self._ids:
            self._ids[mission] = mission_ids(mission, self.spec)
        return self._ids[mission]


def mission_ids(mission: str, spec: Spec) -> np.ndarray:
    """(words,) int64: the ids of a mission's words, and 0 behind its end."""
    words = re.findall(r"[a-z]+|[^a-z\s]", mission.lower())
    unknown = [word for word in words if word not in spec.vocabulary]
    if unknown:
        raise MnemoscopeError(f'the mission "{mission}" has a word that is not in the vocabulary: {unknown[0]}')
    if len(words) > spec.words:
        raise MnemoscopeError(f'the mission "{mission}" has {len(words)} words; at most {spec.words} are expected')
    ids = np.zeros(spec.words, dtype=np.int64)
    ids[: len(words)] = [spec.vocabulary.index(word) + 1 for word in words]
    return ids


def _words(kind: str) -> int:
    return 64 if kind.startswith("BabyAI-") else 20


def sees_cue(env: Any) -> bool:
    """Whether the agent of a Memory environment sees the object in the start room."""
    where = env.relative_coords(1, env.height // 2 - 1)
    return where is not None and int(own_image(env)[where][0]) in OBJECTS


def own_image(env: Any) -> np.ndarray:
    """(size, size, 3) uint8: what the agent sees, by minigrid's own code."""
    return type(env).gen_obs(env)["image"]


def make_minigrid(name: str) -> Any:
    """One environment, without wrappers; `name` is an id or the part of it between MiniGrid- and -v0."""
    try:
        import gymnasium
        import minigrid  # noqa: F401  (registers its environments)
        from minigrid.minigrid_env import MiniGridEnv
    except ImportError as error:
        raise MnemoscopeError("gridworlds need gymnasium and minigrid: pip install 'mnemoscope[rl]'") from error
    names = [name, f"MiniGrid-{name}-v0", f"MiniGrid-{name}"]
    known = next((each for each in names if each in gymnasium.registry), None)
    if known is None:
        short = [each.removeprefix("MiniGrid-").removesuffix("-v0") for each in gymnasium.registry if "Grid" in each]
        close = difflib.get_close_matches(name, short, n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else "; for example MemoryS7, DoorKey-5x5, GoToDoor-5x5"
        raise MnemoscopeError(f"minigrid has no environment {name}{hint}")
    try:
        env = gymnasium.make(known, disable_env_checker=True).unwrapped
    except gymnasium.error.Error as error:
        raise MnemoscopeError(f"{known} cannot be made: {error}") from error
    if not isinstance(env, MiniGridEnv):
        raise MnemoscopeError(f"{known} is not an environment of minigrid; use `train gym`")
    return env
