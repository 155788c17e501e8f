"""The options of `mnemoscope examine`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import tyro

from mnemoscope.cli._console import OutputOptions
from mnemoscope.cli._examination_files import Format
from mnemoscope.cli._sequences import Reading
from mnemoscope.cli._targets import as_tensor, read_options
from mnemoscope.errors import MnemoscopeError, did_you_mean
from mnemoscope.scopes import SCOPES
from mnemoscope.training import CheckpointName

TaskType = TypeVar("TaskType")

LISTS = ("--checkpoint", "--with", "--kwargs", "--scopes", "--set", "--figures", "--fail-if")

ABOUT = """Examine models through every scope and write the page. A target is a run's folder, a built-in model's name,
system:NAME for a system with known answers, package.module:factory or path/to/file.py:factory; several are compared.

--task NAME, with its options as --task.T 200, makes the sequences; by default they come from a run's own task or are a
system's own, else they are random."""


@dataclass(frozen=True)
class Examine(Generic[TaskType]):
    """Options of `mnemoscope examine`."""

    targets: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="TARGET...")]
    """What to examine."""
    task: Annotated[
        TaskType,
        tyro.conf.arg(metavar="NAME", help="The task that makes the sequences; its options are --task.T and so on."),
    ]
    checkpoint: tuple[Path, ...] = ()
    """Weights for the targets that are not runs, in their order: safetensors, or torch files of tensors only."""
    which: CheckpointName | int = "last"
    """A run's last weights, its best on held-out batches, or those of a snapshot: the number of its update."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(name="with")] = ()
    """Options of a built-in model or system, or a factory's arguments: hidden_size=128 bidirectional=True."""
    inputs: Path | None = None
    """Sequences from an .npy, .pt or .safetensors file, in the layout that the model reads: (time, batch, features),
    or (batch, time, features) for a batch-first model. They are not transposed."""
    targets_file: Annotated[Path | None, tyro.conf.arg(name="targets")] = None
    """What the model should answer to --inputs, from such a file, in the layout of its outputs; needs --loss."""
    loss: str | None = None
    """The loss: mse, l1, cross-entropy, bce (of logits), or package.module:function; by default the task's own."""
    batch_first: tyro.conf.FlagCreatePairsOff[bool] = False
    """The model reads (batch, time, features). By default its layers' batch_first decides. This does not transpose a
    file of --inputs."""
    time_first: tyro.conf.FlagCreatePairsOff[bool] = False
    """The model reads (time, batch, features)."""
    channels_first: tyro.conf.FlagCreatePairsOff[bool] = False
    """The model reads (batch, features, time). By default what its first convolution reads."""
    kwargs: tuple[str, ...] = ()
    """What its forward takes beside the inputs: scale=2.0 lengths=[90,100]."""
    model_output: str | None = None
    """Which part of its result is the output: a name or a place; by default the first tensor of several numbers."""
    vocabulary: int | None = None
    """Random ids below this number, for a model that reads ids; by default what its embedding says."""
    steps: int | None = None
    """Steps of random sequences, 100 by default, or of a system's own, which has its default."""
    features: int | None = None
    """Features of random sequences; by default what the model's first layer reads, else 8."""
    batch: int | None = None
    """How many sequences: 8 by default; a system has its default."""
    needs: float | None = None
    """How many steps back the task needs; by default what the task itself says."""
    scopes: tuple[str, ...] = ()
    """Scopes to use; all by default."""
    scope_options: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = ()
    """Options of scopes, as in Python: landscape.to=initial landscape.x_range=-0.5,1.5 horizon.loss_positions=10.
    Weights are a run's first ones (initial), a run's folder or a file; held-out sequences a split of the task."""
    budget: float = 45.0
    """Seconds that one target may take; scopes that do not fit into them are skipped."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure."""
    dtype: Literal["float32", "float64"] | None = None
    """Number format of weights and inputs: float32 by default, float64 for a system."""
    threads: int = 1
    """CPU threads; more rarely help, because the steps of a recurrence are small."""
    seed: int = 0
    """Seed of fresh weights, random inputs and random directions."""
    out: Path | None = None
    """Where the findings and the page go; by default a run's own folder, or a new one under examinations/."""
    figures: tuple[Format, ...] = ()
    """Write the charts as files too: svg, png or both."""
    fail_if: tuple[str, ...] = ()
    """Conditions on figures, as 'horizon<100': exit code 4 if one holds for any target."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        for scope in self.scopes:
            if scope not in SCOPES:
                hint = did_you_mean(scope, SCOPES)
                raise MnemoscopeError(
                    f"scopes = {scope!r} is not a scope; scopes are {', '.join(sorted(SCOPES))}{hint}"
                )
        if not (math.isfinite(self.budget) and self.budget > 0):
            raise MnemoscopeError(f"budget = {self.budget} is not allowed; it must be a positive number of seconds")
        if self.targets_file is not None and (self.inputs is None or self.loss is None):
            raise MnemoscopeError("--targets needs --inputs, whose targets they are, and --loss")
        layouts = ("batch_first", "time_first", "channels_first")
        chosen = [f"--{name.replace('_', '-')}" for name in layouts if getattr(self, name)]
        if len(chosen) > 1:
            raise MnemoscopeError(f"{' and '.join(chosen)} contradict each other; give one of them")
        for name in ("steps", "features", "batch", "threads", "vocabulary"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise MnemoscopeError(f"{name} = {value} is not allowed; it must be at least 1")

    @staticmethod
    def require_values(words: Sequence[str]) -> None:
        """Refuse an option that takes several values and has none, as --fail-if $CONDITION of an empty variable."""
        for word, following in pairwise([*words, "--"]):
            if word in LISTS and following.startswith("--"):
                raise MnemoscopeError(f"{word} needs a value")

    @property
    def reading(self) -> Reading:
        """How the models are called; the layout is left to them if none was chosen."""
        kwargs = read_options(self.kwargs, "--kwargs")
        for name, value in kwargs.items():
            if isinstance(value, list):
                kwargs[name] = as_tensor(f"--kwargs {name}", value)
        output = self.model_output
        return Reading(
            batch_first=self.batch_first if self.batch_first or self.time_first else None,
            channels_first=self.channels_first or None,
            kwargs=kwargs,
            output=int(output) if output is not None and re.fullmatch("-?[0-9]{1,9}", output) else output,
        )
