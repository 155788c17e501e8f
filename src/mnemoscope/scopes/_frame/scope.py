"""The frame of a scope: what is done around every measurement, once.

A scope is one file with one decorated function::

    @scope("how far back do gradients reach?", needs="outputs", cost=4)
    def horizon(subject: Subject, *, fraction: float = 0.01) -> Finding:
        ...

which everybody else calls as ``horizon(model, inputs, fraction=0.01)``. The frame makes the subject ready, answers for
models that lack what the scope needs, leaves the model as it was, takes the time, and turns errors into our own.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding
from mnemoscope.scopes._frame.subject import OutOfTime, Subject, subject_of
from mnemoscope.scopes._frame.untouched import untouched

Need = Literal["outputs", "step", "map", "attention", "loss"]
"""What of a model a scope needs: inputs and outputs, a step, a step that is one map of states throughout, attention to
past states, or targets and a loss."""

COMMON = tuple(name for name in inspect.signature(subject_of).parameters if name not in ("model", "inputs"))


@dataclass(frozen=True)
class Scope:
    """A measurement: `measure(model, inputs, **options) -> Finding`.

    `cost` is about how many forward passes over the given sequences it takes: `examine` runs the cheapest first.
    """

    name: str
    question: str
    needs: tuple[Need, ...]
    cost: float
    measure: Callable[..., Finding]
    options: tuple[str, ...] = ()  # keywords of its own


SCOPES: dict[str, Scope] = {}


def scope(
    question: str, *, needs: Need | tuple[Need, ...] = "step", cost: float
) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
    """Register the decorated ``name(subject, *, ...)`` as the scope `name`, callable as ``name(model, inputs, ...)``.

    Beside its own options every scope takes those of `subject_of`: targets, loss, needs, batch_first, seed, progress.
    """
    wanted: tuple[Need, ...] = (needs,) if isinstance(needs, str) else needs

    def register(body: Callable[..., Finding]) -> Callable[..., Finding]:
        name = body.__name__

        @functools.wraps(body)
        def measure(model: Any, inputs: Tensor | None = None, **options: Any) -> Finding:
            own = {key: value for key, value in options.items() if key not in COMMON}
            common = {key: value for key, value in options.items() if key in COMMON}
            _check_options(name, own, SCOPES[name].options)
            return _measured(name, body, wanted, functools.partial(subject_of, model, inputs, **common), own)

        keywords = [p.name for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY]
        measure.__signature__ = _public_signature(body)  # type: ignore[attr-defined]
        SCOPES[name] = Scope(name, question, wanted, cost, measure, tuple(keywords))
        return measure

    return register


def _measured(
    name: str, body: Callable[..., Finding], needs: tuple[Need, ...], make: Callable[[], Subject], own: dict[str, Any]
) -> Finding:
    start = time.perf_counter()
    with our_errors(name):
        subject = make()
        with untouched(subject.model):
            subject.scope = name
            lack = next(filter(None, map(subject.lacks, needs)), "")
            if lack:
                return Finding(name, f"{name} does not apply: {lack}.", "not applicable", why=lack)
            subject.begin(SCOPES[name].cost)
            finding = body(subject, **own)
            subject.report(1.0)
    return replace(finding, seconds=time.perf_counter() - start)


@contextmanager
def our_errors(name: str) -> Iterator[None]:
    """Turn whatever a model or torch raises into one line of our own that says what to do."""
    try:
        yield
    except (MnemoscopeError, OutOfTime):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "memory" in reason.lower():
            hint = "there is not enough memory: give fewer or shorter sequences"
        else:
            hint = f"{type(error).__name__}: {reason}; does the model run on these inputs?"
        raise MnemoscopeError(f"{name}: {hint}") from error


def _check_options(name: str, own: dict[str, Any], allowed: tuple[str, ...]) -> None:
    for key in own:
        if key not in allowed:
            raise MnemoscopeError(f"{name} has no option {key!r}; it takes {', '.join((*allowed, *COMMON))}")


def _public_signature(body: Callable[..., Finding]) -> inspect.Signature:
    """(model, inputs, *, own options, common options) -> Finding."""
    own = [p for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY]
    common = list(inspect.signature(subject_of).parameters.values())
    taken = {p.name for p in own}
    parameters = [*common[:2], *own, *(p for p in common[2:] if p.name not in taken)]
    return inspect.Signature(parameters, return_annotation=Finding)
