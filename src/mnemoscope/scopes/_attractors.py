"""Where a network ends up: orbits under a constant input, their periods, fixed points, and bifurcations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import State, leaves, rebuild
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.fixed_points import fixed_points
from mnemoscope.scopes._measures.parameter_batches import (
    OneStep,
    Parameters,
    check_parameters,
    chunks,
    parameters_of,
    stack_parameters,
    step_all,
)
from mnemoscope.scopes._measures.state_vectors import flatten, unflatten

LONGEST_PERIOD = 32
SAME = 1e-4  # states nearer than this, relative to their size, are one
SMALL = 0.01  # the smallest size for that: an orbit that decays to zero has ended in a fixed point

HELP = """
Each point is a place that a state comes back to after a long time. One point above a value: a fixed
point. Several: a cycle, or several attractors. A smear: chaos.

Eigenvalues inside the circle belong to directions in which states are drawn to the fixed point.
"""


@scope(
    "Where does the state end up under a constant input?",
    title="Attractors",
    help=HELP,
    needs="map",
    cost=120,
)
def attractors(
    subject: Subject,
    *,
    path: Callable[[float], dict[str, Tensor]] | str | None = None,
    values: Sequence[float] | None = None,
    constants: Tensor | None = None,
    starts: int = 10,
    steps: int = 300,
    recorded: int = 64,
    unit: int = 0,
    spread: float = 1.0,
    fixed: bool = True,
) -> Finding:
    """Record orbits from many starts under a constant input, after the transient (Ribeiro et al. 2019, section 3.1).

    As in their fig. 3. By default one orbit diagram over constant inputs: zero and a few of the given sequences. With
    `path`, one over parameters: the parameter vectors of all `values` are run at once.

    Series: `values` (V,), the path's parameter, or the number of the input; `orbits` (V, starts, recorded), one unit of
    the state after the transient; `period` (V, starts), 0 if none up to 32 was found; `basins` (V, starts), the
    fraction of starts that end on the same attractor. For the model's own parameters and the first input, if fixed
    points were looked for: `fixed_points` (P, N), their `eigenvalues` (P, N, 2) as real and imaginary parts, largest
    first, and `stable` (P,).
    Figures: `attractors`, the most different ones found at one value; `periods`, the largest period; `aperiodic`, the
    fraction of orbits without one; `fixed_points` and `stable_fixed_points`, how many.

    Args:
        path: s -> parameters by name; "scale" multiplies the recurrent weights by s.
        values: of s; by default 101 from 0 to 2.
        constants: (V, input_size), the constant inputs.
        starts: random states, normal with standard deviation `spread`; the first is near the model's initial one.
        steps: of the transient.
        recorded: steps that are recorded after it.
        unit: which number of the state vector is shown.
        fixed: look for fixed points.
    """
    if starts < 1 or steps < 1 or recorded < 2:
        raise MnemoscopeError(
            f"attractors needs starts, steps >= 1 and recorded >= 2; got {starts}, {steps}, {recorded}"
        )
    # One diagram over parameter vectors under one input, or over inputs under the model's own parameters.
    points, axis = _parameter_path(subject, path, values)
    x = _constant_inputs(subject, constants, only_one=path is not None)
    if path is None:
        axis = np.arange(len(x), dtype=float)

    states = _orbits(subject, points, x, _starts(subject, starts, spread), steps, recorded)  # (V, recorded, starts, N)
    if not 0 <= unit < states.shape[-1]:
        raise MnemoscopeError(f"unit must lie between 0 and {states.shape[-1] - 1}; got {unit}")
    orbits = states.transpose(1, 2).double()  # (V, starts, recorded, N)
    period = np.array([[find_period(orbit) for orbit in value] for value in orbits.numpy()])
    series = arrays(
        values=axis,
        orbits=states[..., unit].transpose(1, 2),
        period=period,
        basins=_basins(orbits, period),
    )
    if fixed and path is None:
        series |= _fixed_points(subject, x[0], states[0])
    return _finding(series, states, path is not None)


def _parameter_path(
    subject: Subject, path: Callable[[float], dict[str, Tensor]] | str | None, values: Sequence[float] | None
) -> tuple[list[Parameters], np.ndarray]:
    """Return the parameter vectors along the path and its values; without a path the model's own, and no values."""
    parameters = parameters_of(OneStep(subject.recurrence))
    if path is None:
        return [parameters], np.zeros(0)
    axis = np.linspace(0, 2, 101) if values is None else np.asarray(values, float)
    if not isinstance(path, str):
        return [_replace_parameters(parameters, path(float(s))) for s in axis], axis
    if path != "scale":
        raise MnemoscopeError(f"path must be a function of s or 'scale'; got {path!r}")
    points = [{name: p * (s if "weight_hh" in name else 1.0) for name, p in parameters.items()} for s in axis]
    return points, axis


def _replace_parameters(parameters: Parameters, changed: dict[str, Tensor]) -> Parameters:
    unknown = [name for name in changed if name not in parameters]
    if unknown:
        known = ", ".join(parameters)
        raise MnemoscopeError(f"path(s) gives {unknown[0]}, which the model has not; it has {known}")
    return {**parameters, **check_parameters(changed, {name: parameters[name] for name in changed}, "path(s)")}


def _constant_inputs(subject: Subject, constants: Tensor | None, only_one: bool) -> Tensor:
    """Return the constant inputs (V, d): the given ones, or zero and three of the sequences' own."""
    inputs = subject.recurrence_inputs
    if constants is not None:
        if constants.dim() != 2 or constants.shape[1] != inputs.shape[2]:
            raise MnemoscopeError(f"constants must be (V, {inputs.shape[2]}); got {list(constants.shape)}")
        constants = constants.to(inputs)
        return constants[:1] if only_one else constants
    zero = torch.zeros_like(inputs[0, :1])
    if only_one:
        return zero
    rows = torch.unique(inputs.flatten(0, 1)[:4096], dim=0)
    order = torch.randperm(len(rows), generator=subject.generator())[:3].to(rows.device)
    return torch.cat([zero, rows[order]])


def _starts(subject: Subject, starts: int, spread: float) -> State:
    """Return random states; the first is close to the model's initial one, which may be an unstable fixed point."""
    state = subject.recurrence.initial_state(starts)
    initial = flatten(state)
    noise = spread * torch.randn(initial.shape, generator=subject.generator(), dtype=torch.float64).to(initial)
    return unflatten(torch.cat([initial[:1] + 1e-3 * noise[:1], noise[1:]]), state)


@torch.no_grad()
def _orbits(subject: Subject, points: list[Parameters], x: Tensor, start: State, steps: int, recorded: int) -> Tensor:
    """Return the states after the transient, (V, recorded, starts, N), V over parameters or over inputs."""
    step = OneStep(subject.recurrence)
    starts, size = flatten(start).shape
    values = max(len(points), len(x))
    numbers = starts * size * 16 + sum(p.numel() for p in points[0].values())
    parts = []
    for part in chunks(values, numbers):
        # One parameter vector and one constant input per value, all starts for each.
        count = part.stop - part.start
        parameters = stack_parameters(points[part] if len(points) > 1 else points * count)
        constants = x[part] if len(x) > 1 else x.expand(count, -1)
        inputs = constants[:, None].expand(-1, starts, -1)
        states = [t.expand(count, *t.shape) for t in leaves(start)]
        orbit = []
        for t in range(steps + recorded):
            states = step_all(step, parameters, inputs, states, start)
            if t >= steps:
                orbit.append(torch.stack([flatten(rebuild(start, [s[v] for s in states])) for v in range(count)]))
            done = (part.start + count * (t + 1) / (steps + recorded)) / values
            subject.report(done, f"step {t + 1} of {steps + recorded}")
        parts.append(torch.stack(orbit, 1).cpu())
    return torch.cat(parts)


def find_period(orbit: np.ndarray, longest: int = LONGEST_PERIOD) -> int:
    """Return the least p for which states (steps, N) repeat after p steps; 0 if there is none up to `longest`."""
    size = max(np.abs(orbit).max(), SMALL)
    for period in range(1, min(longest, len(orbit) // 2) + 1):
        if np.abs(orbit[period:] - orbit[:-period]).max() < SAME * size:
            return period
    return 0


def _basins(orbits: Tensor, period: np.ndarray) -> np.ndarray:
    """Return the fraction of starts that end on the same attractor as each, (V, starts). Aperiodic orbits are one."""
    fractions = np.zeros(period.shape)
    for v, (orbits_at_value, periods) in enumerate(zip(orbits, period, strict=True)):
        attractors: list[tuple[int, Tensor]] = []  # period and one cycle of each
        numbers = []
        for orbit, p in zip(orbits_at_value, periods, strict=True):
            numbers.append(1 + _attractor_number(attractors, int(p), orbit) if p else 0)
        fractions[v] = [numbers.count(number) / len(numbers) for number in numbers]
    return fractions


def _attractor_number(attractors: list[tuple[int, Tensor]], period: int, orbit: Tensor) -> int:
    """Return the number of the attractor that this orbit is on, adding a new one. The phase on a cycle is ignored."""
    size = orbit.abs().max().clamp(min=SMALL)
    for number, (known, cycle) in enumerate(attractors):
        if known == period and torch.cdist(orbit[-1:], cycle).min() < 10 * SAME * size * orbit.shape[1] ** 0.5:
            return number
    attractors.append((period, orbit[-period:]))
    return len(attractors) - 1


def _fixed_points(subject: Subject, x: Tensor, ends: Tensor) -> dict[str, np.ndarray]:
    """Search from where orbits ended, and from halfway between: unstable fixed points lie between attractors."""
    last = ends[-1].to(subject.recurrence_inputs)  # (starts, N)
    middle = (last + last.roll(1, 0)) / 2
    result = fixed_points(subject.recurrence, x, torch.cat([last, middle, torch.zeros_like(last[:1])]))
    return arrays(
        fixed_points=result.points,
        eigenvalues=torch.view_as_real(result.eigenvalues),
        stable=result.eigenvalues.abs().amax(-1) < 1,
    )


def _finding(series: dict[str, Any], states: Tensor, over_parameters: bool) -> Finding:
    figures = {
        "attractors": float(max(_count_attractors(row) for row in series["basins"])),
        "periods": float(series["period"].max()),
        "aperiodic": float((series["period"] == 0).mean()),
    }
    if "stable" in series:
        figures["fixed_points"] = float(len(series["stable"]))
        figures["stable_fixed_points"] = float(series["stable"].sum())
    return Finding(
        "attractors",
        _sentence(series, figures, over_parameters),
        "estimated",
        figures=figures,
        series=series,
        labels={"axis": "parameter" if over_parameters else "constant input"},
        assumptions=(
            "the transient is over when orbits are recorded",
            "these starts find the attractors that matter",
        ),
        method=f"{states.shape[2]} starts, {states.shape[1]} steps recorded after the transient, all values at once",
    )


def _count_attractors(fractions: np.ndarray) -> int:
    """Return how many attractors there are, from the fraction of starts that end on the attractor of each start."""
    return round(sum(1 / (fraction * len(fractions)) for fraction in fractions))


def _sentence(series: dict[str, Any], figures: dict[str, float], over_parameters: bool) -> str:
    attractors, longest, aperiodic = figures["attractors"], figures["periods"], figures["aperiodic"]
    if over_parameters:
        seen = sorted({int(p) for p in series["period"].ravel() if p})
        periods = ", ".join(map(str, seen[:6])) or "none"
        chaotic = f", and {100 * aperiodic:.0f} % of the orbits have none" if aperiodic else ""
        return f"Along the path orbits have the periods {periods}{chaotic}."
    if aperiodic == 1:
        return "Under constant inputs no orbit settles: none has a period of up to 32 steps."
    if attractors == 1 and longest == 1:
        return "Under each constant input every start ends in one fixed point: the state keeps nothing of the past."
    if attractors == 1:
        return (
            f"Under each constant input every start ends on one attractor, with a period of up to {longest:.0f}: all "
            "that the state keeps of the past is its phase on the cycle."
        )
    return (
        f"Under a constant input up to {attractors:.0f} attractors were found, with periods of up to {longest:.0f}: "
        "the state can remember which of them it is on."
    )
