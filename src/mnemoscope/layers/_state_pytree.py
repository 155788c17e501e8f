"""How torch takes a state with a memory apart and puts it together: for torch.func, DDP and torch.export."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mnemoscope.layers._carried import AttentiveState, CarryingTensor, state_from_leaves, state_leaves
from mnemoscope.layers._memory import Memory
from mnemoscope.torch_internals import pytree


def register() -> None:
    """Make both forms of a state nodes of torch's pytrees; torch.export writes them by these names."""
    for form in (AttentiveState, CarryingTensor):
        pytree.register_pytree_node(
            form,
            _flatten,
            lambda parts, context: state_from_leaves(list(parts), *context),
            serialized_type_name=f"mnemoscope.{form.__name__}",
            to_dumpable_context=list,
            from_dumpable_context=tuple,
            flatten_with_keys_fn=_flatten_with_keys,
        )


def _flatten(state: AttentiveState | CarryingTensor) -> tuple[list[Tensor], tuple[int, str]]:
    return state_leaves(state), (len(state.visible), state.memory_layout)


def _flatten_with_keys(state: AttentiveState | CarryingTensor) -> tuple[list[tuple[Any, Tensor]], tuple[int, str]]:
    tensors, context = _flatten(state)
    names = [*("h", "c")[: context[0]], "s", *Memory._fields]
    return [(pytree.MappingKey(name), tensor) for name, tensor in zip(names, tensors, strict=False)], context
