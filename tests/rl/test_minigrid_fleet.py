"""minigrid's environments with observations made for all of them at once: equal to its own in every step."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl import MiniGrid, MiniGridFleet, Spec
from mnemoscope.rl._replay import Episode

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed (extra `rl`)")
pytest.importorskip("minigrid", reason="minigrid is not installed (extra `rl`)")

IDS = [
    *("RedBlueDoors-6x6", "RedBlueDoors-8x8", "GoToObject-6x6-N2", "GoToObject-8x8-N2", "MemoryS7", "MemoryS13"),
    *("GoToDoor-5x5", "GoToDoor-8x8", "Fetch-5x5-N2", "Fetch-8x8-N3", "DoorKey-5x5", "DoorKey-16x16"),
    *("MemoryS13Random", "MemoryS17Random", "MultiRoom-N2-S4", "KeyCorridorS3R1", "ObstructedMaze-1Dlhb", "Unlock"),
]
OTHERS = ["Playground", "LockedRoom", "PutNear-6x6-N2", "BlockedUnlockPickup", "LavaCrossingS9N1", "BabyAI-KeyInBox-v0"]


def own(name: str, count: int, seeds: list[int]) -> list[gymnasium.Env]:
    """minigrid's own environments, reset."""
    full = name if name.startswith("BabyAI") else f"MiniGrid-{name}-v0"
    envs = [gymnasium.make(full, disable_env_checker=True) for _ in range(count)]
    return [(env, env.reset(seed=seed)[0]) for env, seed in zip(envs, seeds, strict=True)]


def words_of(ids: np.ndarray, vocabulary: tuple[str, ...]) -> str:
    return " ".join(vocabulary[word - 1] for word in ids if word).replace(" ,", ",")


def turn(fleet: MiniGridFleet, steps: int) -> None:
    for _ in range(steps):
        fleet.step(np.zeros(fleet.num_envs, dtype=np.int64))


@pytest.mark.parametrize("name", [*IDS, *OTHERS])
def test_observations_rewards_and_missions_are_minigrids_own(name: str) -> None:
    fleet = MiniGrid(name, compass=True).fleet(4)
    fleet._compared = lambda observation: observation  # type: ignore[method-assign]  # the comparison is ours here
    observation = fleet.reset(seed=3)
    envs = own(name, 4, [episode.start for episode in fleet._episodes])  # type: ignore[misc]
    random = np.random.default_rng(0)

    def check(row: int, seen: object, theirs: dict) -> None:
        np.testing.assert_array_equal(seen.cells[row], theirs["image"])
        assert seen.vector[row].argmax() == theirs["direction"]
        assert words_of(seen.mission[row], fleet.spec.vocabulary) == theirs["mission"].lower()

    for row, (_, first) in enumerate(envs):
        check(row, observation, first)
    # Actions that change something are frequent: objects are carried, doors opened, boxes unpacked.
    for _ in range(150):
        actions = random.choice(7, size=4, p=[0.1, 0.1, 0.38, 0.14, 0.1, 0.14, 0.04])
        step = fleet.step(actions)
        cut_off = list(np.flatnonzero(step.truncated))
        for row, (env, _) in enumerate(envs):
            theirs, reward, terminated, truncated, _ = env.step(int(actions[row]))
            assert (step.reward[row], step.terminated[row]) == (np.float32(reward), terminated)
            assert step.truncated[row] == (truncated and not terminated)
            if step.truncated[row]:
                check(cut_off.index(row), step.final, theirs)
            if terminated or truncated:
                theirs, _ = env.reset()
            check(row, step.observation, theirs)


@pytest.mark.parametrize("name", [*IDS, *OTHERS])
def test_restored_from_json_it_goes_on_exactly(name: str) -> None:
    fleet = MiniGrid(name).fleet(3)
    fleet.reset(seed=1)
    random = np.random.default_rng(0)
    for _ in range(60):
        fleet.step(random.integers(7, size=3))
    text = json.dumps(fleet.state())
    other = MiniGrid(name).fleet(3)
    other.reset(seed=99)
    observation = other.restore(json.loads(text))
    np.testing.assert_array_equal(observation.cells, fleet._observe().cells)
    for _ in range(60):
        actions = random.integers(7, size=3)
        ours, theirs = fleet.step(actions), other.step(actions)
        for part in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part))
        np.testing.assert_array_equal(ours.observation.cells, theirs.observation.cells)
        np.testing.assert_array_equal(ours.observation.mission, theirs.observation.mission)
    assert other.state() == fleet.state()


def test_short_sight_hides_what_is_further_away_than_an_episode_says() -> None:
    """The same worlds with and without: equal within a distance that each episode keeps, nothing is seen beyond."""
    task = MiniGrid("GoToObject-6x6-N2", short_sight=0.6)
    short, full = task.training_fleet(8), task.fleet(8)
    distances = np.array([[max(abs(x - 3), 6 - y) for y in range(7)] for x in range(7)])
    seen, whole = short.reset(seed=2), full.reset(seed=2)
    random = np.random.default_rng(0)
    sights = []
    for _ in range(300):
        sights.append(short._sight.copy())  # type: ignore[attr-defined]
        near = distances <= sights[-1][:, None, None]
        np.testing.assert_array_equal(seen.cells, np.where(near[..., None], whole.cells, 0))
        actions = random.integers(7, size=8)
        ours, theirs = short.step(actions), full.step(actions)
        np.testing.assert_array_equal(ours.done, theirs.done)
        np.testing.assert_array_equal(ours.observation.mission, theirs.observation.mission)
        changed = short._sight != sights[-1]  # type: ignore[attr-defined]
        assert not (changed & ~ours.done).any()
        seen, whole = ours.observation, theirs.observation
    assert set(np.unique(sights)) == {1, 2, 3, 4, 5, 7}


def test_short_sight_is_drawn_for_its_share_of_the_episodes_and_never_in_held_out_ones() -> None:
    starts = [Episode(seed) for seed in range(600)]
    for share in (0.0, 0.25, 1.0):
        fleet = MiniGrid("MemoryS7", short_sight=share)._fleet(1, share)
        sights = [fleet._sight_of(episode) for episode in starts]
        assert np.mean([sight < 7 for sight in sights]) == pytest.approx(share, abs=0.06)
        assert sights == [fleet._sight_of(Episode(**episode.state())) for episode in starts]
    lessons = MiniGrid("MemoryS9", curriculum=("MemoryS7",), short_sight=1.0).training_fleet(2)
    assert all(fleet._short_sight == 1.0 for fleet in lessons._fleets)  # type: ignore[attr-defined]
    assert MiniGrid("MemoryS7", short_sight=1.0).fleet(1)._short_sight == 0.0
    with pytest.raises(MnemoscopeError, match=r"short_sight = 1.5 is not allowed; it must be between 0 and 1"):
        MiniGrid("MemoryS7", short_sight=1.5)


@pytest.mark.parametrize("field", ["encoder", "reading", "observations"])
def test_a_choice_that_there_is_not_is_refused(field) -> None:
    with pytest.raises(MnemoscopeError, match=rf"{field} = 'cnn' is not allowed; it must be one of '"):
        MiniGrid("MemoryS7", **{field: "cnn"})
    if field != "observations":
        with pytest.raises(MnemoscopeError, match=rf"{field} = 'cnn' is not allowed; it must be one of '"):
            Spec(actions=2, **{field: "cnn"})


def test_short_sight_is_drawn_for_each_episode_of_a_world_that_is_always_the_same() -> None:
    """Empty-5x5 draws no random numbers: its episodes all begin with the same ones."""
    task = MiniGrid("Empty-5x5", short_sight=0.5)
    fleet = task.training_fleet(1)
    fleet.reset(seed=0)
    sights = []
    for number in range(30):
        for action in (2, 2, 1, 2, 2):  # to the goal
            transition = fleet.step(np.array([action]))
        assert transition.done.all()
        sights.append(int(fleet._sight[0]))  # type: ignore[attr-defined]
        if number == 20:
            saved = json.loads(json.dumps(fleet.state()))
    assert len(set(sights)) > 3
    other = task.training_fleet(1)
    other.restore(saved)
    assert other.state() == saved
    for sight in sights[20:]:
        assert other._sight[0] == sight  # type: ignore[attr-defined]
        for action in (2, 2, 1, 2, 2):
            other.step(np.array([action]))


def test_episodes_that_are_cut_off_show_their_last_view() -> None:
    fleet = MiniGrid("GoToDoor-5x5").fleet(2)  # 100 steps
    fleet.reset(seed=0)
    for step in range(1, 101):
        last = fleet.step(np.zeros(2, dtype=np.int64))
        assert last.truncated.all() == (step == 100)
    assert last.final is not None
    assert last.final.cells.shape == (2, 7, 7, 3)  # type: ignore[union-attr]
    assert not last.terminated.any()
    assert not np.array_equal(last.final.mission, last.observation.mission)


@pytest.mark.parametrize("observations", ["fleet", "own"])
def test_a_mission_that_changes_amid_an_episode_is_seen_at_once(observations: str) -> None:
    fleet = MiniGrid("MemoryS7", observations=observations).fleet(2)  # type: ignore[arg-type]
    fleet.reset(seed=0)
    fleet.envs[1].mission = "go to the door"
    mission = fleet.step(np.zeros(2, dtype=np.int64)).observation.mission
    shown = [words_of(row, fleet.spec.vocabulary) for row in mission]  # type: ignore[union-attr]
    assert shown == [env.mission for env in fleet.envs]


@pytest.mark.parametrize("name", ["Dynamic-Obstacles-5x5", "Dynamic-Obstacles-Random-6x6"])
def test_environments_in_which_other_things_move_are_refused(name: str) -> None:
    fleet = MiniGrid(name).fleet(2)
    fleet.reset(seed=0)
    with pytest.raises(MnemoscopeError, match="changes more than the cell in front"):
        turn(fleet, 5)


def test_a_change_out_of_sight_is_found_later() -> None:
    fleet = MiniGrid("MemoryS13").fleet(2)
    fleet.reset(seed=0)
    turn(fleet, 20)
    for env in fleet.envs:
        env.grid.set(1, 1, None if env.grid.get(1, 1) else env.grid.get(0, 0))
    with pytest.raises(MnemoscopeError, match="changes more than the cell in front"):
        turn(fleet, 130)


def test_those_can_be_trained_with_their_own_observations() -> None:
    fleet = MiniGrid("Dynamic-Obstacles-5x5", observations="own").fleet(2)
    fleet.reset(seed=0)
    for _ in range(20):
        step = fleet.step(np.zeros(2, dtype=np.int64))
    own_images = [type(env).gen_obs(env)["image"] for env in fleet.envs]
    np.testing.assert_array_equal(step.observation.cells, own_images)


@pytest.mark.parametrize("size", [3, 5, 9, 11])
def test_views_of_other_sizes(size: int) -> None:
    from minigrid.envs import MultiRoomEnv

    envs = [MultiRoomEnv(2, 2, agent_view_size=size) for _ in range(2)]
    fleet = MiniGridFleet(envs)
    fleet.reset(seed=0)  # compared with its own in the first steps
    random = np.random.default_rng(0)
    for _ in range(15):
        assert fleet.step(random.integers(6, size=2)).observation.cells.shape == (2, size, size, 3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MemoryS8", "minigrid has no environment MemoryS8; did you mean MemoryS"),
        ("Nothing", "minigrid has no environment Nothing; for example"),
        ("CartPole-v1", "CartPole-v1 is not an environment of minigrid"),
    ],
)
def test_unknown_names_are_one_line(name: str, said: str) -> None:
    with pytest.raises(MnemoscopeError, match=said):
        MiniGrid(name).fleet(1)


def test_every_mission_has_words_of_the_vocabulary() -> None:
    import minigrid  # noqa: F401

    for name in [each for each in gymnasium.registry if each.startswith(("MiniGrid", "BabyAI"))]:
        if "WFC" not in name:  # needs imageio
            MiniGrid(name).fleet(2).reset(seed=5)


def test_a_state_of_another_environment_is_refused() -> None:
    fleet, other = MiniGrid("MemoryS7").fleet(2), MiniGrid("MemoryS9").fleet(2)
    fleet.reset(seed=0)
    other.reset(seed=0)
    with pytest.raises(MnemoscopeError, match="these environments are MiniGrid-MemoryS9-v0"):
        other.restore(fleet.state())
    state = json.loads(json.dumps(fleet.state()))
    state["episodes"][0]["start"] += 1
    with pytest.raises(MnemoscopeError, match="did not come to where it was"):
        fleet.restore(state)
    del state["episodes"][0]["start"]
    with pytest.raises(MnemoscopeError, match="is damaged"):
        fleet.restore(state)


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = "import sys, mnemoscope.rl; sys.exit(any(name in sys.modules for name in ('gymnasium', 'minigrid')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
