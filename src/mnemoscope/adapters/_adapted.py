"""The form in which every model is examined, and helpers to bring outputs into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence


@dataclass(frozen=True)
class Adapted:
    """A model and its sequences, ready to be examined. Time always comes first.

    Attributes:
        name: the model, in words.
        features: (T, B, d), real: what the whole model reads, ids already embedded.
        run: the whole model, features -> outputs (T, B, m), or (1, B, m) if it gives one output per sequence;
            differentiable.
        recurrence: the part with a step, if there is one.
        recurrence_inputs: (T, B, input_size), what that recurrence reads; equal to `features` if it is the whole model.
        recurrence_is_model: True if the outputs of the recurrence are those of the model.
        starts_itself: True if the recurrence runs from its own start over all of its inputs at once; False if the
            model hands it a state or calls it more than once, so that it may reach states that it does not reach alone.
        no_step: why there is no recurrence, and what to do.
        batch_first: the layout of the inputs as they were given.
        outputs: (T, B, m) or (1, B, m), of the run that adapting needed; None if it needed none, or if their layout is
            not known.
    """

    name: str
    features: Tensor
    run: Callable[[Tensor], Tensor]
    recurrence: Recurrence | None = None
    recurrence_inputs: Tensor | None = None
    recurrence_is_model: bool = True
    starts_itself: bool = True
    no_step: str = ""
    batch_first: bool = False
    outputs: Tensor | None = None

    def swap_if_batch_first(self, x: Tensor) -> Tensor:
        """Convert x between the layout of the given inputs and time first; the conversion is its own inverse."""
        return time_first(x, self.batch_first)


def model_name(model: Any) -> str:
    """Return a model's name and sizes: ``LSTM(3, 8)``."""
    if isinstance(model, nn.Module):
        name = model._get_name()
    else:
        name = getattr(model, "__name__", type(model).__name__)
    sizes = [getattr(model, key, None) for key in ("input_size", "hidden_size")]
    known = [str(size) for size in sizes if isinstance(size, int)]
    return f"{name}({', '.join(known)})" if known else name


def time_first(x: Tensor, batch_first: bool) -> Tensor:
    """Swap the first two dimensions of x if it is batch first."""
    return x.transpose(0, 1) if batch_first and x.dim() > 1 else x


def main_tensor(output: Any) -> Tensor:
    """Return the tensor in a model's result: itself, the first of a tuple, `logits`, `last_hidden_state`."""
    for name in ("logits", "last_hidden_state", "output"):
        value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    if isinstance(output, tuple | list) and output:
        return main_tensor(output[0])
    if not isinstance(output, Tensor):
        raise MnemoscopeError(
            f"the model gave a {type(output).__name__}; it must give a tensor, a tuple that starts with one, or a "
            "result with `logits` or `last_hidden_state`"
        )
    return output


def as_sequence(output: Tensor, steps: int, batch: int, batch_first: bool, one_per_sequence: bool = False) -> Tensor:
    """Return a model's output as (T, B, m), or (1, B, m) if it is one output per sequence.

    `one_per_sequence` decides where shapes cannot: m numbers per sequence look like one per step if there are m steps.
    """
    leading = (batch, steps) if batch_first else (steps, batch)
    could_be_one = output.dim() <= 2 and output.shape[:1] == (batch,)
    if one_per_sequence and could_be_one:
        return output.reshape(1, batch, -1)
    if output.dim() >= 2 and tuple(output.shape[:2]) == leading:  # features per step, or a single number
        sequence = time_first(output, batch_first)
    elif could_be_one:
        sequence = output[None]
    elif output.dim() >= 3 and batch in output.shape[:2]:  # fewer or more steps than the input
        is_batch_first = output.shape[0] == batch and output.shape[1] != batch
        sequence = time_first(output, is_batch_first)
    else:
        raise MnemoscopeError(
            f"the model gave output {list(output.shape)} for {steps} steps of {batch} sequences; expected "
            f"{list(leading)} + features, or [{batch}, features] for one output per sequence"
        )
    return sequence.reshape(*sequence.shape[:2], -1)
