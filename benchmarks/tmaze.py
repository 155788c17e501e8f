"""Who learns the T-maze, and in how many frames: python benchmarks/tmaze.py FOLDER [--jobs 16] [--json FILE].

Trains agents of each kind for each length L of the corridor, five seeds each, every run in a folder of its own; started
again, it goes on. Prints how many seeds learnt it (98 % of 200 fresh episodes) and the frames that they took, and then
whether what docs/reinforcement.md claims holds. About an hour of one core.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from mnemoscope.rl import TMaze
from mnemoscope.sweeps import sweep
from mnemoscope.training import NetworkConfig, Run, RunConfig

MODELS = ("RelLSTM", "MemLSTM", "GRU", "LSTM", "no memory")
BUDGETS = {10: 100_000, 50: 300_000, 100: 300_000, 200: 600_000}  # frames by L


@dataclass(frozen=True)
class Result:
    """How the agent of one seed did."""

    L: int
    model: str
    seed: int
    solved: bool
    frames: int  # until it was solved, or the budget
    success: float  # of fresh episodes at the end


def config_of(L: int, model: str, seed: int) -> RunConfig:
    """Return the configuration of one run; all agents have the same."""
    memoryless = model == "no memory"
    network = NetworkConfig("RelLSTM" if memoryless else model, 64)
    fit = replace(
        TMaze.ppo,
        frames=BUDGETS[L],
        evaluate_episodes=1000 if memoryless else 200,
        memoryless=memoryless,
        seed=seed,
        threads=1,
    )
    return RunConfig(TMaze(L), network, fit)


def result_of(folder: Path, L: int, model: str, seed: int) -> Result | None:
    """Return how the run in `folder` went; None if it has not ended."""
    summary = Run(folder).summary() if (folder / "summary.json").exists() else None
    if summary is None:
        return None
    frames = summary.updates * TMaze.ppo.envs * (L + 1)
    return Result(L, model, seed, summary.outcome == "solved", frames, float(summary.held_out["success"] or 0.0))


def show(results: list[Result], seeds: int) -> None:
    """Print a row for each kind of agent, a column for each L."""
    lengths = sorted({result.L for result in results})
    print("| | " + " | ".join(f"L = {L}" for L in lengths) + " |")
    print("|---" * (len(lengths) + 1) + "|")
    for model in MODELS:
        cells = []
        for L in lengths:
            found = [result for result in results if (result.L, result.model) == (L, model)]
            if not found:
                cells.append("–")
                continue
            solved = sorted(result.frames for result in found if result.solved)
            thousands = ", ".join(f"{frames / 1000:.0f}" for frames in solved)
            failed = mean(result.success for result in found if not result.solved) if len(solved) < len(found) else 0
            text = f"{len(solved)}/{len(found)}"
            text += f": {thousands}k" if solved else ""
            text += f"; others {failed:.2f}" if len(solved) < len(found) else ""
            cells.append(text)
        print(f"| {model} | " + " | ".join(cells) + " |")
    print(f"({seeds} seeds; thousands of frames until 98 % of fresh episodes succeed; success of those that did not)")


def judge(results: list[Result]) -> None:
    """Print whether each claim holds, as far as its runs were made."""

    def of(model: str, lengths: list[int]) -> list[Result]:
        return [result for result in results if result.model == model and result.L in lengths]

    for L, frames in ((100, 250_000), (200, 600_000)):
        runs = of("RelLSTM", [L])
        kept = sum(run.solved and run.frames <= frames for run in runs)
        print(f"RelLSTM learns L = {L} within {frames:,} frames: {kept} of {len(runs)} runs")
    runs = of("LSTM", [L for L in BUDGETS if L >= 50])
    print(f"LSTM learns L >= 50: {sum(run.solved and run.frames <= 300_000 for run in runs)} of {len(runs)} runs")
    guesses = [result.success for result in results if result.model == "no memory"]
    if guesses:
        off = max(abs(success - 0.5) for success in guesses)
        print(f"without memory success is {mean(guesses):.3f}, at most {off:.3f} from 0.5: {len(guesses)} runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs go")
    parser.add_argument("--jobs", type=int, help="runs at a time; by default one for each CPU")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--L", type=int, nargs="+", default=list(BUDGETS), choices=list(BUDGETS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    options = parser.parse_args()

    # The longest runs first: the last ones to end are then short.
    lengths = sorted(options.L, reverse=True)
    points = [(L, model, seed) for L in lengths for model in options.models for seed in range(options.seeds)]
    done = sweep(None, [config_of(*point) for point in points], options.folder, jobs=options.jobs)
    found = [result_of(done.path / name, *point) for name, point in zip(done.names, points, strict=True)]
    results = [result for result in found if result is not None]
    show(results, options.seeds)
    judge(results)
    if options.json is not None:
        options.json.write_text(json.dumps([vars(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
