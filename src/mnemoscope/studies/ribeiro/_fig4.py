"""Figure 4: the cost between the initial and the final weights, on training and on held-out sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mnemoscope.report import Axis, Chart, Line, Marker, Style
from mnemoscope.scopes import landscape
from mnemoscope.studies import (
    Cells,
    CellValue,
    Claim,
    Done,
    Note,
    Result,
    Scale,
    Study,
    measure,
    settings,
    study,
    table,
)
from mnemoscope.studies.ribeiro._bifurcations import found_for
from mnemoscope.studies.ribeiro._chaotic_lstm import local_minima
from mnemoscope.studies.ribeiro._separated_symbols import (
    CLIP_ERROR,
    FEW_WORDS,
    QUICK,
    SCENARIOS,
    SETTINGS,
    ends,
    runs,
    scenario,
)
from mnemoscope.sweeps import Job

COST, HELD_OUT = "cost at s = 0", "held-out cost at s = 0"
MINIMA, ROUGHNESS = "minima, |s| <= 0.25", "roughness, |s| <= 0.25"
SIZES = {"quick": (151, 100), "full": (401, 1000)}  # points of the line, sequences of each split


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    trained: dict[Any, Job] = dict(runs(scale, seed))
    points, sequences = SIZES[scale]
    lines = {
        ("line", name): measure(
            cost_line, needs=run, seconds=12 if scale == "quick" else 250, points=points, sequences=sequences
        )
        for name, run in trained.items()
    }
    return {**trained, **lines}


def cost_line(run: Result, *, points: int, sequences: int) -> Mapping[str, Any]:
    """The cost at s theta_init + (1 - s) theta_final for s in [-0.5, 1.5], and more closely around s = 0."""
    initial, final = ends(run)
    task = run.run.task
    batch, other = (task.batch(0, sequences, split) for split in ("train", "valid"))
    common = dict(targets=batch.targets, loss=task.loss, to=initial.state_dict(), line=True, x_label="s")
    whole = landscape(final, batch.inputs, **common, points=points, x_range=(-0.5, 1.5), held_out=tuple(other))
    near = landscape(final, batch.inputs, **common, points=points, x_range=(-0.25, 0.25))
    return {
        "scenario": scenario(run),
        "s": whole.series["x"],
        "cost": whole.series["cost"],
        "held_out": whole.series["held_out"],
        "here": whole.figures["cost"],
        "held_out_here": whole.figures["held_out"],
        "minima": int(local_minima(near.series["cost"]).sum()),
        "roughness": near.figures["roughness"],
    }


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    for key, result in done.items():
        if isinstance(key, tuple) and result.diverged_at_once:
            found |= {("neither", column): Note("diverged") for column in (COST, HELD_OUT, MINIMA, ROUGHNESS)}
            continue
        if not isinstance(key, tuple) or (result["scenario"], COST) in found:
            continue
        found[result["scenario"], COST] = result["here"]
        found[result["scenario"], HELD_OUT] = result["held_out_here"]
        found[result["scenario"], MINIMA] = result["minima"]
        found[result["scenario"], ROUGHNESS] = result["roughness"]
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    found = []
    for name in SCENARIOS:
        first = found_for(done, name)
        if first is None:
            continue
        seed, shown = first
        marks = (
            Line("training", shown["s"], shown["cost"], style=Style(0, 0)),
            Line("held out", shown["s"], shown["held_out"], style=Style(1, 1)),
        )
        where = (Marker("x", 0.0, "final"), Marker("x", 1.0, "initial"))
        y = Axis("cost", switch=True)
        title = f"Cost from final to initial weights, {name} scenario (seed {seed})"
        found.append(Chart(f"cost-{name}", title, Axis("s"), y, marks, where))
    return found


def _rougher_when_good(seeds: Sequence[Cells]) -> bool | None:
    """Whether the median roughness of all good runs is above that of all bad ones; open while one kind is missing."""
    good, bad = ([one[name, ROUGHNESS] for one in seeds if (name, ROUGHNESS) in one] for name in SCENARIOS)
    return median(good) > median(bad) if good and bad else None


def _surprise(quick: Cells, full: Cells) -> str:
    good, bad = (quick[name, ROUGHNESS] for name in SCENARIOS)
    if not bad > good:
        return ""
    return (
        f"Around the final weights the cost is {bad:.0f} times as rough as a parabola in the bad scenario, where "
        f"sequences were learned by heart, and {good:.1f} times in the good one, where something is remembered (quick "
        "version)."
    )


study(
    Study(
        "ribeiro/fig4",
        "Figure 4",
        "cost between initial and final weights, widely separated symbols",
        jobs,
        cells,
        charts,
        claims=(
            Claim("good: several (two or more) local minima within 0.25 of the final weights", "good", MINIMA, 2),
            Claim(
                "bad: the minimum is not one on held-out data, where the cost is over 1.5 times as high",
                check=lambda cells: cells["bad", HELD_OUT] > 1.5 * cells["bad", COST],
            ),
            Claim("intricate in both: 4 times as rough as a parabola", SCENARIOS, ROUGHNESS, at_least=4),
            Claim(
                "the cost is rougher around good solutions than around bad ones",
                check=_rougher_when_good,
                over="all",
                form="ours",
                headline=False,
            ),
        ),
        published=table(
            SCENARIOS, (COST, HELD_OUT, MINIMA, ROUGHNESS), row_title="scenario", note="the paper prints no numbers"
        ),
        settings=(*SETTINGS, *settings(s=("[-0.5, 1.5], 401 points", "ours", "the paper does not say"))),
        quick=(*QUICK, *settings(points=("151, on 100 and 100 sequences", "ours"))),
        words="In the good performance solution the cost function has several close local minima around the final "
        "estimate; in the bad one it has a local minimum on the training data that disappears on the validation set.",
        errata=(FEW_WORDS, CLIP_ERROR),
        would_change="A good solution at the paper's T = 150: ours is at T = 60.",
        surprise=_surprise,
    )
)
