"""Run a model under many parameter vectors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from mnemoscope.adapters import WithReadout, unwrap
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import Layer
from mnemoscope.recurrence import Recurrence, State, leaves, rebuild
from mnemoscope.scopes._frame.subject import Subject

Parameters: TypeAlias = dict[str, Tensor]
WORKSPACE = 2**26  # numbers that the runs of one chunk may hold at a time
FEW = 256  # points at once, below which a fused kernel for each is faster than vmap over the equations


def real_parts(tensor: Tensor) -> Tensor:
    """Return complex numbers as their real and imaginary parts (..., 2), and real ones as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def real_parameters(module: nn.Module) -> tuple[Parameters, Callable[[Parameters], Parameters]]:
    """Return a module's parameters as real numbers, by name, and the function that makes complex ones of them again."""
    is_complex = {name: p.is_complex() for name, p in module.named_parameters()}

    def restore(parameters: Parameters) -> Parameters:
        return {name: torch.view_as_complex(p) if is_complex[name] else p for name, p in parameters.items()}

    return {name: real_parts(p.detach()) for name, p in module.named_parameters()}, restore


class Movable(nn.Module):
    """A module that is run under other parameters, which bear the names of the user's own model.

    What is run may be an adapter around the user's model, or a layer inside it: there a parameter has another name.
    Weights that are tied are one parameter, under the first of their names; the others are understood too.

    Attributes:
        own: the parameters as they are now, by name.
    """

    model: Any

    def __init__(self, module: nn.Module, owner: Any) -> None:
        super().__init__()
        self.model = module
        names = _names_in(owner)
        self._inside: dict[str, str] = {}  # by name, that in the module that is run
        self._known: dict[str, str] = {}  # from any of its names to the one that it has here
        self.own: Parameters = {}
        for inside, parameter in self.named_parameters():
            short = inside.removeprefix("model.")
            name, *others = names.get(id(parameter), [short])
            self._inside[name] = inside
            self.own[name] = parameter.detach()
            self._known |= dict.fromkeys((name, *others), name)
        for name, inside in self._inside.items():  # what an inner layer calls its weights is understood too
            self._known.setdefault(inside.removeprefix("model."), name)
            self._known.setdefault(inside.removeprefix("model.model."), name)
        entries = owner.state_dict() if isinstance(owner, nn.Module) else {}
        self._without_effect = set(entries) - set(self._known)  # buffers, and what lies outside of an inner layer

    def under(self, point: Parameters, *arguments: Any) -> Any:
        """Run under these parameters."""
        return functional_call(self, {self._inside[name]: value for name, value in point.items()}, arguments)

    def whole_point(self, given: Mapping[str, Tensor], what: str) -> Parameters:
        """Return parameters for every name, as a state_dict gives them; raise if one is missing or does not fit."""
        changed = self._read(given, what)
        for name, tensor in self.own.items():
            if name not in changed:
                raise MnemoscopeError(f"{what} must have {name} {list(tensor.shape)}; got nothing")
        return {name: changed[name] for name in self.own}

    def changed_point(self, given: Mapping[str, Tensor], what: str) -> Parameters:
        """Return the model's own parameters with the given ones in their places; raise if one does not fit."""
        return {**self.own, **self._read(given, what)}

    def _read(self, given: Mapping[str, Tensor], what: str) -> Parameters:
        if not isinstance(given, Mapping):
            raise MnemoscopeError(f"{what} must be tensors by name, as a state_dict; got a {type(given).__name__}")
        read: Parameters = {}
        for key, tensor in given.items():
            if key in self._without_effect:
                continue
            if key not in self._known:
                raise MnemoscopeError(f"{what} gives {key}, which the model lacks; it has {', '.join(self.own)}")
            name = self._known[key]
            own = self.own[name]
            if not isinstance(tensor, Tensor) or tensor.shape != own.shape:
                got = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise MnemoscopeError(f"{what} must have {name} {list(own.shape)}; got {got}")
            value = tensor.detach().to(own)
            if name in read and not torch.equal(read[name], value):
                raise MnemoscopeError(f"{what} gives {key} other values than {name}, but they are one parameter here")
            read[name] = value
        return read


def _names_in(owner: Any) -> dict[int, list[str]]:
    """Return the names of every parameter in the user's model, first those of the module inside a wrapper."""
    names: dict[int, list[str]] = {}
    for module in (unwrap(owner), owner):
        for name, parameter in module.named_parameters(remove_duplicate=False) if isinstance(module, nn.Module) else ():
            known = names.setdefault(id(parameter), [])
            if name not in known:
                known.append(name)
    return names


class WholeModel(Movable):
    """A model as one function of its sequences."""

    def __init__(self, module: nn.Module, run: Callable[[nn.Module, Tensor], Tensor], owner: Any) -> None:
        super().__init__(module, owner)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.model, x)


class OneStep(Movable):
    """The step of a recurrence, as a list of tensors: chosen numbers of its output, if any, then the next state's."""

    def __init__(self, recurrence: Recurrence, owner: Any) -> None:
        super().__init__(recurrence, owner)

    def forward(self, x: Tensor, state: State, outputs: Sequence[int] | None) -> list[Tensor]:
        if outputs is None:
            is_read = isinstance(self.model, WithReadout)
            return leaves(self.model.next_state(x, state) if is_read else self.model.step(x, state)[1])
        output, state = self.model.step(x, state)
        return [output[..., list(outputs)], *leaves(state)]


def whole_model(subject: Subject) -> WholeModel:
    """Return the whole model; the recurrence if it is the model, since vmap does not support torch's fused layers."""
    adapted = subject.adapted
    if adapted.recurrence is not None and adapted.recurrence_is_model:
        return WholeModel(adapted.recurrence, lambda model, x: model(x)[0], subject.model)
    if not isinstance(subject.model, nn.Module):  # a function: it has no parameters that could be moved
        return WholeModel(nn.Identity(), lambda _, x: subject.run(x), subject.model)
    return WholeModel(subject.model, lambda _, x: subject.run(x), subject.model)


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
        return loss(model.under(point, x))

    with torch.no_grad():
        if use_vmap:
            try:
                return vmap(cost, randomness="same")(points)
            except RuntimeError:  # an operation that vmap does not support
                pass
        count = len(next(iter(points.values())))
        return torch.stack([cost({name: p[k] for name, p in points.items()}) for k in range(count)])


def step_all(
    step: OneStep,
    points: Parameters,
    x: Tensor,
    states: list[Tensor],
    like: State,
    outputs: Sequence[int] | None = None,
) -> list[Tensor]:
    """Make one step of the states (P, ...) under the parameter vectors (P, ...), with inputs x (P, B, d) or ids (P, B).

    With `outputs`, these numbers of the output come first, (P, B, len(outputs)).
    """

    def advance(point: Parameters, x: Tensor, tensors: list[Tensor]) -> list[Tensor]:
        return step.under(point, x, rebuild(like, tensors), outputs)

    try:
        return vmap(advance)(points, x, states)
    except RuntimeError:  # an operation that vmap does not support
        each_point = [{name: p[k] for name, p in points.items()} for k in range(len(x))]
        results = [advance(point, x[k], [s[k] for s in states]) for k, point in enumerate(each_point)]
        return [torch.stack(tensors) for tensors in zip(*results, strict=True)]
