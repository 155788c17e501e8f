"""Any object with a step as a recurrence, whatever its state is made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence, State
from mnemoscope.torch_internals import pytree


class Stepped(Recurrence):
    """An object with ``initial_state(batch)`` and ``step(x, state) -> (output, state)``.

    Its state may be any nest of tuples, lists and dicts, of tensors (batch, ...) or (layers, batch, ...). Which of the
    two is found by asking for initial states of two batch sizes. As a recurrence, the state is a tuple of tensors
    (layers, batch, ...).
    """

    def __init__(self, stepper: Any, input_size: int) -> None:
        super().__init__()
        self.stepper = stepper
        self.input_size = input_size
        self._structure, self._batch_axes = _find_batch_axes(stepper)
        first = self.initial_state(1)[0]
        self.hidden_size = first.shape[-1]

    def initial_state(self, batch: int) -> State:
        return self._pack(self.stepper.initial_state(batch))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        output, after = self.stepper.step(x, self._unpack(state))
        return output, self._pack(after)

    def _pack(self, state: Any) -> State:
        """Turn the object's own state into a tuple of tensors (layers, batch, ...)."""
        tensors, structure = pytree.tree_flatten(state)
        if len(tensors) != len(self._batch_axes):
            raise MnemoscopeError(
                f"{_name(self.stepper)}.step gave a state of {len(tensors)} tensors, its initial_state one of "
                f"{len(self._batch_axes)}: both must have the same structure"
            )
        self._structure = structure
        pairs = zip(tensors, self._batch_axes, strict=True)
        return tuple(tensor.unsqueeze(0) if axis == 0 else tensor for tensor, axis in pairs)

    def _unpack(self, state: State) -> Any:
        """Reverse `_pack`."""
        pairs = zip(state, self._batch_axes, strict=True)
        tensors = [tensor.squeeze(0) if axis == 0 else tensor for tensor, axis in pairs]
        return pytree.tree_unflatten(tensors, self._structure)


def _find_batch_axes(stepper: Any) -> tuple[Any, list[int]]:
    """Return the structure of a state, and the batch axis of each of its tensors."""
    twos, structure = pytree.tree_flatten(stepper.initial_state(2))
    threes = pytree.tree_leaves(stepper.initial_state(3))
    if not twos or len(twos) != len(threes) or not all(isinstance(tensor, Tensor) for tensor in twos):
        raise MnemoscopeError(f"{_name(stepper)}.initial_state(batch) must give tensors, as many for every batch size")
    return structure, [_batch_axis(stepper, two, three) for two, three in zip(twos, threes, strict=True)]


def _batch_axis(stepper: Any, two: Tensor, three: Tensor) -> int:
    """Return the axis that is 2 in a state for two sequences, and 3 in one for three."""
    for axis in range(min(2, two.dim())):
        if two.shape[axis] == 2 and three.shape[axis] == 3:
            return axis
    raise MnemoscopeError(
        f"{_name(stepper)}.initial_state(2) gave a tensor {list(two.shape)}; every tensor of a state must be "
        "(batch, ...) or (layers, batch, ...)"
    )


def _name(stepper: Any) -> str:
    return stepper._get_name() if isinstance(stepper, nn.Module) else type(stepper).__name__
