"""Which of minigrid's environments need memory: every pose of the agent is enumerated."""

from __future__ import annotations

from itertools import product

import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl import memory_poses
from mnemoscope.rl._memory_need import _sees_cue_and_end
from mnemoscope.rl._minigrid import make_minigrid, own_image

pytest.importorskip("minigrid", reason="minigrid is not installed (extra `rl`)")


@pytest.mark.parametrize(
    ("name", "seeing", "poses"),
    [("MemoryS7", 12, 48), ("MemoryS9", 6, 56), ("MemoryS11", 0, 64), ("MemoryS13", 0, 72)],
)
def test_cue_and_end_are_seen_at_once_in_small_ones_only(name: str, seeing: int, poses: int) -> None:
    (layout,) = memory_poses(name)
    assert (layout.seeing, layout.poses) == (seeing, poses)


def test_other_worlds_are_refused() -> None:
    with pytest.raises(MnemoscopeError, match="DoorKey-5x5 is not a Memory environment"):
        memory_poses("DoorKey-5x5")


@pytest.mark.parametrize(("name", "layouts"), [("MemoryS13Random", 7), ("MemoryS17Random", 11)])
def test_of_random_lengths_the_three_shortest_need_no_memory(name: str, layouts: int) -> None:
    found = memory_poses(name)
    assert len(found) == layouts
    assert [layout.hallway for layout in found if layout.seeing] == [5, 6, 7]


@pytest.mark.parametrize(("name", "seeing", "poses"), [("MemoryS7", 12, 48), ("MemoryS9", 7, 112)])
def test_with_cells_that_cannot_be_reached_there_are_more(name: str, seeing: int, poses: int) -> None:
    env = make_minigrid(name)
    env.reset(seed=0)
    free = [(x, y) for x in range(env.width) for y in range(env.height) if env.grid.get(x, y) is None]
    sees = [_sees_cue_and_end(env, int(env.success_pos[0]), x, y, direction) for x, y in free for direction in range(4)]
    assert (sum(sees), len(sees)) == (seeing, poses)


def test_the_objects_do_not_matter() -> None:
    # The four combinations of cue and ends: the same cells are seen.
    env = make_minigrid("MemoryS7")
    counts = set()
    for seed in range(12):
        env.reset(seed=seed)
        poses = [(x, y, d) for x in range(1, 6) for y in range(1, 6) for d in range(4) if env.grid.get(x, y) is None]
        counts.add(sum(_sees_cue_and_end(env, 5, *pose) for pose in poses))
    assert counts == {12}


@pytest.mark.parametrize(("name", "seen"), [("RedBlueDoors-6x6", True), ("RedBlueDoors-8x8", False)])
def test_both_doors_are_seen_at_once_in_the_smaller_room_only(name: str, seen: bool) -> None:
    """In every pose in the room between them, in twenty episodes with doors in different rows."""
    from minigrid.core.constants import OBJECT_TO_IDX

    env = make_minigrid(name)
    both = 0
    for seed in range(20):
        env.reset(seed=seed)
        left, right = env.size // 2, env.size // 2 + env.size - 1
        for x, y, direction in product(range(left + 1, right), range(1, env.size - 1), range(4)):
            env.agent_pos, env.agent_dir = (x, y), direction
            both += int((own_image(env)[..., 0] == OBJECT_TO_IDX["door"]).sum()) == 2
    assert (both > 0) == seen
