"""Do minigrid's Memory environments need memory? Every place that an agent can be in is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl._minigrid import OBJECTS, make_minigrid, own_image, sees_cue


@dataclass(frozen=True)
class Poses:
    """Positions and directions in which an agent can be, in one layout of an environment."""

    hallway: int
    """The column in which the hallway ends; it differs from episode to episode in the Random environments."""

    seeing: int
    """Poses from which the cue and an object at the hallway's end are seen at once."""

    poses: int


def memory_poses(name: str) -> list[Poses]:
    """From how many poses of a Memory environment (MemoryS7, ...) the task can be solved at a glance, by layout.

    Where there is none, an agent must remember the cue while it walks to the hallway's end. Where there are some, one
    without memory can walk there, compare, and go on.
    """
    env = make_minigrid(name)
    from minigrid.envs import MemoryEnv

    if not isinstance(env, MemoryEnv):
        raise MnemoscopeError(f"{name} is not a Memory environment of minigrid, as MemoryS7 is")
    found: dict[int, Poses] = {}
    for seed in range(200 if env.random_length else 1):
        env.reset(seed=seed)
        end = int(env.success_pos[0])
        if end not in found:
            poses = [_sees_cue_and_end(env, end, *pose) for pose in _reachable(env)]
            found[end] = Poses(end, sum(poses), len(poses))
    return [found[end] for end in sorted(found)]


def _reachable(env: Any) -> Iterator[tuple[int, int, int]]:
    """Every x, y and direction that an agent can come to, the last step of an episode included."""
    middle = (int(env.agent_pos[0]), int(env.agent_pos[1]))
    known, todo = {middle}, [middle]
    while todo:
        x, y = todo.pop()
        for direction in range(4):
            yield x, y, direction
        for place in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            if place not in known and env.grid.get(*place) is None:
                known.add(place)
                todo.append(place)


def _sees_cue_and_end(env: Any, end: int, x: int, y: int, direction: int) -> bool:
    env.agent_pos, env.agent_dir = (x, y), direction
    middle = env.height // 2
    image = own_image(env)

    def sees(place: tuple[int, int]) -> bool:
        where = env.relative_coords(*place)
        return where is not None and int(image[where][0]) in OBJECTS

    return sees_cue(env) and (sees((end, middle - 2)) or sees((end, middle + 2)))
