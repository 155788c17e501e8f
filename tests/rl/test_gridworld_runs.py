"""Runs in gridworlds: resumed with the same bytes, evaluated in another world, cut-off episodes, missions."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("minigrid")

from mnemoscope.cli import main
from mnemoscope.rl import MiniGrid, PPOConfig, PPOLearner
from mnemoscope.training import NetworkConfig, RunConfig, Stop, make_network, resume, train

CONFIG = PPOConfig(updates=6, envs=4, minibatches=2, rollout=24, evaluate_every=100, checkpoint_every=2, threads=1)


def stop_at(update):
    def callback(progress):
        if progress.update == update:
            raise Stop

    return callback


def content(folder):
    names = ("config.json", "metrics.jsonl", "checkpoints/00000006.json", "checkpoints/00000006.safetensors")
    return [(folder / name).read_bytes() for name in names]


@pytest.mark.parametrize(
    "task",
    [MiniGrid("MemoryS7", curriculum=("MemoryS9",)), MiniGrid("GoToDoor-5x5", encoder="conv", short_sight=0.5)],
    ids=["lessons", "door"],
)
def test_resumed_runs_write_the_same_bytes(tmp_path, task):
    config = RunConfig(task, NetworkConfig("RelLSTM", 8), replace(CONFIG, evaluate_episodes=1))
    train(config, tmp_path / "whole")
    with pytest.raises(Stop):
        train(config, tmp_path / "stopped", stop_at(3))
    with pytest.raises(Stop):
        resume(tmp_path / "stopped", stop_at(5))
    resume(tmp_path / "stopped")
    assert content(tmp_path / "whole") == content(tmp_path / "stopped")


@pytest.mark.parametrize(
    ("model", "reading", "encoder"),
    [
        ("LSTM", "gru", "conv"),
        ("MemLSTM", "bag", "table"),
        ("RelLSTM", "bag", "conv"),
        ("torch.GRU", "bag", "table"),
    ],
)
def test_replay_repeats_play_with_missions_and_limits_of_time(model, reading, encoder):
    task = MiniGrid(env="GoToObject-6x6-N2", reading=reading, encoder=encoder, short_sight=0.5)
    agent = PPOLearner(make_network(task, NetworkConfig(model, 8)), task, CONFIG)
    for _ in range(4):
        agent.update()
        assert agent.figures()["replay_gap"] <= 1e-5
    assert "return" in agent.figures()
    assert (agent.model.encoder.reader is not None) == (reading == "gru")
    assert (agent.model.encoder.convolution is not None) == (encoder == "conv")


def test_settings_that_came_later_are_written_only_if_they_are_set():
    plain = MiniGrid("MemoryS7")
    config = RunConfig(replace(plain, encoder="conv", short_sight=0.5), NetworkConfig("LSTM", 8), CONFIG)
    written = config.to_dict()
    assert RunConfig.from_dict(json.loads(json.dumps(written))) == config
    task = {name: value for name, value in written["task"].items() if name not in ("encoder", "short_sight")}
    assert len(task) == len(written["task"]) - 2
    assert RunConfig.from_dict(written | {"task": task}).task == plain
    assert replace(config, task=plain).to_dict()["task"] == task


def test_commands(tmp_path, capsys):
    run = str(tmp_path / "run")
    options = "--task.env MemoryS7 --model LSTM --hidden-size 8 --updates 2 --envs 4 --minibatches 2 --rollout 8"
    assert main(["train", "minigrid", *options.split(), "--evaluate-episodes", "2", "--out", run, "--quiet"]) == 0
    evaluation = ["--task.env", "MemoryS13", "--batches", "1", "--batch-size", "2", "--json"]
    assert main(["evaluate", run, *evaluation]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert set(metrics) == {"return", "length", "success", "episodes"}
    assert metrics["episodes"] == 2
    assert main(["evaluate", run, *evaluation[:-1]]) == 0
    title = " ".join(capsys.readouterr().out.split("┏")[0].split())
    assert title.endswith("minigrid, MemoryS13 · test")  # not the steps of a rollout, which no episode has
    assert main(["train", "minigrid", "--task.env", "MemoryS8", "--out", str(tmp_path / "other")]) == 2
    assert "minigrid has no environment MemoryS8" in capsys.readouterr().err
    assert main(["evaluate", run, "--task", "tmaze"]) == 2
    assert "does not fit" in capsys.readouterr().err


def test_gradients_are_measured_behind_the_encoder(tmp_path, capsys):
    run = str(tmp_path / "run")
    options = "--task.env MemoryS7 --model RelLSTM --hidden-size 8 --updates 1 --envs 4 --minibatches 2 --rollout 8"
    assert main(["train", "minigrid", *options.split(), "--evaluate-episodes", "1", "--out", run, "--quiet"]) == 0
    where = ["--out", str(tmp_path / "page"), "--batch", "2", "--budget", "30", "--json"]
    assert main(["examine", run, "--scopes", "horizon", "attention", "--budget", "3600", *where]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"].values()
    assert {found["findings"][scope]["status"] for scope in ("horizon", "attention")} == {"estimated"}
