"""Where a network ends up: orbits under a constant input, their periods, fixed points, and bifurcations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import Recurrence, State, leaves, rebuild
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.fixed_points import FixedPoints, distinct, fixed_points, near_linear
from mnemoscope.scopes._measures.parameter_batches import (
    OneStep,
    Parameters,
    check_parameters,
    chunks,
    parameters_of,
    stack_parameters,
    step_all,
)
from mnemoscope.scopes._measures.periods import (
    LONGEST_PERIOD,
    SAME,
    SMALL,
    any_approaching,
    find_period,
    rounding_noise,
)
from mnemoscope.scopes._measures.state_vectors import flatten, unflatten

STARTS = 10  # random states; four times as many if they end on different attractors
EXTENSIONS = 3  # times that the transient is doubled while orbits still come nearer to where they end
LINEAR = 0.1  # how far a step may differ from the linear one for a state to belong to a stable fixed point
DIVERGED = 1e8

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
    starts: int | None = None,
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
    Figures: `attractors`, the most different ones found at one value, stable fixed points that no start reached among
    them; `periods`, the largest period; `aperiodic`, the fraction of orbits without one; `diverged`, the fraction that
    leaves all bounds; `fixed_points` and `stable_fixed_points`, how many; `transient`, the steps before recording.

    An orbit has a period if what is left of its approach, at the rate at which it goes on, is less than 1e-4 of its
    size. While orbits still approach, the transient is doubled, three times at most. One that then is still on its way
    belongs to a stable fixed point if its step there is the linear one up to a tenth.

    Args:
        path: s -> parameters by name; "scale" multiplies the recurrent weights by s.
        values: of s; by default 101 from 0 to 2.
        constants: (V, input_size), the constant inputs.
        starts: random states, normal with standard deviation `spread`; the first is near the model's initial one. By
            default 10, and 40 if those end on different attractors.
        steps: of the transient; it is doubled up to three times while orbits still come nearer to where they end.
        recorded: steps that are recorded after it.
        unit: which number of the state vector is shown.
        fixed: look for fixed points.
    """
    if (starts is not None and starts < 1) or steps < 1 or recorded < 2:
        raise MnemoscopeError(
            f"attractors needs starts, steps >= 1 and recorded >= 2; got {starts}, {steps}, {recorded}"
        )
    # One diagram over parameter vectors under one input, or over inputs under the model's own parameters.
    points, axis = _parameter_path(subject, path, values)
    x = _constant_inputs(subject, constants, only_one=path is not None)
    if path is None:
        axis = np.arange(len(x), dtype=float)

    # A few starts, and more if basins differ.
    for count in (STARTS, 4 * STARTS) if starts is None else (starts,):
        start = _starts(subject, count, spread)
        states, transient = _orbits(subject, points, x, start, steps, recorded)  # (V, recorded, starts, N)
        if not 0 <= unit < states.shape[-1]:
            raise MnemoscopeError(f"unit must lie between 0 and {states.shape[-1] - 1}; got {unit}")
        ends = [_Ends(orbits, states.dtype) for orbits in states.transpose(1, 2).double()]  # one per value
        if fixed and path is None:
            for constant, end in zip(x, ends, strict=True):
                end.assign_to_fixed_points(subject.recurrence, constant)
        if max(end.count for end in ends) <= 1:
            break

    series = arrays(
        values=axis,
        orbits=states[..., unit].transpose(1, 2),
        period=np.stack([end.period for end in ends]),
        basins=np.stack([end.basins for end in ends]),
    )
    if ends[0].fixed is not None:
        series |= arrays(
            fixed_points=ends[0].fixed.points,
            eigenvalues=torch.view_as_real(ends[0].fixed.eigenvalues),
            stable=ends[0].fixed.stable,
        )
    return _finding(series, ends, transient, path is not None)


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
def _orbits(
    subject: Subject, points: list[Parameters], x: Tensor, start: State, steps: int, recorded: int
) -> tuple[Tensor, int]:
    """Return the states after the transient, (V, recorded, starts, N), V over parameters or over inputs.

    And the longest transient, which is doubled while orbits still approach.
    """
    step = OneStep(subject.recurrence)
    starts, size = flatten(start).shape
    values = max(len(points), len(x))
    numbers = starts * size * 16 + sum(p.numel() for p in points[0].values())
    parts = []
    longest = steps
    for part in chunks(values, numbers):
        # One parameter vector and one constant input per value, all starts for each.
        count = part.stop - part.start
        parameters = stack_parameters(points[part] if len(points) > 1 else points * count)
        constants = x[part] if len(x) > 1 else x.expand(count, -1)
        inputs = constants[:, None].expand(-1, starts, -1)
        states = [t.expand(count, *t.shape) for t in leaves(start)]

        # Values whose orbits still approach go on, for as many steps as were made so far.
        recordings: list[Tensor] = [torch.empty(0)] * count
        going_on = list(range(count))
        done = 0
        for extension in range(EXTENSIONS + 1):
            orbit = []
            end = max(steps * 2**extension, done) + recorded
            for t in range(done, end):
                states = step_all(step, parameters, inputs, states, start)
                if t >= end - recorded:
                    orbit.append(
                        torch.stack([flatten(rebuild(start, list(each))) for each in zip(*states, strict=True)])
                    )
                subject.report((part.start + count * extension / (EXTENSIONS + 1)) / values, f"step {t + 1}")
            done = end
            longest = max(longest, end - recorded)
            for v, recording in zip(going_on, torch.stack(orbit, 1).cpu(), strict=True):
                recordings[v] = recording
            keep = [i for i, v in enumerate(going_on) if any_approaching(recordings[v])]
            if not keep:
                break
            going_on = [going_on[i] for i in keep]
            states = [s[keep] for s in states]
            parameters = {name: p[keep] for name, p in parameters.items()}
            inputs = inputs[keep]
        parts += recordings
    return torch.stack(parts), longest


class _Ends:
    """Where the orbits of one value end.

    Attributes:
        orbits: (starts, recorded, N).
        period: (starts,), 0 for none.
        fixed: the fixed points, if they were looked for.
        diverged: (starts,), which orbits left all bounds.
    """

    def __init__(self, orbits: Tensor, dtype: torch.dtype) -> None:
        self.orbits = orbits
        self.period = np.array([find_period(orbit, noise=rounding_noise(dtype)) for orbit in orbits.numpy()])
        self.diverged = ~(orbits.abs().flatten(1).amax(1) < DIVERGED).numpy()
        self.fixed: FixedPoints | None = None
        self._attractors: list[tuple[int, Tensor]] = []  # period and one cycle of each
        self._number(np.full(len(orbits), -1))

    def assign_to_fixed_points(self, recurrence: Recurrence, x: Tensor) -> None:
        """Find fixed points, and give orbits that are on their way to a stable one to it.

        Searched from where orbits ended, and from halfway between: unstable fixed points lie between attractors.
        """
        last = self.orbits[:, -1].to(x)  # (starts, N)
        last = distinct(last[last.isfinite().all(1)])
        middle = (last + last.roll(1, 0)) / 2
        zero = x.new_zeros(1, self.orbits.shape[-1])
        self.fixed = fixed_points(recurrence, x, distinct(torch.cat([last, middle, zero])))
        stable = self.fixed.points[self.fixed.stable.to(x.device)]
        self._attractors = [(1, point[None].double().cpu()) for point in stable]
        target = np.full(len(self.orbits), -1)
        on_the_way = np.nonzero((self.period == 0) & ~self.diverged)[0]
        if len(stable) and len(on_the_way):
            nearest, belongs = near_linear(recurrence, x, self.orbits[on_the_way].to(x), stable, LINEAR)
            target[on_the_way[belongs]] = nearest[belongs]
            self.period[on_the_way[belongs]] = 1
        self._number(target)

    def _number(self, target: np.ndarray) -> None:
        """Number the attractor of each start; 0 is for the orbits without one. `target` names known fixed points."""
        self.numbers = []
        for orbit, period, known in zip(self.orbits, self.period, target, strict=True):
            if known >= 0:
                self.numbers.append(1 + int(known))
            elif period:
                self.numbers.append(1 + _attractor_number(self._attractors, int(period), orbit))
            else:
                self.numbers.append(0)

    @property
    def count(self) -> int:
        """How many attractors there are; bounded orbits without a period count as one."""
        wandering = (self.period == 0) & ~self.diverged
        return len(self._attractors) + bool(wandering.any())

    @property
    def basins(self) -> np.ndarray:
        """(starts,): the fraction of starts that end on the same attractor as each."""
        return np.array([self.numbers.count(number) / len(self.numbers) for number in self.numbers])


def _attractor_number(attractors: list[tuple[int, Tensor]], period: int, orbit: Tensor) -> int:
    """Return the number of the attractor that this orbit is on, adding a new one. The phase on a cycle is ignored."""
    size = orbit.abs().max().clamp(min=SMALL)
    for number, (known, cycle) in enumerate(attractors):
        if known == period and torch.cdist(orbit[-1:], cycle).min() < 10 * SAME * size * orbit.shape[1] ** 0.5:
            return number
    attractors.append((period, orbit[-period:]))
    return len(attractors) - 1


def _finding(series: dict[str, Any], ends: list[_Ends], transient: int, over_parameters: bool) -> Finding:
    starts, recorded = ends[0].orbits.shape[:2]
    figures = {
        "attractors": float(max(end.count for end in ends)),
        "periods": float(series["period"].max()),
        "aperiodic": float((series["period"] == 0).mean()),
        "diverged": float(np.mean([end.diverged.mean() for end in ends])),
        "starts": float(starts),
        "transient": float(transient),
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
            f"{starts} starts find the attractors that matter",
            f"what has no period of up to {LONGEST_PERIOD} after {transient} steps has none",
        ),
        method=f"{starts} starts, {recorded} steps recorded after {transient} steps, all values at once",
    )


def _sentence(series: dict[str, Any], figures: dict[str, float], over_parameters: bool) -> str:
    attractors, longest, aperiodic = figures["attractors"], figures["periods"], figures["aperiodic"]
    if over_parameters:
        seen = sorted({int(p) for p in series["period"].ravel() if p})
        periods = ", ".join(map(str, seen[:6])) or "none"
        chaotic = f", and {100 * aperiodic:.0f} % of the orbits have none" if aperiodic else ""
        return f"Along the path orbits have the periods {periods}{chaotic}."
    if figures["diverged"] == 1:
        return "Under constant inputs every orbit leaves all bounds: the state diverges."
    if aperiodic == 1:
        return (
            f"Under constant inputs no orbit settles within {figures['transient']:.0f} steps: none has a period of up "
            f"to {LONGEST_PERIOD} steps."
        )
    if attractors >= figures["starts"] > 1 and longest == 1:
        return (
            f"Under a constant input each of {figures['starts']:.0f} starts ends in a fixed point of its own: the "
            "state can keep a continuous value."
        )
    if attractors == 1 and longest == 1:
        return (
            "Under each constant input every start ends in one fixed point: in the long run the state keeps nothing of "
            "the past."
        )
    if attractors == 1:
        return (
            f"Under each constant input every start ends on one attractor, with a period of up to {longest:.0f}: all "
            "that the state keeps of the past is its phase on the cycle."
        )
    return (
        f"Under a constant input up to {attractors:.0f} attractors were found from {figures['starts']:.0f} starts, "
        f"with periods of up to {longest:.0f}: the state can remember which of them it is on."
    )
