"""What a model is examined on: a task's sequences, those in a file, a known system's own, or random ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemoscope.adapters import Adapted, Layout, adapt
from mnemoscope.cli._weights import read_inputs
from mnemoscope.errors import MnemoscopeError
from mnemoscope.scopes import untouched
from mnemoscope.systems import Known, KnownSystem
from mnemoscope.tasks import Task

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sequences:
    """Inputs, and what is known about them."""

    inputs: Tensor
    description: str
    targets: Tensor | None = None
    loss: Loss | None = None
    needs: float | None = None  # how many steps back the task needs
    output_size: int | None = None  # that the loss is defined for
    known: tuple[Known, ...] = ()  # figures whose true values on these inputs are known
    time_first: bool = False  # True if we made them, as (time, batch, ...); a file's layout is the user's

    @property
    def features(self) -> int:
        return self.inputs.shape[-1] if self.inputs.dim() > 2 else 1


@dataclass(frozen=True)
class Reading:
    """How a model is called and its result read, as `mnemoscope.examine` takes it."""

    batch_first: bool | None = None
    channels_first: bool | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: str | int | None = None

    def adapt(self, model: Any, inputs: Tensor) -> Adapted:
        return adapt(model, inputs, **self.options())

    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in asdict(replace(self, kwargs={}))}

    @property
    def layout(self) -> Layout | None:
        """The layout that was asked for; None if it is left to the model."""
        if self.channels_first:
            return Layout.CHANNELS_FIRST
        if self.batch_first is None:
            return None
        return Layout.BATCH_FIRST if self.batch_first else Layout.TIME_FIRST


def task_sequences(task: Task, batch_size: int) -> Sequences:
    """Return a batch of held-out sequences of a task."""
    batch = task.batch(0, batch_size, "valid")
    return Sequences(
        batch.inputs,
        f"{task.name}, {task.length} steps",
        batch.targets,
        task.loss,
        task.needs,
        task.output_size,
        time_first=True,
    )


def file_sequences(path: Path) -> Sequences:
    """Return the sequences in a file."""
    return Sequences(read_inputs(path), str(path))


def random_sequences(steps: int, batch_size: int, features: int, seed: int) -> Sequences:
    """Return standard normal noise, (steps, batch_size, features)."""
    inputs = torch.randn(steps, batch_size, features, generator=torch.Generator().manual_seed(seed))
    return Sequences(inputs, "random", time_first=True)


def random_ids(steps: int, batch_size: int, vocabulary: int, seed: int) -> Sequences:
    """Return random ids, (steps, batch_size)."""
    inputs = torch.randint(0, vocabulary, (steps, batch_size), generator=torch.Generator().manual_seed(seed))
    return Sequences(inputs, f"random ids below {vocabulary}", time_first=True)


def system_sequences(system: KnownSystem, steps: int | None, batch_size: int | None, seed: int) -> Sequences:
    """Return a known system's own inputs, with its known answers unless another length was asked for."""
    options: dict[str, int] = {}
    if batch_size is not None:
        options["batch"] = batch_size
    inputs = system.inputs(steps, seed=seed, **options)
    known = system.known() if steps in (None, system.steps) else ()
    return Sequences(inputs, "the system's own", known=known, time_first=True)


def fit_to_model(sequences: Sequences, model: Any, reading: Reading) -> Sequences:
    """Return the sequences in the layout that the model reads, after one trial run.

    Targets and loss are kept only if the model's outputs are of the task's kind.
    """
    # Sequences that we made are time first: turn them for a model that reads another layout.
    inputs = sequences.inputs
    layout = reading.layout
    if sequences.time_first:
        layout = layout or _find_layout(model, inputs, reading)
        inputs = layout.from_time_first(inputs)
    sequences = replace(sequences, inputs=inputs)
    outputs = _trial_run(model, inputs, reading)
    if sequences.targets is None or sequences.loss is None:
        return sequences

    # Turn the targets alike; the task's loss still wants time first.
    targets = sequences.targets
    batch_first = layout not in (None, Layout.TIME_FIRST)
    if batch_first and targets.shape[:2] == sequences.inputs.shape[1::-1]:
        targets = targets.transpose(0, 1).contiguous()
    loss = _with_batch_first(sequences.loss) if batch_first else sequences.loss
    taught = replace(sequences, targets=targets, loss=loss)
    if _loss_applies(taught, outputs, batch_first):
        return taught
    return replace(sequences, targets=None, loss=None)


def _find_layout(model: Any, inputs: Tensor, reading: Reading) -> Layout:
    """Return the layout in which the model reads sequences (time, batch, ...): the first that it takes for its own."""
    for layout in (Layout.TIME_FIRST, Layout.BATCH_FIRST, Layout.CHANNELS_FIRST):
        try:
            with untouched(model), torch.no_grad():
                found = reading.adapt(model, layout.from_time_first(inputs)).layout
        except Exception:  # it does not run on this layout, or not at all, which the trial run reports
            continue
        if layout is Layout.TIME_FIRST or found is layout:
            return found
    return Layout.BATCH_FIRST


def _trial_run(model: Any, inputs: Tensor, reading: Reading) -> Tensor:
    """Return the outputs: inputs of the wrong size are an error of one line before anything is measured."""
    try:
        with untouched(model), torch.no_grad():
            adapted = reading.adapt(model, inputs)
            return adapted.run(adapted.features) if adapted.outputs is None else adapted.outputs
    except MnemoscopeError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        given = f"inputs {list(inputs.shape)} of {str(inputs.dtype).removeprefix('torch.')}"
        raise MnemoscopeError(f"the model does not run on {given}: {type(error).__name__}: {reason}") from error


def _with_batch_first(loss: Loss) -> Loss:
    """A task's loss for outputs and targets that are batch first."""
    return lambda outputs, targets: loss(outputs.transpose(0, 1), targets.transpose(0, 1))


def _loss_applies(sequences: Sequences, outputs: Tensor, batch_first: bool) -> bool:
    """True if the loss can be computed from the model's outputs (time, batch, features)."""
    assert sequences.loss is not None
    assert sequences.targets is not None
    if outputs.shape[-1] != sequences.output_size:
        return False
    try:
        given = outputs.transpose(0, 1) if batch_first else outputs
        return bool(torch.isfinite(sequences.loss(given, sequences.targets)))
    except Exception:  # any misfit: the task then only gives inputs
        return False
