"""What goes on inside a model while it runs: the calls of its recurrent layer, and the first convolution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode

from mnemoscope.recurrence import Recurrence
from mnemoscope.torch_internals import pytree


@dataclass(frozen=True)
class Call:
    """One call of a layer: its arguments, keywords included, and what it gave."""

    arguments: tuple[Any, ...]
    result: Any

    @property
    def inputs(self) -> Any:
        return self.arguments[0] if self.arguments else None

    @property
    def state(self) -> Any:
        """The state that the layer was given, None if it began by itself."""
        return self.arguments[1] if len(self.arguments) > 1 else None


@dataclass
class LayerCalls:
    """All calls of one recurrent layer during a run of the model."""

    name: str
    layer: nn.Module
    calls: list[Call] = field(default_factory=list)

    def reads_as(self, other: LayerCalls) -> bool:
        """True if every call read what the call of the same number read in another run."""
        if len(self.calls) != len(other.calls):
            return False
        pairs = zip(self.calls, other.calls, strict=True)
        return all(_same_tensor(one.inputs, another.inputs) for one, another in pairs)

    def sequence(self) -> Tensor | None:
        """(T, B, d): what the layer read, in one call or in several that hand the state on; None if it is not one
        sequence."""
        pieces = [_time_first_inputs(self.layer, call.inputs) for call in self.calls]
        if any(piece is None for piece in pieces):
            return None
        if self.is_chained():
            return torch.cat([piece for piece in pieces if piece is not None])
        first = pieces[0]
        return None if first is None or (len(pieces) > 1 and len(first) == 1) else first

    def starts_itself(self) -> bool:
        """True if the layer began from its own first state and every later call went on from the one before."""
        state = pytree.tree_leaves(self.calls[0].state)
        zeros = all(isinstance(part, Tensor) and not bool(part.any()) for part in state if part is not None)
        is_torch = isinstance(self.layer, nn.RNNBase | nn.RNNCellBase)
        fresh = self.calls[0].state is None or (is_torch and zeros)
        return fresh and (len(self.calls) == 1 or self.is_chained())

    def is_chained(self) -> bool:
        """True if there are several calls, each of which was given the state that the call before had returned."""
        if len(self.calls) < 2:
            return False
        for before, after in zip(self.calls, self.calls[1:], strict=False):
            returned = before.result if isinstance(self.layer, nn.RNNCellBase) else before.result[1]
            kept, given = pytree.tree_leaves(returned), pytree.tree_leaves(after.state)
            if len(kept) != len(given):
                return False
            for one, other in zip(kept, given, strict=True):
                if one is not other and not _same_tensor(one, other):
                    return False
        return True


def _same_tensor(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)


def _time_first_inputs(layer: nn.Module, inputs: Any) -> Tensor | None:
    """Return what one call read as (T, B, d); None if it is not a tensor."""
    if isinstance(inputs, PackedSequence):
        return pad_packed_sequence(inputs)[0].detach()
    if not isinstance(inputs, Tensor):
        return None
    inputs = inputs.detach()
    if isinstance(layer, nn.RNNCellBase):
        return inputs[None] if inputs.dim() == 2 else inputs[None, None]
    if inputs.dim() == 2:  # one sequence, without a batch
        return inputs[:, None]
    return inputs.transpose(0, 1) if getattr(layer, "batch_first", False) else inputs


def recurrent_layers(model: Any) -> dict[str, nn.Module]:
    """Return the outermost recurrent layers and cells in a model, by name."""
    layers: dict[str, nn.Module] = {}
    if not isinstance(model, nn.Module):
        return layers
    for name, module in model.named_modules():
        inside_another = any(name.startswith(f"{outer}.") or outer == "" for outer in layers)
        if isinstance(module, Recurrence | nn.RNNBase | nn.RNNCellBase) and not inside_another:
            layers[name] = module
    return layers


@contextmanager
def recording_layers(model: Any, *, disturbed: bool = False) -> Iterator[list[LayerCalls]]:
    """While open, record every call of every recurrent layer in a model.

    With `disturbed`, what a layer gives at its first call is changed: what it reads later shows if that is fed back.
    """
    records = [LayerCalls(name, layer) for name, layer in recurrent_layers(model).items()]
    with ExitStack() as stack:
        for record in records:
            stack.callback(_record(record, disturbed).remove)
        yield records


def _record(record: LayerCalls, disturbed: bool) -> Any:
    def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> Any:
        if disturbed and not record.calls:
            result = pytree.tree_map(_disturb, result)
        record.calls.append(Call((*arguments, *_in_order(keywords)), result))
        return result

    return record.layer.register_forward_hook(hook, with_kwargs=True)


def _in_order(keywords: dict[str, Any]) -> list[Any]:
    """Return keywords in the order of the arguments that they stand for: layers take `input`, then `hx`."""
    return [keywords[name] for name in sorted(keywords, key=lambda name: name != "input")]


def _disturb(value: Any) -> Any:
    """Return other real numbers of the same shape, as large as those that a tanh gives."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    noise = torch.rand(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (2 * noise - 1).to(value)


class FirstConvolution(TorchFunctionMode):
    """While open, notes what the first convolution over time reads: its shape, (batch, channels, time)."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: tuple[int, ...] | None = None
        self.contiguous = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.conv1d, torch.conv_transpose1d) and self.shape is None and args:
            self.shape = tuple(args[0].shape)
            self.contiguous = args[0].is_contiguous()
        return func(*args, **(kwargs or {}))

    def reads_channels_first(self, inputs: Tensor) -> bool:
        """True if the convolution reads the inputs as they are, (batch, channels, time), not turned before."""
        if self.shape is None or len(self.shape) != 3 or inputs.dim() != 3:
            return False
        _, second, third = inputs.shape
        if second == third:
            return self.shape[1] == second and self.contiguous
        return self.shape[1] == second
