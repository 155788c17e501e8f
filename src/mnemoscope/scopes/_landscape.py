"""The cost around a model: along a line, or over a plane, of parameter vectors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.parameter_batches import (
    Parameters,
    Run,
    chunks,
    costs,
    mapped,
    matched,
    parameters,
    runner,
)

Direction = Parameters
ROUGH = 4.0  # times the bends of a parabola

HELP = """
The model is in the middle, at zero. A bowl is easy to descend; ridges and cliffs are where
gradients mislead. Switch to the surface to see its height, and turn it by dragging.
"""


@scope(
    "What does the cost look like around these parameters?",
    title="Loss landscape",
    help=HELP,
    needs="loss",
    cost=150,
)
def landscape(
    subject: Subject,
    *,
    to: Mapping[str, Tensor] | None = None,
    third: Mapping[str, Tensor] | None = None,
    points: int = 13,
    span: float = 0.5,
    line: bool = False,
    held_out: tuple[Tensor, Tensor] | None = None,
) -> Finding:
    """The cost along a line or over a plane through the model's parameters (Ribeiro et al. 2019, figs 4-6).

    Without further points the directions are random and filter-normalised: each row of a matrix moves by its own norm
    (Li et al. 2018), and -span .. span is walked. With `to`, the first direction leads from these parameters (0) to
    those (1), and a quarter of the way beyond at both ends; with `third`, the second one leads to it. Points are
    evaluated many at a time, or, of a layer large enough to keep the machine busy, each by its fused kernel.

    Series: `x` (points,) and, for a plane, `y` (points,): coordinates; `cost` (points,) or (points, points), rows by y;
    `held_out`, the same on other sequences, where given.
    Figures: `cost`, here; `lowest` and `highest` of what was seen; `rise`, the mean cost at the edge relative to here;
    `roughness`, the mean bend relative to a parabola's of the same range: 1 is as smooth as can be, noise has ten and
    more; `held_out`, here.

    Args:
        to, third: parameters by name, as in a state_dict.
        points: along each direction.
        span: how far random directions are walked, relative to the parameters' own norms.
        line: one direction only.
        held_out: (inputs, targets) on which to evaluate too.
    """
    if points < 3:
        raise MnemoscopeError(f"landscape needs at least 3 points a direction; got {points}")
    run = runner(subject)
    own = parameters(run)
    directions = _directions(subject, own, to, third, line)
    around = torch.linspace(-span, span, points, dtype=torch.float64)
    axis = around if to is None else torch.linspace(-0.25, 1.25, points, dtype=torch.float64)
    second = axis if third is not None else around
    grid = [(x, y) for y in (second if len(directions) == 2 else torch.zeros(1)) for x in axis]
    shape = (points,) if len(directions) == 1 else (points, points)
    series = arrays(x=axis) | (arrays(y=second) if len(directions) == 2 else {})
    series["cost"] = _evaluate(subject, run, own, directions, grid, subject.features, subject.targets).reshape(shape)
    here = _evaluate(subject, run, own, directions, [(torch.zeros(()), torch.zeros(()))])[0]
    figures = {"cost": here, **_shape(series["cost"], here)}
    if held_out is not None:
        inputs, targets = _other(subject, held_out)
        series["held_out"] = _evaluate(subject, run, own, directions, grid, inputs, targets).reshape(shape)
        centre = [(torch.zeros(()), torch.zeros(()))]
        figures["held_out"] = _evaluate(subject, run, own, directions, centre, inputs, targets)[0]
    return Finding(
        "landscape", _sentence(figures, to is not None), "estimated", series=series,
        figures={name: float(value) for name, value in figures.items()},
        assumptions=("one plane of very many directions is shown",) if to is None else (),
        method=f"the cost at {len(grid)} parameter vectors",
    )  # fmt: skip


def _directions(
    subject: Subject, own: Parameters, to: Mapping[str, Tensor] | None, third: Mapping[str, Tensor] | None, line: bool
) -> list[Direction]:
    if third is not None and to is None:
        raise MnemoscopeError("third needs to= as well: three points make a plane")
    generator = subject.generator()
    given = [matched(p, own, what) for p, what in ((to, "to"), (third, "third")) if p is not None]
    directions = [{name: point[name] - own[name] for name in own} for point in given]
    while len(directions) < (1 if line and third is None else 2):
        directions.append({name: filter_normalised(p, generator) for name, p in own.items()})
    return directions


def filter_normalised(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """A random direction each of whose rows is as long as the parameter's; a vector counts as one row."""
    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
    if parameter.dim() < 2:
        return noise * (parameter.norm() / noise.norm().clamp(min=1e-30))
    rows, own = noise.flatten(1), parameter.flatten(1)
    scale = own.norm(dim=1, keepdim=True) / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return (rows * scale).view_as(parameter)


def _evaluate(
    subject: Subject, run: Run, own: Parameters, directions: list[Direction], grid: list[tuple[Tensor, Tensor]],
    x: Tensor | None = None, targets: Tensor | None = None,
) -> np.ndarray:  # fmt: skip
    x = subject.features if x is None else x
    held = subject.targets if targets is None else targets
    steps = torch.tensor([[float(a), float(b)] for a, b in grid], dtype=torch.float64)[:, : len(directions)]
    each = x.shape[0] * x.shape[1] * 8 * _width(own) + sum(p.numel() for p in own.values())
    found, at_once = [], mapped(subject, each)
    for part in chunks(len(grid), each):
        moved = {
            name: p + sum(torch.einsum("p,...->p...", steps[part, k].to(p), d[name]) for k, d in enumerate(directions))
            for name, p in own.items()
        }
        found.append(costs(run, moved, x, lambda y: subject.loss_of(y, held), at_once))
        subject.report(min(1.0, part.stop / len(grid)), f"{part.stop} of {len(grid)} points")
    return torch.cat(found).double().cpu().numpy()


def _width(own: Parameters) -> int:
    return max((p.shape[0] for p in own.values() if p.dim() > 1), default=1)


def _other(subject: Subject, held_out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    inputs, targets = held_out
    inputs = inputs.transpose(0, 1) if subject.adapted.batch_first else inputs
    if inputs.shape[2:] != subject.features.shape[2:]:
        raise MnemoscopeError(
            f"held_out inputs must have features {list(subject.features.shape[2:])}; got {list(inputs.shape)}"
        )
    return inputs.to(subject.features), targets


def _shape(cost: np.ndarray, here: float) -> dict[str, float]:
    known = cost[np.isfinite(cost)]
    edge = np.concatenate([np.take(cost, (0, -1), axis).ravel() for axis in range(cost.ndim)])
    bends = np.concatenate([np.diff(cost, 2, axis).ravel() for axis in range(cost.ndim)])
    reach = known.max() - known.min() if known.size else np.nan
    parabola = 8 / (len(cost) - 1) ** 2  # the bend of one whose range is 1
    rough = np.abs(bends[np.isfinite(bends)]).mean() / (parabola * reach) if reach > 0 else 0.0
    return {
        "lowest": known.min(initial=np.inf), "highest": known.max(initial=-np.inf),
        "rise": np.nanmean(edge) / here if here else np.nan, "roughness": rough,
    }  # fmt: skip


def _sentence(figures: dict[str, float], between: bool) -> str:
    where = "between the two points" if between else "around these parameters"
    lower = figures["lowest"] < 0.99 * figures["cost"]
    found = f"; {figures['lowest']:.3g} was seen nearby" if lower else ", the lowest that was seen"
    look = "is rough, full of bends" if figures["roughness"] > ROUGH else "is smooth"
    return f"The cost {where} {look}. Here it is {figures['cost']:.3g}{found}."
