"""Any object with a step as a recurrence, whatever its state is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mnemoscope.adapters._call import Forward, main_tensor
from mnemoscope.adapters._ids import Vocabulary, track
from mnemoscope.adapters._ids_of_features import IdsOfFeatures
from mnemoscope.adapters._nest import in_order_of, leaves_of, rebuild
from mnemoscope.adapters._torch_layers import readable, readable_layers
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence, State


class Stepped(Recurrence):
    """An object with ``initial_state(batch)`` and ``step(x, state) -> (output, state)``.

    Its state may be any nest of tuples, lists, dicts and dataclasses, of tensors (batch, ...) or (layers, batch, ...).
    Which of the two is found by asking for initial states of two batch sizes. It may also hold whole numbers, as of
    the step that it is at, or tensors of one, and what never changes. As a recurrence, the state is a tuple of tensors
    (layers, batch, ...); of complex ones, as of a diagonal state-space model, the real and imaginary parts
    (layers, batch, ..., 2). Outputs become (batch, numbers). Torch's layers inside a step run by our equations, which
    forward-mode differentiation can follow.

    Attributes:
        first_dtype: what the numbers of the first state are turned into; None leaves them as they are.
    """

    first_dtype: torch.dtype | None = None

    def __init__(self, stepper: Any, input_size: int) -> None:
        super().__init__()
        self.stepper = stepper
        self.input_size = input_size
        self._layers = readable_layers(stepper)
        self._nest, self._kinds = _find_kinds(stepper)
        leaves = zip(leaves_of(self._nest), self._kinds, strict=True)
        tensors = ((leaf, kind.axis) for leaf, kind in leaves if isinstance(kind, BatchAxis) and _is_number(leaf))
        first, axis = next(tensors)
        sizes = first.shape[axis + 1 :]
        self.hidden_size = sizes[-1] if sizes else 1

    def initial_state(self, batch: int) -> State:
        state = self._pack(self.stepper.initial_state(batch))
        return tuple(t.to(self.first_dtype) if self.first_dtype and t.is_floating_point() else t for t in state)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        with readable(self._layers):
            result = self.stepper.step(x, self._unpack(state))
        if not isinstance(result, tuple | list) or len(result) != 2:
            given = f"{len(result)} values" if isinstance(result, tuple | list) else f"one {type(result).__name__}"
            raise MnemoscopeError(f"{_name(self.stepper)}.step(x, state) must give (output, state); it gave {given}")
        output, after = result
        if isinstance(output, Tensor) and output.is_complex():
            raise MnemoscopeError(
                f"{_name(self.stepper)}.step gave complex outputs: return their real part, or both parts as "
                "torch.view_as_real(output).flatten(-2)"
            )
        if isinstance(output, Tensor) and output.dim() != 2:  # one number a sequence, or an image
            output = output.reshape(len(x), -1)
        return output, self._pack(after)

    def _pack(self, state: Any) -> State:
        """Turn the object's own state into a tuple of tensors (layers, batch, ...), in the order of its first state."""
        state = in_order_of(self._nest, state)
        leaves = leaves_of(state)
        if len(leaves) != len(self._kinds):
            raise MnemoscopeError(
                f"{_name(self.stepper)}.step gave a state of {len(leaves)} tensors, its initial_state one of "
                f"{len(self._kinds)}: both must have the same structure"
            )
        self._nest = rebuild(state, [None] * len(leaves))  # without the tensors, which need not be kept
        pairs = list(zip(leaves, self._kinds, strict=True))
        tensor, axis = next((leaf, kind.axis) for leaf, kind in pairs if isinstance(kind, BatchAxis))
        packed = []
        for leaf, kind in pairs:
            if isinstance(kind, BatchAxis):
                packed.append(self._pack_tensor(leaf, kind))
            elif isinstance(kind, WholeNumber):
                number = torch.as_tensor(leaf, dtype=torch.int64, device=tensor.device)
                packed.append(number.expand(1, tensor.shape[axis]))
            elif leaf is not kind.value and leaf != kind.value:
                raise MnemoscopeError(
                    f"{_name(self.stepper)}.step changed {kind.value!r} in its state to {leaf!r}: what changes must be "
                    "a tensor (batch, ...) or a whole number"
                )
        return tuple(packed)

    def _pack_tensor(self, leaf: Tensor, kind: BatchAxis) -> Tensor:
        if leaf.is_complex() != kind.is_complex:
            before, after = ("complex", "real") if kind.is_complex else ("real", "complex")
            raise MnemoscopeError(
                f"{_name(self.stepper)}.step made a {before} state {after}: give it from initial_state as step does"
            )
        tensor = leaf.unsqueeze(0) if kind.axis == 0 else leaf
        return torch.view_as_real(tensor.resolve_conj()) if kind.is_complex else tensor

    def _unpack(self, state: State) -> Any:
        """Reverse `_pack`."""
        remaining = iter(state)
        leaves = []
        for kind in self._kinds:
            if isinstance(kind, Constant):
                leaves.append(kind.value)
                continue
            tensor = next(remaining)
            if isinstance(kind, BatchAxis):
                if kind.is_complex:
                    tensor = torch.complex(tensor[..., 0], tensor[..., 1])
                leaves.append(tensor.squeeze(0) if kind.axis == 0 else tensor)
            else:
                leaves.append(kind.restore(tensor))
        return rebuild(self._nest, leaves)


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


class ShapedStep(nn.Module):
    """An object whose step reads inputs of a shape, as images (batch, C, H, W), as one that reads them flat."""

    def __init__(self, stepper: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.stepper = stepper
        self.shape = shape

    def _get_name(self) -> str:
        return _name(self.stepper)

    def initial_state(self, batch: int) -> Any:
        return self.stepper.initial_state(batch)

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.stepper.step(x.unflatten(-1, self.shape), state)


class IdStep(nn.Module):
    """An object whose step reads ids (batch,), as one that also reads what is looked up with them, (batch, d).

    Where it does more with its ids than look them up, as one that forgets at a separator, features are read as the id
    whose own they are, or nearest to.

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
        self._known = IdsOfFeatures(ids, self.features) if self.vocabulary.sees_ids else None

    def _get_name(self) -> str:
        return _name(self.stepper)

    def initial_state(self, batch: int) -> Any:
        return self.stepper.initial_state(batch)

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if not x.is_floating_point():
            return self.stepper.step(x, state)
        ids = self._id.expand(len(x)) if self._known is None else self._known.nearest(x)
        return self.stepper.step(track(ids, replace(self.vocabulary, positions=len(x), features=x)), state)


@dataclass(frozen=True)
class BatchAxis:
    """A leaf of a state that is a tensor, the axis of its batch, and if its numbers are complex."""

    axis: int
    is_complex: bool = False


@dataclass(frozen=True)
class WholeNumber:
    """A leaf of a state that is the same for all sequences: an int, a bool, or a tensor of one without dimensions.

    Attributes:
        type: of Python's, or the dtype of a tensor.
    """

    type: type | torch.dtype

    def restore(self, packed: Tensor) -> Any:
        """Return the leaf from what it was packed as, (1, batch)."""
        first = packed.flatten()[0]
        return first.to(self.type) if isinstance(self.type, torch.dtype) else self.type(first.item())


@dataclass(frozen=True)
class Constant:
    """A leaf of a state that never changes."""

    value: Any


Kind: TypeAlias = BatchAxis | WholeNumber | Constant
"""What a leaf of a state is."""


def _find_kinds(stepper: Any) -> tuple[Any, list[Kind]]:
    """Return an initial state, as a nest, and what its leaves are."""
    state = stepper.initial_state(2)
    twos, threes = leaves_of(state), leaves_of(stepper.initial_state(3))
    kinds: list[Kind] = []
    if len(twos) == len(threes):
        kinds = [_kind(stepper, two, three) for two, three in zip(twos, threes, strict=True)]
    if not any(_is_number(two) for two in twos) or not kinds:
        raise MnemoscopeError(f"{_name(stepper)}.initial_state(batch) must give tensors, as many for every batch size")
    return state, kinds


def _is_number(leaf: Any) -> bool:
    """True for a tensor of real or complex numbers, not of whole ones."""
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _kind(stepper: Any, two: Any, three: Any) -> Kind:
    """Return what a leaf is, from the states of two and of three sequences."""
    if isinstance(two, Tensor) and isinstance(three, Tensor):
        is_counter = two.dim() == three.dim() == 0 and not _is_number(two)
        if is_counter and two == three:
            return WholeNumber(two.dtype)
        return BatchAxis(_batch_axis(stepper, two, three), two.is_complex())
    if type(two) is not type(three) or two != three:
        raise MnemoscopeError(
            f"{_name(stepper)}.initial_state(2) holds {two!r:.80}, initial_state(3) {three!r:.80}: what depends on the "
            "batch must be a tensor (batch, ...)"
        )
    return WholeNumber(type(two)) if isinstance(two, int) else Constant(two)


def _batch_axis(stepper: Any, two: Tensor, three: Tensor) -> int:
    """Return the axis that is 2 in a state for two sequences, and 3 in one for three."""
    for axis in range(min(2, two.dim())):
        if two.shape[axis] == 2 and three.shape[axis] == 3:
            return axis
    raise MnemoscopeError(
        f"{_name(stepper)}.initial_state(2) gave a tensor {list(two.shape)}; every tensor of a state must be "
        "(batch, ...) or (layers, batch, ...), or one whole number, as of a counter"
    )


def _name(stepper: Any) -> str:
    return stepper._get_name() if isinstance(stepper, nn.Module) else type(stepper).__name__
