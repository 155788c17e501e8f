"""The decorator that makes a function a scope, and what happens around every measurement.

A scope is one file with one decorated function::

    @scope("How far back do gradients and outputs reach?", needs="outputs", cost=6)
    def horizon(subject: Subject, *, fraction: float = 0.01) -> Finding:
        ...

Users call it as ``horizon(model, inputs, fraction=0.01)``. The frame adapts the model, returns "not applicable" for
models that lack what the scope needs, restores the model afterwards, measures the time, and turns every exception into
a one-line `MnemoscopeError`.
"""

from __future__ import annotations

import functools
import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError, did_you_mean, first_line, type_and_line
from mnemoscope.finding import Finding
from mnemoscope.scopes._frame.subject import BoundExceeded, OutOfTime, Subject, subject_of
from mnemoscope.scopes._frame.untouched import untouched
from mnemoscope.wording import counted

Need = Literal["outputs", "deterministic", "apart", "step", "map", "attention", "loss"]
"""What a scope needs of a model: inputs and outputs, no random numbers, sequences that do not depend on each other, a
step, a step that is the same map of states at every time, attention to past states, or targets and a loss."""

MIXING = ("runs over the batch", "mixes sequences")
"""Kinds of model, found by `recurrence`, in which the sequences of a batch depend on each other."""

COMMON = tuple(name for name in inspect.signature(subject_of).parameters if name not in ("model", "inputs"))
"""Options that every scope takes, beside its own."""


@dataclass(frozen=True)
class Scope:
    """A registered measurement.

    Attributes:
        name: of the function.
        question: that it answers, a full sentence.
        needs: what of a model it needs.
        cost: about how many forward passes over the given sequences it takes; `examine` runs the cheapest first.
        measure: ``measure(model, inputs, **options) -> Finding``.
        options: keywords of its own.
        title: its heading in a report.
        help: paragraphs on how to read its charts.
    """

    name: str
    question: str
    needs: tuple[Need, ...]
    cost: float
    measure: Callable[..., Finding]
    options: tuple[str, ...] = ()
    title: str = ""
    help: tuple[str, ...] = ()

    def check_options(self, names: Iterable[str], others: tuple[str, ...] = ()) -> None:
        """Raise if an option is neither one of the scope's own nor among `others`."""
        allowed = (*self.options, *others)
        for name in names:
            if name not in allowed:
                hint = did_you_mean(str(name), allowed) or f"; it takes {', '.join(allowed) or 'none'}"
                raise MnemoscopeError(f"{self.name} has no option {name!r}{hint}")

    def with_texts(self, finding: Finding) -> Finding:
        """Return the finding with the name, title, question and help of this scope."""
        return replace(finding, scope=self.name, title=self.title, question=self.question, help=self.help)


SCOPES: dict[str, Scope] = {}

_TORCH_WARNINGS = (
    "There is a performance drop because",  # vmap's, of a cell
    "`torch.jit.script` is deprecated",  # forward mode's, in torch
)


def scope(
    question: str,
    *,
    title: str = "",
    help: str = "",
    needs: Need | tuple[Need, ...] = "step",
    cost: float,
) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
    """Register the decorated ``name(subject, *, ...)`` as the scope `name`, callable as ``name(model, inputs, ...)``.

    Every scope also takes the options of `subject_of`: targets, loss, needs, batch_first, seed, progress.

    Args:
        question: what the scope answers, a full sentence.
        title: its heading in a report; by default its name.
        help: how to read its charts; paragraphs are separated by blank lines.
        needs: what of a model it needs; for other models the finding is "not applicable".
        cost: about how many forward passes it takes.
    """
    all_needs: tuple[Need, ...] = (needs,) if isinstance(needs, str) else needs

    def register(body: Callable[..., Finding]) -> Callable[..., Finding]:
        name = body.__name__

        @functools.wraps(body)
        def measure(model: Any, inputs: Tensor | None = None, **options: Any) -> Finding:
            start = time.perf_counter()
            own, common = _split_options(name, options)
            with one_line_errors(name), warnings.catch_warnings():
                for message in _TORCH_WARNINGS:
                    warnings.filterwarnings("ignore", message=message)
                subject = subject_of(model, inputs, **common)
                with untouched(subject.model):
                    finding = _measure(SCOPES[name], body, subject, own)
            return replace(SCOPES[name].with_texts(finding), seconds=time.perf_counter() - start)

        keywords = [p.name for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY]
        measure.__signature__ = _public_signature(body)  # type: ignore[attr-defined]
        SCOPES[name] = Scope(
            name=name,
            question=question,
            needs=all_needs,
            cost=cost,
            measure=measure,
            options=tuple(keywords),
            title=title or name.replace("_", " ").capitalize(),
            help=_paragraphs(help),
        )
        return measure

    return register


def _measure(scope: Scope, body: Callable[..., Finding], subject: Subject, options: dict[str, Any]) -> Finding:
    for need in scope.needs:
        reason = mixed_sequences(subject) if need == "apart" else subject.missing(need)
        if need == "loss" and subject.loss_problem:
            raise MnemoscopeError(reason)
        if reason:
            return not_applicable(scope.name, reason)
    subject.scope = scope.name
    subject.check_time_for(scope.cost)
    try:
        finding = body(subject, **options)
    except BoundExceeded as error:
        return false_certificate(scope.name, str(error))
    subject.report(1.0)
    return _with_steps(scope, subject, _with_remedy(scope, subject, finding)) if finding.has_result else finding


def mixed_sequences(subject: Subject) -> str:
    """Return why sequences cannot be looked at side by side, by what `recurrence` finds; empty if they can.

    One sequence is looked at beside a copy of itself, as the scopes do that run copies.
    """
    if subject.kind is None:
        several = subject
        if subject.batch == 1:
            twice = torch.cat([subject.features] * 2, 1)
            several = replace(subject, adapted=replace(subject.adapted, features=twice))
        with suppress(MnemoscopeError):  # what cannot be found out here fails in the scope itself, in its own words
            SCOPES["recurrence"].measure(several)
        subject.kind = several.kind or ""
    if subject.kind not in MIXING:
        return ""
    return f"{subject.name} {subject.kind}: what is seen of one sequence is partly that of others"


def _with_remedy(scope: Scope, subject: Subject, finding: Finding) -> Finding:
    """Return the finding of a model that does not repeat its outputs, with what was done about it."""
    remedy = subject.repetition.remedy
    if not remedy or not scope.needs:  # `recurrence` says it itself
        return finding
    if {"step", "map", "attention"} & set(scope.needs):
        alone = f"the model {subject.repetition.kind}; its recurrent layer was run alone, from its own start"
        return replace(finding, assumptions=(*finding.assumptions, alone))
    sentence = f"{finding.sentence.removesuffix('.')}; {remedy}."
    return replace(finding, sentence=sentence, assumptions=(*finding.assumptions, remedy))


def _with_steps(scope: Scope, subject: Subject, finding: Finding) -> Finding:
    """Return the finding of a layer that makes another number of steps than the model reads, and says so."""
    if not {"step", "map", "attention"} & set(scope.needs) or len(subject.recurrence_inputs) == subject.steps:
        return finding
    counts = f"{len(subject.recurrence_inputs)} where the model reads {counted(subject.steps, 'step')}"
    sentence = f"{finding.sentence.removesuffix('.')}; in steps of its recurrent layer, {counts}."
    return replace(finding, sentence=sentence)


def not_applicable(name: str, why: str) -> Finding:
    """Return the finding of a scope that has nothing to measure in a model."""
    return Finding(name, f"{name} does not apply: {why}.", "not applicable", why=why)


def false_certificate(name: str, why: str) -> Finding:
    """Return the finding of a scope whose certified bound a measurement has exceeded."""
    return Finding(
        name,
        f"{name} failed: {why}. This is an error in mnemoscope: please report it with the model.",
        "failed",
        why=why,
        warnings=(f"the certificate of {name} is wrong: please report it, and trust none of its bounds",),
    )


def _paragraphs(text: str) -> tuple[str, ...]:
    """Split a text at blank lines and undo its line breaks."""
    parts = (" ".join(part.split()) for part in text.split("\n\n"))
    return tuple(part for part in parts if part)


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Turn whatever a model or torch raises into a `MnemoscopeError` of one line that says what to do."""
    try:
        yield
    except (MnemoscopeError, OutOfTime, BoundExceeded):
        raise
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "memory" in first_line(error).lower():
            hint = "there is not enough memory: give fewer or shorter sequences"
        else:
            hint = f"{type_and_line(error)}; {_what_to_do(error)}"
        raise MnemoscopeError(f"{name}: {hint}") from error


def _what_to_do(error: Exception) -> str:
    if "setup_context" in str(error):  # torch.func, which differentiates twice and by parameters, asks for it
        return "give the model's torch.autograd.Function a setup_context beside its forward"
    return "check that the model runs on these inputs"


def _split_options(name: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scope's own options and the common ones; an unknown option is an error."""
    SCOPES[name].check_options(options, COMMON)
    own = {key: value for key, value in options.items() if key not in COMMON}
    common = {key: value for key, value in options.items() if key in COMMON}
    return own, common


def _public_signature(body: Callable[..., Finding]) -> inspect.Signature:
    """Return the signature (model, inputs, *, own options, common options) -> Finding."""
    model, inputs, *common = inspect.signature(subject_of).parameters.values()
    own = [p for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY]
    own_names = {p.name for p in own}
    others = [p for p in common if p.name not in own_names]
    return inspect.Signature([model, inputs, *own, *others], return_annotation=Finding)
