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
    "task", [MiniGrid("MemoryS7", curriculum=("MemoryS9",)), MiniGrid("GoToDoor-5x5")], ids=["lessons", "door"]
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
    ("model", "reading"), [("LSTM", "gru"), ("MemLSTM", "bag"), ("RelLSTM", "bag"), ("torch.GRU", "bag")]
)
def test_replay_repeats_play_with_missions_and_limits_of_time(model, reading):
    task = MiniGrid(env="GoToObject-6x6-N2", reading=reading)
    agent = PPOLearner(make_network(task, NetworkConfig(model, 8)), task, CONFIG)
    for _ in range(4):
        agent.update()
        assert agent.figures()["replay_gap"] <= 1e-5
    assert "return" in agent.figures()
    assert (agent.model.encoder.reader is not None) == (reading == "gru")


def test_commands(tmp_path, capsys):
    run = str(tmp_path / "run")
    options = "--task.env MemoryS7 --model LSTM --hidden-size 8 --updates 2 --envs 4 --minibatches 2 --rollout 8"
    assert main(["train", "minigrid", *options.split(), "--evaluate-episodes", "2", "--out", run, "--quiet"]) == 0
    evaluation = ["--task.env", "MemoryS13", "--batches", "1", "--batch-size", "2", "--json"]
    assert main(["evaluate", run, *evaluation]) == 0
    assert set(json.loads(capsys.readouterr().out)["metrics"]) == {"return", "length", "success"}
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
