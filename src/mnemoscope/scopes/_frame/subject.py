"""What a scope is given: an adapted model, its sequences, targets and loss, a seed, and a time budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mnemoscope.adapters import Adapted, Layout, Output, WithReadout, adapt, instantiate
from mnemoscope.errors import MnemoscopeError, check_count, is_number, type_and_line
from mnemoscope.recurrence import Recurrence, State, leaves
from mnemoscope.scopes._frame.repeat import Repetition, find_repetition
from mnemoscope.scopes._frame.snapshot import Snapshot
from mnemoscope.scopes._frame.untouched import untouched
from mnemoscope.scopes._measures.state_vectors import carries_memory
from mnemoscope.wording import counted

Progress: TypeAlias = Callable[[str, float, str], None]
"""Called with the scope's name, the fraction done in [0, 1], and the current figure in words."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""loss(outputs, targets) -> a number; outputs in the layout in which the model gives them."""


class OutOfTime(Exception):
    """Raised when the time budget is spent."""


class BoundExceeded(Exception):
    """Raised when a measurement exceeds a bound that was to be certified: the proof, or its code, is wrong."""


CANNOT_REPEAT = "it can neither be reset nor be given the same random numbers, so that no two runs can be compared"


@dataclass
class Subject:
    """A model that is ready to be measured; time comes first everywhere.

    Attributes:
        model: as it was given.
        adapted: what can be examined of it.
        targets: what `loss` compares outputs with, if known.
        loss: what the model is trained for, if known: ``loss(outputs, targets)``.
        needs: how many steps back the task needs, if known.
        seed: of every random choice that a scope makes; the global random state is never used.
        progress: called as a scope advances.
        deadline: the `time.monotonic()` at which to stop.
        repetition: whether the model gives the same outputs for the same inputs, and how it is made to.
        scope: the name of the running scope, for `progress`.
        kind: what `recurrence` has found the model to be on several sequences; None if it has not looked yet.
    """

    model: Any
    adapted: Adapted
    targets: Tensor | None = None
    loss: Loss | None = None
    needs: float | None = None
    seed: int = 0
    progress: Progress | None = None
    deadline: float | None = None
    repetition: Repetition = field(default_factory=Repetition)
    scope: str = field(default="", init=False)
    kind: str | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """The model's name in sentences."""
        return self.adapted.name

    @property
    def features(self) -> Tensor:
        """(T, B, d): what the whole model reads; real, so that outputs can be differentiated by it."""
        return self.adapted.features

    @property
    def inputs(self) -> Tensor:
        """What `run` reads while parameters move: ids (T, B), so that the embedding moves too, else the features."""
        return self.features if self.adapted.ids is None else self.adapted.ids

    @property
    def steps(self) -> int:
        """Steps of the given sequences."""
        return self.features.shape[0]

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return self.features.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the features."""
        return self.features.dtype

    def run(self, features: Tensor) -> Tensor:
        """Run the whole model: features (T, B, d) -> outputs (T, B, m), or (1, B, m) for one output per sequence.

        Ids (T, B) are looked up by the model itself. A model that keeps state between calls is reset first, a random
        one gets the same random numbers again.
        """
        if self.repetition.prepare is not None:
            self.repetition.prepare()
        return self.adapted.run(features)

    @property
    def recurrence(self) -> Recurrence:
        """The part with a step. A scope that declares ``needs="step"`` is only called if there is one."""
        if self.adapted.recurrence is None:
            raise MnemoscopeError(self.adapted.no_step)
        return self.adapted.recurrence

    @property
    def layer(self) -> Recurrence:
        """The recurrent layer itself, without the read-out after it."""
        return self.recurrence.layer if isinstance(self.recurrence, WithReadout) else self.recurrence

    @property
    def in_layer(self) -> str:
        """The words " in its recurrent layer", for a sentence on states of a model with more around that layer."""
        return "" if self.adapted.recurrence_is_model else " in its recurrent layer"

    def of_layer(self, sentence: str) -> str:
        """Begin a sentence on states with "In its recurrent layer" if the model may keep more around that layer."""
        return (
            f"{self.in_layer.strip().capitalize()}, {sentence[0].lower()}{sentence[1:]}" if self.in_layer else sentence
        )

    @property
    def recurrence_inputs(self) -> Tensor:
        """(T, B, input_size): what the recurrence reads."""
        if self.adapted.recurrence_inputs is None:
            raise MnemoscopeError(self.adapted.no_step)
        return self.adapted.recurrence_inputs

    def loss_of(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the loss of outputs (T, B, m), on the model's own targets or on others.

        The loss gets outputs in the layout in which the model gives them.
        """
        if self.loss is None or self.targets is None:
            raise MnemoscopeError("the loss is not known: pass targets= and loss=")
        return self.loss(self._as_given(outputs), self.targets if targets is None else targets)

    @cached_property
    def loss_problem(self) -> str:
        """Why the given loss cannot be computed from the model's outputs; empty if it can, or if none was given."""
        if self.loss is None or self.targets is None:
            return ""
        with torch.no_grad():
            outputs = self.run(self.features)
        shapes = f"outputs {list(self._as_given(outputs).shape)} and targets {_shape(self.targets)}"
        fix = "give a function loss(outputs, targets) that fits them"
        try:
            cost = self.loss_of(outputs.detach().requires_grad_())
        except Exception as error:  # of the user's own function
            return f"the loss raised {type_and_line(error).removesuffix('.')}, for {shapes}; {fix}"
        if not isinstance(cost, Tensor) or cost.numel() != 1:
            return f"the loss gave {_described(cost)} for {shapes}, where one number is wanted; {fix}"
        return ""

    def _as_given(self, outputs: Tensor) -> Tensor:
        """Return outputs (T, B, m) in the layout in which the model gives them."""
        one_per_sequence = len(outputs) == 1 < self.steps
        return outputs[0] if one_per_sequence else self.adapted.layout.from_time_first(outputs)

    def generator(self) -> torch.Generator:
        """Return a new seeded generator on the CPU; draw there and move, so that all devices see the same numbers."""
        return torch.Generator().manual_seed(self.seed)

    def check_time_for(self, passes: float) -> None:
        """Raise `OutOfTime` if the time left is too short for this many forward passes."""
        if self.deadline is not None and self.deadline - time.monotonic() < passes * self.repetition.seconds:
            raise OutOfTime

    def report(self, done: float, note: str = "") -> None:
        """Report progress of the running scope; raises `OutOfTime` when the budget is spent."""
        if self.progress is not None:
            self.progress(self.scope, done, note)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime

    def check_bound(self, what: str, measured: Tensor | float, bound: Tensor | float, rounding: Tensor | float) -> None:
        """Compare measurements with a certified bound; raises `BoundExceeded` where one lies above bound + rounding.

        Every scope that certifies a figure compares it with all that it measured of the same thing.
        """
        excess = torch.as_tensor(measured, dtype=torch.float64) - bound - rounding
        if not bool((excess > 0).any()):
            return
        worst = int(excess.flatten().nan_to_num(-math.inf).argmax())
        seen = float(torch.as_tensor(measured, dtype=torch.float64).flatten()[worst])
        allowed = float(torch.as_tensor(bound, dtype=torch.float64).expand(excess.shape).flatten()[worst])
        raise BoundExceeded(f"{what} is certified to be at most {allowed:.6g}, but {seen:.6g} was measured")

    def check_steps(self, least: int) -> None:
        """Raise if the sequences have fewer steps than a scope needs."""
        if self.steps < least:
            raise MnemoscopeError(f"give sequences of at least {least} steps; got {self.steps}")

    def check_finite_outputs(self) -> None:
        """Raise if an output is NaN or infinite: nothing can be measured by outputs then."""
        step = self.repetition.not_finite_from
        if step is not None:
            raise MnemoscopeError(
                f"the model's outputs are NaN or infinite from step {step} on: give shorter or smaller inputs, or an "
                "earlier checkpoint"
            )

    def missing(self, need: str) -> str:
        """Return why the model cannot give what a scope needs; empty if it can."""
        kind = self.repetition.kind
        if need == "outputs":
            return f"{self.name} {kind}: {CANNOT_REPEAT}" if kind == "changes between calls" else ""
        if need == "deterministic":
            return f"{self.name} is random: shorter sequences get other random numbers" if kind == "is random" else ""
        if need == "loss":
            known = self.loss is not None and self.targets is not None
            return self.loss_problem if known else "it needs targets and a loss"
        if self.adapted.recurrence is None:
            return self.adapted.no_step
        if need in ("step", "map") and self._changing_shape:
            return self._changing_shape
        if need == "map" and carries_memory(self.recurrence.initial_state(1)):
            return f"{self.name} carries past states along: its map changes from step to step"
        if need == "attention" and not self._attends():
            return f"{self.name} does not attend to its own past states"
        return ""

    @cached_property
    @torch.no_grad()
    def _changing_shape(self) -> str:
        """Why states cannot be compared with each other: a step gives one of another shape; empty if it does not."""
        x = self.recurrence_inputs[:2]
        state = self.recurrence.initial_state(x.shape[1])
        if carries_memory(state):  # it knows which of its tensors are the present state
            return ""
        for x_t in x.unbind(0):
            before, state = state, self.recurrence.step(x_t, state)[1]
            changed = _change_of_shape(before, state)
            if changed:
                return (
                    f"a step of {self.name} turns a state {changed}, as a cache that grows, and states of two shapes "
                    "cannot be compared: allocate it whole in initial_state"
                )
        return ""

    @torch.no_grad()
    def _attends(self) -> bool:
        x = self.recurrence_inputs[0]
        state = self.recurrence.initial_state(len(x))
        return self.recurrence.observe(x, state)[2] is not None


def subject_of(
    model: Any,
    inputs: Any = None,
    *,
    targets: Tensor | None = None,
    loss: Loss | None = None,
    needs: float | None = None,
    batch_first: bool | None = None,
    channels_first: bool | None = None,
    kwargs: Mapping[str, Any] | None = None,
    output: Output | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    deadline: float | None = None,
) -> Subject:
    """Make a model ready to be measured on given sequences; see `Subject` and `mnemoscope.adapters.adapt`.

    The model runs twice on the same inputs, to see if it repeats its outputs. A `Subject` is returned as it is, so that
    several scopes can share one.
    """
    if isinstance(model, Subject):
        return model
    if inputs is None:
        raise MnemoscopeError("a scope needs sequences to look at: pass inputs, (time, batch, features)")
    if needs is not None and not (is_number(needs) and 0 <= needs < math.inf):
        raise MnemoscopeError(f"needs is a number of steps back, at least 0; got {needs!r}")
    for name, value in (("batch_first", batch_first), ("channels_first", channels_first)):
        if value not in (None, True, False):
            raise MnemoscopeError(f"{name} must be True, False or None, for what the model says; got {value!r}")
    if not isinstance(kwargs, Mapping | None):
        raise MnemoscopeError(f"kwargs are what forward takes beside its inputs, by name; got {kwargs!r}")
    if progress is not None and not callable(progress):
        raise MnemoscopeError(f"progress is a function of a scope's name, a fraction and a note; got {progress!r}")
    check_count("seed", seed, 0)
    if loss is not None and not callable(loss):
        raise MnemoscopeError(f"loss is a function, as loss(outputs, targets); got {loss!r}")
    if loss is not None and targets is None:
        raise MnemoscopeError("loss= was given without targets=: it is computed as loss(outputs, targets)")
    model = instantiate(model)
    options: dict[str, Any] = {"channels_first": channels_first, "kwargs": kwargs, "output": output}
    with untouched(model):
        before = Snapshot(model)
        inputs, targets = _differentiable(inputs), _differentiable(targets)
        options["kwargs"] = kwargs and {name: _differentiable(value) for name, value in kwargs.items()}
        adapted = adapt(model, inputs, batch_first, **options)
        by_targets = _layout_by_targets(inputs, targets) if batch_first is None else None
        is_known = adapted.layout in (Layout.CHANNELS_FIRST, Layout.UNBATCHED)
        if by_targets not in (None, adapted.batch_first) and not is_known:
            adapted = adapt(model, inputs, by_targets, **options)
        _check_lengths(kwargs or {}, adapted)
        repetition = find_repetition(adapted.run, adapted.features, before, adapted.outputs)
        adapted = _what_repeats(replace(adapted, outputs=None), repetition)
    return Subject(model, adapted, targets, loss, needs, int(seed), progress, deadline, repetition)


def _differentiable(value: Any) -> Any:
    """Return an ordinary tensor for one that was made in inference mode, which no gradient can pass by."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def _change_of_shape(before: State, after: State) -> str:
    """Say how the shape of a state has changed, "[2, 5] into [2, 6]"; empty if it has not."""
    olds, news = leaves(before), leaves(after)
    if len(olds) != len(news):
        return f"of {counted(len(olds), 'tensor')} into one of {len(news)}"
    for old, new in zip(olds, news, strict=True):
        if old.shape != new.shape:
            shown = slice(1 if old.shape[0] == new.shape[0] else 0, None)  # users need not know the axis of layers
            return f"{list(old.shape[shown])} into {list(new.shape[shown])}"
    return ""


def _shape(value: Any) -> Any:
    return list(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _described(value: Any) -> str:
    return f"numbers of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _check_lengths(kwargs: Mapping[str, Any], adapted: Adapted) -> None:
    """Refuse sequences that end before the last step: lags would count the padding."""
    steps, batch = adapted.features.shape[:2]
    for name, value in kwargs.items():
        lengths = torch.as_tensor(value) if isinstance(value, Tensor | list | tuple) and "len" in name.lower() else None
        if lengths is None or lengths.shape != (batch,) or not bool((lengths < steps).any()):
            continue
        shortest, longest = int(lengths.min()), int(lengths.max())
        ends = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        raise MnemoscopeError(
            f"{name} says that sequences end after {ends} of {steps} steps, and steps back are counted from the end: "
            f"give sequences of one length, as the first {shortest} steps of all, and leave out {name}"
        )


def _what_repeats(adapted: Adapted, repetition: Repetition) -> Adapted:
    """Return a model that does not repeat its outputs without its recurrence, unless the recurrence does."""
    if not repetition.kind or adapted.recurrence is None or adapted.recurrence_inputs is None:
        return adapted
    recurrence = adapted.recurrence
    alone = find_repetition(lambda x: recurrence(x)[0], adapted.recurrence_inputs, Snapshot(recurrence))
    if not alone.kind:
        return replace(adapted, recurrence_is_model=False, starts_itself=False)
    why = f"{adapted.name} {alone.kind}, so that its step is not a function of the input and the state"
    return replace(adapted, recurrence=None, recurrence_inputs=None, recurrence_is_model=False, no_step=why)


def _layout_by_targets(inputs: Any, targets: Any) -> bool | None:
    """Return True if inputs are batch first, as one target per sequence shows; None if targets do not show it."""
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor) or targets.dim() != 1 or inputs.dim() < 2:
        return None
    first, second = inputs.shape[:2]
    if first == second or len(targets) not in (first, second):
        return None
    return len(targets) == first
