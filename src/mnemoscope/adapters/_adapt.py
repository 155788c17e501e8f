"""`adapt`: find out what a model is, and adapt it accordingly."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from mnemoscope.adapters._adapted import Adapted, as_sequence, main_tensor, model_name, time_first
from mnemoscope.adapters._checks import check_model, check_sequences
from mnemoscope.adapters._forward_only import adapt_forward_only
from mnemoscope.adapters._huggingface import adapt_hugging_face, is_hugging_face
from mnemoscope.adapters._recurrent import as_recurrence, has_readout, has_step
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence


def adapt(model: Any, inputs: Tensor, batch_first: bool | None = None) -> Adapted:
    """Bring a model and its inputs into the form that scopes read.

    Args:
        model: a Recurrence, torch's RNN, LSTM, GRU or a cell, an object with a step, a Lightning or Hugging Face
            module, any module or function ``forward(x) -> y``, or a function without arguments that makes one of these.
        inputs: what the model reads, in the layout that it expects: (time, batch, features), or ids (time, batch).
        batch_first: True if inputs are (batch, time, ...). By default what the model itself says; if it says nothing,
            False, or True for a model of which only ``forward`` is known.
    """
    inputs = check_sequences(inputs)
    model = unwrap(instantiate(model))
    check_model(model, inputs)
    if is_hugging_face(model):
        return adapt_hugging_face(model, inputs)
    if has_readout(model):
        return _adapt_with_readout(model, inputs, bool(batch_first))
    if isinstance(model, Recurrence | nn.RNNBase | nn.RNNCellBase) or has_step(model):
        return _adapt_recurrent(model, inputs, batch_first)
    if not callable(model):
        raise MnemoscopeError(f"a {type(model).__name__} cannot be examined: it has neither a step nor a forward")
    return adapt_forward_only(model, inputs, batch_first)


def instantiate(model: Any) -> Any:
    """Return the model itself, or what it makes if it is a class or a function without required arguments."""
    is_model = isinstance(model, nn.Module) or (has_step(model) and not isinstance(model, type))
    if is_model or not callable(model):
        return model
    try:
        required = [p for p in inspect.signature(model).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):  # a built-in function: it can only be a forward
        return model
    if required and not isinstance(model, type):
        return model
    try:
        return model()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise MnemoscopeError(f"the model's factory {model_name(model)} raised {reason}") from error


def unwrap(model: Any) -> Any:
    """Return the module inside torch.compile, DistributedDataParallel, DataParallel and Fabric wrappers."""
    if not isinstance(model, nn.Module):
        return model
    for name in ("_orig_mod", "_forward_module", "module"):
        inner = getattr(model, name, None)
        is_wrapper = name != "module" or type(model).__name__ in _WRAPPERS  # "module" alone could be a user's own name
        if isinstance(inner, nn.Module) and is_wrapper:
            return unwrap(inner)
    return model


_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "_FabricModule")


def _adapt_recurrent(model: Any, inputs: Tensor, batch_first: bool | None) -> Adapted:
    # The layout of the inputs as given, and the one in which the layer runs: they differ if batch_first was forgotten.
    runs_batch_first = bool(getattr(model, "batch_first", False))
    layout = runs_batch_first if batch_first is None else batch_first
    features = time_first(inputs, layout)
    name = model_name(model)

    # The whole model is its own forward, or the unrolled step if it reads single steps.
    reads_sequences = isinstance(model, nn.Module) and type(model).forward is not nn.Module.forward
    if reads_sequences and not isinstance(model, nn.RNNCellBase):

        def run(x: Tensor) -> Tensor:
            return as_sequence(main_tensor(model(time_first(x, layout))), x.shape[0], x.shape[1], layout)
    else:

        def run(x: Tensor) -> Tensor:
            return recurrence(x)[0]

    if isinstance(model, nn.RNNBase) or getattr(model, "bidirectional", False):
        try:
            as_recurrence(model)
        except MnemoscopeError as error:
            return Adapted(name, features, run, no_step=str(error), batch_first=layout)
    recurrence = as_recurrence(model, inputs.shape[-1])
    recurrence_inputs = time_first(inputs, runs_batch_first)
    return Adapted(name, features, run, recurrence, recurrence_inputs, batch_first=layout)


def _adapt_with_readout(model: Any, inputs: Tensor, layout: bool) -> Adapted:
    features = model.embed(time_first(inputs, layout)).detach()
    name = f"{model_name(model.layer)} with a read-out"
    try:
        recurrence = as_recurrence(model)
    except MnemoscopeError as error:

        def run(x: Tensor) -> Tensor:
            return model.read(main_tensor(model.layer(x)), x)

        return Adapted(name, features, run, no_step=str(error), batch_first=layout)
    return Adapted(name, features, lambda x: recurrence(x)[0], recurrence, features, batch_first=layout)
