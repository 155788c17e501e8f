"""Anything with a step as a recurrence, whatever its state is made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence, State


class Stepped(Recurrence):
    """An object with ``initial_state(batch)`` and ``step(x, state) -> (output, state)``.

    Its state may be any nest of tuples, lists and dicts, of tensors (batch, ...) or (layers, batch, ...); which of the
    two is found by asking for initial states of two batch sizes. Inside the contract it is a tuple of tensors
    (layers, batch, ...).
    """

    def __init__(self, stepper: Any, input_size: int) -> None:
        super().__init__()
        self.stepper, self.input_size = stepper, input_size
        self._nest, self._axes = _batch_axes(stepper)
        leaf = self.initial_state(1)[0]
        self.hidden_size = leaf.shape[-1]

    def initial_state(self, batch: int) -> State:
        return self._pack(self.stepper.initial_state(batch))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        output, after = self.stepper.step(x, self._unpack(state))
        return output, self._pack(after)

    def _pack(self, state: Any) -> State:
        tensors, nest = pytree.tree_flatten(state)
        if len(tensors) != len(self._axes):
            raise MnemoscopeError(
                f"{_name(self.stepper)}.step gave a state of {len(tensors)} tensors, its initial_state one of "
                f"{len(self._axes)}: both must have the same structure"
            )
        self._nest = nest
        return tuple(t.unsqueeze(0) if axis == 0 else t for t, axis in zip(tensors, self._axes, strict=True))

    def _unpack(self, state: State) -> Any:
        tensors = [t.squeeze(0) if axis == 0 else t for t, axis in zip(state, self._axes, strict=True)]
        return pytree.tree_unflatten(tensors, self._nest)


def _batch_axes(stepper: Any) -> tuple[Any, list[int]]:
    """The structure of a state, and the axis of the batch in each of its tensors."""
    pairs, nest = pytree.tree_flatten(stepper.initial_state(2))
    others = pytree.tree_leaves(stepper.initial_state(3))
    if not pairs or len(pairs) != len(others) or not all(isinstance(t, Tensor) for t in pairs):
        raise MnemoscopeError(f"{_name(stepper)}.initial_state(batch) must give tensors, as many for every batch size")
    return nest, [_axis(stepper, a, b) for a, b in zip(pairs, others, strict=True)]


def _axis(stepper: Any, two: Tensor, three: Tensor) -> int:
    for axis in range(min(2, two.dim())):
        if two.shape[axis] == 2 and three.shape[axis] == 3:
            return axis
    raise MnemoscopeError(
        f"{_name(stepper)}.initial_state(2) gave a tensor {list(two.shape)}; every tensor of a state must be "
        "(batch, ...) or (layers, batch, ...)"
    )


def _name(stepper: Any) -> str:
    return stepper._get_name() if isinstance(stepper, nn.Module) else type(stepper).__name__
