"""Follow a model's memory while it is trained: a line in your own loop, or a callback of Lightning's Trainer."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from mnemoscope.adapters import adapt
from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import one_line_errors
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._frame.untouched import untouched
from mnemoscope.scopes._measures import decay
from mnemoscope.scopes._measures.gradients import by_inputs
from mnemoscope.scopes._measures.state_vectors import jacobians, spectral_norms


class Watch:
    """Looks at the horizon and at lambda every so many updates; the model and the random state stay as they are.

    ::

        watch = Watch(model, inputs, every=100)
        for batch in data:
            ...
            optimizer.step()
            watch()

    A look takes one pass forward and one back over a few sequences. One that fails, say because training has diverged,
    is noted as NaN and never stops the training.

    Args:
        model, inputs, batch_first: as for `mnemoscope.examine`.
        every: updates between two looks.
        sequences: how many of the given ones are looked at.
        fraction: of the size at lag 0, under which a gradient counts as gone.
        log: called at every look with its figures, e.g. ``wandb.log``.

    Attributes:
        history: the figures of every look: `update`, `horizon` (the last lag with at least `fraction` of the gradient
            at lag 0), `rate` (of the gradient, a step), `lambda` (the median spectral norm of the one-step Jacobian at
            the last state; NaN without a step).
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
        log: Callable[[dict[str, float]], Any] | None = None,
    ) -> None:
        if every < 1 or sequences < 1 or not 0 < fraction < 1:
            raise MnemoscopeError(
                f"Watch needs every >= 1, sequences >= 1 and 0 < fraction < 1; got {every}, {sequences}, {fraction}"
            )
        self.model, self.every, self.fraction, self.log = model, every, fraction, log
        with one_line_errors("watch"), untouched(model):
            layout = adapt(model, inputs, batch_first).batch_first  # also tells at once of inputs that do not fit
        self.inputs = inputs[:sequences] if layout else inputs[:, :sequences]
        self.batch_first, self.updates = layout, 0
        self.history: list[dict[str, float]] = []

    def __call__(self) -> dict[str, float] | None:
        """Count an update, and look if it is time to."""
        self.updates += 1
        return self.look() if self.updates % self.every == 0 else None

    def look(self) -> dict[str, float]:
        """Look now."""
        found = {"update": float(self.updates), "horizon": math.nan, "rate": math.nan, "lambda": math.nan}
        try:
            with one_line_errors("watch"), untouched(self.model):
                subject = Subject(self.model, adapt(self.model, self.inputs, self.batch_first))
                found |= self._measure(subject)
        except MnemoscopeError:
            pass
        self.history.append(found)
        if self.log is not None:
            self.log(found)
        return found

    def _measure(self, subject: Subject) -> dict[str, float]:
        profile = decay.typical(by_inputs(subject).frobenius)
        figures = {
            "horizon": float(decay.last_above(profile, self.fraction)),
            "rate": decay.fit(profile, torch.finfo(subject.dtype).eps ** 2).rate,
        }
        return figures if subject.missing("step") else figures | {"lambda": _contraction(subject)}

    def finding(self) -> Finding:
        """What was seen so far: series over looks `update`, `horizon`, `rate` and `lambda`."""
        if not self.history:
            why = f"there was no look yet: the first is after {self.every} updates"
            return Finding("watch", f"Nothing was seen: {why}.", "not applicable", why)
        series = arrays(**{name: [look[name] for look in self.history] for name in self.history[0]})
        first, last = self.history[0], self.history[-1]
        sentence = (
            f"From update {first['update']:.0f} to {last['update']:.0f} the horizon of gradients went from "
            f"{first['horizon']:.0f} to {last['horizon']:.0f} steps, lambda from {first['lambda']:.3g} to "
            f"{last['lambda']:.3g}."
        )
        return Finding(
            "watch", sentence, "estimated", figures={"horizon": last["horizon"], "lambda": last["lambda"]},
            series=series, method=f"one look every {self.every} updates at {self.inputs.shape} inputs",
        )  # fmt: skip


def _contraction(subject: Subject) -> float:
    with torch.no_grad():
        state = subject.recurrence(subject.drive)[1]
    found = jacobians(subject.recurrence, subject.drive[-1], state)
    return float(spectral_norms(found.double()).median())


def lightning_callback(inputs: Tensor, every: int = 100, *, prefix: str = "memory/", **options: Any) -> Any:
    """A callback for Lightning's Trainer that logs `horizon`, `rate` and `lambda` every so many updates.

    ``Trainer(callbacks=[lightning_callback(inputs, every=100)])``. The options are those of `Watch`; inputs are what
    the module's forward takes. The callback's `watch` holds the history.
    """
    return _callback_class()(inputs, every, prefix, options)


def _lightning() -> Any:
    """Lightning by either of its names."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(ImportError):
            return importlib.import_module(name)
    raise MnemoscopeError("the callback needs Lightning: pip install lightning")


def _callback_class() -> Any:
    Callback = _lightning().Callback

    class MemoryCallback(Callback):  # type: ignore[misc, valid-type]
        def __init__(self, inputs: Tensor, every: int, prefix: str, options: dict[str, Any]) -> None:
            self.inputs, self.every, self.prefix, self.options = inputs, every, prefix, options
            self.watch: Watch | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.watch = Watch(pl_module, self.inputs.to(pl_module.device), self.every, **self.options)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            assert self.watch is not None  # training has started
            figures = self.watch()
            if figures is not None:
                pl_module.log_dict({f"{self.prefix}{name}": figures[name] for name in ("horizon", "rate", "lambda")})

    return MemoryCallback
