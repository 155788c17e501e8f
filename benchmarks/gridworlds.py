"""Steps a CPU second of gridworlds: our fleets, and minigrid's own environments.

python benchmarks/gridworlds.py
python benchmarks/gridworlds.py --ids MemoryS7 DoorKey-16x16 --envs 64
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import gymnasium
import minigrid  # noqa: F401  (registers its environments)
import numpy as np

from mnemoscope.rl import MiniGrid

IDS = (
    *("RedBlueDoors-6x6", "RedBlueDoors-8x8", "GoToObject-6x6-N2", "GoToObject-8x8-N2", "MemoryS7", "MemoryS13"),
    *("GoToDoor-5x5", "GoToDoor-8x8", "Fetch-5x5-N2", "Fetch-8x8-N3", "DoorKey-5x5", "DoorKey-16x16"),
    *("MemoryS13Random", "MemoryS17Random", "MultiRoom-N2-S4", "KeyCorridorS3R1", "ObstructedMaze-1Dlhb", "Unlock"),
)
ACTIONS = 7


def measure(ids: list[str], envs: int, seconds: float) -> None:
    """Print the steps a CPU second of agents that act at random, resets included."""
    print(f"steps a CPU second, {envs} environments, random actions, resets included\n")
    print("| environment | steps an episode | minigrid's own | SyncVectorEnv | our fleet | times |")
    print("|---|---|---|---|---|---|")
    for name in ids:
        own, episode = _own(name, seconds)
        vector = _rate(_vector(name, envs), envs, seconds)
        fleet = MiniGrid(name).fleet(envs)
        fleet.reset(seed=0)
        random = np.random.default_rng(0)
        ours = _rate(lambda: fleet.step(random.integers(ACTIONS, size=envs)), envs, seconds)  # noqa: B023
        print(f"| {name} | {episode:,.0f} | {own:,.0f} | {vector:,.0f} | {ours:,.0f} | {ours / own:.1f} |", flush=True)


def _own(name: str, seconds: float) -> tuple[float, float]:
    """Steps a second of one environment, and the length of an episode."""
    env = gymnasium.make(f"MiniGrid-{name}-v0", disable_env_checker=True).unwrapped
    env.reset(seed=0)
    random = np.random.default_rng(0)
    episodes = steps = 0

    def step() -> None:
        nonlocal episodes, steps
        steps += 1
        _, _, terminated, truncated, _ = env.step(int(random.integers(ACTIONS)))
        if terminated or truncated:
            episodes += 1
            env.reset()

    rate = _rate(step, 1, seconds)
    return rate, steps / max(episodes, 1)


def _vector(name: str, envs: int) -> Callable[[], object]:
    vector = gymnasium.make_vec(f"MiniGrid-{name}-v0", envs, vectorization_mode="sync")
    vector.reset(seed=0)
    random = np.random.default_rng(0)
    return lambda: vector.step(random.integers(ACTIONS, size=envs))


def _rate(step: Callable[[], object], steps: int, seconds: float) -> float:
    """Steps a CPU second of a call that makes `steps` of them, after a warm-up."""
    for _ in range(20):
        step()
    calls, begun = 0, time.process_time()
    while time.process_time() - begun < seconds:
        step()
        calls += 1
    return calls * steps / (time.process_time() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", nargs="+", default=list(IDS))
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds of each measurement")
    options = parser.parse_args()
    measure(options.ids, options.envs, options.seconds)


if __name__ == "__main__":
    main()
