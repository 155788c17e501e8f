"""Follow a model's memory while it is trained: one line in a training loop, or a callback of Lightning's Trainer."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from mnemoscope.adapters import Layout, Output, adapt
from mnemoscope.errors import MnemoscopeError, check_count, is_number
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import mixed_sequences, one_line_errors
from mnemoscope.scopes._frame.subject import Subject, subject_of
from mnemoscope.scopes._frame.untouched import untouched
from mnemoscope.scopes._measures import decay
from mnemoscope.scopes._measures.gradients import by_inputs
from mnemoscope.scopes._measures.horizon_samples import where_it_ends
from mnemoscope.scopes._measures.state_vectors import jacobians, spectral_norms
from mnemoscope.wording import counted


class Watch:
    """Measures the horizon and lambda every `every` updates; the model and the random state are left as they are.

    ::

        watch = Watch(model, inputs, every=100)
        for batch in data:
            ...
            optimizer.step()
            watch()

    A look takes one forward and one backward pass over a few sequences. A look that fails, for instance because
    training has diverged, is recorded as NaN and never stops the training.

    Args:
        model: as for `mnemoscope.examine`, as are `inputs`, `batch_first`, `channels_first`, `kwargs` and `output`.
        inputs: sequences to look at, in the layout that the model expects.
        every: updates between two looks.
        sequences: how many of the given ones are used.
        fraction: of the largest gradient by an earlier input, under which a gradient counts as gone.
        batch_first: True if inputs are (batch, time, ...).
        channels_first: True if inputs are (batch, features, time).
        kwargs: what ``forward`` takes beside the inputs.
        output: which part of the model's result is its output.
        log: called at every look with its figures, e.g. ``wandb.log``.

    Attributes:
        history: the figures of every look, by name: `update`, `horizon` (the last lag with at least `fraction` of the
            largest gradient by an earlier input), `rate` (of the gradient per step), `lambda` (the median spectral norm
            of the one-step Jacobian at the last state; NaN without a step).

    Examples:
        >>> from mnemoscope.scopes import Watch
        >>> watch = Watch(nn.RNN(3, 16), torch.randn(20, 4, 3), every=2)
        >>> for update in range(4):
        ...     looked = watch()
        >>> [look["update"] for look in watch.history]
        [2.0, 4.0]
    """

    def __init__(
        self,
        model: Any,
        inputs: Tensor,
        every: int = 100,
        *,
        sequences: int = 4,
        fraction: float = 0.01,
        batch_first: bool | None = None,
        channels_first: bool | None = None,
        kwargs: Mapping[str, Any] | None = None,
        output: Output | None = None,
        log: Callable[[dict[str, float]], Any] | None = None,
    ) -> None:
        check_count("every", every)
        check_count("sequences", sequences)
        if not (is_number(fraction) and 0 < fraction < 1):
            raise MnemoscopeError(f"fraction must lie between 0 and 1; got {fraction!r}")
        self.model = model
        self.every = every
        self.fraction = fraction
        self.log = log
        options: dict[str, Any] = {"channels_first": channels_first, "kwargs": kwargs, "output": output}
        with one_line_errors("watch"), untouched(model):
            layout = adapt(model, inputs, batch_first, **options).layout  # raises if inputs do not fit the model
        if layout not in (Layout.CHANNELS_FIRST, Layout.UNBATCHED):
            batch_first = layout is Layout.BATCH_FIRST

        # A few sequences, and what `kwargs` has for them.
        if isinstance(inputs, Tensor) and layout is not Layout.UNBATCHED:
            axis = layout.batch_axis
            given = inputs.shape[axis]
            inputs = inputs.narrow(axis, 0, min(sequences, given))
            options["kwargs"] = _first_rows(kwargs, given, sequences)
        self.inputs = inputs
        self._adapt = functools.partial(adapt, model, inputs, batch_first, **options)
        with one_line_errors("watch"), untouched(model):
            mixed = mixed_sequences(subject_of(model, inputs, batch_first=batch_first, **options))
        if mixed:
            raise MnemoscopeError(f"watch does not apply: {mixed}")
        self.updates = 0
        self.history: list[dict[str, float]] = []

    def __call__(self) -> dict[str, float] | None:
        """Count an update, and look if it is time to."""
        self.updates += 1
        return self.look() if self.updates % self.every == 0 else None

    def look(self) -> dict[str, float]:
        """Look now."""
        figures = {"update": float(self.updates), "horizon": math.nan, "rate": math.nan, "lambda": math.nan}
        try:
            with one_line_errors("watch"), untouched(self.model):
                # Adapted anew: embedded inputs and parametrized weights change with the parameters.
                subject = Subject(self.model, self._adapt())
                figures |= self._measure(subject)
        except MnemoscopeError:
            pass
        self.history.append(figures)
        if self.log is not None:
            self.log(figures)
        return figures

    def _measure(self, subject: Subject) -> dict[str, float]:
        norms = by_inputs(subject)
        figures = {
            "horizon": where_it_ends(norms, self.fraction, subject.dtype)["horizon"],
            "rate": decay.fit(decay.typical(norms.frobenius), subject.dtype).rate,
        }
        if not subject.missing("step"):
            figures["lambda"] = _contraction(subject)
        return figures

    def finding(self) -> Finding:
        """Return what was seen so far: series over looks `update`, `horizon`, `rate` and `lambda`."""
        title = "Memory while training"
        if not self.history:
            why = f"there was no look yet: the first is after {counted(self.every, 'update')}"
            return Finding("watch", f"Nothing was measured: {why}.", "not applicable", why, title=title)
        last = self.history[-1]
        updates = "each update" if self.every == 1 else f"every {self.every} updates"
        return Finding(
            "watch",
            _sentence(self.history),
            "estimated",
            figures={"horizon": last["horizon"], "lambda": last["lambda"]},
            series=arrays(**{name: [look[name] for look in self.history] for name in last}),
            method=f"a look at a few sequences after {updates}",
            title=title,
            question="How does the memory change while the model is trained?",
        )


def _sentence(history: list[dict[str, float]]) -> str:
    """Say how the figures went, from the first look that has them to the last; a failed look has none."""
    seen = [look for look in history if not math.isnan(look["horizon"])]
    if not seen:
        return "No look could measure the horizon."
    first, last = seen[0], seen[-1]
    failed = "" if last is history[-1] else f"; later looks failed, the last at update {history[-1]['update']:.0f}"
    if first is last:
        factor = "" if math.isnan(last["lambda"]) else f", lambda is {last['lambda']:.3g}"
        reach = f"the horizon of gradients is {counted(last['horizon'], 'step')}"
        return f"At update {last['update']:.0f} {reach}{factor}{failed}."
    changes = f"the horizon of gradients went from {first['horizon']:.0f} to {last['horizon']:.0f} steps"
    if not math.isnan(first["lambda"] + last["lambda"]):
        changes += f", lambda from {first['lambda']:.3g} to {last['lambda']:.3g}"
    return f"From update {first['update']:.0f} to {last['update']:.0f} {changes}{failed}."


def _first_rows(value: Any, batch: int, count: int) -> Any:
    """Return what belongs to the first sequences of arguments that have a row, or a column, for each of `batch`."""
    if isinstance(value, Mapping):
        return {name: _first_rows(part, batch, count) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_first_rows(part, batch, count) for part in value)
    if not isinstance(value, Tensor):
        return value
    axis = next((axis for axis in range(min(2, value.dim())) if value.shape[axis] == batch), None)
    return value if axis is None else value.narrow(axis, 0, min(count, batch))


def _contraction(subject: Subject) -> float:
    """Return the median spectral norm of the one-step Jacobian at the last state."""
    x = subject.recurrence_inputs
    with torch.no_grad():
        state = subject.recurrence(x)[1]
    matrices = jacobians(subject.recurrence, x[-1], state)
    return float(spectral_norms(matrices.double()).median())


def lightning_callback(inputs: Tensor, every: int = 100, *, prefix: str = "memory/", **options: Any) -> Any:
    """Return a callback for Lightning's Trainer that logs `horizon`, `rate` and `lambda` every `every` updates.

    ``Trainer(callbacks=[lightning_callback(inputs, every=100)])``. The options are those of `Watch`; inputs are what
    the module's forward takes. The callback's `watch` holds the history.
    """
    return _callback_class()(inputs, every, prefix, options)


def _lightning() -> Any:
    """Import Lightning by either of its names."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(ImportError):
            return importlib.import_module(name)
    raise MnemoscopeError("the callback needs Lightning: pip install lightning")


def _callback_class() -> Any:
    Callback = _lightning().Callback

    class MemoryCallback(Callback):  # type: ignore[misc, valid-type]
        def __init__(self, inputs: Tensor, every: int, prefix: str, options: dict[str, Any]) -> None:
            self.inputs = inputs
            self.every = every
            self.prefix = prefix
            self.options = options
            self.watch: Watch | None = None

        def __reduce__(self) -> Any:
            # For ddp_spawn: the class is made anew in the other process, and the watch starts there.
            make = functools.partial(lightning_callback, prefix=self.prefix, **self.options)
            return make, (self.inputs, self.every)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.watch = Watch(pl_module, self.inputs.to(pl_module.device), self.every, **self.options)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            assert self.watch is not None  # training has started
            figures = self.watch()
            if figures is not None:
                pl_module.log_dict({f"{self.prefix}{name}": figures[name] for name in ("horizon", "rate", "lambda")})

    return MemoryCallback
