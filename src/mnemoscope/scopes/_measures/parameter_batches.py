"""A model under many parameter vectors at once."""

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
FEW = 256  # points at once, below which a layer's own kernel is faster than mapping over its equations


class Run(nn.Module):
    """A model as one function of its sequences: what is called under other parameters."""

    def __init__(self, model: nn.Module, read: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.read = model, read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.model, x)


class Step(nn.Module):
    """A recurrence's step, called under other parameters."""

    def __init__(self, recurrence: Recurrence) -> None:
        super().__init__()
        self.model = recurrence

    def forward(self, x: Tensor, state: State) -> State:
        return self.model.step(x, state)[1]


def runner(subject: Subject) -> Run:
    """The whole model; the recurrence where it is the whole, since torch's fused layers cannot be mapped over."""
    adapted = subject.adapted
    if adapted.recurrence is not None and adapted.recurrence_is_model:
        return Run(adapted.recurrence, lambda model, x: model(x)[0])
    if not isinstance(subject.model, nn.Module):
        raise MnemoscopeError(f"{subject.name} is no module: its parameters cannot be moved")
    return Run(subject.model, lambda _, x: subject.run(x))


def parameters(module: nn.Module) -> Parameters:
    """The parameters of a wrapped model by their own names."""
    return {name.removeprefix("model."): p.detach() for name, p in module.named_parameters()}


def matched(given: Mapping[str, Tensor], own: Parameters, what: str) -> Parameters:
    """Given parameters, in the order and the type of the model's own; a name or shape that does not fit is named."""
    for name, tensor in own.items():
        if name not in given or given[name].shape != tensor.shape:
            found = f"{list(given[name].shape)}" if name in given else "nothing"
            raise MnemoscopeError(f"{what} must have {name} {list(tensor.shape)}; got {found}")
    return {name: given[name].detach().to(tensor) for name, tensor in own.items()}


def stacked(points: list[Parameters]) -> Parameters:
    return {name: torch.stack([point[name] for point in points]) for name in points[0]}


def chunks(total: int, each: int) -> Iterator[slice]:
    """Slices of `total` points, as many at a time as the workspace allows if one holds `each` numbers."""
    size = max(1, WORKSPACE // max(each, 1))
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def mapped(subject: Subject, each: int) -> bool:
    """Whether to map over points that hold `each` numbers: not over the few that fit of a layer with a kernel."""
    return WORKSPACE // max(each, 1) >= FEW or subject.missing("step") != "" or not isinstance(subject.layer, Layer)


def costs(run: Run, points: Parameters, x: Tensor, loss: Callable[[Tensor], Tensor], at_once: bool) -> Tensor:
    """The loss of a chunk of parameter vectors (P, ...) on sequences x: (P,); at once where the model allows it."""

    def cost(point: Parameters) -> Tensor:
        return loss(functional_call(run, {f"model.{name}": p for name, p in point.items()}, (x,)))

    with torch.no_grad():
        try:
            if at_once:
                return vmap(cost, randomness="same")(points)
        except RuntimeError:  # an operation that torch cannot map over
            pass
        count = len(next(iter(points.values())))
        return torch.stack([cost({name: p[k] for name, p in points.items()}) for k in range(count)])


def step_all(step: Step, points: Parameters, x: Tensor, states: list[Tensor], like: State) -> list[Tensor]:
    """One step of the states (P, ...) under the parameter vectors (P, ...), with inputs x (P, B, d)."""

    def advance(point: Parameters, x: Tensor, tensors: list[Tensor]) -> list[Tensor]:
        named = {f"model.{name}": p for name, p in point.items()}
        return leaves(functional_call(step, named, (x, rebuild(like, tensors))))

    try:
        return vmap(advance)(points, x, states)
    except RuntimeError:  # an operation that torch cannot map over
        own = [{name: p[k] for name, p in points.items()} for k in range(len(x))]
        each = [advance(point, x[k], [s[k] for s in states]) for k, point in enumerate(own)]
        return [torch.stack(tensors) for tensors in zip(*each, strict=True)]
