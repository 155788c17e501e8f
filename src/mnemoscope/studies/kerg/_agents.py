"""Agents of equal size: how they are trained, what they get in fresh episodes, and how many frames they needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import comb, sqrt
from statistics import fmean
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Bars, Chart, SeedLine
from mnemoscope.rl import Environment, MiniGrid, PPOConfig, TMaze, play_episodes, play_randomly
from mnemoscope.studies import Cells, Claim, Done, Note, Result, band, train
from mnemoscope.sweeps import Job, bootstrap_interval, interquartile_mean
from mnemoscope.training import NetworkConfig, RunConfig

# Hidden sizes with which all networks of an environment have as many parameters as RelLSTM's, to within 0.5 %.
GRID_SIZES = {"LSTM": 152, "GRU": 179, "MemLSTM": 128, "RelLSTM": 128}  # about 150,000, or 190,000 with a table
TMAZE_SIZES = {"LSTM": 78, "GRU": 90, "MemLSTM": 64, "RelLSTM": 64}  # 26,371
READOUT_GAIN = 0.01  # in gridworlds: a policy that begins by acting at random tries everything
SHORT_SIGHT = 0.5  # the share of training episodes of table4 in which agents do not see far
OPTIONS: dict[str, dict[str, Any]] = {"RelLSTM": {"buffer": 5, "relevant": 5}}
LESSONS = ("MemoryS7",)  # before the worlds that need memory: there an agent learns to look at the cue
LEARNT = ("memoryless", *GRID_SIZES)
COLUMNS = ("random", *LEARNT)
# To say that memory helps: of a dozen worlds hardly one is then told apart by chance. From five seeds each it says that
# every agent with memory gets more than every one without.
LEAST_SEEDS, LEVEL = 5, 0.01
MOST_WAYS = 10_000
THOUSANDS = Axis("thousands of frames")


def agent(task: Environment, model: str, fit: PPOConfig, **network: Any) -> Job:
    """The job that trains an agent; "memoryless" is the LSTM's network, whose memory is reset at every step."""
    name = "LSTM" if model == "memoryless" else model
    sizes = TMAZE_SIZES if isinstance(task, TMaze) else GRID_SIZES
    gain = 1.0 if isinstance(task, TMaze) else READOUT_GAIN
    options = OPTIONS.get(name, {})
    config = NetworkConfig(name, hidden_size=sizes[name], readout_gain=gain, options=options, **network)
    return train(RunConfig(task, config, replace(fit, memoryless=model == "memoryless")))


def grid_agent(env: str, model: str, seed: int, frames: int, target: float, evaluate_every: int = 50) -> Job:
    """An agent that is trained in a gridworld until it gets `target` in held-out episodes, or `frames` are spent.

    It has all actions and sees the direction in which it looks. Rewards are rare here, so advantages are left as they
    are: scaled to variance 1 in minibatches without a reward, they are noise. In some of the training episodes it does
    not see far: one that always sees all of a small world learns to turn on the spot until it sees what it needs, and
    in a larger one never stops turning.
    """
    fit = PPOConfig(
        frames=frames,
        minibatches=8,
        entropy=0.004,
        normalize_advantages=False,
        seed=seed,
        evaluate_every=evaluate_every,
        evaluate_episodes=100 if evaluate_every >= 50 else 40,
        threads=1,
    )
    task = MiniGrid(env, compass=True, target=target, seed=seed, encoder="conv", short_sight=SHORT_SIGHT)
    return agent(task, model, fit)


def memory_agent(env: str, model: str, seed: int, frames: int, target: float) -> Job:
    """An agent that is trained in a Memory world, after its lessons, with the three actions that move it.

    The other actions do nothing but take time, and an agent that is to try things tries those: with all seven, agents
    hurry to one of the ends and never learn to look at the cue. Which turn is right depends on the cue and on what
    lies at the ends together, so nothing is learnt from either alone. Larger features, open forget gates and a relu
    layer behind the memory let both act together in a new network, 12 times as much as without.
    """
    fit = PPOConfig(
        frames=frames,
        minibatches=8,
        entropy=0.02,
        value=1.0,
        schedule="milestones",
        milestones=(60, 150),  # about when the lesson is learnt, and when the agent looks at the cue
        seed=seed,
        evaluate_every=50,
        evaluate_episodes=100,
        threads=1,
    )
    task = MiniGrid(env, target=target, seed=seed, moves_only=True, curriculum=LESSONS)
    forget_bias = 0.0 if model == "GRU" else 2.0
    return agent(task, model, fit, embedding_gain=3.0, forget_bias=forget_bias, head=128)


def fresh_episodes(run: Result, *, env: str, episodes: int, seed: int) -> Mapping[str, float]:
    """What a trained agent gets in episodes that it has not seen, in the environment `env` of the same kind."""
    task = run.run.task
    assert isinstance(task, MiniGrid)
    return play_episodes(run.run.model("best"), replace(task, env=env), episodes, split="test", seed=seed)  # type: ignore[arg-type]


def random_episodes(*, env: str, episodes: int, seed: int) -> Mapping[str, float]:
    """What an agent gets whose actions are drawn at random."""
    return play_randomly(MiniGrid(env), episodes, split="test", seed=seed)


def frames_needed(result: Result, metric: str, threshold: float) -> float | Note:
    """The frames of training before the first evaluation that reached the threshold; infinitely many if none did."""
    updates, values = result.curve(metric)
    reached = np.flatnonzero(values >= threshold)
    if len(reached):
        return float(updates[reached[0]]) * _frames_per_update(result)
    if result.diverged:
        return Note("diverged", "infinity")
    spent = int(result.summary["updates"]) * _frames_per_update(result)
    return Note(f"not within {spent:,} frames", "infinity")


def _frames_per_update(result: Result) -> int:
    config = result.run.config
    assert isinstance(config.task, Environment)
    assert isinstance(config.fit, PPOConfig)
    return config.fit.envs * (config.fit.rollout or config.task.rollout)


def learning(name: str, results: Mapping[int, Result], metric: str, style: int) -> SeedLine:
    """The held-out metric of several seeds against thousands of frames."""
    curves = {}
    for seed, result in results.items():
        updates, values = result.curve(metric)
        curves[seed] = updates * _frames_per_update(result) / 1000, values
    return band(name, curves, style)


def learning_panels(envs: Iterable[str], done: Sequence[Done], metric: str, y: Axis) -> tuple[Chart, ...]:
    """A chart of the held-out metric for each environment in which agents were trained: jobs ("run", env, model).

    A line is over the seeds whose runs are there.
    """
    panels = []
    for env in envs:
        runs = {
            model: {one.seed: one["run", env, model] for one in done if ("run", env, model) in one} for model in LEARNT
        }
        lines = [learning(model, runs[model], metric, style) for style, model in enumerate(LEARNT) if runs[model]]
        if lines:
            panels.append(Chart(f"learning-{env}", env, THOUSANDS, y, tuple(lines)))
    return tuple(panels)


# Statements over seeds.


def mean_at_least(row: str, column: str, least: float) -> Callable[[Sequence[Cells]], bool]:
    """A check: the mean over seeds is at least the published number."""
    return lambda seeds: fmean(one[row, column] for one in seeds) >= least


def mean_at_most(row: str, column: str, most: float) -> Callable[[Sequence[Cells]], bool]:
    """A check: the mean over seeds is no more than a number."""
    return lambda seeds: fmean(one[row, column] for one in seeds) <= most


def memory_helps(row: str, column: str = "RelLSTM") -> Claim:
    """The claim that memory is worth something in an environment.

    It stays open, and nothing is said about memory, with fewer than five seeds, or where chance could well have made
    the difference between the two means.
    """

    def check(seeds: Sequence[Cells]) -> bool | None:
        with_it, without = ([one[row, name] for one in seeds] for name in (column, "memoryless"))
        if len(seeds) < LEAST_SEEDS or chance_of_difference(with_it, without) >= LEVEL:
            return None
        return fmean(with_it) > fmean(without)

    text = f"{row}: {column} gets more than an agent without memory (permutation test, p < {LEVEL})"
    return Claim(text, check=check, over="all", form="ours", scale="full", headline=False)


def chance_of_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Return how often two means are as far apart, or further, if numbers are shared out between them at random.

    All ways to share out are tried, or 10,000 of them. If both come from one distribution, whichever it is, the result
    is below p in at most a share p of cases: spreads need no model.
    """
    values = np.array([*one, *other])
    ways = _ways(len(values), len(one))
    sums = values[ways].sum(1)
    means = sums / len(one) - (values.sum() - sums) / len(other)
    observed = abs(fmean(one) - fmean(other))
    return float((np.abs(means) >= observed - 1e-12).mean())


@cache
def _ways(count: int, chosen: int) -> np.ndarray:
    """Which of `count` numbers are in the first group: all ways, or 10,000 at random and as it was: (ways, chosen)."""
    if comb(count, chosen) <= MOST_WAYS:
        return np.array(list(combinations(range(count), chosen)))
    drawn = np.random.default_rng(0).random((MOST_WAYS - 1, count)).argsort(1)[:, :chosen]
    return np.concatenate([np.arange(chosen)[None], drawn])


def guess_bound(episodes: int, share: float = 0.5) -> float:
    """Return what an agent that guesses exceeds with no more than 1 in 30,000 chances: 4 standard errors above."""
    return share + 4 * sqrt(share * (1 - share) / episodes)


def iqm_bars(columns: Sequence[str], values: Mapping[str, Sequence[np.ndarray]]) -> Bars:
    """The interquartile mean over environments and seeds of each column, with its 95 % interval.

    `values` has an array over seeds for each environment; these are the strata of the bootstrap.
    """
    known = [column for column in columns if values.get(column)]
    means = [float(interquartile_mean(np.concatenate(list(values[column])))) for column in known]
    ends = [bootstrap_interval(values[column]) or (mean, mean) for column, mean in zip(known, means, strict=True)]
    low, high = np.array(ends, dtype=float).reshape(-1, 2).T
    return Bars("IQM", tuple(known), np.array(means), low=low, high=high)
