"""Every scope that applies to a model, cheapest first, and what it comes to."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Examination, Finding
from mnemoscope.scopes._frame.scope import SCOPES, Scope, one_line_errors
from mnemoscope.scopes._frame.subject import Loss, OutOfTime, Progress, Subject, subject_of
from mnemoscope.scopes._frame.untouched import untouched
from mnemoscope.scopes._frame.verdict import verdict


def examine(
    model: Any,
    inputs: Tensor,
    targets: Tensor | None = None,
    loss: Loss | None = None,
    scopes: Iterable[str] | None = None,
    budget: float | None = None,
    *,
    needs: float | None = None,
    batch_first: bool | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    options: dict[str, dict[str, Any]] | None = None,
) -> Examination:
    """Look at a model through every scope that applies to it.

    A scope that fails says so in its finding and the others go on; on Ctrl-C the findings made so far are returned,
    marked partial. The model is left as it was: mode, gradients, requires_grad, buffers and random state.

    Args:
        model: whatever `mnemoscope.adapters.adapt` takes: a Recurrence, torch's RNN, LSTM or GRU, an object with a
            step, a Lightning or Hugging Face module, any ``forward(x) -> y``, or a function that makes one.
        inputs: sequences in the layout that the model expects, (time, batch, features), or ids (time, batch).
        targets, loss: what it is taught, as ``loss(outputs, targets)``; scopes of the loss need both.
        scopes: names of the scopes to use; all by default.
        budget: seconds after which no further scope begins, and the running one ends.
        needs: how many steps back the task needs; said in the sentences.
        batch_first: whether inputs are (batch, time, ...), where the model does not say so itself; by default they are
            not, but for a model of which only ``forward`` is known.
        progress: called with a scope's name, the share of it that is done, and the current figure in words.
        options: a scope's own options, by its name.
    """
    start = time.monotonic()
    chosen, options = _choose(scopes), _check_options(options or {}, budget)
    deadline = None if budget is None else start + budget
    with one_line_errors("examine"):
        subject = subject_of(
            model, inputs, targets=targets, loss=loss, needs=needs, batch_first=batch_first, seed=seed,
            progress=progress, deadline=deadline,
        )  # fmt: skip
        subject.pace = _pace(subject)
    findings: dict[str, Finding] = {}
    partial = False
    try:
        for scope in chosen:
            findings[scope.name] = _one(scope, subject, options.get(scope.name, {}))
    except KeyboardInterrupt:
        partial = True
    about = {"model": subject.name, "inputs": f"{subject.batch} sequences of {subject.steps} steps"}
    if subject.needs is not None:
        about["needs"] = f"{subject.needs:g}"
    return Examination(findings, verdict(findings, subject), about, partial, time.monotonic() - start)


def _choose(names: Iterable[str] | None) -> list[Scope]:
    chosen = list(SCOPES) if names is None else [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in SCOPES:
            raise MnemoscopeError(f"there is no scope {name!r}; there are {', '.join(sorted(SCOPES))}")
    first = "recurrence"  # without any, the others mean little
    return sorted((SCOPES[name] for name in chosen), key=lambda scope: (scope.name != first, scope.cost, scope.name))


def _check_options(options: dict[str, dict[str, Any]], budget: float | None) -> dict[str, dict[str, Any]]:
    if budget is not None and not budget > 0:
        raise MnemoscopeError(f"budget is a positive number of seconds; got {budget!r}")
    for name in options:
        if name not in SCOPES:
            raise MnemoscopeError(f"options are given for {name!r}, which is no scope; there are {', '.join(SCOPES)}")
    return options


def _pace(subject: Subject) -> float:
    """Seconds of one forward pass; a model that does not run on its inputs is found out here, before any scope."""
    start = time.perf_counter()
    with untouched(subject.model), torch.no_grad():
        subject.run(subject.features)
    return time.perf_counter() - start


def _one(scope: Scope, subject: Subject, options: dict[str, Any]) -> Finding:
    start = time.perf_counter()
    try:
        return scope.measure(subject, **options)
    except OutOfTime:
        why = "the budget of seconds was spent; give more, or name this scope alone"
        finding = Finding(scope.name, f"{scope.name} was skipped: {why}.", "skipped", why, seconds=_since(start))
    except MnemoscopeError as error:
        finding = Finding(scope.name, f"{scope.name} failed: {error}.", "failed", str(error), seconds=_since(start))
    return scope.with_texts(finding)


def _since(start: float) -> float:
    return time.perf_counter() - start
