"""An episode as a film: frames, attention by the step it goes to, and the cue."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mnemoscope.cli import main
from mnemoscope.finding import Examination, Finding
from mnemoscope.report import charts_of
from mnemoscope.rl import Gym, GymFleet, MiniGrid, Policy, TMaze, film, play_randomly
from mnemoscope.rl._film import _bars, _Episode, _finding
from mnemoscope.rl._gym import _reduced
from mnemoscope.training import NetworkConfig

pytest.importorskip("minigrid", reason="minigrid is not installed (extra `rl`)")


def policy(task, model="RelLSTM", **options):
    torch.manual_seed(0)
    return Policy(
        task.spec,
        NetworkConfig(model, 8, options={"buffer": 3, "relevant": 2} if model == "RelLSTM" else {}),
        **options,
    )


def test_of_a_t_maze() -> None:
    task = TMaze(L=30)
    found = film(policy(task), task)
    series = found.series
    assert found.figures["steps"] == 31
    assert found.figures["cue_last_seen"] == 0
    assert series["attention"].shape == (31, 31)
    weights = series["attention"]
    np.testing.assert_allclose(weights[1:].sum(1), 1, atol=1e-5)  # all of it goes to steps of this episode
    assert not np.triu(weights, 1).any()
    assert len(series["frame_steps"]) == len(series["frames"]) == 12
    assert series["frame_steps"][-1] == 30
    decision = int(found.figures["decision"])
    assert decision > 20
    assert found.figures["attention_to_cue"] == pytest.approx(weights[decision, 0])
    charts = charts_of({"agent": Examination({"episode": found}, "", {})}, "episode")
    assert [chart.key for chart in charts] == ["episode-strip-0", "episode-decision-0", "episode-attention-0"]


def test_of_a_long_episode_the_end_is_shown() -> None:
    steps = 500
    attention: list[dict[int, float]] = [{} for _ in range(steps)]
    attention[497] = {3: 0.25, 450: 0.75}
    pictures = [np.full((2, 2, 3), step % 256, np.uint8) for step in range(steps)]
    found = _finding(_Episode(pictures, [0] * steps, [0.0] * steps, attention, [3, 450, 499]), 0.0)
    assert found.figures["first_step"] == 100
    assert found.figures["decision"] == 497
    assert found.figures["cue_last_seen"] == 450  # the cue of step 499 comes after the decision
    assert found.figures["attention_to_cue"] == 1
    assert "step 497 gives 100 % of its attention to the steps that showed the cue" in found.sentence
    for step, frame in zip(found.series["frame_steps"], found.series["frames"], strict=True):
        assert (frame == step % 256).all()
    strip, decision, heat = charts_of({"agent": Examination({"episode": found}, "", {})}, "episode")
    assert "step 450: 75 %" in strip.marks[0].labels
    assert strip.title == "An episode; below each frame its share of the attention of step 497"
    assert decision.marks[0].x[[0, -1]].tolist() == [100, 499]
    assert heat.marks[0].x[0] == 100


def test_a_step_that_remembers_the_cue_is_named() -> None:
    attention: list[dict[int, float]] = [{} for _ in range(13)]
    attention[12] = {3: 0.05, 4: 0.9, 11: 0.05}
    pictures = [np.zeros((2, 2, 3), np.uint8)] * 13
    found = _finding(_Episode(pictures, [0] * 13, [1.0] * 13, attention, [2, 3]), 0.0)
    assert "5 % of its attention to the steps that showed the cue and 90 % to step 4, 1 step after" in found.sentence


def test_the_t_maze_is_drawn() -> None:
    """Signs of both sides are mirror images, the corridor has none, and its end is open to both sides."""
    fleet = TMaze(2).fleet(2)
    fleet.restore({**fleet.state(), "cue": [0, 1], "step": 0})
    left, right = fleet.picture(0), fleet.picture(1)
    assert (left == right[:, ::-1]).all()
    assert (left != right).any()
    stay = np.zeros(2, np.int64)
    fleet.step(stay)
    corridor = fleet.picture(0)
    fleet.step(stay)
    junction = fleet.picture(0)
    orange = np.array([214, 93, 14])
    assert [bool((p == orange).all(-1).any()) for p in (left, corridor, junction)] == [True, False, False]
    assert (junction[12] == junction[12, 0]).all()
    assert not (corridor[12] == corridor[12, 0]).all()


def test_labels_of_narrow_frames_do_not_meet() -> None:
    frames = np.zeros((2, 60, 4, 3), np.uint8)
    series = {"frames": frames, "frame_steps": np.arange(2), "attention_at_decision": np.array([0.25, 0.75])}
    series |= {"attention": np.eye(2, dtype=np.float32)}
    found = Finding("episode", "", "estimated", figures={"decision": 1.0}, series=series)
    strip = charts_of({"agent": Examination({"episode": found}, "", {})}, "episode")[0].marks[0]
    assert strip.labels == ("step 0: 25 %", "step 1: 75 %")
    assert strip.x[1] - strip.x[0] >= 100


def test_numbers_without_a_picture_are_compared_over_time() -> None:
    """Each from its smallest to its largest in the episode: two numbers of which one is always larger still change."""
    drawn = _bars(np.array([[-0.5, 0.0], [-1.0, 0.0], [0.0, 0.0]], np.float32))
    assert drawn.dtype == np.uint8
    assert drawn.shape == (3, 32, 64, 3)
    assert drawn[:, 4, 4, 0].tolist() == [127, 225, 30]
    assert drawn[:, 20, 4, 0].tolist() == [225] * 3  # one that does not change is light
    assert (drawn[:, 15] == 255).all()  # a line between them


def test_frames_of_many_numbers_are_no_taller_than_a_page() -> None:
    drawn = _bars(np.eye(500, dtype=np.float32))
    assert max(drawn.shape[1:3]) <= 256
    assert len(np.unique(drawn, axis=0)) == 500  # each of them is seen


def test_an_episode_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemoscope.rl._film.MAX_STEPS", 30)
    task = TMaze(100)
    found = film(Policy(task.spec, NetworkConfig("RelLSTM", 8)), task)
    assert found.figures["steps"] == 30
    assert found.figures["return"] == 0
    assert len(found.series["actions"]) == 30


def test_of_a_gridworld_is_what_minigrid_draws() -> None:
    task = MiniGrid("GoToDoor-5x5")
    found = film(policy(task), task)
    frames = found.series["frames"]
    assert frames.shape[1:] == (40, 40, 3)
    assert frames.dtype == np.uint8
    assert "cue_last_seen" not in found.figures
    fleet = task.fleet(1)
    fleet.reset(task.fleet_seed("test", 0))
    first = film(policy(task), task)
    np.testing.assert_array_equal(first.series["frames"], frames)  # the same episode every time


def test_of_an_environment_of_gymnasium_is_what_it_draws() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("pygame")
    task = Gym("CartPole-v1")
    found = film(policy(task), task)
    frames = found.series["frames"]
    assert frames.shape[1:] == (133, 200, 3)  # a third of 400 by 600 pixels
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=0)
    np.testing.assert_allclose(
        GymFleet([env]).picture(0), env.render()[:399].reshape(133, 3, 200, 3, 3).mean((1, 3)), atol=1
    )
    assert GymFleet([gymnasium.make("CartPole-v1")]).picture(0) is None  # one that was not asked to draw


def _missing() -> None:
    from gymnasium.error import DependencyNotInstalled

    raise DependencyNotInstalled("pygame is not installed")


def _without_screen() -> None:
    raise RuntimeError("an OpenGL platform library has not been loaded")


DRAWN: dict[str, Callable[[], object]] = {
    "missing": _missing,
    "without a screen": _without_screen,
    "nothing": lambda: None,
    "gray": lambda: np.zeros((9, 9), np.uint8),
    "with transparency": lambda: np.zeros((9, 9, 4), np.uint8),
}


@pytest.mark.parametrize("drawn", DRAWN)
def test_an_environment_that_cannot_draw_itself_is_shown_as_numbers(drawn: str, monkeypatch) -> None:
    from gymnasium.envs.classic_control import CartPoleEnv

    monkeypatch.setattr(CartPoleEnv, "render", lambda self: DRAWN[drawn]())
    task = Gym("CartPole-v1")
    assert film(policy(task), task).series["frames"].shape[1:] == (64, 64, 3)


def test_an_environment_for_a_window_alone_is_shown_as_numbers(monkeypatch) -> None:
    from gymnasium.envs.classic_control import CartPoleEnv

    monkeypatch.setattr(CartPoleEnv, "metadata", {"render_modes": ["human"]})
    task = Gym("CartPole-v1")
    assert film(policy(task), task).series["frames"].shape[1:] == (64, 64, 3)


def test_a_long_and_narrow_picture_keeps_a_row_of_pixels() -> None:
    assert _reduced(np.full((7, 2000, 3), 9, np.uint8)).shape == (1, 285, 3)


def test_of_an_agent_of_half_precision(monkeypatch) -> None:
    task = Gym("CartPole-v1")
    monkeypatch.setattr(GymFleet, "picture", lambda self, row: None)
    assert film(policy(task, "GRU").bfloat16(), task).series["frames"].shape[1:] == (64, 64, 3)


@pytest.mark.parametrize("takes", [False, True])
def test_an_environment_that_takes_no_render_mode_is_shown_as_numbers(takes: bool) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.envs.classic_control import CartPoleEnv

    class Undrawn(CartPoleEnv):
        def __init__(self, **options):
            if options and not takes:
                raise TypeError("__init__() got an unexpected keyword argument 'render_mode'")
            if options:
                _missing()
            super().__init__()

    gymnasium.register("Undrawn-v0", Undrawn, max_episode_steps=20)
    try:
        task = Gym("Undrawn-v0")
        assert film(policy(task), task).series["frames"].shape[1:] == (64, 64, 3)
    finally:
        del gymnasium.registry["Undrawn-v0"]


def test_an_episode_that_cannot_be_played_does_not_cost_the_other_findings(tmp_path, monkeypatch, capsys) -> None:
    """As where a renderer that an environment makes in its reset finds no screen."""
    from gymnasium.envs.classic_control import CartPoleEnv

    run, options = str(tmp_path / "run"), "--task.env CartPole-v1 --model GRU --hidden-size 4 --updates 1 --rollout 16"
    assert main(["train", "gym", *options.split(), "--evaluate-episodes", "1", "--out", run, "--quiet"]) == 0
    reset = CartPoleEnv.reset

    def needs_a_screen(self, **options):
        if self.render_mode is not None:
            _without_screen()
        return reset(self, **options)

    monkeypatch.setattr(CartPoleEnv, "reset", needs_a_screen)
    assert main(["examine", run, "--scopes", "horizon", "--out", str(tmp_path / "page"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"].values()
    assert found["findings"]["horizon"]["status"] == "estimated"
    episode = found["findings"]["episode"]
    assert episode["status"] == "failed"
    assert "CartPoleEnv cannot begin an episode: RuntimeError: an OpenGL platform" in episode["why"]


def test_the_cue_of_a_memory_world_is_seen_or_not() -> None:
    fleet = MiniGrid("MemoryS13").fleet(1)
    fleet.reset(seed=0)
    (env,) = fleet.envs
    env.agent_pos, env.agent_dir = (3, 6), 2
    assert fleet.shows_cue(0) is True
    env.agent_pos, env.agent_dir = (9, 6), 0
    assert fleet.shows_cue(0) is False
    assert MiniGrid("DoorKey-5x5").fleet(1).shows_cue(0) is None


@pytest.mark.parametrize("options", [{"model": "LSTM"}, {"model": "torch.GRU"}, {"memoryless": True}])
def test_without_memory_to_attend_to_there_is_no_attention(options: dict) -> None:
    task = TMaze(L=5)
    found = film(policy(task, **options), task)
    assert "attention" not in found.series
    assert len(found.series["frames"]) == 6


def test_random_agents() -> None:
    found = play_randomly(TMaze(L=4), episodes=400)
    assert found["length"] == 5
    assert 0.4 < found["success"] < 0.6
    assert play_randomly(TMaze(L=4), episodes=400) == found
    assert 0.05 < play_randomly(MiniGrid("MemoryS7"), episodes=60)["return"] < 0.4
