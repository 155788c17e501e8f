"""Frames a CPU second of agents in training, one thread: python benchmarks/rl.py [--updates 12] [--env MemoryS7].

16 environments, rollouts of 128 frames, 4 epochs of 4 minibatches of 512 frames, 128 units. Times are CPU seconds of
this process, so that a busy machine disturbs them little. minigrid if it is installed, else the T-maze; beside it
sb3-contrib's RecurrentPPO with an LSTM of 128 units, if that is installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch

from mnemoscope.rl import Environment, MiniGrid, Policy, PPOConfig, PPOLearner, TMaze
from mnemoscope.training import NetworkConfig

ENVS, STEPS = 16, 128


def learner_of(task: Environment, model: str, minibatches: int) -> PPOLearner:
    """Return an agent that has not learnt yet."""
    torch.manual_seed(0)
    memoryless = model == "no memory"
    policy = Policy(task.spec, NetworkConfig("LSTM" if memoryless else model, 128), memoryless=memoryless)
    config = PPOConfig(envs=ENVS, rollout=STEPS, minibatches=minibatches, entropy=0.03, memoryless=memoryless)
    return PPOLearner(policy, task, config)


def timed(function: Callable[..., object], total: dict[str, float], name: str) -> Callable[..., object]:
    """Return the function with its CPU time added to `total[name]`."""

    def call(*args: object, **kwargs: object) -> object:
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            total[name] = total.get(name, 0.0) + time.process_time() - start

    return call


def measure(task: Environment, model: str, minibatches: int, updates: int) -> tuple[float, dict[str, float]]:
    """Return frames a CPU second, and microseconds a frame of the environments, of play without them, of learning."""
    agent = learner_of(task, model, minibatches)
    agent.update()
    parts: dict[str, float] = {}
    fleet = agent.player.fleet
    fleet.step = timed(fleet.step, parts, "environments")  # type: ignore[method-assign]
    agent.play = timed(agent.play, parts, "play")  # type: ignore[method-assign]
    best = float("inf")
    start = time.process_time()
    for _ in range(updates):
        begun = time.process_time()
        agent.update()
        best = min(best, time.process_time() - begun)
    total = time.process_time() - start
    frames = updates * ENVS * STEPS
    parts["play"] -= parts["environments"]
    parts["learning"] = total - parts["play"] - parts["environments"]
    return ENVS * STEPS / best, {name: 1e6 * seconds / frames for name, seconds in parts.items()}


def measure_sb3(env: str, updates: int) -> float | None:
    """Return frames a CPU second of sb3-contrib's RecurrentPPO; None where it is not installed."""
    if find_spec("sb3_contrib") is None or find_spec("minigrid") is None:
        return None
    import gymnasium
    from minigrid.wrappers import ImgObsWrapper
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    def make() -> gymnasium.Env:
        return gymnasium.wrappers.FlattenObservation(ImgObsWrapper(gymnasium.make(f"MiniGrid-{env}-v0")))

    options = dict(n_steps=STEPS, batch_size=512, n_epochs=4, policy_kwargs=dict(lstm_hidden_size=128), device="cpu")
    agent = RecurrentPPO("MlpLstmPolicy", make_vec_env(make, ENVS), **options)
    agent.learn(ENVS * STEPS)
    start = time.process_time()
    agent.learn(updates * ENVS * STEPS)
    return updates * ENVS * STEPS / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--env", default="MemoryS7", help="a world of minigrid")
    parser.add_argument("--models", nargs="+", default=["no memory", "LSTM", "GRU", "RelLSTM", "MemLSTM", "torch.LSTM"])
    parser.add_argument("--minibatches", type=int, nargs="+", default=[4])
    options = parser.parse_args()
    torch.set_num_threads(1)
    task: Environment = MiniGrid(env=options.env) if find_spec("minigrid") else TMaze(100)
    print(f"| {task.name} | batch | frames/CPU-s (best) | environments, µs a frame | play | learning |")
    print("|---|---|---|---|---|---|")
    for model in options.models:
        for minibatches in options.minibatches:
            speed, parts = measure(task, model, minibatches, options.updates)
            cells = " | ".join(f"{parts[name]:.0f}" for name in ("environments", "play", "learning"))
            print(f"| {model} | {ENVS * STEPS // minibatches} | {speed:,.0f} | {cells} |", flush=True)
    speed_of_sb3 = measure_sb3(options.env, max(options.updates // 4, 1))
    if speed_of_sb3 is not None:
        print(f"| sb3-contrib RecurrentPPO, LSTM | 512 | {speed_of_sb3:,.0f} | | | |")


if __name__ == "__main__":
    main()
