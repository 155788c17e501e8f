"""Any object with a step as a recurrence, whatever its state is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.adapters._call import Forward, main_tensor
from mnemoscope.adapters._ids import Vocabulary, track
from mnemoscope.adapters._torch_layers import readable, readable_layers
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence, State
from mnemoscope.torch_internals import pytree


class Stepped(Recurrence):
    """An object with ``initial_state(batch)`` and ``step(x, state) -> (output, state)``.

    Its state may be any nest of tuples, lists and dicts, of tensors (batch, ...) or (layers, batch, ...). Which of the
    two is found by asking for initial states of two batch sizes. As a recurrence, the state is a tuple of tensors
    (layers, batch, ...). Torch's layers inside a step run by our equations, which forward-mode differentiation can
    follow.
    """

    def __init__(self, stepper: Any, input_size: int) -> None:
        super().__init__()
        self.stepper = stepper
        self.input_size = input_size
        self._layers = readable_layers(stepper)
        self._structure, self._batch_axes = _find_batch_axes(stepper)
        first = self.initial_state(1)[0]
        self.hidden_size = first.shape[-1]

    def initial_state(self, batch: int) -> State:
        return self._pack(self.stepper.initial_state(batch))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        with readable(self._layers):
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


class ForwardStep(nn.Module):
    """A model whose ``forward(x, state) -> (output, state)`` reads one step, as an object with a step."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.call = forward
        self.model = forward.model

    def _get_name(self) -> str:
        return _name(self.model)

    def initial_state(self, batch: int) -> Any:
        return self.call.initial_state(batch)

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        output, after = self.model(x, state)
        return main_tensor(output).reshape(len(x), -1), after


class IdStep(nn.Module):
    """An object whose step reads ids (batch,), as one that also reads what is looked up with them, (batch, d).

    Attributes:
        features: (T, B, d), what the object looks up with the ids that it was made with.
    """

    def __init__(self, stepper: Any, ids: Tensor) -> None:
        super().__init__()
        self.stepper = stepper
        self.vocabulary = Vocabulary(ids.numel())
        self._id = ids.flatten()[:1]
        state = stepper.initial_state(ids.shape[1])
        with torch.no_grad():
            for each in track(ids, self.vocabulary).unbind(0):
                state = stepper.step(each, state)[1]
        if not self.vocabulary.lookups:
            raise MnemoscopeError(
                f"inputs are ids of {ids.dtype} and the step of {_name(stepper)} looks nothing up with them in an "
                "embedding, a table or one-hot vectors; give real-valued inputs"
            )
        rows = self.vocabulary.recorded()
        self.features = rows.view(*ids.shape, rows.shape[-1])

    def _get_name(self) -> str:
        return _name(self.stepper)

    def initial_state(self, batch: int) -> Any:
        return self.stepper.initial_state(batch)

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if not x.is_floating_point():
            return self.stepper.step(x, state)
        ids = self._id.expand(len(x))
        return self.stepper.step(track(ids, replace(self.vocabulary, positions=len(x), features=x)), state)


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
