"""Sequences while torch.onnx exports a model: ONNX knows no kernel of ours, and no loop of Python.

Both exporters get a loop over the readable equations that stays a loop in the graph, so that length and batch may be
dynamic: the one that is built upon torch.export a `scan`, which becomes ONNX's Scan, and the older one, which traces, a
scripted loop, which becomes ONNX's Loop. The older one gets torch's own operator where the equations are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mnemoscope.layers._carried import AttentiveState
from mnemoscope.layers._memory import Memory, empty_memory, map_slots
from mnemoscope.recurrence import State, leaves, rebuild
from mnemoscope.torch_internals import scan, traced_loop

if TYPE_CHECKING:
    from mnemoscope.layers._base import Layer
    from mnemoscope.layers._weights import Weights


def onnx_operator(layer: Layer) -> str | None:
    """Return torch's operator for the layer's equations, by name; None if they are not torch's."""
    spec = layer.kernel_spec()
    if spec is None:
        return None
    name = spec.family if spec.options is None else f"{spec.family}_{spec.options}"
    return name if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") else None


def onnx_loop(layer: Layer, w: Weights, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Run the cell by a loop that stays a loop in the exported graph, which is for inference, without gradients.

    A state in the loop has one size. So a memory that grows begins with an empty slot for each step of x in front of
    those it holds; every step appends one slot at the end and drops the first.
    """
    grows = not layer.constant_state_size
    first = _with_room(state, x.shape[0]) if grows else state
    named = {name: weight.detach() for name, weight in vars(w).items()}

    def step(weights: tuple[Tensor, ...], carried: tuple[Tensor, ...], u: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        constant = type(w)(**dict(zip(named, weights, strict=True)))
        output, new = layer.cell(constant, u, rebuild(first, carried))
        new = _without_oldest_slot(new) if grows else new
        return output.clone(), tuple(t.clone() for t in leaves(new))  # a loop's results must not share memory

    loop: Callable[..., tuple[Tensor, tuple[Tensor, ...]]] = traced_loop if torch.jit.is_tracing() else scan
    projected = layer.project(type(w)(**named), x.detach())
    outputs, last = loop(step, tuple(named.values()), tuple(t.detach().clone() for t in leaves(first)), projected)
    return outputs, rebuild(first, last)


def _with_room(state: AttentiveState, steps: int) -> AttentiveState:
    """Return the state with an empty slot for each step in front of its memory."""
    held: Memory = state.memory
    room = empty_memory(held.values, held.values.shape[0], steps)
    slots = [torch.cat(pair, 1) for pair in zip(room[:-1], held[:-1], strict=True)]
    return AttentiveState(state, state.s, Memory(*[*slots, held.clock]), state.memory_layout)


def _without_oldest_slot(state: AttentiveState) -> AttentiveState:
    memory = map_slots(lambda t: t[:, 1:], state.memory)
    return AttentiveState(state, state.s, memory, state.memory_layout)


def run_torch_operator(operator: str, layer: Layer, w: Weights, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Run one layer in one direction by torch's operator, which the older exporter knows."""
    weights = [w.weight_ih, w.weight_hh, *([w.bias_ih, w.bias_hh] if layer.bias else [])]
    given = [t.unsqueeze(0) for t in leaves(state)]
    first = given if len(given) > 1 else given[0]
    output, *last = getattr(torch, operator)(x, first, weights, layer.bias, 1, 0.0, False, False, False)
    return output, rebuild(state, [t.squeeze(0) for t in last])
