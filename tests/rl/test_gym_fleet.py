"""Environments of gymnasium as fleets: observations, ends of episodes, and restoring."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl import Fleet, Gym, GymFleet, Policy, VectorFleet, film, play_episodes, play_randomly
from mnemoscope.rl._replay import seeds
from mnemoscope.training import NetworkConfig

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed (extra `rl`)")

ENVS = ["CartPole-v1", "MountainCar-v0", "Acrobot-v1", "FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1"]


def play(fleet: Fleet, steps: int, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    return [fleet.step(random.integers(fleet.spec.actions, size=fleet.num_envs)) for _ in range(steps)]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        for part in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(a, part), getattr(b, part))
        np.testing.assert_array_equal(a.observation.vector, b.observation.vector)
        assert (a.final is None) == (b.final is None)
        if a.final is not None:
            np.testing.assert_array_equal(a.final.vector, b.final.vector)


@pytest.mark.parametrize("name", ENVS)
def test_restored_from_json_it_goes_on_exactly(name: str) -> None:
    fleet, other = Gym(name).fleet(3), Gym(name).fleet(3)
    fleet.reset(seed=1)
    other.reset(seed=2)
    play(fleet, 70)
    observation = other.restore(json.loads(json.dumps(fleet.state())))
    np.testing.assert_array_equal(observation.vector, fleet._seen)
    assert_same(play(fleet, 70, seed=1), play(other, 70, seed=1))


def vectors(mode: str) -> Any:
    make = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=15) for _ in range(3)]
    return gymnasium.vector.SyncVectorEnv(make, autoreset_mode=gymnasium.vector.AutoresetMode(mode))


@pytest.mark.parametrize(
    "wrapper", [lambda envs: envs, gymnasium.wrappers.vector.DictInfoToList], ids=["plain", "list"]
)
def test_every_way_of_resetting_gives_the_same_episodes(wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemoscope.rl._gym.seeds", lambda seed, count: list(range(seed, seed + count)))
    one_by_one = GymFleet([gymnasium.make("CartPole-v1", max_episode_steps=15) for _ in range(3)])
    one_by_one.reset(seed=4)
    reference = play(one_by_one, 60)
    assert any(step.truncated.any() for step in reference)
    assert any(step.terminated.any() for step in reference)
    for mode in ("NextStep", "SameStep", "Disabled"):
        fleet = VectorFleet(wrapper(vectors(mode)))
        fleet.reset(seed=4)
        assert_same(reference, play(fleet, 60))


def test_vectors_that_begin_in_the_step_after_show_zeros_there() -> None:
    fleet = VectorFleet(gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"))
    fleet.reset(seed=0)
    steps = play(fleet, 60)
    ended = [(t, row) for t, step in enumerate(steps[:-1]) for row in np.flatnonzero(step.done)]
    assert ended
    for t, row in ended:
        assert not steps[t].observation.vector[row].any()
        assert not steps[t + 1].done[row]
        assert np.abs(steps[t + 1].observation.vector[row]).max() <= 0.05  # where CartPole begins


class Countdown(gymnasium.vector.VectorEnv):
    """Row i ends after i + 2 steps. It shows and pays what is left, from arrays that it writes over in every step."""

    single_observation_space = gymnasium.spaces.Box(0, 9, (1,))
    single_action_space = gymnasium.spaces.Discrete(2)
    num_envs = 3

    def __init__(self, mode: str) -> None:
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode(mode)}
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 3)
        self._left, self._reward = np.zeros((3, 1), np.float32), np.zeros(3, np.float32)
        self._ended = np.zeros(3, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        rows = np.ones(3, bool) if options is None else options["reset_mask"]
        self._left[rows, 0] = np.arange(2, 5)[rows]
        self._ended[rows] = False
        return self._left, {}

    def step(self, actions: np.ndarray) -> Any:
        assert not self._ended.any()
        self._left -= 1
        self._reward[:] = self._left[:, 0]
        self._ended[:] = self._left[:, 0] == 0
        return self._left, self._reward, self._ended, np.zeros(3, bool), {}


def test_vectors_of_ones_own_that_must_be_reset_by_hand() -> None:
    """Rows that have ended are reset by a mask; and what was seen and paid stays as it was in later steps."""
    fleet = VectorFleet(Countdown("Disabled"))
    first = fleet.reset(seed=0)
    steps = play(fleet, 6)
    assert [step.reward[0] for step in steps] == [1, 0, 1, 0, 1, 0]
    assert [step.reward[2] for step in steps] == [3, 2, 1, 0, 3, 2]
    assert [step.observation.vector[0, 0] for step in steps] == [1, 2, 1, 2, 1, 2]
    assert first.vector[:, 0].tolist() == [2, 3, 4]


def test_processes_without_shared_memory_are_reset_once() -> None:
    """gymnasium's own reset by a mask does not keep them from another one in the next step, which would not act."""

    class Echo(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 9, (1,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.age = 0
            return np.full(1, 5, np.float32), {}

        def step(self, action: int) -> Any:
            self.age += 1
            return np.full(1, action, np.float32), 0.0, self.age == 2, False, {}

    fleet = VectorFleet(gymnasium.vector.AsyncVectorEnv([Echo] * 2, shared_memory=False))
    fleet.reset(seed=0)
    steps = [fleet.step(np.full(2, t % 2)) for t in range(8)]
    fleet.close()
    seen = np.stack([step.observation.vector[:, 0] for step in steps]).T
    ended = np.stack([step.done for step in steps]).T
    # Two steps, a step in which nothing is seen and nothing done, the first of the next episode.
    assert ended[0].tolist() == [False, True, False, False, True, False, False, True]
    assert seen[0].tolist() == [0, 0, 5, 1, 0, 5, 0, 0]


class Latest(gymnasium.vector.VectorObservationWrapper):
    """Shows the last two observations. Like most wrappers of one's own it begins all rows anew in any reset."""

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__(envs)
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8,))
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)

    def reset(self, **options: Any) -> Any:
        self.last = np.zeros((self.num_envs, 4), np.float32)
        return super().reset(**options)

    def observations(self, observations: np.ndarray) -> np.ndarray:
        both = np.concatenate([self.last, observations], 1)
        self.last = observations
        return both


@pytest.mark.parametrize("wrapper", [gymnasium.wrappers.vector.NormalizeObservation, Latest])
def test_wrappers_that_cannot_begin_some_rows_anew(wrapper: Any) -> None:
    """They are stepped as gymnasium steps them: what they show is what they show there, but at the ends of episodes."""
    fleet, plain = VectorFleet(wrapper(vectors("NextStep"))), wrapper(vectors("NextStep"))
    np.testing.assert_array_equal(fleet.reset(seed=4).vector, plain.reset(seed=seeds(4, 1)[0])[0])
    random = np.random.default_rng(0)
    for _ in range(60):
        actions = random.integers(2, size=3)
        step, (shown, reward, *_) = fleet.step(actions), plain.step(actions)
        np.testing.assert_array_equal(step.observation.vector[~step.done], shown[~step.done])
        assert not step.observation.vector[step.done].any()
        np.testing.assert_array_equal(step.reward, reward)


def test_vectors_are_restored_from_their_actions() -> None:
    fleet, other = VectorFleet(vectors("NextStep")), VectorFleet(vectors("NextStep"))
    fleet.reset(seed=4)
    play(fleet, 60)
    other.restore(json.loads(json.dumps(fleet.state())))
    assert_same(play(fleet, 30, seed=1), play(other, 30, seed=1))


def test_actions_that_start_elsewhere() -> None:
    class Echo(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(3)
        action_space = gymnasium.spaces.Discrete(3, start=5)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return 0, {}

        def step(self, action: int) -> Any:
            return action - 5, 0.0, False, False, {}

    fleet = GymFleet([Echo(), Echo()])
    np.testing.assert_array_equal(fleet.reset(seed=0).vector, [[1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(fleet.step(np.array([2, 1])).observation.vector, [[0, 0, 1], [0, 1, 0]])


def test_random_numbers_of_its_own_are_noticed_when_restoring() -> None:
    class Own(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.random.default_rng().random(1), {}

        def step(self, action: int) -> Any:
            return np.random.default_rng().random(1), 0.0, False, False, {}

    fleet = GymFleet([Own()])
    fleet.reset(seed=0)
    with pytest.raises(MnemoscopeError, match="Own did not come to where it was"):
        fleet.restore(fleet.state())


def unlicensed() -> gymnasium.Env:
    raise OSError("no license")


gymnasium.register("Unlicensed-v0", unlicensed)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CartPole-v7", "gymnasium cannot make CartPole-v7: .*; did you mean CartPole-v"),
        ("Nope-v0", "gymnasium cannot make Nope-v0: Environment `Nope` doesn't exist; did you mean [^;]*[?]$"),
        ("GymV21Environment-v0", "GymV21Environment-v0 cannot be made: To use the gym compatibility environments, run"),
        ("Pendulum-v1", "Pendulum-v1 has actions that are Box"),
        ("no_such_module:Thing-v0", "cannot be made: No module named"),
        ("Unlicensed-v0", "Unlicensed-v0 cannot be made: OSError: no license"),
    ],
)
def test_what_cannot_be_used_is_one_line(name: str, said: str) -> None:
    with pytest.raises(MnemoscopeError, match=said) as caught:
        Gym(name).fleet(1)
    assert "\n" not in str(caught.value)


class Faulty(gymnasium.Env):
    """Something is wrong from the third step on, or in the reset after it."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(2)
    wrong: Any = None
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.wrong == "reset" and self.steps > 2:
            raise OSError("no display")
        return 0, {}

    def step(self, action: int) -> Any:
        self.steps += 1
        step = (0, 0.0, self.steps > 2, False, {})
        if self.steps < 3 or self.wrong in (None, "reset"):
            return step
        if self.wrong == "step":
            raise RuntimeError("the simulator\nstopped")
        return self.wrong(*step)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("step", "Faulty cannot take a step: RuntimeError: the simulator$"),
        ("reset", "Faulty cannot begin an episode: OSError: no display$"),
        (lambda *step: step[1:], "Faulty cannot take a step: ValueError: not enough values to unpack"),
        (
            lambda seen, *others: (7, *others),
            r"Faulty shows what is not in Discrete\(3\): IndexError: index 7 is out of",
        ),
        (lambda seen, *others: ("north", *others), r"Faulty shows what is not in Discrete\(3\): "),
        (lambda seen, reward, *others: (seen, [1, 2], *others), "Faulty cannot take a step: TypeError: "),
    ],
)
def test_an_environment_that_fails_is_named_in_one_line(wrong: Any, said: str) -> None:
    envs = [Faulty(), Faulty()]
    envs[1].wrong = wrong
    fleet = GymFleet(envs)
    fleet.reset(seed=0)
    with pytest.raises(MnemoscopeError, match=said) as caught:
        play(fleet, 3)
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_observations_of_another_shape_are_not_spread_over_the_vector(shape: tuple[int, ...]) -> None:
    class Box(Faulty):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))

        def reset(self, **options: Any) -> Any:
            super().reset(**options)
            return np.zeros(shape, np.float32), {}

    with pytest.raises(MnemoscopeError, match=r"Box shows what is not in Box\(-1.0, 1.0, \(2,\), float32\)"):
        GymFleet([Box()]).reset(seed=0)


def test_a_package_that_only_the_first_reset_misses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnasium.envs.classic_control import CartPoleEnv

    def reset(self: CartPoleEnv, **options: Any) -> Any:
        raise gymnasium.error.DependencyNotInstalled("imageio is missing, please run `pip install imageio`")

    monkeypatch.setattr(CartPoleEnv, "reset", reset)
    with pytest.raises(MnemoscopeError, match="CartPoleEnv cannot begin an episode: DependencyNotInstalled: imageio"):
        Gym("CartPole-v1").fleet(1).reset(seed=0)


def test_success_is_the_threshold_that_gymnasium_knows() -> None:
    success = Gym("CartPole-v1").fleet(1).spec.success
    assert success is not None
    assert success < 475 == pytest.approx(success)  # a return of 475 is above it: gymnasium calls that solved
    assert Gym("Blackjack-v1").fleet(1).spec.success is None


@pytest.mark.parametrize(("shown", "reward"), [(math.nan, 0.0), (math.inf, 0.0), (0.0, math.nan)])
def test_numbers_that_are_not_finite_are_the_environments_fault(
    monkeypatch: pytest.MonkeyPatch, shown: float, reward: float
) -> None:
    """Else the loss is NaN, and the advice would be a lower rate."""
    from gymnasium.envs.classic_control import CartPoleEnv

    def step(self: CartPoleEnv, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        return np.full(4, shown, np.float32), reward, False, False, {}

    monkeypatch.setattr(CartPoleEnv, "step", step)
    task = Gym("CartPole-v1")
    with pytest.raises(MnemoscopeError, match=r"environment 0 .* a number that is not finite: (nan|inf)"):
        play_episodes(Policy(task.spec, NetworkConfig("GRU", 4)), task, 2)


def test_environments_are_closed_when_they_are_no_longer_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnasium.envs.classic_control import CartPoleEnv

    closed = []
    monkeypatch.setattr(CartPoleEnv, "close", lambda self: closed.append(self))
    task = Gym("CartPole-v1")
    policy = Policy(task.spec, NetworkConfig("LSTM", 4))
    assert len(closed) == 1
    play_episodes(policy, task, 5)
    assert len(closed) == 6
    play_randomly(task, 3)
    assert len(closed) == 9
    task.batch(0, 2)
    assert len(closed) == 11
    film(policy, task)
    assert len(closed) == 13  # one that is asked whether it can draw itself, and one that does


def test_a_policy_is_played_where_it_can_see_and_act() -> None:
    policy = Policy(Gym("CartPole-v1").spec, NetworkConfig("LSTM", 4))
    with pytest.raises(
        MnemoscopeError, match=r"MountainCar-v0.* than the policy was made for: actions = 3, not 2; vector = 2, not 4$"
    ):
        play_episodes(policy, Gym("MountainCar-v0"), 2)
    with pytest.raises(MnemoscopeError, match="episodes = 0 is not allowed"):
        play_episodes(policy, Gym("CartPole-v1"), 0)
    with pytest.raises(MnemoscopeError, match="episodes = 0 is not allowed"):
        play_randomly(Gym("CartPole-v1"), 0)
