"""Models of which only ``forward`` is known: examined as they are, and by the recurrent layer inside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.adapters._adapted import Adapted, as_sequence, main_tensor, model_name, time_first
from mnemoscope.adapters._recurrent import as_recurrence
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence


def adapt_forward_only(model: Any, inputs: Tensor, batch_first: bool | None) -> Adapted:
    """Adapt a model with a ``forward``; its recurrent layer is examined too if it has exactly one.

    The model runs once; a second time if its output could be one per step or one per sequence.
    """
    # One run shows the output, what the embedding gives and what the recurrent layer reads.
    layers = _recurrent_layers(model)
    layer = next(iter(layers.values())) if len(layers) == 1 else None
    embedding = None if inputs.is_floating_point() else _find_embedding(model, inputs)
    with torch.no_grad(), ExitStack() as hooks:
        embedding_call = hooks.enter_context(_record_call(embedding))
        layer_call = hooks.enter_context(_record_call(layer))
        output = main_tensor(model(inputs))

    # The whole model, from real features to outputs.
    layout = _guess_layout(model, inputs, output) if batch_first is None else batch_first
    one_per_sequence = _gives_one_output(model, inputs, output, layout)
    features = inputs
    if embedding is not None:
        embedding_call.check(model, embedding)
        features = main_tensor(embedding_call.result).detach()
    adapted = Adapted(
        name=model_name(model),
        features=time_first(features, layout),
        run=_make_run(model, inputs, embedding, layout, one_per_sequence),
        recurrence_is_model=False,
        batch_first=layout,
        outputs=_outputs(output, inputs, layout, one_per_sequence),
    )

    # Its recurrent layer, on what it reads inside the model.
    if layer is None:
        return replace(adapted, no_step=_no_step(model, list(layers)))
    try:
        recurrence = as_recurrence(layer)
    except MnemoscopeError as error:
        return replace(adapted, no_step=str(error))
    layer_call.check(model, layer)
    (name,) = layers
    layer_inputs = layer_call.arguments[0] if layer_call.arguments else None
    if not isinstance(layer_inputs, Tensor):
        why = f"its {model_name(layer)} `{name}` does not read a plain tensor: give it padded, not packed, sequences"
        return replace(adapted, no_step=why)
    return replace(
        adapted,
        name=f"{adapted.name}, by its {model_name(layer)} `{name}`",
        recurrence=recurrence,
        recurrence_inputs=time_first(layer_inputs.detach(), bool(getattr(layer, "batch_first", False))),
        starts_itself=layer_call.count == 1 and all(argument is None for argument in layer_call.arguments[1:]),
    )


def _recurrent_layers(model: Any) -> dict[str, nn.Module]:
    """Return the outermost recurrent layers in a model, by name."""
    layers: dict[str, nn.Module] = {}
    if not isinstance(model, nn.Module):
        return layers
    for name, module in model.named_modules():
        inside_another = any(name.startswith(f"{outer}.") for outer in layers)
        if isinstance(module, Recurrence | nn.RNNBase) and not inside_another:
            layers[name] = module
    return layers


def _no_step(model: Any, layers: list[str]) -> str:
    if layers:
        why = f"it holds {len(layers)} recurrent layers ({', '.join(layers)}): examine one of them on its own inputs"
    else:
        why = "only its forward is known: give it initial_state(batch) and step(x, state) to see its states"
    return f"{model_name(model)} has no step of its own; {why}"


def _guess_layout(model: Any, inputs: Tensor, output: Tensor) -> bool:
    """Return True if inputs are (batch, time, ...): by the shape of the output, else as a layer says, else True.

    The output goes before what a layer says: if they differ, `batch_first` was forgotten.
    """
    first, second = inputs.shape[:2]
    one_per_sequence = output.dim() <= 2 and tuple(output.shape) != (first, second)
    if one_per_sequence and first != second and output.shape[:1] in ((first,), (second,)):
        return output.shape[0] == first
    modules = model.modules() if isinstance(model, nn.Module) else ()
    claims = [bool(m.batch_first) for m in modules if isinstance(getattr(m, "batch_first", None), bool)]
    return claims[0] if claims else True


@torch.no_grad()
def _gives_one_output(model: Any, inputs: Tensor, output: Tensor, layout: bool) -> bool:
    """Return True if the model gives one output per sequence: a shorter sequence has an output of the same shape."""
    axis = 1 if layout else 0
    if output.dim() > 2 or inputs.shape[axis] < 2:
        return False
    try:
        shorter = main_tensor(model(inputs.narrow(axis, 1, inputs.shape[axis] - 1)))
    except Exception:  # it reads sequences of one length only
        return False
    return shorter.shape == output.shape


def _outputs(output: Tensor, inputs: Tensor, layout: bool, one_per_sequence: bool) -> Tensor | None:
    """Return the output as a sequence; None if its layout is not known."""
    steps, batch = time_first(inputs, layout).shape[:2]
    try:
        return as_sequence(output, steps, batch, layout, one_per_sequence)
    except MnemoscopeError:
        return None


def _find_embedding(model: Any, inputs: Tensor) -> nn.Module:
    """Return the module that turns ids into features: outputs are differentiated by what it gives."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    for module in modules:
        if isinstance(module, nn.Embedding):
            return module
    raise MnemoscopeError(
        f"inputs are ids of {inputs.dtype} and {model_name(model)} has no nn.Embedding that reads them; give "
        "real-valued inputs"
    )


def _make_run(
    model: Any, inputs: Tensor, embedding: nn.Module | None, layout: bool, one_per_sequence: bool
) -> Callable[[Tensor], Tensor]:
    def run(features: Tensor) -> Tensor:
        steps, batch = features.shape[:2]
        x = time_first(features, layout)
        if embedding is None:
            output = model(x)
        else:
            ids = _ids_of_shape(inputs, x)
            with _replacing_output(embedding, x):
                output = model(ids)
        return as_sequence(main_tensor(output), steps, batch, layout, one_per_sequence)

    return run


def _ids_of_shape(ids: Tensor, features: Tensor) -> Tensor:
    """Return ids with the leading shape of the features; only their shape matters, as the embedding is replaced."""
    shape = features.shape[:2]
    return ids if ids.shape[:2] == shape else ids.new_zeros(*shape, *ids.shape[2:])


@contextmanager
def _replacing_output(module: nn.Module, value: Tensor) -> Iterator[None]:
    """While open, the first call of `module` returns `value`."""
    calls = 0

    def replace_first(*_: Any) -> Tensor | None:
        nonlocal calls
        calls += 1
        return value if calls == 1 else None

    handle = module.register_forward_hook(replace_first)
    try:
        yield
    finally:
        handle.remove()


@dataclass
class _Call:
    """The first call of a module, once it was made."""

    arguments: tuple[Any, ...] = ()
    result: Any = None
    count: int = 0  # of all calls

    def check(self, model: Any, module: nn.Module) -> None:
        if not self.count:
            names = f"{model_name(model)} never calls its {model_name(module)}"
            raise MnemoscopeError(f"{names}; examine the part that it uses")


@contextmanager
def _record_call(module: nn.Module | None) -> Iterator[_Call]:
    """While open, record what the first call of `module` is given and returns."""
    call = _Call()
    if module is None:
        yield call
        return

    def record(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        call.count += 1
        if call.count == 1:
            call.arguments = (*arguments, *keywords.values())
            call.result = result

    handle = module.register_forward_hook(record, with_kwargs=True)
    try:
        yield call
    finally:
        handle.remove()
