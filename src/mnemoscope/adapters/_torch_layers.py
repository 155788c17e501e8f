"""torch's own recurrent layers and cells as recurrences: the same Parameter objects under readable equations.

The fused layers of torch cannot be differentiated forwards nor mapped over; unrolled by our equations they can.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mnemoscope.adapters._adapted import primary, time_first
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import GRU, LSTM, RNN, Layer
from mnemoscope.layers._base import Weights
from mnemoscope.recurrence import Recurrence, State


class ProjectedLSTM(LSTM):
    """nn.LSTM with ``proj_size``: h_t = W_hr (o * tanh(c_t)) has fewer features than c_t."""

    def __init__(self, *args: Any, proj_size: int, **kwargs: Any) -> None:
        self.proj_size = proj_size
        super().__init__(*args, **kwargs)

    @property
    def step_size(self) -> int:
        return self.proj_size

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        shapes = {**super().shapes(input_size), "weight_hr": (self.proj_size, self.hidden_size)}
        return {**shapes, "weight_hh": (4 * self.hidden_size, self.proj_size)}

    def start(self, w: Weights, batch: int) -> State:
        return w.weight_hh.new_zeros(batch, self.proj_size), w.weight_hh.new_zeros(batch, self.hidden_size)

    def advance(self, w: Weights, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        h, c = super().advance(w, u, h, c)
        return F.linear(h, w.weight_hr), c


class Cell(Recurrence):
    """nn.RNNCell, nn.LSTMCell or nn.GRUCell as a recurrence of one layer."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell, self.input_size, self.hidden_size = cell, cell.input_size, cell.hidden_size

    def initial_state(self, batch: int) -> State:
        zeros = self.cell.weight_hh.new_zeros(1, batch, self.hidden_size)
        return (zeros, zeros) if isinstance(self.cell, nn.LSTMCell) else zeros

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        if isinstance(self.cell, nn.LSTMCell):
            h, c = self.cell(x, (state[0][0], state[1][0]))
            return h, (h[None], c[None])
        h = self.cell(x, state[0])
        return h, h[None]


def from_torch(module: nn.RNNBase, *, reverse: bool = False) -> Layer:
    """nn.RNN, nn.LSTM or nn.GRU as the layer of ours with the same equations; it holds the very same parameters.

    A stack stays a stack. Of a bidirectional layer only one direction is a recurrence: the forward one of a single
    layer, or with ``reverse=True`` the other, which reads the sequence from its end. A subclass whose own ``forward``
    gives other numbers than torch's is refused: its equations are not known.
    """
    if module.bidirectional and module.num_layers > 1:
        raise MnemoscopeError(
            f"a bidirectional {type(module).__name__} of {module.num_layers} layers has no step: its second layer "
            "reads the future; examine a layer with bidirectional=False"
        )
    if reverse and not module.bidirectional:
        raise MnemoscopeError(f"only a bidirectional {type(module).__name__} has a reverse direction; this one has not")
    layer = _blank(module)
    suffix = "_reverse" if reverse else ""
    for name, _ in list(layer.named_parameters()):
        _share(layer, name, getattr(module, name + suffix))
    kind = next(kind for kind in (nn.LSTM, nn.GRU, nn.RNN) if isinstance(module, kind))
    if type(module).forward is not kind.forward and not _alike(module, layer):
        raise MnemoscopeError(
            f"{type(module).__name__} changes what nn.{kind.__name__} gives, so that its equations are not known: give "
            "it initial_state(batch) and step(x, state) to see its states"
        )
    return layer.train(module.training)


@torch.no_grad()
def _alike(module: nn.RNNBase, layer: Layer) -> bool:
    """Whether a subclass of torch's gives what torch's equations give, tried on a short noise."""
    noise = torch.randn(5, 2, module.input_size, generator=torch.Generator().manual_seed(0))
    x, training = noise.to(next(module.parameters())), module.training
    try:
        output = primary(module.eval()(time_first(x, module.batch_first)))
    except Exception:  # a forward of other arguments
        return False
    finally:
        module.train(training)
    wanted, near = layer.eval()(x)[0], torch.finfo(x.dtype).eps ** 0.5
    found = time_first(output, module.batch_first)
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=near, atol=near)


def _blank(module: nn.RNNBase) -> Layer:
    """A layer of ours with the sizes of torch's and no numbers in it."""
    sizes = (module.input_size, module.hidden_size, module.num_layers, module.bias)
    common: dict[str, Any] = dict(dropout=module.dropout, device="meta")
    if isinstance(module, nn.LSTM):
        if module.proj_size:
            return ProjectedLSTM(*sizes, **common, proj_size=module.proj_size)
        return LSTM(*sizes, **common)
    if isinstance(module, nn.GRU):
        return GRU(*sizes, **common)
    if isinstance(module, nn.RNN):
        return RNN(*sizes, **common, nonlinearity=module.nonlinearity)
    raise MnemoscopeError(f"expected nn.RNN, nn.LSTM or nn.GRU; got {type(module).__name__}")


def _share(layer: nn.Module, name: str, value: Tensor) -> None:
    """Give `layer` the tensor of another module: a parameter stays that parameter, a parametrized one its value."""
    if isinstance(value, nn.Parameter):
        setattr(layer, name, value)
    else:
        delattr(layer, name)
        setattr(layer, name, value)
