"""Run every scope that applies to a model, cheapest first, and sum up the findings."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from mnemoscope.adapters import Output
from mnemoscope.errors import MnemoscopeError, is_number
from mnemoscope.finding import Examination, Finding, Status
from mnemoscope.scopes._frame.late_progress import LateProgress
from mnemoscope.scopes._frame.scope import SCOPES, Scope, false_certificate, one_line_errors
from mnemoscope.scopes._frame.subject import Loss, OutOfTime, Progress, Subject, subject_of
from mnemoscope.scopes._frame.verdict import verdict
from mnemoscope.wording import counted


def examine(
    model: Any,
    inputs: Any,
    targets: Tensor | None = None,
    loss: Loss | None = None,
    scopes: Iterable[str] | None = None,
    budget: float | None = None,
    *,
    needs: float | None = None,
    batch_first: bool | None = None,
    channels_first: bool | None = None,
    kwargs: Mapping[str, Any] | None = None,
    output: Output | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    options: dict[str, dict[str, Any]] | None = None,
) -> Examination:
    """Examine a model through every scope that applies to it.

    A scope that fails says so in its finding and the others go on. On Ctrl-C the findings made so far are returned,
    marked partial. The model is left as it was: mode, gradients, requires_grad, buffers, attributes and random state.
    It is adapted once; before the first scope it runs twice on the same inputs, to see if it repeats its outputs.

    Args:
        model: whatever `mnemoscope.adapters.adapt` takes: a Recurrence, torch's RNN, LSTM or GRU, an object with a
            step, a Lightning or Hugging Face module, any ``forward(x) -> y``, or a function that makes one.
        inputs: sequences in the layout that the model expects, (time, batch, features), or ids (time, batch): a
            tensor, an array, a list or a packed sequence. One sequence may come without a batch.
        targets: what `loss` compares the outputs with; scopes of the loss need both.
        loss: what the model is trained for, ``loss(outputs, targets) -> a number``. One that does not fit the outputs
            fails those scopes alone.
        scopes: names of the scopes to use; all by default.
        budget: seconds after which no further scope starts, and the running one ends; by default there is no limit.
        needs: how many steps back the task needs; mentioned in the sentences.
        batch_first: True if inputs are (batch, time, ...). By default what the model itself says; if it says nothing,
            False, or True for a model of which only ``forward`` is known.
        channels_first: True if inputs are (batch, features, time). By default what the model's first convolution reads.
        kwargs: what ``forward`` takes beside the inputs; lengths, and a first state that the model's own `init_hidden`
            makes, are filled in.
        output: which part of the model's result is its output: a name, a place or a function; by default the first
            tensor of more than one number.
        progress: called with a scope's name, the fraction of it that is done, and the current figure in words. By
            default there is a line on standard error now and then, once more than 5 seconds have passed.
        options: the options of single scopes, by scope.

    Examples:
        >>> found = mnemoscope.examine(nn.LSTM(3, 16), torch.randn(20, 4, 3), needs=15, scopes=["horizon"])
        >>> print(found.verdict)
        Gradients reach ... steps back...
        >>> horizon = found["horizon"].figures["horizon"]
        >>> path = found.save("examined")
    """
    start = time.monotonic()
    options = options or {}
    _check(options, budget)
    if targets is not None and loss is None:
        raise MnemoscopeError("targets= was given without loss=: pass both, as loss(outputs, targets)")
    chosen = _choose(scopes)
    mode = _changed_mode(model)
    with one_line_errors("examine"):
        subject = subject_of(
            model,
            inputs,
            targets=targets,
            loss=loss,
            needs=needs,
            batch_first=batch_first,
            channels_first=channels_first,
            kwargs=kwargs,
            output=output,
            seed=seed,
            progress=progress or LateProgress(),
            deadline=None if budget is None else start + budget,
        )

    findings: dict[str, Finding] = {}
    partial = False
    try:
        for scope in chosen:
            findings[scope.name] = _measure(scope, subject, options.get(scope.name, {}))
    except KeyboardInterrupt:
        partial = True

    _compare_scopes(findings, subject)
    about = {
        "model": subject.name,
        "inputs": f"{counted(subject.batch, 'sequence')} of {counted(subject.steps, 'step')}",
        "layout": subject.adapted.layout_in_words,
    }
    if mode:
        about["mode"] = mode
    if subject.needs is not None:
        about["needs"] = f"{subject.needs:g}"
    return Examination(findings, verdict(findings, subject), about, partial, time.monotonic() - start)


def _changed_mode(model: Any) -> str:
    """Say that a model in training mode is measured in the other one, if it has layers to which that matters."""
    inside = model.modules() if isinstance(model, nn.Module) else ()
    changed = sorted({type(module).__name__ for module in inside if module.training and _depends_on_mode(module)})
    return f"eval(), though the model is in train(): {', '.join(changed)} as in use" if changed else ""


def _depends_on_mode(module: nn.Module) -> bool:
    if getattr(module, "running_mean", None) is not None:  # it normalizes by the batch in training
        return True
    rate = getattr(module, "p", 0.0) if "Dropout" in type(module).__name__ else getattr(module, "dropout", 0.0)
    return isinstance(rate, float) and rate > 0


def _compare_scopes(findings: dict[str, Finding], subject: Subject) -> None:
    """Fail `stability` if orbits diverge faster than its certified factor allows, by the exponents of `lyapunov`.

    m steps stretch no difference by more than kappa lambda^m, so no exponent exceeds ln lambda + ln kappa / m.
    """
    stability = findings.get("stability")
    lyapunov = findings.get("lyapunov")
    if stability is None or lyapunov is None or "lambda" not in stability.certified:
        return
    factor = stability.figures["lambda"]
    exponent = lyapunov.figures.get("largest", -math.inf)
    if factor < 1e-6:  # exponents are not measured down there
        return
    steps = max(1, subject.steps // 2)  # the first ones may not be counted
    bound = math.log(factor) + math.log(stability.figures["euclidean_constant"]) / steps
    if exponent > bound + 1e-3:
        why = f"the largest Lyapunov exponent is certified to be at most {bound:.6g}, but {exponent:.6g} was measured"
        findings["stability"] = SCOPES["stability"].with_texts(false_certificate("stability", why))


def _choose(names: Iterable[str] | None) -> list[Scope]:
    """Return the scopes of these names, `recurrence` first and then the cheapest first."""
    if names is None:
        names = list(SCOPES)
    elif isinstance(names, str):
        names = [names]
    elif isinstance(names, Iterable):
        names = list(names)
    else:
        raise MnemoscopeError(f"scopes are names, as ['horizon', 'stability']; got {names!r}")
    for name in names:
        if not isinstance(name, str) or name not in SCOPES:
            raise MnemoscopeError(f"there is no scope {name!r}; there are {', '.join(sorted(SCOPES))}")

    def order(scope: Scope) -> tuple[bool, float, str]:
        return scope.name != "recurrence", scope.cost, scope.name  # without a recurrence the others mean little

    return sorted((SCOPES[name] for name in names), key=order)


def _check(options: Any, budget: float | None) -> None:
    if budget is not None and not (is_number(budget) and budget > 0):
        raise MnemoscopeError(f"budget is a positive number of seconds; got {budget!r}")
    if not isinstance(options, Mapping) or not all(isinstance(given, Mapping) for given in options.values()):
        raise MnemoscopeError(f"options are by scope, as {{'horizon': {{'fraction': 0.1}}}}; got {options!r}")
    for name, given in options.items():
        if name not in SCOPES:
            raise MnemoscopeError(f"options are for {name!r}, which is not a scope; there are {', '.join(SCOPES)}")
        SCOPES[name].check_options(given)


def _measure(scope: Scope, subject: Subject, options: dict[str, Any]) -> Finding:
    """Run one scope; if it fails or the time is up, the finding says so."""
    start = time.perf_counter()
    try:
        return scope.measure(subject, **options)
    except OutOfTime:
        status: Status = "skipped"
        why = "the budget of seconds was spent; give more, or name this scope alone"
        sentence = f"{scope.name} was skipped: {why}."
    except MnemoscopeError as error:
        status = "failed"
        why = str(error).removeprefix(f"{scope.name}: ")
        sentence = f"{scope.name} failed: {why}."
    seconds = time.perf_counter() - start
    return scope.with_texts(Finding(scope.name, sentence, status, why, seconds=seconds))
