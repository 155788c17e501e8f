"""The layouts that a batch of sequences can have, and how outputs are brought into one of them."""

from __future__ import annotations

import enum

from torch import Tensor

from mnemoscope.errors import MnemoscopeError


class Layout(enum.Enum):
    """The order of the dimensions of what a model reads. Inside the scopes time always comes first."""

    TIME_FIRST = "(time, batch, features)"
    BATCH_FIRST = "(batch, time, features)"
    CHANNELS_FIRST = "(batch, features, time)"
    UNBATCHED = "(time, features)"

    def time_first(self, x: Tensor) -> Tensor:
        """Turn x from this layout into (time, batch, ...)."""
        if self is Layout.UNBATCHED:
            return x.unsqueeze(1)
        if x.dim() < 2 or self is Layout.TIME_FIRST:
            return x
        if self is Layout.CHANNELS_FIRST and x.dim() > 2:
            return x.movedim(-1, 0)
        return x.transpose(0, 1)

    def from_time_first(self, x: Tensor) -> Tensor:
        """Turn x (time, batch, ...) into this layout, contiguous, as models are used to read it."""
        if self is Layout.UNBATCHED:
            return x.squeeze(1).contiguous()
        if x.dim() < 2 or self is Layout.TIME_FIRST:
            return x.contiguous()
        if self is Layout.CHANNELS_FIRST and x.dim() > 2:
            return x.movedim(0, -1).contiguous()
        return x.transpose(0, 1).contiguous()

    @property
    def time_axis(self) -> int:
        """The axis of time in a tensor of at least three dimensions, or (for ids) of two."""
        return {Layout.BATCH_FIRST: 1, Layout.CHANNELS_FIRST: -1}.get(self, 0)

    @property
    def batch_axis(self) -> int:
        """The axis of the batch."""
        return 1 if self is Layout.TIME_FIRST else 0


def recurrent_layout(batch_first: bool) -> Layout:
    """Return the layout that `batch_first` stands for."""
    return Layout.BATCH_FIRST if batch_first else Layout.TIME_FIRST


def as_sequence(
    output: Tensor,
    steps: int,
    batch: int,
    layout: Layout,
    one_per_sequence: bool = False,
    time_axis: int | None = None,
) -> Tensor:
    """Return a model's output as (S, B, m): S steps as the model has them, or 1 if it is one output per sequence.

    `one_per_sequence` decides where shapes cannot: m numbers per sequence look like one per step if there are m steps.
    `time_axis` says where time is in an output of three or more dimensions, if its shape does not show that.
    """
    could_be_one = output.dim() <= 2 and output.shape[:1] == (batch,)
    if one_per_sequence and could_be_one:
        return output.reshape(1, batch, -1)
    if time_axis is not None and output.dim() > 2:
        turned = output.movedim(time_axis, 0)
        turned = turned if turned.shape[1] == batch else turned.movedim(1, 2)
        return turned.reshape(*turned.shape[:2], -1)
    sequence = _by_step(output, steps, batch, layout)
    if sequence is None and could_be_one:
        sequence = output[None]
    if sequence is None:
        sequence = _other_length(output, steps, batch, layout)
    return sequence.reshape(*sequence.shape[:2], -1)


def shows_steps(output: Tensor, steps: int, batch: int, layout: Layout) -> bool:
    """True if the shape of an output of three or more dimensions has one row per step, and in one way only."""
    known = output.dim() > 2 and _by_step(output, steps, batch, layout) is not None
    return known and tuple(output.shape).count(steps) == 1


def _by_step(output: Tensor, steps: int, batch: int, layout: Layout) -> Tensor | None:
    """Return an output with one row per step as (T, B, ...); None if its shape does not show one."""
    if layout is Layout.UNBATCHED:
        if output.shape[:1] == (steps,):
            return output[:, None] if output.dim() < 3 or output.shape[1] != 1 else output
        return None
    if layout is Layout.CHANNELS_FIRST and output.dim() > 2 and output.shape[::2] == (batch, steps):
        return output.movedim(-1, 0)
    leading = (steps, batch) if layout is Layout.TIME_FIRST else (batch, steps)
    if output.dim() >= 2 and tuple(output.shape[:2]) == leading:  # features per step, or a single number
        return output if layout is Layout.TIME_FIRST else output.transpose(0, 1)
    return None


def _other_length(output: Tensor, steps: int, batch: int, layout: Layout) -> Tensor:
    """Return an output whose steps are flattened into the batch, or of fewer or more steps than the input."""
    if output.dim() <= 2 and output.shape[:1] == (steps * batch,):
        if layout is Layout.TIME_FIRST:
            return output.unflatten(0, (steps, batch))
        return output.unflatten(0, (batch, steps)).transpose(0, 1)
    if output.dim() >= 3 and batch in output.shape[:2]:
        if layout is Layout.CHANNELS_FIRST and output.shape[0] == batch:
            return output.movedim(-1, 0)
        both = output.shape[0] == output.shape[1] == batch
        is_batch_first = layout is not Layout.TIME_FIRST if both else output.shape[0] == batch
        return output.transpose(0, 1) if is_batch_first else output
    if layout is Layout.UNBATCHED and output.dim() <= 2:
        return output.reshape(1, 1, -1)
    expected = "[time, features]" if layout is Layout.UNBATCHED else f"{layout.value} of these lengths"
    raise MnemoscopeError(
        f"the model gave output {list(output.shape)} for {steps} steps of {batch} sequences; expected {expected}, or "
        f"[{batch}, features] for one output per sequence; output= says which part of its result is meant"
    )
