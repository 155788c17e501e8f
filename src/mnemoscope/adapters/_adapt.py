"""`adapt`: find out what a model is, and adapt it accordingly."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.adapters._adapted import GIVE_A_STEP, Adapted, model_name
from mnemoscope.adapters._call import Forward, Output, is_hugging_face, main_tensor
from mnemoscope.adapters._checks import check_model, read_sequences
from mnemoscope.adapters._forward_only import adapt_forward_only, claimed_layout
from mnemoscope.adapters._layout import Layout, as_sequence, recurrent_layout
from mnemoscope.adapters._recurrent import as_recurrence, has_readout, has_step, look_up
from mnemoscope.adapters._step import ForwardStep, IdStep, ShapedStep, Stepped
from mnemoscope.errors import MnemoscopeError, type_and_line
from mnemoscope.layers import RAC, Layer
from mnemoscope.recurrence import Recurrence
from mnemoscope.torch_internals import has_forward_hooks


def adapt(
    model: Any,
    inputs: Any,
    batch_first: bool | None = None,
    *,
    channels_first: bool | None = None,
    kwargs: Mapping[str, Any] | None = None,
    output: Output | None = None,
) -> Adapted:
    """Bring a model and its inputs into the form that scopes read.

    Args:
        model: a Recurrence, torch's RNN, LSTM, GRU or a cell, an object with a step, a Lightning or Hugging Face
            module, any module or function ``forward(x) -> y``, or a function without arguments that makes one of these.
        inputs: what the model reads, in the layout that it expects: (time, batch, features), or ids (time, batch); a
            tensor, an array, a list or a packed sequence; one sequence may come without a batch.
        batch_first: True if inputs are (batch, time, ...). By default what the model itself says; if it says nothing,
            False, or True for a model of which only ``forward`` is known.
        channels_first: True if inputs are (batch, features, time), as a convolution reads them. By default what the
            first convolution of the model reads.
        kwargs: what ``forward`` takes beside its inputs. Lengths, and a first state that the model's own `init_hidden`
            makes, are filled in.
        output: which part of the model's result is its output: a name, a place or a function. By default the first
            tensor of more than one number.

    Examples:
        >>> from mnemoscope.adapters import adapt
        >>> adapted = adapt(nn.LSTM(3, 16, batch_first=True), torch.randn(4, 20, 3))
        >>> adapted.features.shape, adapted.run(adapted.features).shape  # time first
        (torch.Size([20, 4, 3]), torch.Size([20, 4, 16]))
    """
    model = unwrap(instantiate(model))
    inputs = read_sequences(inputs, model)
    check_model(model, inputs)
    layout = _asked_layout(batch_first, channels_first)
    is_forward = bool(kwargs) or output is not None or layout is Layout.CHANNELS_FIRST or is_hugging_face(model)
    if has_readout(model) and not is_forward:
        sequences = inputs[:, None] if inputs.dim() == 1 else inputs
        adapted = _adapt_with_readout(model, sequences, layout or Layout.TIME_FIRST)
        if _is_its_parts(model, sequences, adapted):
            if isinstance(model.layer, Layer) and not _is_plain(model.layer) and not _is_unrolled(adapted):
                adapted = _beside_step(adapted)
            return _step_in_float32(adapted)
    is_recurrent = isinstance(model, Recurrence | nn.RNNBase | nn.RNNCellBase) or has_step(model)
    if is_recurrent and not is_forward:
        if has_step(model) and _has_forward(model) and not _is_plain(model):
            return _step_in_float32(_adapt_step_and_forward(model, inputs, layout))
        return _step_in_float32(_adapt_recurrent(model, _batched(model, inputs, layout), layout))
    if not callable(model):
        raise MnemoscopeError(f"this {type(model).__name__} cannot be examined: it has neither a step nor a forward")
    return _step_in_float32(_adapt_forward(model, inputs, layout, kwargs or {}, output))


def _step_in_float32(adapted: Adapted) -> Adapted:
    """Return a model in half precision with a float32 copy of its recurrence, of the same weights.

    Torch has no linear algebra in half precision, and the exponents of a map are not those of its rounding.
    """
    recurrence, inputs = adapted.recurrence, adapted.recurrence_inputs
    if recurrence is None or inputs is None or inputs.dtype not in (torch.float16, torch.bfloat16):
        return adapted
    recurrence = copy.deepcopy(recurrence).float()
    if isinstance(recurrence, Stepped):  # its own initial_state may name the dtype
        recurrence.first_dtype = torch.float32
    adapted = replace(adapted, recurrence=recurrence, recurrence_inputs=inputs.float())
    if not adapted.recurrence_is_model:
        return adapted
    return replace(adapted, features=adapted.features.float(), run=lambda x: recurrence(x)[0])


def _asked_layout(batch_first: bool | None, channels_first: bool | None) -> Layout | None:
    """Return the layout that a user asked for, None if it is left to the model."""
    if channels_first:
        if batch_first is False:
            raise MnemoscopeError("channels_first=True reads (batch, features, time); leave out batch_first=False")
        return Layout.CHANNELS_FIRST
    return None if batch_first is None else recurrent_layout(batch_first)


def _batched(model: Any, inputs: Tensor, layout: Layout | None) -> Tensor:
    """Return inputs with a batch dimension, where a recurrence was given one sequence, (time, features) or ids."""
    is_one = inputs.dim() == 1 or (inputs.dim() == 2 and inputs.is_floating_point())
    if not is_one:
        return inputs
    batch_first = getattr(model, "batch_first", False) if layout is None else layout is Layout.BATCH_FIRST
    return inputs[None] if batch_first else inputs[:, None]


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
        raise MnemoscopeError(f"the model's factory {model_name(model)} raised {type_and_line(error)}") from error


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


def _adapt_forward(
    model: Any, inputs: Tensor, layout: Layout | None, kwargs: Mapping[str, Any], output: Output | None
) -> Adapted:
    """Adapt a model by its ``forward``, over whole sequences or, if it only reads single steps, step by step."""
    if is_hugging_face(model) and inputs.dim() == 1:
        inputs = inputs[None]
    before = layout or claimed_layout(model)
    if inputs.dim() == 1:
        before = Layout.UNBATCHED
    steps, batch = before.time_first(inputs).shape[:2]
    forward = Forward(model, steps, batch, kwargs, output)
    try:
        return adapt_forward_only(model, inputs, forward, layout)
    except Exception as error:
        if isinstance(error, MnemoscopeError) or not forward.takes_state():
            raise
        try:
            stepper = ForwardStep(forward)
            return _adapt_recurrent(stepper, _batched(stepper, inputs, layout), layout)
        except Exception:  # it reads no single steps either: the first error says more
            raise error from None


def _adapt_step_and_forward(model: Any, inputs: Tensor, layout: Layout | None) -> Adapted:
    """Adapt a model that has both a step and a ``forward``, in the layout in which one gives what the other gives.

    If they never do, the model is its forward, in the layout in which a sequence gives by itself what it gives among
    others, and the step is a part of it. A step that cannot be examined is left out.
    """
    says_layout = layout is not None or isinstance(getattr(model, "batch_first", None), bool)
    candidates = [layout] if says_layout else [Layout.TIME_FIRST, Layout.BATCH_FIRST]
    found = []
    try:
        for candidate in candidates:
            adapted = _adapt_recurrent(model, _batched(model, inputs, candidate), candidate)
            if _is_unrolled(adapted):
                return adapted
            found.append(adapted)
        _try_step(adapted)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        try:
            whole = _adapt_forward(model, inputs, layout, {}, None)
        except Exception:  # it does not read these inputs at all: why its step does not says more
            raise error from None
        return whole if whole.recurrence is not None else replace(whole, no_step=_why_no_step(model, error))
    return _beside_step(next((adapted for adapted in found if _reads_alone(adapted)), found[0]))


@torch.no_grad()
def _try_step(adapted: Adapted) -> None:
    """Raise what a step raises, as one of that name that takes other arguments."""
    assert adapted.recurrence is not None
    adapted.recurrence.step(adapted.features[0], adapted.recurrence.initial_state(adapted.features.shape[1]))


def _why_no_step(model: Any, error: Exception) -> str:
    if isinstance(error, MnemoscopeError):
        return str(error)
    return f"{model_name(model)} has a step that raised {type_and_line(error)}; {GIVE_A_STEP}"


def _beside_step(adapted: Adapted) -> Adapted:
    """Return a model that does more than its unrolled step: the step is a part of it."""
    return replace(adapted, recurrence_is_model=False, starts_itself=False)


@torch.no_grad()
def _reads_alone(adapted: Adapted) -> bool:
    """True if the last sequence by itself gives what it gives among the others."""
    try:
        return _agree(adapted.run(adapted.features[:, -1:]), adapted.run(adapted.features)[:, -1:])
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return False


def _is_plain(model: Any) -> bool:
    """True for one of our layers whose ``forward`` is known to be its unrolled step."""
    if not isinstance(model, Layer):
        return False
    own_forward = type(model).forward not in (Layer.forward, RAC.forward) or "forward" in vars(model)
    return not own_forward and not has_forward_hooks(model)


@torch.no_grad()
def _is_unrolled(adapted: Adapted) -> bool:
    """True if the whole model gives what its unrolled step gives, if it has one.

    Compared over a few steps, on which rounding cannot grow.
    """
    if adapted.recurrence is None:
        return True
    few = adapted.features[:8]
    try:
        whole, unrolled = adapted.run(few), Recurrence.forward(adapted.recurrence, few)[0]
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return False
    return _agree(whole, unrolled)


def _agree(one: Tensor, other: Tensor) -> bool:
    largest = other.nan_to_num(0, 0, 0).abs().max()
    near = min(1e4 * torch.finfo(other.dtype).eps, 0.05) * float(largest)
    return one.shape == other.shape and torch.allclose(one.to(other), other, rtol=0, atol=near, equal_nan=True)


def _adapt_recurrent(model: Any, inputs: Tensor, layout: Layout | None) -> Adapted:
    # The layout of the inputs as given, and the one in which the layer runs: they differ if batch_first was forgotten.
    # What reads single steps has no layout of its own.
    is_layer = isinstance(model, nn.RNNBase | Layer)
    runs_in = recurrent_layout(bool(getattr(model, "batch_first", False)))
    layout = layout or runs_in
    if not is_layer:
        runs_in = layout
    name = model_name(model)
    ids = None if inputs.is_floating_point() else layout.time_first(inputs)
    if ids is not None:
        if is_layer or isinstance(model, nn.RNNCellBase):
            raise MnemoscopeError(
                f"inputs are ids of {inputs.dtype} and {name} has no embedding: give real-valued inputs"
            )
        model = IdStep(model, ids)
        features = model.features
    else:
        features = layout.time_first(inputs)
    shape = features.shape[2:]  # of one input: a vector, or an image
    features = features.flatten(2)

    # The whole model is its own forward, or the unrolled step if it reads single steps.
    if is_layer or _has_forward(model):

        def call(x: Tensor) -> Tensor:
            return main_tensor(model(layout.from_time_first(x.unflatten(-1, shape))))

        @functools.cache
        @torch.no_grad()
        def is_one_per_sequence() -> bool:
            return len(features) > 1 and call(features).shape == call(features[1:]).shape

        def run(x: Tensor) -> Tensor:
            steps, batch = x.shape[:2]
            output = call(x)
            # m numbers per sequence look like one per step in a window of m steps.
            one_per_sequence = output.dim() <= 2 and is_one_per_sequence()
            return as_sequence(output, steps, batch, layout, one_per_sequence)
    else:

        def run(x: Tensor) -> Tensor:
            return recurrence(x)[0]

    if isinstance(model, nn.RNNBase) or getattr(model, "bidirectional", False):
        try:
            as_recurrence(model)
        except MnemoscopeError as error:
            return Adapted(name, features, run, no_step=str(error), layout=layout, ids=ids)
    stepper = ShapedStep(model, tuple(shape)) if len(shape) > 1 else model
    recurrence = as_recurrence(stepper, features.shape[-1], by_parts=False)
    recurrence_inputs = features if runs_in is layout else runs_in.time_first(inputs)
    return Adapted(name, features, run, recurrence, recurrence_inputs, layout=layout, ids=ids)


def _has_forward(model: Any) -> bool:
    """True for a module with a ``forward`` over sequences of its own."""
    if not isinstance(model, nn.Module) or isinstance(model, nn.RNNCellBase):
        return False
    return type(model).forward not in (nn.Module.forward, Recurrence.forward)


@torch.no_grad()
def _is_its_parts(model: Any, inputs: Tensor, adapted: Adapted) -> bool:
    """True if a model's own forward gives what its embedding, layer and read-out give one after the other.

    Compared over a few steps, on which rounding cannot grow. True also if it has no forward that reads these inputs.
    """
    if not _has_forward(model):
        return True
    few = adapted.layout.time_first(inputs)[:8]
    parts = adapted.run(few if adapted.ids is not None else adapted.features[:8])
    runs = False
    for layout in dict.fromkeys((Layout.TIME_FIRST, adapted.layout)):  # whichever of the two it reads
        try:
            own = main_tensor(model(layout.from_time_first(few)))
        except torch.OutOfMemoryError:
            raise
        except Exception:
            continue
        runs = True
        own = layout.time_first(own) if own.dim() == parts.dim() else own
        if _agree(own, parts):
            return True
    return not runs


def _adapt_with_readout(model: Any, inputs: Tensor, layout: Layout) -> Adapted:
    given = layout.time_first(inputs)
    features = model.embed(given).detach()
    ids = None if given.is_floating_point() else given
    name = f"{model_name(model.layer)} with a read-out"
    try:
        recurrence = as_recurrence(model)
    except MnemoscopeError as error:

        def run(x: Tensor) -> Tensor:
            x = look_up(model, x)
            return model.read(main_tensor(model.layer(x)), x)

        return Adapted(name, features, run, no_step=str(error), layout=layout, ids=ids)
    return Adapted(name, features, lambda x: recurrence(x)[0], recurrence, features, layout=layout, ids=ids)
