"""Run a model under many parameter vectors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import Layer
from mnemoscope.recurrence import Recurrence, State, leaves, rebuild
from mnemoscope.scopes._frame.subject import Subject

Parameters: TypeAlias = dict[str, Tensor]
WORKSPACE = 2**26  # numbers that the runs of one chunk may hold at a time
FEW = 256  # points at once, below which a fused kernel for each is faster than vmap over the equations


class WholeModel(nn.Module):
    """A model as one function of its sequences, for functional_call under other parameters."""

    def __init__(self, model: nn.Module, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.model, x)


class OneStep(nn.Module):
    """The step of a recurrence, for functional_call under other parameters."""

    def __init__(self, recurrence: Recurrence) -> None:
        super().__init__()
        self.model = recurrence

    def forward(self, x: Tensor, state: State) -> State:
        return self.model.step(x, state)[1]


def whole_model(subject: Subject) -> WholeModel:
    """Return the whole model; the recurrence if it is the model, since vmap does not support torch's fused layers."""
    adapted = subject.adapted
    if adapted.recurrence is not None and adapted.recurrence_is_model:
        return WholeModel(adapted.recurrence, lambda model, x: model(x)[0])
    if not isinstance(subject.model, nn.Module):  # a function: it has no parameters that could be moved
        return WholeModel(nn.Identity(), lambda _, x: subject.run(x))
    return WholeModel(subject.model, lambda _, x: subject.run(x))


def parameters_of(module: WholeModel | OneStep) -> Parameters:
    """Return the parameters of the model inside, by its own names."""
    return {name.removeprefix("model."): p.detach() for name, p in module.named_parameters()}


def check_parameters(given: Mapping[str, Tensor], own: Parameters, what: str) -> Parameters:
    """Return given parameters in the order and the dtype of the model's own; raise if a name or shape does not fit."""
    for name, tensor in own.items():
        if name not in given or given[name].shape != tensor.shape:
            got = f"{list(given[name].shape)}" if name in given else "nothing"
            raise MnemoscopeError(f"{what} must have {name} {list(tensor.shape)}; got {got}")
    return {name: given[name].detach().to(tensor) for name, tensor in own.items()}


def stack_parameters(points: list[Parameters]) -> Parameters:
    """Return parameter vectors stacked along a new first dimension, by name."""
    return {name: torch.stack([point[name] for point in points]) for name in points[0]}


def chunks(total: int, numbers_per_point: int) -> Iterator[slice]:
    """Yield slices of `total` points, as many at a time as the workspace allows."""
    size = max(1, WORKSPACE // max(numbers_per_point, 1))
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def prefers_vmap(subject: Subject, numbers_per_point: int) -> bool:
    """Return True if vmap is faster than a loop: not for the few large points of a layer with a fused kernel."""
    many = WORKSPACE // max(numbers_per_point, 1) >= FEW
    return many or subject.missing("step") != "" or not isinstance(subject.layer, Layer)


def costs(model: WholeModel, points: Parameters, x: Tensor, loss: Callable[[Tensor], Tensor], use_vmap: bool) -> Tensor:
    """Return the loss (P,) of parameter vectors (P, ...) on sequences x; by vmap if the model's operations allow it."""

    def cost(point: Parameters) -> Tensor:
        return loss(functional_call(model, _prefixed(point), (x,)))

    with torch.no_grad():
        if use_vmap:
            try:
                return vmap(cost, randomness="same")(points)
            except RuntimeError:  # an operation that vmap does not support
                pass
        count = len(next(iter(points.values())))
        return torch.stack([cost({name: p[k] for name, p in points.items()}) for k in range(count)])


def step_all(step: OneStep, points: Parameters, x: Tensor, states: list[Tensor], like: State) -> list[Tensor]:
    """Make one step of the states (P, ...) under the parameter vectors (P, ...), with inputs x (P, B, d)."""

    def advance(point: Parameters, x: Tensor, tensors: list[Tensor]) -> list[Tensor]:
        return leaves(functional_call(step, _prefixed(point), (x, rebuild(like, tensors))))

    try:
        return vmap(advance)(points, x, states)
    except RuntimeError:  # an operation that vmap does not support
        each_point = [{name: p[k] for name, p in points.items()} for k in range(len(x))]
        results = [advance(point, x[k], [s[k] for s in states]) for k, point in enumerate(each_point)]
        return [torch.stack(tensors) for tensors in zip(*results, strict=True)]


def _prefixed(point: Parameters) -> Parameters:
    return {f"model.{name}": p for name, p in point.items()}
