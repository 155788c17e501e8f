"""The studies of agents: their jobs can be trained and tested, and nothing is said about memory without evidence."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mnemoscope.rl import MiniGrid, PPOConfig, TMaze
from mnemoscope.studies import Cells, Done, Note, Result, choose, train
from mnemoscope.studies._verdict import judge_claims, judge_study
from mnemoscope.studies.kerg import _agents as agents
from mnemoscope.studies.kerg import _table4 as table4
from mnemoscope.studies.kerg import _table4_memory as memory
from mnemoscope.studies.kerg import _tmaze as tmaze
from mnemoscope.sweeps import train_run
from mnemoscope.training import NetworkConfig, Run, RunConfig, make_network

pytest.importorskip("minigrid", reason="minigrid is not installed (extra `rl`)")


def parameters(task, model: str, size: int) -> int:
    network = make_network(task, NetworkConfig(model, hidden_size=size, options=agents.OPTIONS.get(model, {})))
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        (MiniGrid(), agents.GRID_SIZES),
        (MiniGrid(encoder="conv"), agents.GRID_SIZES),
        (TMaze(10), agents.TMAZE_SIZES),
    ],
)
def test_networks_are_of_equal_size(task, sizes) -> None:
    counts = [parameters(task, model, size) for model, size in sizes.items()]
    assert max(counts) / min(counts) < 1.01


def test_every_agent_is_trained_once_and_tested_twice() -> None:
    jobs = table4.jobs("full", 0)
    assert len([key for key in jobs if key[0] == "run"]) == 6 * 5
    assert {key for key in jobs if key[0] != "run"} == {(env, m) for env in table4.ROWS for m in agents.COLUMNS}
    assert len({job.name for job in jobs.values()}) == len(jobs)
    assert jobs["MemoryS13", "RelLSTM"].needs == (jobs["run", "MemoryS7", "RelLSTM"].name,)
    other = table4.jobs("full", 1)
    assert not {job.name for job in jobs.values()} & {job.name for job in other.values()}
    assert len(memory.jobs("full", 0)) == 6 + 4 + 2 * 4 * 5
    assert len(tmaze.jobs("full", 0)) == 2 * 5 * 5


def test_the_configuration_of_an_agent_is_whole_in_its_job() -> None:
    fit = PPOConfig(frames=640, envs=4, minibatches=2, entropy=0.05, seed=3, threads=1)
    task = MiniGrid("MemoryS13", target=0.5, seed=1, moves_only=True, curriculum=("MemoryS7", "MemoryS9"))
    config = RunConfig(task, NetworkConfig("GRU", 8), fit)
    job = train(config)
    assert RunConfig.from_dict(json.loads(json.dumps(job.config))) == config


def test_an_agent_is_trained_tested_and_its_frames_are_counted(tmp_path) -> None:
    task = MiniGrid("GoToDoor-5x5", target=-1.0)
    fit = PPOConfig(frames=1000, envs=4, rollout=32, minibatches=2, evaluate_every=2, evaluate_episodes=4, threads=1)
    job = train(RunConfig(task, NetworkConfig("LSTM", 8), fit))
    train_run(job.config, tmp_path / job.name, lambda: False)
    result = Result(tmp_path / job.name)
    assert Run(tmp_path / job.name).summary().outcome == "solved"  # a return of -1 is easy
    assert agents.frames_needed(result, "return", -1.0) == 2 * 4 * 32
    assert agents.frames_needed(result, "return", 2.0) == Note("not within 256 frames", "infinity")
    found = agents.fresh_episodes(result, env="GoToDoor-8x8", episodes=6, seed=0)
    assert 0 <= found["return"] <= 1
    assert found == agents.fresh_episodes(result, env="GoToDoor-8x8", episodes=6, seed=0)


def cells(memoryless: list[float], rel: list[float]) -> list[Cells]:
    pairs = zip(memoryless, rel, strict=True)
    return [Cells({("M", "memoryless"): without, ("M", "RelLSTM"): with_it}) for without, with_it in pairs]


def test_nothing_is_said_about_memory_that_chance_could_have_made() -> None:
    claim = agents.memory_helps("M")
    assert claim.holds(cells([0.5] * 5, [0.9, 0.92, 0.95, 0.9, 0.93])) is True
    assert claim.holds(cells([0.9] * 5, [0.8, 0.85, 0.99, 0.9, 0.95])) is None
    assert claim.holds(cells([0.97] * 5, [0.8, 0.85, 0.82, 0.8, 0.81])) is False
    assert claim.holds(cells([0.5, 0.5, 0.5, 0.5, 0.91], [0.9, 0.92, 0.95, 0.9, 0.93])) is None  # one that overlaps
    assert claim.holds(cells([0.5] * 4, [0.9] * 4)) is None  # too few seeds
    assert claim.holds([]) is None


@pytest.mark.parametrize("count", [5, 10])
@pytest.mark.parametrize("draw", ["normal", "lognormal"])
def test_agents_of_one_distribution_are_seldom_told_apart(count, draw) -> None:
    random = np.random.default_rng(0)
    pairs = [getattr(random, draw)(size=(2, count)) for _ in range(400)]
    told = sum(agents.chance_of_difference(one, other) < agents.LEVEL for one, other in pairs)
    assert told <= 11  # 1 % are 4; more than 11 has a chance of one in a thousand
    moved = sum(agents.chance_of_difference(one + 4, other) < agents.LEVEL for one, other in pairs)
    assert moved > 200


def test_a_guess_is_within_its_bound() -> None:
    assert agents.guess_bound(1_000) == pytest.approx(0.5632, abs=1e-4)
    turns = np.random.default_rng(0).binomial(1_000, 0.5, size=5_000) / 1_000
    assert (turns > agents.guess_bound(1_000)).mean() < 0.001


def table4_verdict(mem: float, larger: float) -> str:
    """Table 4's verdict with the published numbers, but for MemLSTM in MemoryS7 and in all larger environments."""
    (study,) = choose(["kerg/table4"])
    published = {key: value for key, value in study.published.values.items() if value is not None}
    changed = {("MemoryS7", "MemLSTM"): mem} | {(env, "MemLSTM"): larger for env in table4.TWINS.values()}
    found = {seed: Cells({**published, **changed}, list(study.published.values)) for seed in (0, 1)}
    return judge_study(judge_claims(study.claims, "full", found)).word


def test_table_4_is_about_transfer() -> None:
    assert table4_verdict(mem=0.4, larger=0.1) == "reproduced"
    assert table4_verdict(mem=0.4, larger=0.9) == "contradicted"
    assert table4_verdict(mem=0.9, larger=0.1) == "contradicted"


def test_where_memory_makes_no_difference_is_said_by_name() -> None:
    found = {(env, "memoryless"): 0.5 for env in table4.ROWS} | {(env, "RelLSTM"): 0.9 for env in table4.ROWS}
    found |= {("Fetch-5x5-N2", "memoryless"): 0.89, ("DoorKey-5x5", "memoryless"): 0.95}
    assert "In 2 of the 6 environments" in table4._surprise(Cells({}), Cells(found))
    assert "(Fetch-5x5-N2, DoorKey-5x5)" in table4._surprise(Cells({}), Cells(found))


def test_interquartile_means_have_intervals() -> None:
    values = {"LSTM": [np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.6, 0.7])], "GRU": []}
    bars = agents.iqm_bars(("LSTM", "GRU"), values)
    assert bars.labels == ("LSTM",)
    assert bars.low is not None
    assert bars.high is not None
    assert bars.low[0] < bars.values[0] < bars.high[0]
    assert agents.iqm_bars(("GRU",), values).labels == ()


def test_charts_of_what_is_done(tmp_path) -> None:
    done = Done(0, [])
    for env in table4.ROWS:
        folder = tmp_path / env
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps({"figures": {"return": 0.2, "success": 0.3}, "seconds": 1}))
        done[env, "random"] = Result(folder)
    assert set(table4.cells("quick", done)) == {(row, "random") for row in table4.ROWS}
    assert memory.cells("quick", done)["MemoryS13", "random"] == 0.3
    assert table4.charts("quick", [done]) == []  # a random agent learns nothing


def test_interquartile_means_follow_from_the_returns() -> None:
    returns = {(env, "random"): 0.2 for env in table4.ROWS}
    assert table4.bars({0: Cells(returns)}) == []  # there is nothing to compare a random agent with
    agent = {(env, "RelLSTM"): level for level, env in enumerate(table4.TWINS)}
    found = table4.interquartile_means(Cells(returns | agent))
    assert found == {(row, "random"): pytest.approx(0.2) for row in table4.IQM} | {("IQM, trained", "RelLSTM"): 2.5}
    one, other = Cells(returns | agent), Cells(returns)
    (chart,) = (chart for chart in table4.bars({0: one, 1: one}) if chart.key == "iqm-trained")
    assert chart.marks[0].labels == ("random", "RelLSTM")
    assert table4.bars({0: one, 1: other}) == []  # an agent of one seed beside agents of two


def test_a_line_is_over_the_seeds_whose_runs_are_there(monkeypatch) -> None:
    monkeypatch.setattr(agents, "learning", lambda name, runs, metric, style: (name, len(runs)))
    monkeypatch.setattr(agents, "Chart", lambda key, title, x, y, marks: marks)
    done = [Done(0, [(("run", "a", "GRU"), None)]), Done(1, [(("run", "a", model), None) for model in ("GRU", "LSTM")])]
    assert set(agents.learning_panels("a", done, "return", None)[0]) == {("GRU", 2), ("LSTM", 1)}


def test_where_memory_is_needed() -> None:
    assert memory.glance(env="MemoryS7") == {"layouts": 1.0, "poses": 0.25}
    assert memory.glance(env="MemoryS13") == {"layouts": 0.0, "poses": 0.0}


def test_targets_are_at_or_above_the_paper() -> None:
    published = dict(zip(table4.ROWS, table4.PUBLISHED, strict=True))
    assert all(target >= published[env][1] for env, target in table4.TARGETS.items())
    assert [study.id for study in choose(["kerg/table4"])] == ["kerg/table4"]
    assert replace(MiniGrid("MemoryS7"), env="MemoryS13").solved is None
