"""A model and its sequences, brought into the one form that can be examined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence


@dataclass(frozen=True)
class Adapted:
    """What can be examined of a model, by how much of it is given. Time always comes first.

    Attributes:
        name: what is examined, in words.
        features: (T, B, d), real: what the whole model reads, ids embedded.
        run: the whole model, features -> outputs (T, B, m), or (1, B, m) where it gives one output a sequence;
            differentiable.
        recurrence: the part with a step, if there is one.
        drive: (T, B, input_size): what that recurrence reads; `features` where it is the whole model.
        whole: whether the recurrence's outputs are the model's.
        no_step: why there is no recurrence, and what to do.
        batch_first: the layout of the inputs as they were given.
    """

    name: str
    features: Tensor
    run: Callable[[Tensor], Tensor]
    recurrence: Recurrence | None = None
    drive: Tensor | None = None
    whole: bool = True
    no_step: str = ""
    batch_first: bool = False


def describe(model: Any) -> str:
    """A model's name and sizes in a few words."""
    name = model._get_name() if isinstance(model, nn.Module) else getattr(model, "__name__", type(model).__name__)
    sizes = [getattr(model, key, None) for key in ("input_size", "hidden_size")]
    known = [str(size) for size in sizes if isinstance(size, int)]
    return f"{name}({', '.join(known)})" if known else name


def time_first(x: Tensor, batch_first: bool) -> Tensor:
    return x.transpose(0, 1) if batch_first and x.dim() > 1 else x


def primary(output: Any) -> Tensor:
    """The tensor that a model's result is about: itself, the first of a tuple, `logits`, `last_hidden_state`."""
    for name in ("logits", "last_hidden_state", "output"):
        found = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(output, tuple | list) and output:
        return primary(output[0])
    if not isinstance(output, Tensor):
        raise MnemoscopeError(
            f"the model gave a {type(output).__name__}; it must give a tensor, a tuple that starts with one, or a "
            "result with `logits` or `last_hidden_state`"
        )
    return output


def as_sequence(output: Tensor, steps: int, batch: int, batch_first: bool, single: bool = False) -> Tensor:
    """A model's output as (T, B, m), or (1, B, m) where it is one a sequence.

    `single` says that it is: m numbers a sequence look like one a step where there are as many steps.
    """
    leading = (batch, steps) if batch_first else (steps, batch)
    if single and output.dim() <= 2 and output.shape[:1] == (batch,):
        return output.reshape(1, batch, -1)
    if output.dim() >= 2 and tuple(output.shape[:2]) == leading:  # one a step, possibly a bare number each
        sequence = time_first(output, batch_first)
    elif output.dim() <= 2 and output.shape[:1] == (batch,):
        sequence = output[None]
    elif output.dim() >= 3 and batch in output.shape[:2]:  # fewer or more steps than the input
        sequence = output.transpose(0, 1) if output.shape[0] == batch and output.shape[1] != batch else output
    else:
        raise MnemoscopeError(
            f"the model gave output {list(output.shape)} for {steps} steps of {batch} sequences; expected "
            f"{list(leading)} + features, or [{batch}, features] for one output a sequence"
        )
    return sequence.reshape(*sequence.shape[:2], -1)
