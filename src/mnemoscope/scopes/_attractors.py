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
    Parameters,
    Step,
    chunks,
    matched,
    parameters,
    stacked,
    step_all,
)
from mnemoscope.scopes._measures.state_vectors import flatten, unflatten

LONGEST_PERIOD = 32
SAME = 1e-4  # states nearer than this, relative to their size, are one
SMALL = 0.01  # and to no less than this: an orbit that dies away has ended in a fixed point

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
    kept: int = 64,
    unit: int = 0,
    spread: float = 1.0,
    fixed: bool = True,
) -> Finding:
    """Orbits from many starts under a constant input, after the transient (Ribeiro et al. 2019, section 3.1, fig. 3).

    By default one orbit diagram over constant inputs: zero and a few of those at hand. With `path` one over
    parameters: for each of `values`, all parameter vectors are run at once.

    Series: `values` (V,), the path's parameter, or the number of the input; `orbits` (V, starts, kept), one unit of the
    state after the transient; `period` (V, starts), 0 where none up to 32 was found; `basins` (V, starts), the share of
    starts that end where this one does. For the model's own parameters and the first input, where fixed points were
    looked for: `fixed_points` (P, N), their `eigenvalues` (P, N, 2) as real and imaginary parts, largest first, and
    `stable` (P,).
    Figures: `attractors`, the most different ones found at one value; `periods`, the largest period; `aperiodic`, the
    share of orbits without one; `fixed_points` and `stable_fixed_points`, how many.

    Args:
        path: s -> parameters by name; "scale" multiplies the recurrent weights by s.
        values: of s; 0 to 2 times by default.
        constants: (V, input_size), the constant inputs.
        starts: random states, normal with standard deviation `spread`; the first lies at the model's own initial one.
        steps: of the transient.
        kept: steps that are kept after it.
        unit: which number of the flat state is shown.
        fixed: whether to look for fixed points.
    """
    if starts < 1 or steps < 1 or kept < 2:
        raise MnemoscopeError(f"attractors needs starts, steps >= 1 and kept >= 2; got {starts}, {steps}, {kept}")
    points, axis = _points(subject, path, values)
    x = _inputs(subject, constants, one=path is not None)
    axis = np.arange(len(x), dtype=float) if path is None else axis
    states = _orbits(subject, points, x, starts, steps, kept, spread)  # (V, kept, starts, N)
    if not 0 <= unit < states.shape[-1]:
        raise MnemoscopeError(f"unit must lie between 0 and {states.shape[-1] - 1}; got {unit}")
    period = np.array([[find_period(orbit) for orbit in value] for value in states.transpose(1, 2).double().numpy()])
    series = arrays(
        values=axis, orbits=states[..., unit].transpose(1, 2), period=period, basins=_basins(states, period)
    )
    if fixed and path is None:
        series |= _fixed(subject, x[0], states[0])
    return _finding(series, states, path is not None)


def _points(
    subject: Subject, path: Callable[[float], dict[str, Tensor]] | str | None, values: Sequence[float] | None
) -> tuple[list[Parameters], np.ndarray]:
    own = parameters(Step(subject.recurrence))
    if path is None:
        return [own], np.zeros(0)
    axis = np.linspace(0, 2, 101) if values is None else np.asarray(values, float)
    if isinstance(path, str):
        if path != "scale":
            raise MnemoscopeError(f"path must be a function of s or 'scale'; got {path!r}")
        return [{name: p * (s if "weight_hh" in name else 1.0) for name, p in own.items()} for s in axis], axis
    return [{**own, **matched(path(float(s)), _named(own, path(float(s))), "path(s)")} for s in axis], axis


def _named(own: Parameters, given: dict[str, Tensor]) -> Parameters:
    unknown = [name for name in given if name not in own]
    if unknown:
        raise MnemoscopeError(f"path(s) gives {unknown[0]}, which the model has not; it has {', '.join(own)}")
    return {name: own[name] for name in given}


def _inputs(subject: Subject, given: Tensor | None, one: bool) -> Tensor:
    if given is not None:
        if given.dim() != 2 or given.shape[1] != subject.recurrence_inputs.shape[2]:
            raise MnemoscopeError(
                f"constants must be (V, {subject.recurrence_inputs.shape[2]}); got {list(given.shape)}"
            )
        return given.to(subject.recurrence_inputs)[:1] if one else given.to(subject.recurrence_inputs)
    zero = torch.zeros_like(subject.recurrence_inputs[0, :1])
    if one:
        return zero
    rows = torch.unique(subject.recurrence_inputs.flatten(0, 1)[:4096], dim=0)
    order = torch.randperm(len(rows), generator=subject.generator())[:3].to(rows.device)
    return torch.cat([zero, rows[order]])


@torch.no_grad()
def _orbits(
    subject: Subject, points: list[Parameters], x: Tensor, starts: int, steps: int, kept: int, spread: float
) -> Tensor:
    """States after the transient: (V, kept, starts, N), V over parameters or over inputs."""
    recurrence, count = subject.recurrence, max(len(points), len(x))
    like = _starts(subject, starts, spread)
    each = starts * flatten(like).shape[1] * 16 + sum(p.numel() for p in points[0].values())
    step, found = Step(recurrence), []
    for part in chunks(count, each):
        size = part.stop - part.start
        here = stacked(points[part]) if len(points) > 1 else stacked(points * size)
        drive = (x[part] if len(x) > 1 else x.expand(size, -1))[:, None].expand(-1, starts, -1)
        states = [t.expand(size, *t.shape) for t in leaves(like)]
        orbit = []
        for t in range(steps + kept):
            states = step_all(step, here, drive, states, like)
            if t >= steps:
                orbit.append(torch.stack([flatten(rebuild(like, [s[v] for s in states])) for v in range(size)]))
            subject.report((part.start + size * (t + 1) / (steps + kept)) / count, f"step {t + 1} of {steps + kept}")
        found.append(torch.stack(orbit, 1).cpu())
    return torch.cat(found)


def _starts(subject: Subject, starts: int, spread: float) -> State:
    """Close to the model's own initial state, which may lie on an unstable fixed point, and normal ones."""
    state = subject.recurrence.initial_state(starts)
    own = flatten(state)
    noise = spread * torch.randn(own.shape, generator=subject.generator(), dtype=torch.float64).to(own)
    return unflatten(torch.cat([own[:1] + 1e-3 * noise[:1], noise[1:]]), state)


def find_period(orbit: np.ndarray, longest: int = LONGEST_PERIOD) -> int:
    """The least p for which states (steps, N) repeat after p steps; 0 where there is none up to `longest`."""
    size = max(np.abs(orbit).max(), SMALL)
    for period in range(1, min(longest, len(orbit) // 2) + 1):
        if np.abs(orbit[period:] - orbit[:-period]).max() < SAME * size:
            return period
    return 0


def _basins(states: Tensor, period: np.ndarray) -> np.ndarray:
    """The share of starts that end on the same attractor as each does: (V, starts). Aperiodic orbits count as one."""
    shares = np.zeros(period.shape)
    for v, (orbits, periods) in enumerate(zip(states.transpose(1, 2).double(), period, strict=True)):
        marks = [0 if p == 0 else None for p in periods]
        named: list[tuple[int, Tensor]] = []
        for k, p in enumerate(periods):
            if p:
                marks[k] = 1 + _which(named, int(p), orbits[k])
        shares[v] = [marks.count(mark) / len(marks) for mark in marks]
    return shares


def _which(named: list[tuple[int, Tensor]], period: int, orbit: Tensor) -> int:
    """The number of the attractor that this orbit is on; a new one is added. Phases along a cycle do not matter."""
    size = orbit.abs().max().clamp(min=SMALL)
    for number, (known, cycle) in enumerate(named):
        if known == period and torch.cdist(orbit[-1:], cycle).min() < 10 * SAME * size * orbit.shape[1] ** 0.5:
            return number
    named.append((period, orbit[-period:]))
    return len(named) - 1


def _fixed(subject: Subject, x: Tensor, ends: Tensor) -> dict[str, np.ndarray]:
    """From where orbits ended, and from around there: unstable fixed points lie between attractors."""
    last = ends[-1].to(subject.recurrence_inputs)  # (starts, N)
    middle = (last + last.roll(1, 0)) / 2
    found = fixed_points(subject.recurrence, x, torch.cat([last, middle, torch.zeros_like(last[:1])]))
    return arrays(
        fixed_points=found.points, eigenvalues=torch.view_as_real(found.eigenvalues),
        stable=found.eigenvalues.abs().amax(-1) < 1,
    )  # fmt: skip


def _finding(series: dict[str, Any], states: Tensor, over_parameters: bool) -> Finding:
    most = max(_count(row) for row in series["basins"])
    aperiodic = float((series["period"] == 0).mean())
    figures = {"attractors": most, "periods": series["period"].max(), "aperiodic": aperiodic}
    if "stable" in series:
        figures |= {"fixed_points": len(series["stable"]), "stable_fixed_points": series["stable"].sum()}
    return Finding(
        "attractors", _sentence(series, figures, over_parameters), "estimated", series=series,
        figures={name: float(value) for name, value in figures.items()},
        labels={"axis": "parameter" if over_parameters else "constant input"},
        assumptions=("the transient is over when the orbits are kept", "these starts find the attractors that matter"),
        method=f"{states.shape[2]} starts, {states.shape[1]} steps kept after the transient, all values at once",
    )  # fmt: skip


def _count(shares: np.ndarray) -> int:
    """How many attractors there are if each start says what share of all starts ends on its own."""
    return round(sum(1 / (share * len(shares)) for share in shares))


def _sentence(series: dict[str, Any], figures: dict[str, float], over_parameters: bool) -> str:
    if over_parameters:
        seen = sorted({int(p) for p in series["period"].ravel() if p})
        periods = ", ".join(map(str, seen[:6])) or "none"
        chaotic = f", and {100 * figures['aperiodic']:.0f} % of the orbits have none" if figures["aperiodic"] else ""
        return f"Along the path orbits have the periods {periods}{chaotic}."
    if figures["aperiodic"] == 1:
        return "Under constant inputs no orbit settles: none has a period of up to 32 steps."
    if figures["attractors"] == 1 and figures["periods"] == 1:
        return "Under each constant input every start ends in one fixed point: the state keeps nothing of the past."
    if figures["attractors"] == 1:
        return (
            "Under each constant input every start ends on one attractor, with a period of up to "
            f"{figures['periods']:.0f}: all that the state keeps of the past is where on it it stands."
        )
    return (
        f"Under a constant input up to {figures['attractors']:.0f} attractors were found, with periods of up to "
        f"{figures['periods']:.0f}: which one is reached is something the state can remember."
    )
