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

    def sequence(self) -> Tensor | None:
        """(T, B, d): what the layer read, in one call or in several that hand the state on; None if it is not one
        sequence."""
        pieces = [_time_first_inputs(self.layer, call.inputs) for call in self.calls]
        if any(piece is None for piece in pieces):
            return None
        if len(pieces) > 1 and self._is_chained():
            return torch.cat([piece for piece in pieces if piece is not None])
        first = pieces[0]
        return None if first is None or (len(pieces) > 1 and len(first) == 1) else first

    def starts_itself(self) -> bool:
        """True if the layer began from its own first state and every later call went on from the one before."""
        state = pytree.tree_leaves(self.calls[0].state)
        zeros = all(isinstance(part, Tensor) and not bool(part.any()) for part in state if part is not None)
        is_torch = isinstance(self.layer, nn.RNNBase | nn.RNNCellBase)
        fresh = self.calls[0].state is None or (is_torch and zeros)
        return fresh and (len(self.calls) == 1 or self._is_chained())

    def _is_chained(self) -> bool:
        """True if every call was given the state that the call before had returned."""
        for before, after in zip(self.calls, self.calls[1:], strict=False):
            returned = before.result if isinstance(self.layer, nn.RNNCellBase) else before.result[1]
            kept, given = pytree.tree_leaves(returned), pytree.tree_leaves(after.state)
            if len(kept) != len(given):
                return False
            for one, other in zip(kept, given, strict=True):
                if one is not other and not (isinstance(other, Tensor) and torch.equal(one, other)):
                    return False
        return True


def _time_first_inputs(layer: nn.Module, inputs: Any) -> Tensor | None:
    """Return what one call read as (T, B, d); None if it is no tensor."""
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
def recording_layers(model: Any) -> Iterator[list[LayerCalls]]:
    """While open, record every call of every recurrent layer in a model."""
    records = [LayerCalls(name, layer) for name, layer in recurrent_layers(model).items()]
    with ExitStack() as stack:
        for record in records:
            stack.callback(_record(record).remove)
        yield records


def _record(record: LayerCalls) -> Any:
    def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        record.calls.append(Call((*arguments, *keywords.values()), result))

    return record.layer.register_forward_hook(hook, with_kwargs=True)


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
