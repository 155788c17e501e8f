"""What a model is examined on: a task's sequences, those in a file, a known system's own, or random ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemoscope.adapters import Adapted, Layout, adapt
from mnemoscope.cli._losses import Loss, read_loss
from mnemoscope.cli._weights import read_inputs
from mnemoscope.errors import MnemoscopeError, first_line, type_and_line
from mnemoscope.rl import Environment, Policy
from mnemoscope.scopes import untouched
from mnemoscope.systems import Known, KnownSystem
from mnemoscope.tasks import Split, Task

NOISE = "random"  # the description of standard normal inputs


@dataclass(frozen=True)
class Sequences:
    """Inputs, and what is known about them."""

    inputs: Tensor
    description: str
    targets: Tensor | None = None
    loss: Loss | None = None
    needs: float | None = None  # how many steps back the task needs
    output_size: int | None = None  # that the loss is defined for
    asked_loss: str = ""  # the loss that was asked for: it must apply
    known: tuple[Known, ...] = ()  # figures whose true values on these inputs are known
    task: Task | None = None  # that made them
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


def task_sequences(task: Task, batch_size: int, split: Split = "valid", model: Any = None) -> Sequences:
    """Return a batch of sequences of a task, held-out ones by default; for an agent, what it sees as it plays."""
    if isinstance(task, Environment) and isinstance(model, Policy):
        batch = task.played_batch(model, batch_size, split)
    else:
        batch = task.batch(0, batch_size, split)
    return Sequences(
        batch.inputs,
        f"{task.name}, {len(batch.inputs)} steps",
        batch.targets,
        task.loss,
        task.needs,
        task.output_size,
        task=task,
        time_first=True,
    )


def file_sequences(path: Path, targets: Path | None = None) -> Sequences:
    """Return the sequences in a file, and their targets in another."""
    wanted = None if targets is None else read_inputs(targets, "targets")
    return Sequences(read_inputs(path), str(path), wanted)


def with_loss(sequences: Sequences, name: str) -> Sequences:
    """Return the sequences with the loss that was asked for."""
    if sequences.targets is None:
        raise MnemoscopeError(f"--loss {name} needs targets: those of a run or a --task, or --inputs and --targets")
    return replace(sequences, loss=read_loss(name), asked_loss=name, output_size=None)


def random_sequences(steps: int, batch_size: int, features: int, seed: int) -> Sequences:
    """Return standard normal noise, (steps, batch_size, features)."""
    inputs = torch.randn(steps, batch_size, features, generator=torch.Generator().manual_seed(seed))
    return Sequences(inputs, NOISE, time_first=True)


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

    Targets and loss are kept only if the model's outputs are of the task's kind; a loss that was asked for must apply.
    """
    hint = ""
    if sequences.description == NOISE:
        hint = f"; --features sets how many features random inputs have, {sequences.features} now"
    # Sequences that we made are time first: turn them for a model that reads another layout.
    inputs = sequences.inputs
    layout = reading.layout
    if sequences.time_first:
        layout = layout or _find_layout(model, inputs, reading)
        inputs = layout.from_time_first(inputs)
    sequences = replace(sequences, inputs=inputs)
    outputs, read_as = _trial_run(model, inputs, reading, hint)
    if sequences.targets is None or sequences.loss is None:
        return sequences
    if not sequences.time_first:  # a file's: its targets are in the layout of the model's outputs
        one_per_sequence = len(outputs) == 1 < len(read_as.time_first(inputs))
        return _taught(sequences, outputs[0] if one_per_sequence else read_as.from_time_first(outputs))

    # Turn the targets alike; the task's loss still wants time first.
    targets = sequences.targets
    batch_first = layout is not Layout.TIME_FIRST
    if batch_first and targets.shape[:2] == sequences.inputs.shape[1::-1]:
        targets = targets.transpose(0, 1).contiguous()
    loss = _with_batch_first(sequences.loss) if batch_first else sequences.loss
    given = outputs.transpose(0, 1) if batch_first else outputs
    return _taught(replace(sequences, targets=targets, loss=loss), given)


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


def _trial_run(model: Any, inputs: Tensor, reading: Reading, hint: str) -> tuple[Tensor, Layout]:
    """Return the outputs, time first, and the layout in which the model reads.

    Inputs of the wrong size are an error of one line, with a hint, before anything is measured.
    """
    try:
        with untouched(model), torch.no_grad():
            adapted = reading.adapt(model, inputs)
            outputs = adapted.run(adapted.features) if adapted.outputs is None else adapted.outputs
            return outputs, adapted.layout
    except MnemoscopeError as error:
        if not hint or "input_size" not in str(error):
            raise
        raise MnemoscopeError(f"{error}{hint}") from error
    except Exception as error:
        hint = "" if isinstance(error, TypeError) else hint  # as for an argument that forward does not take
        given = f"inputs {list(inputs.shape)} of {str(inputs.dtype).removeprefix('torch.')}"
        raise MnemoscopeError(f"the model does not run on {given}: {type_and_line(error)}{hint}") from error


def _with_batch_first(loss: Loss) -> Loss:
    """A task's loss for outputs and targets that are batch first."""
    return lambda outputs, targets: loss(outputs.transpose(0, 1), targets.transpose(0, 1))


def _taught(sequences: Sequences, outputs: Tensor) -> Sequences:
    """Return the sequences, with targets and loss where the outputs fit them; a loss that was asked for must fit."""
    reason = _misfit(sequences, outputs)
    if not reason:
        return sequences
    if sequences.asked_loss:
        assert sequences.targets is not None
        shapes = f"outputs {list(outputs.shape)} and targets {list(sequences.targets.shape)}"
        raise MnemoscopeError(f"--loss {sequences.asked_loss} does not apply to {shapes}: {reason}")
    return replace(sequences, targets=None, loss=None)


def _misfit(sequences: Sequences, outputs: Tensor) -> str:
    """Return why the loss cannot be computed from outputs; empty if it can."""
    assert sequences.loss is not None
    assert sequences.targets is not None
    if sequences.output_size not in (None, outputs.shape[-1]):
        return f"it is for {sequences.output_size} outputs"
    try:
        cost = sequences.loss(outputs, sequences.targets)
        return "" if bool(torch.isfinite(cost)) else f"it is {float(cost)}"
    except Exception as error:  # any misfit
        return first_line(error)
