"""Sequences while torch.onnx exports a model: ONNX knows no kernel of ours, and no loop of Python.

The exporter that is built upon torch.export gets a `scan` over the readable equations, which becomes ONNX's Scan: the
length and the batch may be dynamic. The older one, which traces, gets torch's own operator where the equations are
torch's; other layers are unrolled, for the length of the example. So is what remembers every state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mnemoscope.recurrence import State, leaves, rebuild
from mnemoscope.torch_internals import scan

if TYPE_CHECKING:
    from mnemoscope.layers._base import Layer, Weights


def onnx_operator(layer: Layer) -> str | None:
    """Return torch's operator for the layer's equations, by name; None if they are not torch's."""
    spec = layer.kernel_spec()
    if spec is None:
        return None
    name = spec.family if spec.options is None else f"{spec.family}_{spec.options}"
    return name if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") else None


def onnx_scan(layer: Layer, w: Weights, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Run the cell by a loop that stays a loop in the exported graph, which is for inference, without gradients."""
    constant = type(w)(**{name: weight.detach() for name, weight in vars(w).items()})
    first = [t.detach().clone() for t in leaves(state)]

    def step(carried: list[Tensor], u: Tensor) -> tuple[list[Tensor], Tensor]:
        output, new = layer.cell(constant, u, rebuild(state, carried))
        return [t.clone() for t in leaves(new)], output.clone()  # a scan's results must not share memory

    last, outputs = scan(step, first, layer.project(constant, x.detach()))
    return outputs, rebuild(state, last)


def run_torch_operator(operator: str, layer: Layer, w: Weights, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Run one layer in one direction by torch's operator, which the older exporter knows."""
    weights = [w.weight_ih, w.weight_hh, *([w.bias_ih, w.bias_hh] if layer.bias else [])]
    given = [t.unsqueeze(0) for t in leaves(state)]
    first = given if len(given) > 1 else given[0]
    output, *last = getattr(torch, operator)(x, first, weights, layer.bias, 1, 0.0, False, False, False)
    return output, rebuild(state, [t.squeeze(0) for t in last])
