"""The T-maze: how far back an agent can learn to remember, where the need is known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, Line, Panels, Style
from mnemoscope.rl import TMaze
from mnemoscope.studies import Claim, Done, Scale, Study, settings, study, table
from mnemoscope.studies.kerg._agents import LEARNT, TMAZE_SIZES, agent, frames_needed, learning
from mnemoscope.sweeps import Job

LENGTHS = {"full": (10, 25, 50, 100, 200), "quick": (10,)}
FRAMES = {10: 150_000, 25: 200_000, 50: 300_000, 100: 300_000, 200: 600_000}
QUICK_MODELS = ("memoryless", "LSTM", "RelLSTM")
SOLVED = 0.98


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    models = LEARNT if scale == "full" else QUICK_MODELS
    return {(L, model): _agent(L, model, seed) for L in LENGTHS[scale] for model in models}


def _agent(L: int, model: str, seed: int) -> Job:
    frames = FRAMES[L] if model != "memoryless" else 50_000
    return agent(TMaze(L, seed=seed), model, replace(TMaze.ppo, frames=frames, evaluate_every=5, seed=seed, threads=1))


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float | None]:
    """The best share of right turns, and the frames that it took until 98 % were right."""
    found: dict[tuple[str, str], float | None] = {}
    for (L, model), result in done.items():
        # The best of many evaluations would favor the one that only guesses.
        guesses = model == "memoryless"
        found[f"L = {L}", model] = float(result.curve("success")[1].mean()) if guesses else result.best
        found[f"L = {L}, frames", model] = frames_needed(result, "success", SOLVED)
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
    models = LEARNT if scale == "full" else QUICK_MODELS
    panels = tuple(
        Chart(
            f"learning-{L}",
            f"L = {L}",
            Axis("frames"),
            Axis("right turns", share=True),
            tuple(learning(m, [one[L, m] for one in done], "success", i) for i, m in enumerate(models)),
        )
        for L in LENGTHS[scale]
    )
    return [Panels("learning", "Right turns in held-out episodes", panels, share_x=False), _needed(scale, done, models)]


def _needed(scale: Scale, done: Sequence[Done], models: Sequence[str]) -> Chart:
    lines = []
    for style, model in enumerate(models):
        needed = [[frames_needed(one[L, model], "success", SOLVED) or np.nan for one in done] for L in LENGTHS[scale]]
        values = np.array(needed, dtype=float)
        known = np.isfinite(values).all(1)  # a length that every seed has solved
        if known.any():
            x, y = np.array(LENGTHS[scale], dtype=float)[known], values[known]
            lines.append(Line(model, x, np.median(y, 1), y.min(1), y.max(1), Style(style, style)))
    x, y = Axis("L", log=True, switch=True), Axis("frames", log=True, switch=True)
    return Chart("frames", "Frames until 98 % of the turns are right, where every seed gets there", x, y, tuple(lines))


def _all_solve(L: int, model: str, within: int) -> Claim:
    text = f"L = {L}: {model} solves it within {within:,} frames"
    return Claim(text, f"L = {L}, frames", model, at_most=within, form="ours", scale="full")


study(
    Study(
        "kerg/tmaze",
        "beyond Table 4",
        "the T-maze: a cue, L steps in which nothing happens, a choice",
        jobs,
        cells,
        charts,
        claims=(
            Claim("L = 10: RelLSTM turns right", "L = 10", "RelLSTM", at_least=SOLVED, form="ours"),
            Claim("L = 10: without memory it is a guess", "L = 10", "memoryless", at_most=0.55, form="ours"),
            Claim("RelLSTM solves L = 100", "L = 100", "RelLSTM", at_least=SOLVED, form="ours", scale="full"),
            Claim("RelLSTM solves L = 200", "L = 200", "RelLSTM", at_least=SOLVED, form="ours", scale="full"),
            _all_solve(100, "RelLSTM", 250_000),
            _all_solve(200, "RelLSTM", 600_000),
            Claim(
                "LSTM does not learn L = 50 and beyond within 300,000 frames",
                tuple(f"L = {L}" for L in (50, 100)),
                "LSTM",
                at_most=0.7,
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
            frames=(", ".join(f"L = {L}: {frames:,}" for L, frames in FRAMES.items()), "ours", "memoryless 50,000"),
            solved=(f"{SOLVED:.0%} of 200 held-out episodes", "ours"),
        ),
        quick=settings(L=(10, "ours"), agents=(", ".join(QUICK_MODELS), "ours")),
        would_change="Longer budgets for the LSTM.",
        surprise="Gradients that return through attention are worth most where nothing else is in the way: an LSTM of "
        "the same size does not learn to remember a cue for 50 steps.",
        ours=True,
    )
)
