"""What a model is examined on: a task's sequences, those in a file, or random ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemoscope.adapters import adapt
from mnemoscope.cli._weights import read_inputs
from mnemoscope.errors import MnemoscopeError
from mnemoscope.scopes import untouched
from mnemoscope.tasks import Task

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sequences:
    """Sequences, what is taught on them, and how far back that needs; `time_first` where we made them ourselves."""

    inputs: Tensor
    words: str
    targets: Tensor | None = None
    loss: Loss | None = None
    needs: float | None = None
    outputs: int | None = None  # how many numbers a step the loss is of
    time_first: bool = False

    @property
    def features(self) -> int:
        return self.inputs.shape[-1] if self.inputs.dim() > 2 else 1


def of_task(task: Task, batch: int) -> Sequences:
    """A batch of held-out sequences."""
    found = task.batch(0, batch, "valid")
    words = f"{task.name}, {task.length} steps"
    return Sequences(found.inputs, words, found.targets, task.loss, task.needs, task.output_size, time_first=True)


def of_file(path: Path) -> Sequences:
    return Sequences(read_inputs(path), str(path))


def random(steps: int, batch: int, features: int, seed: int) -> Sequences:
    """Normal noise."""
    for name, value in (("steps", steps), ("batch", batch), ("features", features)):
        if value < 1:
            raise MnemoscopeError(f"{name} = {value} is not allowed; it must be at least 1")
    inputs = torch.randn(steps, batch, features, generator=torch.Generator().manual_seed(seed))
    return Sequences(inputs, "random", time_first=True)


def fitted(sequences: Sequences, model: Any, batch_first: bool | None) -> Sequences:
    """In the layout that the model reads, tried on it once; the loss only where the model's outputs are the task's."""
    inputs = sequences.inputs
    layout = batch_first
    if sequences.time_first and layout is None:
        layout = _batch_first(model, inputs)
    if sequences.time_first and layout:
        inputs = inputs.transpose(0, 1).contiguous()
    outputs = _try(model, inputs, batch_first)
    sequences = replace(sequences, inputs=inputs)
    if sequences.targets is None or sequences.loss is None:
        return sequences
    targets = sequences.targets
    if layout and targets.shape[:2] == sequences.inputs.shape[1::-1]:
        targets = targets.transpose(0, 1).contiguous()
    known = replace(sequences, targets=targets, loss=_in_time(sequences.loss) if layout else sequences.loss)
    return known if _taught(known, outputs, bool(layout)) else replace(sequences, targets=None, loss=None)


def _batch_first(model: Any, inputs: Tensor) -> bool:
    """Whether the model says, or is known, to read (batch, time, ...)."""
    try:
        with untouched(model):
            return adapt(model, inputs).batch_first
    except MnemoscopeError:
        raise
    except Exception:  # it could not read them this way round: the trial says why, or it reads them the other way
        return True


def _try(model: Any, inputs: Tensor, batch_first: bool | None) -> Tensor:
    """One forward pass, so that inputs of the wrong size are told in one line before anything is measured."""
    try:
        with untouched(model), torch.no_grad():
            adapted = adapt(model, inputs, batch_first)
            return adapted.run(adapted.features)
    except MnemoscopeError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        given = f"inputs {list(inputs.shape)} of {str(inputs.dtype).removeprefix('torch.')}"
        raise MnemoscopeError(f"the model does not run on {given}: {type(error).__name__}: {reason}") from error


def _in_time(loss: Loss) -> Loss:
    """A task's loss for outputs and targets that come batch first."""
    return lambda outputs, targets: loss(outputs.transpose(0, 1), targets.transpose(0, 1))


def _taught(sequences: Sequences, outputs: Tensor, batch_first: bool) -> bool:
    """Whether the loss can be taken of what the model gives."""
    assert sequences.loss is not None
    assert sequences.targets is not None
    if outputs.shape[-1] != sequences.outputs:
        return False
    try:
        given = outputs.transpose(0, 1) if batch_first else outputs
        return bool(torch.isfinite(sequences.loss(given, sequences.targets)))
    except Exception:  # any misfit: the task then only gives inputs
        return False
