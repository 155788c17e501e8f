"""The cost around a model: along a line, or over a plane, of parameter vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.growth import rounding_warnings
from mnemoscope.scopes._measures.parameter_batches import (
    Parameters,
    WholeModel,
    check_parameters,
    chunks,
    costs,
    parameters_of,
    prefers_vmap,
    whole_model,
)

ROUGH = 4.0  # times the bends of a parabola
FINE = 41  # points of the lines through the model's parameters on which roughness is measured
ZOOM = 16  # how much shorter the second of these lines is

HELP = """
The model is in the middle, at zero. A bowl is easy to descend; ridges and cliffs are where
gradients mislead. Switch to the surface to see its height, and turn it by dragging.

A coarse plane hides what happens between its points. Whether the cost is smooth or rough is
therefore judged on two finer lines through the middle, one of them a sixteenth as long.
"""


@scope(
    "What does the cost look like around these parameters?",
    title="Loss landscape",
    help=HELP,
    needs=("outputs", "loss"),
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
    """Evaluate the cost along a line or over a plane through the model's parameters (Ribeiro et al. 2019, figs 4-6).

    Without further points the directions are random and filter-normalized: each row of a matrix moves by its own norm
    (Li et al. 2018), and coordinates run from -span to span. With `to`, the first direction leads from these parameters
    (0) to those (1), and a quarter of the way beyond at both ends; with `third`, the second one leads to it. Many
    points are evaluated at once; those of a large layer one by one, by its fused kernel.

    Series: `x` (points,) and, for a plane, `y` (points,): coordinates; `cost` (points,) or (points, points), rows by y;
    `held_out`, the same on other sequences, if given; `fine_x` and `fine_cost` (41,), `zoom_x` and `zoom_cost` (41,),
    the cost along the first direction at a higher resolution, and at a still higher one around these parameters.
    Figures: `cost`, here, by the model's own forward pass; `lowest` and `highest` of what was seen; `rise`, the mean
    cost at the edge relative to here; `roughness`, the mean bend relative to that of a parabola of the same range, the
    largest over the plane and both lines: 1 is as smooth as can be, noise has ten and more; `resolution`, the smallest
    distance of two points; `held_out`, here.

    Args:
        to, third: parameters by name, as in a state_dict.
        points: along each direction.
        span: the length of the line in random directions, relative to the norms of the parameters.
        line: one direction only.
        held_out: (inputs, targets) on which to evaluate too.
    """
    if points < 3:
        raise MnemoscopeError(f"landscape needs at least 3 points per direction; got {points}")
    model = whole_model(subject)
    parameters = parameters_of(model)
    if not parameters:
        why = f"{subject.name} has no parameters"
        return Finding("landscape", f"landscape does not apply: {why}.", "not applicable", why=why)
    plane = _Plane(subject, model, parameters, _directions(subject, parameters, to, third, line))

    # The coordinates: around these parameters, or from them to the given ones and a quarter beyond.
    around = torch.linspace(-span, span, points, dtype=torch.float64)
    between = torch.linspace(-0.25, 1.25, points, dtype=torch.float64)
    x = around if to is None else between
    y = around if third is None else between
    if len(plane.directions) == 1:
        series = arrays(x=x)
        grid = x[:, None]
        shape: tuple[int, ...] = (points,)
    else:
        series = arrays(x=x, y=y)
        grid = torch.cartesian_prod(y, x).flip(1)  # rows by y, pairs (x, y)
        shape = (points, points)

    # The cost there, on the given sequences and on others. In the middle it is the model's own: under vmap, rounding
    # differs, and a chaotic network makes a difference of it.
    series["cost"] = plane.costs(grid, subject.features, subject.targets).reshape(shape)
    here = _own_cost(subject, subject.features, subject.targets)
    if not math.isfinite(here):
        raise MnemoscopeError(f"the cost of these parameters is {here}: there is nothing to compare others with")
    figures = {"cost": here, **_shape(series["cost"], here)}
    if held_out is not None:
        inputs, targets = _time_first(subject, held_out)
        series["held_out"] = plane.costs(grid, inputs, targets).reshape(shape)
        figures["held_out"] = _own_cost(subject, inputs, targets)

    # Finer lines along the first direction, for roughness that falls between the points of the grid.
    lines = {"fine": torch.linspace(float(x[0]), float(x[-1]), FINE, dtype=torch.float64)}
    lines["zoom"] = lines["fine"] / ZOOM
    for name, steps in lines.items():
        along = torch.zeros(FINE, len(plane.directions), dtype=torch.float64)
        along[:, 0] = steps
        cost = plane.costs(along, subject.features, subject.targets)
        series |= {f"{name}_x": steps.numpy(), f"{name}_cost": cost}
        noise = 1e3 * torch.finfo(subject.dtype).eps * np.abs(cost).max()
        if np.isfinite(cost).all() and np.ptp(cost) > noise:
            figures["roughness"] = max(figures["roughness"], _roughness(cost))
    figures["resolution"] = float(lines["zoom"][1] - lines["zoom"][0])
    return Finding(
        "landscape",
        _sentence(figures, to is not None),
        "estimated",
        figures={name: float(value) for name, value in figures.items()},
        series=series,
        warnings=rounding_warnings(subject),
        assumptions=("one plane of very many directions is shown",) if to is None else (),
        method=f"the cost at {len(grid)} parameter vectors, and on two lines of {FINE} through the middle",
    )


def _directions(
    subject: Subject,
    parameters: Parameters,
    to: Mapping[str, Tensor] | None,
    third: Mapping[str, Tensor] | None,
    line: bool,
) -> list[Parameters]:
    """Return one or two directions in parameter space: to given points, or random."""
    if third is not None and to is None:
        raise MnemoscopeError("third needs to= as well: three points make a plane")
    directions = []
    for point, what in ((to, "to"), (third, "third")):
        if point is not None:
            target = check_parameters(point, parameters, what)
            directions.append({name: target[name] - parameters[name] for name in parameters})
    generator = subject.generator()
    needed = 1 if line and third is None else 2
    while len(directions) < needed:
        directions.append({name: filter_normalized(p, generator) for name, p in parameters.items()})
    return directions


def filter_normalized(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random direction each of whose rows is as long as the parameter's; a vector counts as one row."""
    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
    if parameter.dim() < 2:
        return noise * (parameter.norm() / noise.norm().clamp(min=1e-30))
    rows = noise.flatten(1)
    lengths = parameter.flatten(1).norm(dim=1, keepdim=True)
    scale = lengths / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return (rows * scale).view_as(parameter)


@dataclass(frozen=True)
class _Plane:
    """A line or a plane through a model's own parameters."""

    subject: Subject
    model: WholeModel
    parameters: Parameters
    directions: list[Parameters]

    def costs(self, steps: Tensor, x: Tensor, targets: Tensor | None) -> np.ndarray:
        """Return the cost at parameters + sum_k steps[:, k] directions[k], (P,), on sequences x and their targets."""
        width = max((p.shape[0] for p in self.parameters.values() if p.dim() > 1), default=1)
        numbers = x.shape[0] * x.shape[1] * 8 * width + sum(p.numel() for p in self.parameters.values())
        use_vmap = prefers_vmap(self.subject, numbers)
        parts = []
        for part in chunks(len(steps), numbers):
            points = {name: p + self._move(name, steps[part]) for name, p in self.parameters.items()}
            parts.append(costs(self.model, points, x, lambda y: self.subject.loss_of(y, targets), use_vmap))
            self.subject.report(min(1.0, part.stop / len(steps)), f"{part.stop} of {len(steps)} points")
        return torch.cat(parts).double().cpu().numpy()

    def _move(self, name: str, steps: Tensor) -> Tensor | int:
        """Return how one parameter moves by steps (P, directions) along the directions: (P, ...)."""
        parameter = self.parameters[name]
        return sum(
            torch.einsum("p,...->p...", steps[:, k].to(parameter), direction[name])
            for k, direction in enumerate(self.directions)
        )


def _time_first(subject: Subject, held_out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    inputs, targets = held_out
    inputs = subject.adapted.layout.time_first(inputs)
    if inputs.shape[2:] != subject.features.shape[2:]:
        raise MnemoscopeError(
            f"held_out inputs must have features {list(subject.features.shape[2:])}; got {list(inputs.shape)}"
        )
    return inputs.to(subject.features), targets


@torch.no_grad()
def _own_cost(subject: Subject, x: Tensor, targets: Tensor | None) -> float:
    """Return the cost of the model itself on sequences x."""
    return float(subject.loss_of(subject.run(x), targets))


def _shape(cost: np.ndarray, here: float) -> dict[str, float]:
    """Return the figures that describe the surface: range, rise towards the edge, roughness."""
    known = cost[np.isfinite(cost)]
    edge = np.concatenate([np.take(cost, (0, -1), axis).ravel() for axis in range(cost.ndim)])
    return {
        "lowest": min(known.min(initial=np.inf), here),
        "highest": known.max(initial=-np.inf),
        "rise": np.nanmean(edge) / here if here else np.nan,
        "roughness": _roughness(cost),
    }


def _roughness(cost: np.ndarray) -> float:
    """Return the mean bend along all axes, relative to that of a parabola of the same range; 0 if all is level."""
    known = cost[np.isfinite(cost)]
    bends = np.concatenate([np.diff(cost, 2, axis).ravel() for axis in range(cost.ndim)])
    bends = np.abs(bends[np.isfinite(bends)])
    cost_range = np.ptp(known) if known.size else np.nan
    parabola = 8 / (len(cost) - 1) ** 2  # the bend of a parabola whose range is 1
    return float(bends.mean() / (parabola * cost_range)) if cost_range > 0 else 0.0


def _sentence(figures: dict[str, float], between: bool) -> str:
    where = "between the two points" if between else "around these parameters"
    look = "is rough, full of bends" if figures["roughness"] > ROUGH else "looks smooth"
    look += f" (seen at steps of {figures['resolution']:.1g} {'of the way' if between else 'of their size'})"
    lower = figures["lowest"] < 0.99 * figures["cost"]
    lowest = f"; {figures['lowest']:.3g} was seen nearby" if lower else ", the lowest that was seen"
    return f"The cost {where} {look}. Here it is {figures['cost']:.3g}{lowest}."
