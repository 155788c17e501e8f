"""The form in which every model is examined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mnemoscope.adapters._layout import Layout
from mnemoscope.recurrence import Recurrence

GIVE_A_STEP = "give it initial_state(batch) and step(x, state) to see its states"
"""What to do about a model without a step: the end of a sentence that says why there is none."""


@dataclass(frozen=True)
class Adapted:
    """A model and its sequences, ready to be examined. Time always comes first.

    Attributes:
        name: the model, in words.
        features: (T, B, d), real: what the whole model reads, ids already looked up.
        run: the whole model, features -> outputs (T, B, m), or (S, B, m) if it has another number of output steps, 1 if
            it gives one output per sequence; differentiable. Where `ids` are known it also takes ids (T, B), and looks
            them up in the tables that the model holds at that moment.
        recurrence: the part with a step, if there is one.
        recurrence_inputs: (T, B, input_size), what that recurrence reads; equal to `features` if it is the whole model.
            If it is, and `ids` are known, it reads ids too.
        recurrence_is_model: True if the outputs of the recurrence are those of the model.
        starts_itself: True if the recurrence runs from its own start over all of its inputs at once; False if the
            model hands it a state or calls it more than once, so that it may reach states that it does not reach alone.
        no_step: why there is no recurrence, and what to do.
        layout: of the inputs as they were given.
        outputs: (S, B, m), of the run that adapting needed; None if it needed none, or if their layout is not known.
        ids: (T, B), the inputs as they were given, if they are ids; None for real inputs.
        differs_by_sequence: True if the model also reads arguments that are not the same for all sequences.
    """

    name: str
    features: Tensor
    run: Callable[[Tensor], Tensor]
    recurrence: Recurrence | None = None
    recurrence_inputs: Tensor | None = None
    recurrence_is_model: bool = True
    starts_itself: bool = True
    no_step: str = ""
    layout: Layout = Layout.TIME_FIRST
    outputs: Tensor | None = None
    ids: Tensor | None = None
    differs_by_sequence: bool = False

    @property
    def layout_in_words(self) -> str:
        """The order of the dimensions of the inputs as they were given; ids have no features."""
        return self.layout.value if self.ids is None else self.layout.value.replace(", features", "")

    @property
    def batch_first(self) -> bool:
        """True if the inputs were given as (batch, ...)."""
        return self.layout in (Layout.BATCH_FIRST, Layout.CHANNELS_FIRST)


def model_name(model: Any) -> str:
    """Return a model's name and sizes: ``LSTM(3, 8)``."""
    if isinstance(model, nn.Module):
        name = model._get_name()
    else:
        name = getattr(model, "__name__", type(model).__name__)
    sizes = [getattr(model, key, None) for key in ("input_size", "hidden_size")]
    known = [str(size) for size in sizes if isinstance(size, int)]
    return f"{name}({', '.join(known)})" if known else name
