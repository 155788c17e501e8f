"""How a model's ``forward`` is called: what it needs beside its inputs, and which part of its result is meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from mnemoscope.adapters._adapted import model_name
from mnemoscope.errors import MnemoscopeError
from mnemoscope.torch_internals import pytree

Output: TypeAlias = str | int | Callable[[Any], Tensor]
"""Which part of a result is the output: its name, its place, or a function of the result."""

OUTPUT_NAMES = ("logits", "last_hidden_state", "output", "outputs", "prediction", "predictions", "prediction_outputs")

INITIAL_STATES = (
    "init_hidden",
    "initHidden",
    "init_state",
    "init_states",
    "initial_state",
    "zero_state",
    "begin_state",
)
"""Methods that make the first state of a model, given the batch size or nothing."""

STATE_NAMES = ("h", "hx", "hc", "h0", "hidden", "hiddens", "hidden_state", "state", "states", "prev_state", "h_prev")


def is_hugging_face(model: Any) -> bool:
    """True for a model of the transformers library."""
    return isinstance(model, nn.Module) and hasattr(model, "get_input_embeddings") and hasattr(model, "config")


@dataclass(frozen=True)
class Forward:
    """A model's ``forward`` with everything that it is given beside its inputs.

    Attributes:
        model: a module or a function.
        steps, batch: of the inputs that `kwargs` belong to.
        kwargs: what a user gives beside the inputs. A tensor with as many rows as there are sequences is repeated if
            the batch is.
        output: which part of the result is the output; by default the tensor that `main_tensor` finds.
    """

    model: Any
    steps: int
    batch: int
    kwargs: Mapping[str, Any]
    output: Output | None = None

    def __call__(self, x: Tensor, steps: int, batch: int, from_end: bool = False) -> Tensor:
        """Return the output for inputs x in the model's own layout: all steps, the first ones, or the last ones."""
        given = {name: self._fit(name, value, steps, batch, from_end) for name, value in self.kwargs.items()}
        if is_hugging_face(self.model):
            result = self.model(**self._hugging_face(x, batch, given))
        else:
            x = x.clone() if x.is_floating_point() else x  # a model may change what it reads in place
            result = self.model(x, **self._required(given, x, steps, batch), **given)
        sizes = steps, batch
        return main_tensor(result, sizes) if self.output is None else _select(result, self.output, sizes)

    def initial_state(self, batch: int) -> Any:
        """Return what the model's own `init_hidden`, or a method of a like name, makes; None if it has none."""
        for name in INITIAL_STATES:
            method = getattr(self.model, name, None)
            if callable(method):
                return method(batch) if _required_parameters(method) else _expand(method(), batch)
        return None

    def takes_state(self) -> bool:
        """True if ``forward`` wants a state that the model itself can make."""
        if not any(callable(getattr(self.model, name, None)) for name in INITIAL_STATES):
            return False
        return bool(self._missing(self.kwargs))

    def _missing(self, given: Mapping[str, Any]) -> list[str]:
        """Return the arguments that ``forward`` requires after its inputs, without those that are given."""
        function = self.model.forward if isinstance(self.model, nn.Module) else self.model
        return [name for name in _required_parameters(function)[1:] if name not in given]

    def _required(self, given: Mapping[str, Any], x: Tensor, steps: int, batch: int) -> dict[str, Any]:
        """Return lengths and first states that ``forward`` requires and no user gave."""
        filled: dict[str, Any] = {}
        for name in self._missing(given):
            lower = name.lower()
            if "len" in lower:
                filled[name] = torch.full((batch,), steps)  # on the CPU, as pack_padded_sequence wants it
            elif lower in STATE_NAMES or self.takes_state():
                filled[name] = self.initial_state(batch)
            else:
                raise MnemoscopeError(
                    f"the forward of {model_name(self.model)} also takes {name!r}: pass kwargs={{{name!r}: ...}}, "
                    f"on the command line --kwargs {name}=..."
                )
        return filled

    def _hugging_face(self, x: Tensor, batch: int, given: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords of a model of the transformers library, which says the name of its main input."""
        config = self.model.config
        parameters = inspect.signature(self.model.forward).parameters
        name = getattr(self.model, "main_input_name", "input_ids")
        if name == "input_ids" and x.is_floating_point() and "inputs_embeds" in parameters:
            name = "inputs_embeds"
        keywords: dict[str, Any] = {name: x}
        if getattr(config, "use_cache", None) is not None and "use_cache" in parameters:
            keywords["use_cache"] = False
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
            start = getattr(config, "decoder_start_token_id", None) or 0  # the decoder's first step
            keywords["decoder_input_ids"] = torch.full((batch, 1), start, device=x.device)
        return keywords | given

    def differs_by_sequence(self) -> bool:
        """True if some argument is one thing for one sequence and another for the next."""
        for name, value in self.kwargs.items():
            for leaf in pytree.tree_leaves(value):
                rows = self._rows(name, leaf)
                if rows is not None and bool((leaf != leaf.narrow(rows, 0, 1)).any()):
                    return True
        return False

    def _rows(self, name: str, value: Any) -> int | None:
        """Return the axis of an argument that has one entry for each sequence; None if it has none."""
        if not isinstance(value, Tensor):
            return None
        axes = [axis for axis in range(min(2, value.dim())) if value.shape[axis] == self.batch]
        is_state = name.lower() in STATE_NAMES and value.dim() == 3  # (layers, batch, features)
        return next(iter(axes[::-1] if is_state else axes), None)

    def _fit(self, name: str, value: Any, steps: int, batch: int, from_end: bool) -> Any:
        """Return an argument for another number of sequences or of steps than it was given for."""
        return pytree.tree_map(lambda leaf: self._fit_tensor(name, leaf, steps, batch, from_end), value)

    def _fit_tensor(self, name: str, value: Any, steps: int, batch: int, from_end: bool) -> Any:
        if not isinstance(value, Tensor) or (steps, batch) == (self.steps, self.batch):
            return value
        rows = self._rows(name, value)
        if rows is not None and batch != self.batch:
            value = value.index_select(rows, torch.arange(batch, device=value.device) % self.batch)
        if steps < self.steps:
            is_lengths = value.dim() == 1 and rows == 0 and not value.is_floating_point()
            if is_lengths:
                return value.clamp(max=steps)
            axes = [axis for axis in range(value.dim()) if axis != rows and value.shape[axis] == self.steps]
            for axis in axes:
                value = value.narrow(axis, self.steps - steps if from_end else 0, steps)
        return value


def _required_parameters(function: Any) -> list[str]:
    """Return the names of the arguments without defaults."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature
        return []
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return [p.name for p in parameters if p.kind in by_name and p.default is p.empty]


def _expand(state: Any, batch: int) -> Any:
    """Return a state that was made for one sequence, for `batch` of them: the axis before the last is the batch."""

    def expand(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[-2] != 1:
            return value
        return value.expand(*value.shape[:-2], batch, value.shape[-1])

    return pytree.tree_map(expand, state)


def _select(result: Any, output: Output, sizes: tuple[int, int]) -> Tensor:
    """Return the part of a result that a user named."""
    try:
        if callable(output):
            value = output(result)
        elif isinstance(output, str) and not isinstance(result, Mapping):
            value = getattr(result, output)
        else:
            value = result[output]
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        has = f"; it has {', '.join(map(str, result))}" if isinstance(result, Mapping) else ""
        raise MnemoscopeError(
            f"output={output!r} is not in the model's result, a {type(result).__name__}{has}"
        ) from error
    return main_tensor(value, sizes)


def main_tensor(result: Any, sizes: tuple[int, int] | None = None) -> Tensor:
    """Return the tensor in a model's result: itself, what has a usual name, else the first of more than one number.

    A packed sequence is padded, (time, batch, ...), and a list of one tensor a step is stacked to that, if the `sizes`
    (time, batch) are known.
    """
    tensor = _find_tensor(result, sizes)
    if tensor is None:
        raise MnemoscopeError(
            f"the model gave a {type(result).__name__} without a tensor of real numbers; output= says which part of "
            "its result is meant"
        )
    if not tensor.is_floating_point() and not tensor.is_quantized:
        kind = str(tensor.dtype).removeprefix("torch.")
        hint = ", as output=lambda y: torch.view_as_real(y).flatten(-2)" if tensor.is_complex() else ""
        raise MnemoscopeError(
            f"the model's output is of {kind}, where real numbers are needed; output= says which part of its result is "
            f"meant{hint}"
        )
    return tensor


def _find_tensor(result: Any, sizes: tuple[int, int] | None) -> Tensor | None:
    if isinstance(result, Tensor):
        return result
    if isinstance(result, list) and sizes is not None and _is_one_a_step(result, *sizes):
        return torch.stack([part.flatten(1) if part.dim() > 1 else part[:, None] for part in result])
    if isinstance(result, PackedSequence):
        return pad_packed_sequence(result)[0]
    for name in OUTPUT_NAMES:
        value = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
        if isinstance(value, Tensor):
            return value
    parts: Sequence[Any] = ()
    if isinstance(result, Mapping):
        parts = list(result.values())
    elif isinstance(result, tuple | list):
        parts = result
    elif is_dataclass(result) and not isinstance(result, type):
        parts = [getattr(result, field.name, None) for field in fields(result)]
    for part in parts:
        tensor = _find_tensor(part, sizes)
        if tensor is not None and tensor.dim() > 0 and tensor.is_floating_point():  # a loss is a single number
            return tensor
    return None


def _is_one_a_step(parts: list[Any], steps: int, batch: int) -> bool:
    """True for tensors of one shape, as many as steps: (batch, ...), or (features,) of one sequence without a batch."""
    if len(parts) != steps or not all(isinstance(part, Tensor) and part.shape == parts[0].shape for part in parts):
        return False
    return parts[0].dim() == 1 or parts[0].shape[:1] == (batch,)
