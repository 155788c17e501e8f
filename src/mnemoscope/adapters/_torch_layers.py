"""Torch's recurrent layers and cells as recurrences: the same Parameter objects under readable equations.

Torch's fused layers support neither forward-mode differentiation nor vmap; unrolled by our equations they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.weight_norm import WeightNorm

from mnemoscope.adapters._adapted import GIVE_A_STEP
from mnemoscope.adapters._call import main_tensor
from mnemoscope.adapters._layout import recurrent_layout
from mnemoscope.errors import MnemoscopeError, type_and_line
from mnemoscope.layers import GRU, LSTM, RNN, Layer
from mnemoscope.recurrence import Recurrence, State
from mnemoscope.torch_internals import has_forward_hooks

_TORCH = (nn.LSTM, nn.GRU, nn.RNN)


class TorchCell(Recurrence):
    """nn.RNNCell, nn.LSTMCell or nn.GRUCell as a recurrence of one layer."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell
        self.input_size = cell.input_size
        self.hidden_size = cell.hidden_size

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
    """Return nn.RNN, nn.LSTM or nn.GRU as our layer with the same equations; it holds the same Parameter objects.

    A weight that `torch.nn.utils.parametrize` computes is computed by the same parametrization, and one that
    `torch.nn.utils.weight_norm` computes is computed from the same g and v.
    A stack stays a stack. Of a bidirectional layer only one direction is a recurrence: the forward one of a single
    layer, or with ``reverse=True`` the other, which reads the sequence from its end. One whose own ``forward``, or
    whose hooks, give other outputs than torch's is refused: its equations are not known.

    Examples:
        >>> from mnemoscope.adapters import from_torch
        >>> theirs = nn.GRU(3, 16)
        >>> ours = from_torch(theirs)
        >>> ours.weight_hh_l0 is theirs.weight_hh_l0
        True
    """
    if not isinstance(module, _TORCH):
        found = f"{type(module).__module__.split('._')[0]}.{type(module).__name__}"
        raise MnemoscopeError(f"from_torch takes nn.RNN, nn.LSTM or nn.GRU; got {found}")
    if module.bidirectional and module.num_layers > 1:
        raise MnemoscopeError(
            f"a bidirectional {type(module).__name__} of {module.num_layers} layers has no step: its second layer "
            "reads the future; examine a layer with bidirectional=False"
        )
    if reverse and not module.bidirectional:
        raise MnemoscopeError(f"only a bidirectional {type(module).__name__} has a reverse direction; this one has not")

    # Run before its weights are read: a hook may compute them, as torch.nn.utils.weight_norm does.
    is_plain = _is_plain(module)
    x = torch.randn(5, 2, module.input_size, generator=torch.Generator().manual_seed(0))
    x = x.to(next(module.parameters()))
    outputs = None if is_plain else _outputs(module, x)

    layer = _without_weights(module)
    suffix = "_reverse" if reverse else ""
    computed: dict[str, nn.Module] = {}
    hooks = {hook.name: hook for hook in module._forward_pre_hooks.values() if isinstance(hook, WeightNorm)}
    for name, _ in list(layer.named_parameters()):
        if name + suffix in hooks:
            computed[name] = _HookedWeight(hooks[name + suffix], module)
        elif parametrize.is_parametrized(module, name + suffix):
            computed[name] = module.get_submodule(f"parametrizations.{name}{suffix}")
        else:
            _set_parameter(layer, name, getattr(module, name + suffix))
    if computed:
        _parametrize(layer, computed)
    if not is_plain and not _gives(layer, x, outputs):
        raise MnemoscopeError(
            f"this {type(module).__name__} changes what nn.{_base(module).__name__} gives, so that its equations are "
            f"not known: {GIVE_A_STEP}"
        )
    return layer.train(module.training)


class _HookedWeight(nn.Module):
    """A weight that a hook of torch.nn.utils.weight_norm computes, with the Parameters g and v that it reads."""

    def __init__(self, hook: WeightNorm, module: nn.Module) -> None:
        super().__init__()
        self.hook = hook
        for name in (f"{hook.name}_g", f"{hook.name}_v"):
            setattr(self, name, getattr(module, name))

    def forward(self) -> Tensor:
        weight: Tensor = self.hook.compute_weight(self)
        return weight


def _base(module: nn.RNNBase) -> type[nn.RNNBase]:
    return next(base for base in _TORCH if isinstance(module, base))


def _is_plain(module: nn.RNNBase) -> bool:
    """True if nothing but torch's own ``forward`` decides what a layer gives."""
    own_forward = type(module).forward is not _base(module).forward or "forward" in vars(module)
    return not own_forward and not has_forward_hooks(module)


@torch.no_grad()
def _outputs(module: nn.RNNBase, x: Tensor) -> Tensor | None:
    """Return what a layer gives for x (T, B, d), time first; None if that is no tensor of real numbers."""
    training = module.training
    layout = recurrent_layout(module.batch_first)
    try:
        result = module.eval()(layout.from_time_first(x))
    except Exception as error:  # of its own forward, which may take other arguments, or of a hook
        raise MnemoscopeError(
            f"this {type(module).__name__} raised {type_and_line(error)}; it was run on random numbers, to see whether "
            f"its equations are those of nn.{_base(module).__name__}: {GIVE_A_STEP}"
        ) from error
    finally:
        module.train(training)
    try:
        return layout.time_first(main_tensor(result))
    except MnemoscopeError:
        return None


@torch.no_grad()
def _gives(layer: Layer, x: Tensor, outputs: Tensor | None) -> bool:
    """Return True if torch's equations give these outputs for x."""
    expected = layer.eval()(x)[0]
    if outputs is None or outputs.shape != expected.shape:
        return False
    tolerance = torch.finfo(x.dtype).eps ** 0.5
    return torch.allclose(outputs, expected, rtol=tolerance, atol=tolerance)


def _without_weights(module: nn.RNNBase) -> Layer:
    """Return our layer with the sizes of torch's; its parameters are on the meta device."""
    sizes = (module.input_size, module.hidden_size, module.num_layers, module.bias)
    common: dict[str, Any] = dict(dropout=module.dropout, device="meta")
    if isinstance(module, nn.LSTM):
        return LSTM(*sizes, **common, proj_size=module.proj_size)
    if isinstance(module, nn.GRU):
        return GRU(*sizes, **common)
    if isinstance(module, nn.RNN):
        return RNN(*sizes, **common, nonlinearity=module.nonlinearity)
    raise MnemoscopeError(f"expected nn.RNN, nn.LSTM or nn.GRU; got {type(module).__name__}")


def _set_parameter(layer: nn.Module, name: str, value: Tensor) -> None:
    """Give `layer` the tensor of another module: the same Parameter, or what a hook has computed in its place."""
    if not isinstance(value, nn.Parameter):
        delattr(layer, name)
    setattr(layer, name, value)


def _parametrize(layer: nn.Module, parametrizations: dict[str, nn.Module]) -> None:
    """Let the weights of these names be computed by another module's parametrizations, which `layer` then shares.

    As torch does it, but torch can only make new ones, with Parameters of their own.
    """

    def computed(name: str) -> property:
        return property(lambda self: self.parametrizations[name]())

    for name in parametrizations:
        delattr(layer, name)
    layer.parametrizations = nn.ModuleDict(parametrizations)
    kind = type(layer)
    layer.__class__ = type(f"Parametrized{kind.__name__}", (kind,), {name: computed(name) for name in parametrizations})


def readable_layers(model: Any) -> list[tuple[nn.RNNBase, Layer]]:
    """Return torch's recurrent layers in a module, or in the attributes of any other object, each with our equations.

    Bidirectional ones, subclasses, and those with a ``forward`` or hooks of their own are left out.
    """
    owners = [model, getattr(model, "stepper", None)]
    parts = [part for owner in owners for part in (owner, *getattr(owner, "__dict__", {}).values())]
    found: dict[int, tuple[nn.RNNBase, Layer]] = {}
    for part in parts:
        for module in part.modules() if isinstance(part, nn.Module) else ():
            if not isinstance(module, nn.RNNBase) or type(module) not in (nn.LSTM, nn.GRU, nn.RNN):
                continue
            if not module.bidirectional and _is_plain(module):
                layer = from_torch(module)
                layer.batch_first = module.batch_first
                found[id(module)] = module, layer
    return list(found.values())


@contextmanager
def readable(layers: list[tuple[nn.RNNBase, Layer]]) -> Iterator[None]:
    """While open, torch's layers run by our equations, with the weights that they hold at this moment."""
    try:
        for module, layer in layers:
            for name in list(layer._parameters):
                layer._parameters[name] = getattr(module, name)
            module.__dict__["forward"] = layer
        yield
    finally:
        for module, _ in layers:
            module.__dict__.pop("forward", None)
