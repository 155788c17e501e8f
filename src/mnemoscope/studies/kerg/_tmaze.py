"""The T-maze: how far back an agent can learn to remember, where the need is known exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

from mnemoscope.report import Axis, Chart, Panels
from mnemoscope.rl import TMaze, play_episodes
from mnemoscope.studies import (
    Cells,
    CellValue,
    Claim,
    Done,
    Result,
    Scale,
    Study,
    cell_line,
    cell_words,
    measure,
    settings,
    study,
    table,
)
from mnemoscope.studies.kerg._agents import (
    LEARNT,
    THOUSANDS,
    TMAZE_SIZES,
    agent,
    frames_needed,
    guess_bound,
    learning,
)
from mnemoscope.sweeps import Job

LENGTHS = {"full": (10, 25, 50, 100, 200), "quick": (10,)}
FRAMES = {10: 100_000, 25: 200_000, 50: 300_000, 100: 300_000, 200: 600_000}
QUICK_MODELS = ("memoryless", "LSTM", "RelLSTM")
SOLVED, LEARNED = 0.98, 0.95  # right turns at which training stops, and that fresh episodes must have
EPISODES = 1_000
GUESS = guess_bound(EPISODES)


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    made: dict[Any, Job] = {}
    for L in LENGTHS[scale]:
        for model in LEARNT if scale == "full" else QUICK_MODELS:
            made[L, model] = _agent(L, model, seed)
            made[L, model, "test"] = measure(
                right_turns, needs=made[L, model], seconds=1 + L / 10, episodes=EPISODES, seed=seed
            )
    return made


def _agent(L: int, model: str, seed: int) -> Job:
    fit = replace(TMaze.ppo, frames=FRAMES[L], evaluate_every=5, seed=seed, threads=1)
    return agent(TMaze(L, seed=seed), model, fit)


def right_turns(run: Result, *, episodes: int, seed: int) -> Mapping[str, float]:
    """The share of right turns in episodes on which neither training nor the choice of the best weights depended."""
    task, model = run.run.task, run.run.model("best")
    assert isinstance(task, TMaze)
    return {"success": play_episodes(model, task, episodes, split="test", seed=seed)["success"]}  # type: ignore[arg-type]


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    """The share of right turns in fresh episodes, and the frames until 98 % were right in held-out ones."""
    found: dict[tuple[str, str], CellValue] = {}
    for (L, model, *test), result in done.items():
        if test:
            found[f"L = {L}", model] = result.figure("success")
        else:
            found[f"L = {L}, frames", model] = frames_needed(result, "success", SOLVED)
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
    panels = []
    for L in LENGTHS[scale]:
        lines = []
        for style, model in enumerate(LEARNT if scale == "full" else QUICK_MODELS):
            runs = {one.seed: one[L, model] for one in done if (L, model) in one}
            if runs:
                lines.append(learning(model, runs, "success", style))
        if lines:
            panels.append(Chart(f"learning-{L}", f"L = {L}", THOUSANDS, Axis("right turns", share=True), tuple(lines)))
    return [Panels("learning", "Right turns in held-out episodes", tuple(panels), share_x=False)] if panels else []


def frames_chart(cells: Mapping[int, Cells]) -> list[Chart]:
    """The frames that each agent needed against the length of the maze."""
    lines = []
    for style, model in enumerate(LEARNT):
        needed = {L: (f"L = {L}, frames", model) for L in FRAMES}
        solved = {L: key for L, key in needed.items() if all(isfinite(one.get(key, inf)) for one in cells.values())}
        if solved:
            lines.append(cell_line(model, cells, solved, style))
    x, y = Axis("L", log=True, switch=True), Axis("frames", log=True, switch=True)
    title = "Frames until 98 % of the turns are right, where every seed gets there"
    return [Chart("frames", title, x, y, tuple(lines))] if lines else []


def _surprise(quick: Cells, full: Cells) -> str:
    frames = [cell_words(full.value(("L = 50, frames", model))) for model in ("RelLSTM", "LSTM")]
    return (
        "Gradients that return through attention are worth most where nothing else is in the way: to remember a cue "
        f"for 50 steps took a RelLSTM {frames[0]} frames, an LSTM with as many parameters {frames[1]}, in the median."
    )


def _all_solve(L: int, model: str, within: int) -> Claim:
    text = f"L = {L}: {model} solves it within {within:,} frames"
    return Claim(text, f"L = {L}, frames", model, at_most=within, form="ours", scale="full")


def _does_not_solve(L: int, model: str, within: int) -> Claim:
    text = f"L = {L}: {model} does not solve it within {within:,} frames"
    return Claim(text, f"L = {L}, frames", model, at_least=within + 1, form="ours", scale="full", headline=False)


def _guesses(L: int) -> Claim:
    text = f"L = {L}: without memory half of the turns are right, to within 5 %"
    limits: dict[str, Any] = {"at_least": 0.45, "at_most": 0.55}
    return Claim(text, f"L = {L}", "memoryless", **limits, form="ours", scale="full", headline=False)


study(
    Study(
        "kerg/tmaze",
        "beyond Table 4",
        "the T-maze: a cue, L steps in which nothing happens, a choice",
        jobs,
        cells,
        charts,
        claims=(
            Claim("L = 10: RelLSTM turns right", "L = 10", "RelLSTM", at_least=LEARNED, form="ours"),
            Claim("L = 10: it is a guess without memory", "L = 10", "memoryless", at_most=GUESS, form="ours"),
            Claim("RelLSTM learns L = 100", "L = 100", "RelLSTM", at_least=LEARNED, form="ours", scale="full"),
            Claim("RelLSTM learns L = 200", "L = 200", "RelLSTM", at_least=LEARNED, form="ours", scale="full"),
            _all_solve(100, "RelLSTM", 250_000),
            _all_solve(200, "RelLSTM", 600_000),
            *(_does_not_solve(L, "LSTM", 300_000) for L in (50, 100, 200)),
            *(_guesses(L) for L in LENGTHS["full"]),
            Claim(
                "L = 50: RelLSTM needs fewer frames than LSTM",
                check=lambda found: found["L = 50, frames", "RelLSTM"] < found["L = 50, frames", "LSTM"],
                form="ours",
                scale="full",
            ),
        ),
        published=table(
            [row for L in LENGTHS["full"] for row in (f"L = {L}", f"L = {L}, frames")],
            LEARNT,
            row_title="steps between cue and choice",
            column_title="agent",
            note="not in the paper",
        ),
        settings=settings(
            environments=(64, "ours"),
            rollout=("one episode", "ours", "gradients reach from the choice back to the cue"),
            hidden=(", ".join(f"{name} {size}" for name, size in TMAZE_SIZES.items()), "ours", "equal parameters"),
            frames=(", ".join(f"L = {L}: {frames:,}" for L, frames in FRAMES.items()), "ours"),
            solved=(f"{SOLVED:.0%} of 200 held-out episodes", "ours"),
            test=(f"{EPISODES:,} fresh episodes", "ours", f"a guess exceeds {GUESS:.1%} once in 30,000 times"),
        ),
        quick=settings(L=(10, "ours"), agents=(", ".join(QUICK_MODELS), "ours")),
        derived_charts=frames_chart,
        would_change="Longer budgets for the LSTM.",
        surprise=_surprise,
        ours=True,
    )
)
