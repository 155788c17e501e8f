"""Where a network ends up: orbits under a constant input, their periods, fixed points, and bifurcations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError, check_count, is_number
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import Recurrence, State
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.fixed_points import (
    FixedPoints,
    distinct,
    fixed_points,
    is_same_at_all_times,
    near_linear,
)
from mnemoscope.scopes._measures.orbit_starts import (
    as_features,
    constant_inputs,
    first_states,
    numbers_of_starts,
    output_numbers,
    parameters_along,
)
from mnemoscope.scopes._measures.orbits import Orbits, record_orbits
from mnemoscope.scopes._measures.parameter_batches import OneStep
from mnemoscope.scopes._measures.periods import (
    LONGEST_PERIOD,
    SAME,
    SMALL,
    find_period,
    longest_period,
    rounding_noise,
)

LINEAR = 0.1  # how far a step may differ from the linear one for a state to belong to a stable fixed point
DIVERGED = 1e8
ENOUGH_STARTS = 5  # two starts on two attractors do not show that there is one for every start

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
    path: Callable[[float], Mapping[str, Tensor]] | str | None = None,
    values: Sequence[float] | None = None,
    constants: Tensor | None = None,
    start: State | None = None,
    starts: int | None = None,
    steps: int = 300,
    recorded: int = 64,
    unit: int = 0,
    outputs: bool | Sequence[int] = False,
    x_label: str = "",
    spread: float = 1.0,
    fixed: bool = True,
) -> Finding:
    """Record orbits from many starts under a constant input, after the transient (Ribeiro et al. 2019, section 3.1).

    As in their figs 1, 5, 8 and 9. By default one orbit diagram over constant inputs: zero and a few of the given
    sequences. With `path`, one over parameters, under a zero input or under each of `constants`: the parameter vectors
    of all `values` are run at once. The embedding and the read-out move with the rest.

    Series: `values` (V,), the path's parameter, or the number of the input; `orbits` (V, starts, recorded), one unit of
    the state after the transient; `outputs` (V, starts, recorded, K), if asked for; `period` (V, starts), of the whole
    state, 0 if none up to 32, or to half of `recorded`, was found; `basins` (V, starts), the fraction of starts that
    end on the same attractor.
    With a path and several constants, all but `values` have the constants as one more dimension in front. For the
    model's own parameters and the first input, if fixed points were looked for: `fixed_points` (P, N), their
    `eigenvalues` (P, N, 2) as real and imaginary parts, largest first, and `stable` (P,).
    Figures: `attractors`, the most different ones found at one value, stable fixed points that no start reached among
    them; `periods`, the largest period; `aperiodic`, the fraction of orbits without one; `diverged`, the fraction that
    leaves all bounds; `fixed_points` and `stable_fixed_points`, how many; `transient`, the steps before recording.
    Labels: `x` and `y`, titles of the axes.

    An orbit has a period if what is left of its approach, at the rate at which it goes on, is less than 1e-4 of its
    size. While orbits still approach, the transient is doubled, three times at most. One that then is still on its way
    belongs to a stable fixed point if its step there is the linear one up to a tenth.

    Args:
        path: s -> parameters by name, all or some of the model's `state_dict()`; "scale" multiplies the recurrent
            weights by s.
        values: of s; by default 101 from 0 to 2.
        constants: (V, input_size), the constant inputs; or ids (V,), for a model that reads ids.
        start: the state to start from, as the model's `initial_state` gives it, for one sequence or for several. It is
            taken as it is; without `starts` there are no others.
        starts: how many states to start from; those that are not given are random, normal with standard deviation
            `spread`, the first of them near the model's initial one. By default 10, and 40 if those end on different
            attractors.
        steps: of the transient; it is doubled up to three times while orbits still come nearer to where they end.
        recorded: steps that are recorded after it.
        unit: which number of the state vector is shown.
        outputs: record outputs, after the read-out: all of them, or those of these numbers.
        x_label: what the values of the path are.
        fixed: look for fixed points. There are none of a step that counts steps and acts by their number.
    """
    if starts is not None:
        check_count("starts", starts)
    check_count("steps", steps)
    check_count("recorded", recorded, 2)
    check_count("unit", unit, 0)
    if not (is_number(spread) and 0 <= spread < math.inf):
        raise MnemoscopeError(f"spread must be a number of at least 0; got {spread!r}")

    # Pairs of a parameter vector and a constant input: along the path under each input, or the model's own.
    step = OneStep(subject.recurrence, subject.model)
    own, axis = parameters_along(step, path, values)
    constant = constant_inputs(subject, constants, only_zero=path is not None)
    if path is None:
        axis = np.arange(len(constant), dtype=float)
    points = own * len(constant)
    x = constant.repeat_interleave(len(own), 0)
    shown = output_numbers(subject, outputs)

    # A few starts, and more if basins differ.
    fixed = fixed and path is None and _is_same_at_all_times(subject, constant)
    for count in numbers_of_starts(start, starts):
        states = first_states(subject, start, count, spread)
        orbits = record_orbits(subject, step, points, x, states, steps, recorded, shown)
        if unit >= orbits.states.shape[-1]:
            raise MnemoscopeError(f"unit must lie between 0 and {orbits.states.shape[-1] - 1}; got {unit}")
        ends = [_Ends(each, orbits.states.dtype) for each in orbits.states.transpose(1, 2).double()]
        if fixed:
            for each, end in zip(as_features(subject, constant), ends, strict=False):
                end.assign_to_fixed_points(subject.recurrence, each)
        if max(end.count for end in ends) <= 1:
            break

    # By value; with several constants along a path, by constant and value.
    shape = (len(constant), len(axis)) if path is not None and len(constant) > 1 else (len(axis),)
    series = arrays(values=axis) | _series(orbits, ends, shape, unit)
    labels: dict[str, str | list[str]] = {
        "axis": "constant input" if path is None else "parameter",
        "x": x_label or _axis_title(path),
        "y": f"unit {unit} of the state",
    }
    if shown is not None:
        labels["outputs"] = [f"output {number}" for number in shown]
    return _finding(subject, series, ends, orbits.transient, labels)


def _is_same_at_all_times(subject: Subject, constant: Tensor) -> bool:
    features = as_features(subject, constant)
    return not len(features) or is_same_at_all_times(subject.recurrence, features[0], LONGEST_PERIOD)


def _series(orbits: Orbits, ends: list[_Ends], shape: tuple[int, ...], unit: int) -> dict[str, np.ndarray]:
    """Return what was found by value, in this shape, and the fixed points under the first input."""
    series = arrays(
        orbits=orbits.states[..., unit].transpose(1, 2).unflatten(0, shape),
        period=np.stack([end.period for end in ends]).reshape(*shape, -1),
        basins=np.stack([end.basins for end in ends]).reshape(*shape, -1),
    )
    if orbits.outputs is not None:
        series |= arrays(outputs=orbits.outputs.transpose(1, 2).unflatten(0, shape))
    fixed = ends[0].fixed
    if fixed is not None:
        eigenvalues = torch.view_as_real(fixed.eigenvalues)
        series |= arrays(fixed_points=fixed.points, eigenvalues=eigenvalues, stable=fixed.stable)
    return series


def _axis_title(path: Callable[[float], Mapping[str, Tensor]] | str | None) -> str:
    if path is None:
        return "number of the constant input"
    return "factor of the recurrent weights" if isinstance(path, str) else "s, along the path"


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
    def in_step(self) -> bool:
        """True if all orbits are at the same place at the same time."""
        size = self.orbits.abs().max().clamp(min=SMALL)
        return bool((self.orbits - self.orbits[:1]).abs().max() < 10 * SAME * size)

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


def _finding(
    subject: Subject,
    series: dict[str, Any],
    ends: list[_Ends],
    transient: int,
    labels: dict[str, str | list[str]],
) -> Finding:
    over_parameters = labels["axis"] == "parameter"
    starts, recorded = ends[0].orbits.shape[:2]
    figures = {
        "attractors": float(max(end.count for end in ends)),
        "periods": float(series["period"].max()),
        "aperiodic": float((series["period"] == 0).mean()),
        "diverged": float(np.stack([end.diverged for end in ends]).mean()),
        "starts": float(starts),
        "transient": float(transient),
    }
    if "stable" in series:
        figures["fixed_points"] = float(len(series["stable"]))
        figures["stable_fixed_points"] = float(series["stable"].sum())
    return Finding(
        "attractors",
        subject.of_layer(_sentence(series, figures, over_parameters, all(end.in_step for end in ends))),
        "estimated",
        figures=figures,
        series=series,
        labels=labels,
        assumptions=(
            f"{starts} starts find the attractors that matter",
            f"what has no period of up to {longest_period(recorded)} after {transient} steps has none",
        ),
        method=f"{starts} starts, {recorded} steps recorded after {transient} steps, all values at once",
    )


def _sentence(series: dict[str, Any], figures: dict[str, float], over_parameters: bool, in_step: bool = False) -> str:
    attractors, longest, aperiodic = figures["attractors"], figures["periods"], figures["aperiodic"]
    if over_parameters:
        seen = sorted({int(p) for p in series["period"].ravel() if p})
        if not seen:
            return "Along the path no orbit has a period."
        periods = ", ".join(map(str, seen[:6])) + (" and others" if len(seen) > 6 else "")
        chaotic = f", and {100 * aperiodic:.0f} % of the orbits have none" if aperiodic else ""
        word = "period" if len(seen) == 1 else "periods"
        return f"Along the path orbits have the {word} {periods}{chaotic}."
    if figures["diverged"] == 1:
        return "Under constant inputs every orbit leaves all bounds: the state diverges."
    rest = _unsettled(figures)
    if aperiodic == 1:
        sought = longest_period(series["orbits"].shape[-1])
        diverged = f", and {100 * figures['diverged']:.3g} % leave all bounds" if figures["diverged"] else ""
        return (
            f"Under constant inputs no orbit settles within {figures['transient']:.0f} steps: none has a period of up "
            f"to {sought} steps{diverged}."
        )
    if attractors >= figures["starts"] >= ENOUGH_STARTS:
        own = "in a fixed point of its own" if longest == 1 else f"on a cycle of its own, of up to {longest:.0f} steps"
        return (
            f"Under a constant input each of {figures['starts']:.0f} starts ends {own}: the state can keep a "
            f"continuous value{rest and '; over all inputs '}{rest}."
        )
    if attractors >= ENOUGH_STARTS and attractors > figures["starts"] / 2:
        return (
            f"Under a constant input {figures['starts']:.0f} starts end on {attractors:.0f} attractors, with periods "
            f"of up to {longest:.0f}, and more starts would find more: the state can keep a continuous value, or one "
            f"of many{rest and '; over all inputs '}{rest}."
        )
    if attractors > 1:
        return (
            f"Under a constant input up to {attractors:.0f} attractors were found from {figures['starts']:.0f} starts, "
            f"with periods of up to {longest:.0f}: the state can remember which of them it is on"
            f"{rest and '; over all inputs '}{rest}."
        )
    if aperiodic:
        settled = f"{100 * (1 - aperiodic):.3g} % of the orbits settle, with a period of up to {longest:.0f}"
        return f"Under constant inputs {settled}; {rest}."
    if longest == 1:
        return (
            "Under each constant input every start ends in one fixed point: in the long run the state keeps nothing of "
            "the past."
        )
    kept = (
        "in the long run the state keeps nothing of the past but how many steps there were"
        if in_step
        else "all that the state keeps of the past is its phase on the cycle"
    )
    return f"Under each constant input every start ends on one attractor, with a period of up to {longest:.0f}: {kept}."


def _unsettled(figures: dict[str, float]) -> str:
    """Say which orbits come to no cycle: they diverge, or wander within bounds. Empty if all come to one."""
    diverged = figures["diverged"]
    wandering = max(0.0, figures["aperiodic"] - diverged)
    parts = []
    if diverged:
        parts.append(f"{100 * diverged:.3g} % leave all bounds")
    if wandering:
        parts.append(f"{100 * wandering:.3g} % do not settle within {figures['transient']:.0f} steps")
    return " and ".join(parts)
