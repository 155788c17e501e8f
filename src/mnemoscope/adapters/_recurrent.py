"""Models that have a step: ours, torch's, a user's own, and a recurrent layer between an embedding and a read-out."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mnemoscope.adapters._step import Stepped
from mnemoscope.adapters._torch_layers import TorchCell, from_torch
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import Layer
from mnemoscope.recurrence import Attention, Recurrence, Screening, State, leaves


class WithReadout(Recurrence):
    """A recurrent layer with a read-out after every step, on inputs that are embedded already, or on ids.

    `model` is any module with ``embed(inputs)``, ``layer`` and ``read(h, x)``, as the networks of our training have.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        layer = as_recurrence(model.layer)
        if layer._parameters is model.layer._parameters:
            # Registered twice, the layer would be restored wrongly by torch.func.functional_call.
            self.__dict__["layer"] = layer
        else:  # torch's own, unrolled by our equations
            self.layer = layer
        self.input_size = self.layer.input_size
        self.hidden_size = self.layer.hidden_size

    @property
    def output_size(self) -> int:
        return self.model.output_size

    def initial_state(self, batch: int) -> State:
        return self.layer.initial_state(batch)

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        """Return the model's output for the layer's output h and its input x."""
        return self.model.read(h, x)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        x = look_up(self.model, x)
        h, state = self.layer.step(x, state)
        return self.read(h, x), state

    def next_state(self, x: Tensor, state: State) -> State:
        """Return the state after one step, without its output: a read-out of many words costs the most."""
        return self.layer.step(look_up(self.model, x), state)[1]

    def observe(self, x: Tensor, state: State) -> tuple[Tensor, State, tuple[Attention, ...] | None]:
        x = look_up(self.model, x)
        h, state, attention = self.layer.observe(x, state)
        return self.read(h, x), state, attention

    @property
    def screening(self) -> Screening | None:
        return self.layer.screening

    def forward(self, x: Tensor, state: State | None = None, *, starts: Tensor | None = None) -> tuple[Tensor, State]:
        x = look_up(self.model, x)
        h, state = self.layer(x, state, starts=starts)
        return self.read(h, x), state


def look_up(model: Any, x: Tensor) -> Tensor:
    """Return features as they are, and ids as the model embeds them."""
    return x if x.is_floating_point() else model.embed(x)


def has_readout(model: Any) -> bool:
    """True for a module with ``embed``, ``layer`` and ``read``."""
    return isinstance(model, nn.Module) and all(hasattr(model, name) for name in ("embed", "layer", "read"))


def has_step(model: Any) -> bool:
    """True for an object with ``initial_state`` and ``step``."""
    return callable(getattr(model, "step", None)) and callable(getattr(model, "initial_state", None))


def as_recurrence(model: Any, input_size: int | None = None, *, by_parts: bool = True) -> Recurrence:
    """Return a model as a `Recurrence` that reads time-first sequences and shares the model's parameters.

    Takes a Recurrence, torch's RNN, LSTM, GRU and their cells, a module with ``embed``, ``layer`` and ``read`` (unless
    `by_parts` is False: it may join them in another way), and any object with ``initial_state(batch)`` and
    ``step(x, state)``, whose `input_size` must be known.

    Examples:
        >>> from mnemoscope.adapters import as_recurrence
        >>> recurrence = as_recurrence(nn.LSTM(3, 16))
        >>> output, state = recurrence.step(torch.randn(4, 3), recurrence.initial_state(4))
    """
    if getattr(model, "bidirectional", False):
        has_directions = isinstance(model, nn.RNN | nn.LSTM | nn.GRU) and model.num_layers == 1
        alternative = ", or one direction of it with mnemoscope.adapters.from_torch" if has_directions else ""
        raise MnemoscopeError(
            f"a bidirectional {type(model).__name__} has no step: its output at t depends on later inputs; examine a "
            f"layer with bidirectional=False{alternative}"
        )
    if by_parts and has_readout(model):
        return WithReadout(model)
    if isinstance(model, Layer):
        return _time_first_view(model)
    if isinstance(model, Recurrence):
        is_complex = any(tensor.is_complex() for tensor in leaves(model.initial_state(1)))
        return Stepped(model, model.input_size) if is_complex else model
    if isinstance(model, nn.RNNBase):
        return from_torch(model)
    if isinstance(model, nn.RNNCellBase):
        return TorchCell(model)
    if has_step(model):
        return Stepped(model, _input_size(model, input_size))
    raise MnemoscopeError(
        f"{type(model).__name__} has no step: give it initial_state(batch) and step(x, state) -> (output, state), or "
        "examine what needs inputs and outputs alone"
    )


def _time_first_view(layer: Layer) -> Layer:
    """Return the same layer with the same parameters, reading (time, batch, features)."""
    if not layer.batch_first:
        return layer
    view = type(layer).__new__(type(layer))  # copy.copy asks for its pickled form, which a parametrized layer refuses
    view.__dict__.update(layer.__dict__)
    view.batch_first = False
    return view


def _input_size(model: Any, default: int | None) -> int:
    size = getattr(model, "input_size", default)
    if not isinstance(size, int):
        raise MnemoscopeError(f"{type(model).__name__} does not say its input_size; pass input_size=")
    return size
