"""What orbits are run from: parameters along a path, constant inputs, and states to start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mnemoscope.adapters import WithReadout
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import State, describe, leaves
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.parameter_batches import OneStep, Parameters
from mnemoscope.scopes._measures.state_vectors import flatten, unflatten

STARTS = 10  # random states; four times as many if they end on different attractors


def parameters_along(
    step: OneStep, path: Callable[[float], Mapping[str, Tensor]] | str | None, values: Sequence[float] | None
) -> tuple[list[Parameters], np.ndarray]:
    """Return the parameter vectors along the path and its values; without a path the model's own, and no values."""
    if path is None:
        return [step.own], np.zeros(0)
    axis = np.linspace(0, 2, 101) if values is None else np.asarray(values, float)
    if callable(path):
        return [step.changed_point(path(float(s)), "path(s)") for s in axis], axis
    if path != "scale":
        raise MnemoscopeError(f"path must be a function of s or 'scale'; got {path!r}")
    if not any("weight_hh" in name for name in step.own):
        names = ", ".join(step.own) or "no parameters"
        raise MnemoscopeError(f"path='scale' multiplies weight_hh, and the model has {names}: give a function of s")
    if any("weight_hh" in name and "parametrizations" in name.split(".") for name in step.own):
        raise MnemoscopeError("path='scale' multiplies weight_hh, which is parametrized here: give a function of s")
    points = [{name: p * (s if "weight_hh" in name else 1.0) for name, p in step.own.items()} for s in axis]
    return points, axis


def constant_inputs(subject: Subject, constants: Tensor | None, only_zero: bool) -> Tensor:
    """Return the constant inputs (V, d) or ids (V,): the given ones, or zero and three of the sequences' own."""
    inputs = subject.recurrence_inputs
    if constants is not None and not constants.is_floating_point():
        if subject.adapted.ids is None or not subject.adapted.recurrence_is_model or constants.dim() != 1:
            raise MnemoscopeError(
                f"constants must be (V, {inputs.shape[2]}), or ids (V,) for a model whose step reads ids; "
                f"got {constants.dtype} {list(constants.shape)}"
            )
        return constants.to(inputs.device)
    if constants is not None:
        if constants.dim() != 2 or constants.shape[1] != inputs.shape[2]:
            raise MnemoscopeError(f"constants must be (V, {inputs.shape[2]}); got {list(constants.shape)}")
        return constants.to(inputs)
    zero = torch.zeros_like(inputs[0, :1])
    if only_zero:
        return zero
    rows = torch.unique(inputs.flatten(0, 1)[:4096], dim=0)
    order = torch.randperm(len(rows), generator=subject.generator())[:3].to(rows.device)
    return torch.cat([zero, rows[order]])


def as_features(subject: Subject, constants: Tensor) -> Tensor:
    """Return constant inputs as the recurrent layer reads them; none of ids that a step looks up by itself."""
    if constants.is_floating_point():
        return constants
    if isinstance(subject.recurrence, WithReadout):
        return subject.recurrence.model.embed(constants).detach()
    return constants.new_empty(0)


def output_numbers(subject: Subject, outputs: bool | Sequence[int]) -> list[int] | None:
    """Return the numbers of the outputs to record; None for none."""
    if outputs is False:
        return None
    with torch.no_grad():
        size = subject.recurrence(subject.recurrence_inputs[:1, :1])[0].shape[-1]
    numbers = list(range(size)) if outputs is True else [int(number) for number in outputs]
    if not numbers or not all(0 <= number < size for number in numbers):
        raise MnemoscopeError(f"outputs must lie between 0 and {size - 1}; got {list(numbers)}")
    return numbers


def numbers_of_starts(start: State | None, starts: int | None) -> tuple[int, ...]:
    """Return how many starts to try, one number after the other until all end alike."""
    if start is None:
        return (STARTS, 4 * STARTS) if starts is None else (starts,)
    given = leaves(start)[0].shape[1]
    if starts is not None and starts < given:
        raise MnemoscopeError(f"starts = {starts} is fewer than the {given} states in start")
    return (starts or given,)


def first_states(subject: Subject, given: State | None, starts: int, spread: float) -> State:
    """Return the states to start from: the given ones, then random ones.

    Without a given one, the first is close to the model's initial state, which may be an unstable fixed point.
    """
    state = subject.recurrence.initial_state(starts)
    initial = flatten(state)
    noise = spread * torch.randn(initial.shape, generator=subject.generator(), dtype=torch.float64).to(initial)
    first = initial[:1] + 1e-3 * noise[:1]
    if given is not None:
        shapes, wanted = ([(t.shape[0], *t.shape[2:]) for t in leaves(each)] for each in (given, state))
        if shapes != wanted:
            raise MnemoscopeError(f"start must be a state of the model, {describe(state)}; got {describe(given)}")
        first = flatten(given).to(initial)
    return unflatten(torch.cat([first, noise[len(first) :]]), state)
