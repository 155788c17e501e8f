"""One door for every model: `adapt` finds out what it is."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from mnemoscope.adapters._adapted import Adapted, as_sequence, describe, primary, time_first
from mnemoscope.adapters._checks import check_model, check_sequences
from mnemoscope.adapters._forward_only import adapt_whole
from mnemoscope.adapters._huggingface import adapt_hugging_face, is_hugging_face
from mnemoscope.adapters._recurrent import as_recurrence, has_step, is_between
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence


def adapt(model: Any, inputs: Tensor, batch_first: bool | None = None) -> Adapted:
    """Bring a model and its inputs into the form that scopes read.

    Args:
        model: a Recurrence, torch's RNN, LSTM, GRU or a cell, an object with a step, a Lightning or Hugging Face
            module, any module or function ``forward(x) -> y``, or a function without arguments that makes one of these.
        inputs: what the model reads, in the layout that it expects: (time, batch, features), or ids (time, batch).
        batch_first: whether inputs are (batch, time, ...), where the model does not say so itself; by default they are
            not, but for a model of which only ``forward`` is known.
    """
    inputs, model = check_sequences(inputs), unwrap(made(model))
    check_model(model, inputs)
    if is_hugging_face(model):
        return adapt_hugging_face(model, inputs)
    if is_between(model):
        return _between(model, inputs, bool(batch_first))
    if isinstance(model, Recurrence | nn.RNNBase | nn.RNNCellBase) or has_step(model):
        return _recurrent(model, inputs, batch_first)
    if not callable(model):
        raise MnemoscopeError(f"a {type(model).__name__} cannot be examined: it has neither a step nor a forward")
    return adapt_whole(model, inputs, batch_first)


def made(model: Any) -> Any:
    """The model itself, or what a class or a function without arguments makes."""
    if isinstance(model, nn.Module) or (has_step(model) and not isinstance(model, type)) or not callable(model):
        return model
    try:
        needed = [p for p in inspect.signature(model).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):  # a built-in: it can only be a forward
        return model
    if needed and not isinstance(model, type):
        return model
    try:
        return model()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise MnemoscopeError(f"the model's factory {describe(model)} raised {reason}") from error


def unwrap(model: Any) -> Any:
    """What torch.compile, DistributedDataParallel, DataParallel and Fabric have wrapped."""
    for name in ("_orig_mod", "_forward_module", "module"):
        inner = getattr(model, name, None) if isinstance(model, nn.Module) else None
        if isinstance(inner, nn.Module) and (name != "module" or type(model).__name__ in _WRAPPERS):
            return unwrap(inner)
    return model


_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "_FabricModule")


def _recurrent(model: Any, inputs: Tensor, batch_first: bool | None) -> Adapted:
    runs_batch_first = bool(getattr(model, "batch_first", False))
    layout = runs_batch_first if batch_first is None else batch_first
    features = time_first(inputs, layout)
    name = describe(model)
    reads_sequences = isinstance(model, nn.Module) and type(model).forward is not nn.Module.forward
    if reads_sequences and not isinstance(model, nn.RNNCellBase):

        def run(x: Tensor) -> Tensor:
            return as_sequence(primary(model(time_first(x, layout))), x.shape[0], x.shape[1], layout)
    else:

        def run(x: Tensor) -> Tensor:
            return recurrence(x)[0]

    reason = _reason(model) if isinstance(model, nn.RNNBase) or getattr(model, "bidirectional", False) else ""
    if reason:
        return Adapted(name, features, run, no_step=reason, batch_first=layout)
    recurrence = as_recurrence(model, inputs.shape[-1])
    return Adapted(name, features, run, recurrence, time_first(inputs, runs_batch_first), batch_first=layout)


def _reason(model: Any) -> str:
    """Why a recurrent layer is no recurrence; empty where it is one."""
    try:
        as_recurrence(model)
    except MnemoscopeError as error:
        return str(error)
    return ""


def _between(model: Any, inputs: Tensor, layout: bool) -> Adapted:
    features = model.embed(time_first(inputs, layout)).detach()
    name = f"{describe(model.layer)} with a read-out"
    try:
        recurrence = as_recurrence(model)
    except MnemoscopeError as error:

        def run(x: Tensor) -> Tensor:
            return model.read(primary(model.layer(x)), x)

        return Adapted(name, features, run, no_step=str(error), batch_first=layout)
    return Adapted(name, features, lambda x: recurrence(x)[0], recurrence, features, batch_first=layout)
