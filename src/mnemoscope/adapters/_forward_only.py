"""Models of which only ``forward`` is known: as they are, and by the recurrent layer found inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.adapters._adapted import Adapted, as_sequence, describe, primary, time_first
from mnemoscope.adapters._recurrent import as_recurrence
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence


def adapt_whole(model: Any, inputs: Tensor, batch_first: bool | None) -> Adapted:
    """A model with a ``forward`` as inputs and outputs, and by its recurrent layer where it has exactly one."""
    found = _recurrent_parts(model)
    layout = _layout(model, inputs) if batch_first is None else batch_first
    embedding = None if inputs.is_floating_point() else _embedding(model, inputs)
    features = inputs if embedding is None else _seen(model, inputs, embedding)[1]
    run = _runner(model, inputs, embedding, layout, _one_a_sequence(model, inputs, layout))
    plain = Adapted(describe(model), time_first(features, layout), run, batch_first=layout, whole=False)
    if len(found) != 1:
        return _without_step(plain, model, found)
    name, part = next(iter(found.items()))
    try:
        recurrence = as_recurrence(part)
    except MnemoscopeError as error:
        return _replace(plain, no_step=str(error))
    drive = time_first(_seen(model, inputs, part)[0], bool(getattr(part, "batch_first", False)))
    return _replace(plain, name=f"{plain.name}, by its {describe(part)} `{name}`", recurrence=recurrence, drive=drive)


def _recurrent_parts(model: Any) -> dict[str, nn.Module]:
    """The outermost recurrent layers in a model, by name."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        inside_another = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, Recurrence | nn.RNNBase) and not inside_another:
            found[name] = module
    return found


def _without_step(plain: Adapted, model: Any, found: dict[str, nn.Module]) -> Adapted:
    if found:
        names = ", ".join(found)
        why = f"it holds {len(found)} recurrent layers ({names}): examine one of them on its own inputs"
    else:
        why = "only its forward is known: give it initial_state(batch) and step(x, state) to see its states"
    return _replace(plain, no_step=f"{describe(model)} has no step of its own; {why}")


@torch.no_grad()
def _layout(model: Any, inputs: Tensor) -> bool:
    """Whether inputs are (batch, time, ...): as one output a sequence shows, or as a layer says, or by custom.

    What comes out goes before what a layer says: where they differ, `batch_first` was forgotten.
    """
    first, second = inputs.shape[:2]
    output = primary(model(inputs))
    one_a_sequence = output.dim() <= 2 and tuple(output.shape) != (first, second)
    if one_a_sequence and first != second and output.shape[:1] in ((first,), (second,)):
        return output.shape[0] == first
    modules = model.modules() if isinstance(model, nn.Module) else ()
    claims = [bool(m.batch_first) for m in modules if isinstance(getattr(m, "batch_first", None), bool)]
    return claims[0] if claims else True


@torch.no_grad()
def _one_a_sequence(model: Any, inputs: Tensor, layout: bool) -> bool:
    """Whether the model gives numbers a sequence, not a number a step: there are as many for a shorter one."""
    output, axis = primary(model(inputs)), 1 if layout else 0
    if output.dim() > 2 or inputs.shape[axis] < 2:
        return False
    try:
        shorter = primary(model(inputs.narrow(axis, 1, inputs.shape[axis] - 1)))
    except Exception:  # it reads sequences of one length only
        return False
    return shorter.shape == output.shape


def _embedding(model: Any, inputs: Tensor) -> nn.Module:
    """The module that turns ids into features, so that there is something to differentiate by."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    for module in modules:
        if isinstance(module, nn.Embedding):
            return module
    raise MnemoscopeError(
        f"inputs are ids of {inputs.dtype} and {describe(model)} has no nn.Embedding that reads them; give real-valued "
        "inputs"
    )


def _runner(
    model: Any, inputs: Tensor, embedding: nn.Module | None, layout: bool, single: bool
) -> Callable[[Tensor], Tensor]:
    def run(features: Tensor) -> Tensor:
        steps, batch = features.shape[:2]
        given = time_first(features, layout)
        if embedding is None:
            output = model(given)
        else:
            ids = _fitting(inputs, given)
            with _returning(embedding, given):
                output = model(ids)
        return as_sequence(primary(output), steps, batch, layout, single)

    return run


def _fitting(ids: Tensor, features: Tensor) -> Tensor:
    """Ids of the features' leading shape: only their shape matters where the embedding's result is replaced."""
    shape = features.shape[:2]
    return ids if ids.shape[:2] == shape else ids.new_zeros(*shape, *ids.shape[2:])


@contextmanager
def _returning(module: nn.Module, value: Tensor) -> Iterator[None]:
    """While open, `module` gives `value` the first time it is called."""
    calls: list[None] = []

    def replace(*_: Any) -> Tensor | None:
        calls.append(None)
        return value if len(calls) == 1 else None

    handle = module.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def _seen(model: Any, inputs: Tensor, part: nn.Module) -> tuple[Tensor, Tensor]:
    """What `part` was given, and gave, when the model read the inputs."""
    calls: list[tuple[Tensor, Tensor]] = []
    handle = part.register_forward_hook(lambda _, given, result: calls.append((given[0], primary(result))))
    try:
        model(inputs)
    finally:
        handle.remove()
    if not calls:
        raise MnemoscopeError(f"{describe(model)} never calls its {describe(part)}; examine the part that it uses")
    return calls[0][0].detach(), calls[0][1].detach()


def _replace(adapted: Adapted, **changes: Any) -> Adapted:
    return Adapted(**{**vars(adapted), **changes})
