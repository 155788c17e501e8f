"""The cost around a model: along a line, or over a plane, of parameter vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError, check_count, is_number
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import not_applicable, scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.growth import rounding_warnings
from mnemoscope.scopes._measures.parameter_batches import (
    Parameters,
    WholeModel,
    chunks,
    costs,
    prefers_vmap,
    whole_model,
)

ROUGH = 4.0  # times the bends of a parabola
FINE = 41  # points of the lines through the model's parameters on which roughness is measured
ZOOM = 16  # how much shorter the second of these lines is
BETWEEN = (-0.25, 1.25)  # the way to another point, and a quarter of it beyond at both ends

HELP = """
The model is at zero. A bowl is easy to descend; ridges and cliffs are where
gradients mislead. Switch to the surface to see its height, and turn it by dragging.

A coarse plane hides what happens between its points. Whether the cost is smooth or rough is
therefore judged on two finer lines through it, one of them a sixteenth as long.
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
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    x_label: str = "",
    y_label: str = "",
    line: bool = False,
    held_out: tuple[Tensor, Tensor] | None = None,
) -> Finding:
    """Evaluate the cost along a line or over a plane through the model's parameters (Ribeiro et al. 2019, figs 4-6).

    Without further points the directions are random and filter-normalized: each row of a matrix moves by its own norm
    (Li et al. 2018), and coordinates run from -span to span. With `to`, the first direction leads from these parameters
    (0) to those (1), and a quarter of the way beyond at both ends; with `third`, the second one leads to it. From a
    model whose parameters are zero, x and y are thus the factors of theta = x to + y third. An embedding moves with the
    rest: ids are looked up anew at every point. Many points are evaluated at once; those of a large layer one by one,
    by its fused kernel.

    Series: `x` (points,) and, for a plane, `y` (points,): coordinates; `cost` (points,) or (points, points), rows by y;
    `held_out`, the same on other sequences, if given; `fine_x` and `fine_cost` (41,), `zoom_x` and `zoom_cost` (41,),
    the cost along the first direction at a higher resolution, and at a still higher one around these parameters.
    Figures: `cost`, here, and `cost_to`, at `to`, by the model's own forward pass; `lowest` and `highest` of what was
    seen; `rise`, the mean cost at the edge relative to here; `roughness`, the mean bend relative to that of a parabola
    of the same range, the largest over the plane and both lines: 1 is as smooth as can be, noise has ten and more;
    `resolution`, the smallest distance of two points; `held_out`, here. Labels: `x` and `y`, titles of the axes.

    Args:
        to: parameters by name, as the model's `state_dict()` gives them.
        third: a third set of parameters, likewise.
        points: along each direction.
        span: the length of the line in random directions, relative to the norms of the parameters.
        x_range: where the first coordinate begins and ends, in place of the usual ends.
        y_range: where the second one does.
        x_label: title of the first axis.
        y_label: title of the second one.
        line: one direction only.
        held_out: (inputs, targets) on which to evaluate too.
    """
    check_count("points", points, 3)
    if not (is_number(span) and 0 < span < math.inf):
        raise MnemoscopeError(f"span must be a number above 0; got {span!r}")
    model = whole_model(subject)
    if not model.own:
        return not_applicable("landscape", f"{subject.name} has no parameters")
    plane = _plane(subject, model, to, third, line)

    # The coordinates: around these parameters, or from them to the given ones and a quarter beyond.
    x = _coordinates("x_range", x_range, (-span, span) if to is None else BETWEEN, points)
    y = _coordinates("y_range", y_range, (-span, span) if third is None else BETWEEN, points)
    shape = (points,) * plane.dimensions
    series = arrays(x=x)
    grid = x[:, None]
    if plane.dimensions == 2:
        series |= arrays(y=y)
        grid = torch.cartesian_prod(y, x).flip(1)  # rows by y, pairs (x, y)

    # The cost there, on the given sequences and on others. In the middle it is the model's own: under vmap, rounding
    # differs, and a chaotic network makes a difference of it.
    series["cost"] = plane.costs(grid, subject.inputs, subject.targets).reshape(shape)
    here = _own_cost(subject, subject.inputs, subject.targets)
    if not math.isfinite(here):
        raise MnemoscopeError(f"the cost of these parameters is {here}: there is nothing to compare others with")
    figures = {"cost": here, **_shape(series["cost"], here)}
    if to is not None:
        there = torch.eye(plane.dimensions, dtype=torch.float64)[:1]
        figures["cost_to"] = float(plane.costs(there, subject.inputs, subject.targets)[0])
    if held_out is not None:
        inputs, targets = _time_first(subject, held_out)
        series["held_out"] = plane.costs(grid, inputs, targets).reshape(shape)
        figures["held_out"] = _own_cost(subject, inputs, targets)

    # Finer lines, for roughness that falls between the points of the grid.
    series |= _finer_lines(plane, x)
    for cost in (series["fine_cost"], series["zoom_cost"]):
        rounding = 1e3 * torch.finfo(subject.dtype).eps * np.abs(cost).max()
        if np.isfinite(cost).all() and np.ptp(cost) > rounding:
            figures["roughness"] = max(figures["roughness"], _roughness(cost))
    figures["resolution"] = float(series["zoom_x"][1] - series["zoom_x"][0])
    return Finding(
        "landscape",
        _sentence(figures, to is not None),
        "estimated",
        figures={name: float(value) for name, value in figures.items()},
        series=series,
        labels=_axis_titles(x_label, y_label, to is not None, third is not None),
        warnings=rounding_warnings(subject),
        assumptions=("one plane of very many directions is shown",) if to is None else (),
        method=f"the cost at {len(grid)} parameter vectors, and on two lines of {FINE} through the middle",
    )


def _coordinates(what: str, given: tuple[float, float] | None, usual: tuple[float, float], points: int) -> Tensor:
    """Return the coordinates (points,) between given ends, or between the usual ones."""
    low, high = usual
    if given is not None:
        try:
            low, high = (float(end) for end in given)
        except (TypeError, ValueError):
            raise MnemoscopeError(f"{what} must be two numbers, (low, high); got {given!r}") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise MnemoscopeError(f"{what} must begin below its end; got {given!r}")
    return torch.linspace(low, high, points, dtype=torch.float64)


def _finer_lines(plane: _Plane, x: Tensor) -> dict[str, np.ndarray]:
    """Return `fine_x`, `fine_cost`, `zoom_x` and `zoom_cost` (41,), along the first direction over the range of x.

    The second line is around these parameters, or at the end of the range that is nearest to them.
    """
    low, high = float(x[0]), float(x[-1])
    middle = min(max(0.0, low), high)
    fine = torch.linspace(low, high, FINE, dtype=torch.float64)
    series: dict[str, np.ndarray] = {}
    for name, steps in (("fine", fine), ("zoom", middle + (fine - middle) / ZOOM)):
        along = torch.zeros(FINE, plane.dimensions, dtype=torch.float64)
        along[:, 0] = steps
        cost = plane.costs(along, plane.subject.inputs, plane.subject.targets)
        series |= {f"{name}_x": steps.numpy(), f"{name}_cost": cost}
    return series


def _axis_titles(x_label: str, y_label: str, to: bool, third: bool) -> dict[str, str | list[str]]:
    """Return the titles of the axes: the given ones, or where each direction leads."""
    x = "way to the other parameters (0 here, 1 there)" if to else "along one random direction, relative"
    y = "way to the third parameters (0 here, 1 there)" if third else "along another random direction, relative"
    return {"x": x_label or x, "y": y_label or y}


def _plane(
    subject: Subject,
    model: WholeModel,
    to: Mapping[str, Tensor] | None,
    third: Mapping[str, Tensor] | None,
    line: bool,
) -> _Plane:
    """Return the line or plane through the model's parameters: to given points, or in random directions."""
    if third is not None and to is None:
        raise MnemoscopeError("third needs to= as well: three points make a plane")
    given = [(point, what) for point, what in ((to, "to"), (third, "third")) if point is not None]
    targets = [model.whole_point(point, what) for point, what in given]
    generator = subject.generator()
    needed = 1 if line and third is None else 2
    directions = [
        {name: filter_normalized(p, generator) for name, p in model.own.items()} for _ in range(needed - len(targets))
    ]
    return _Plane(subject, model, targets, directions)


def filter_normalized(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random direction each of whose rows is as long as the parameter's; a vector counts as one row."""
    precise = torch.complex128 if parameter.is_complex() else torch.float64
    noise = torch.randn(parameter.shape, generator=generator, dtype=precise).to(parameter)
    if parameter.dim() < 2:
        return noise * (parameter.norm() / noise.norm().clamp(min=1e-30))
    rows = noise.flatten(1)
    lengths = parameter.flatten(1).norm(dim=1, keepdim=True)
    scale = lengths / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return (rows * scale).view_as(parameter)


@dataclass(frozen=True)
class _Plane:
    """A line or a plane through a model's own parameters.

    Attributes:
        targets: parameter vectors that the first coordinates lead to: 0 is the model, 1 is the target.
        directions: that the other coordinates lead along.
    """

    subject: Subject
    model: WholeModel
    targets: list[Parameters]
    directions: list[Parameters]

    @property
    def dimensions(self) -> int:
        return len(self.targets) + len(self.directions)

    def costs(self, steps: Tensor, x: Tensor, targets: Tensor | None) -> np.ndarray:
        """Return the cost at the points with the coordinates steps (P, dimensions), (P,), on sequences x."""
        width = max((p.shape[0] for p in self.model.own.values() if p.dim() > 1), default=1)
        numbers = x.shape[0] * x.shape[1] * 8 * width + sum(p.numel() for p in self.model.own.values())
        use_vmap = prefers_vmap(self.subject, numbers)
        found = torch.empty(len(steps), dtype=torch.float64)

        def cost(chosen: Tensor, by_vmap: bool) -> Tensor:
            points = {name: self._at(name, chosen) for name in self.model.own}
            found = costs(self.model, points, x, lambda y: self.subject.loss_of(y, targets), by_vmap)
            return found.double().cpu()

        for part in chunks(len(steps), numbers):
            found[part] = cost(steps[part], use_vmap)
            self.subject.report(min(1.0, part.stop / len(steps)), f"{part.stop} of {len(steps)} points")

        # At the model itself and at the targets the cost is exactly theirs: under vmap, rounding differs.
        corners = ((steps == 0) | (steps == 1)).all(1) & (steps.sum(1) <= 1)
        corners &= (steps[:, len(self.targets) :] == 0).all(1)
        if use_vmap and bool(corners.any()):
            found[corners] = cost(steps[corners], False)
        return found.numpy()

    def _at(self, name: str, steps: Tensor) -> Tensor:
        """Return one parameter at the points with the coordinates steps (P, dimensions): (P, ...).

        As a weighted sum of the points themselves, so that a target is met exactly.
        """
        own = self.model.own[name]
        steps = steps.to(own).view(*steps.shape, *[1] * own.dim())
        share = 1 - steps[:, : len(self.targets)].sum(1)
        result = share * own
        for k, vector in enumerate((*self.targets, *self.directions)):
            result.addcmul_(steps[:, k], vector[name])
        return result


def _time_first(subject: Subject, held_out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    if not (isinstance(held_out, Sequence) and len(held_out) == 2 and isinstance(held_out[0], Tensor)):
        raise MnemoscopeError(f"held_out must be a pair of tensors, (inputs, targets); got {held_out!r:.80}")
    inputs, targets = held_out
    inputs = subject.adapted.layout.time_first(inputs)
    if inputs.shape[2:] != subject.inputs.shape[2:] or inputs.dim() != subject.inputs.dim():
        wanted = f"have features {list(subject.inputs.shape[2:])}" if subject.inputs.dim() > 2 else "be ids"
        raise MnemoscopeError(f"held_out inputs must {wanted}; got {list(inputs.shape)}")
    return inputs.to(subject.inputs), targets


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
    if figures["lowest"] == figures["highest"] == figures["cost"]:
        look = "is the same at all points looked at"
    look += f" (seen at steps of {figures['resolution']:.1g} {'of the way' if between else 'of their size'})"
    lower = figures["cost"] - figures["lowest"] > 0.01 * abs(figures["cost"])
    lowest = f"; {figures['lowest']:.3g} was seen nearby" if lower else ", the lowest that was seen"
    return f"The cost {where} {look}. Here it is {figures['cost']:.3g}{lowest}."
