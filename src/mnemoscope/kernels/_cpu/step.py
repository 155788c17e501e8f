"""One step of a self-attentive recurrence by its compiled loop, without gradients."""

from __future__ import annotations

from typing import Any

import torch

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cpu import library
from mnemoscope.kernels._cpu.structures import ENUMERATIONS, STRUCTURES
from mnemoscope.kernels._operator import Projection


def attentive_step(
    inputs: Projection,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    results: op.StepResults,
    layer: int,
    held: int,
) -> None:
    """Write the results of one step of one layer of a stack.

    Of the inputs, x is (B, E). Tensors are contiguous, states of the dtype of x, clocks and origins int64: a caller has
    checked it. Those of states, memories and results are a whole stack's, (layers, ...), of which this is layer number
    `layer`. The memory holds `held` slots a row.
    """
    x = inputs.x
    batch, n_inputs = x.shape
    words: list[Any] = [1, batch, results.h.shape[2], n_inputs, held, results.values.shape[2]]
    dtype = x.dtype
    for t in (*inputs, *weights):
        if t is not None and t.dtype is not dtype:
            raise TypeError(f"attentive_step: weights must be of {dtype}, as the input; one is of {t.dtype}")
        words.append(0 if t is None else t.data_ptr())
    words += [_address(t, layer) for t in (*state, *memory)]
    cell, phi, buffer, relevant, mix, decay, refresh = options
    words += ENUMERATIONS["cell"][cell], ENUMERATIONS["phi"][phi], buffer, relevant, ENUMERATIONS["mix"][mix]
    words += decay, refresh
    words += [_address(t, layer) for t in results]
    library.run("attentive_step", dtype, STRUCTURES["attentive_step"], words)


def _address(t: torch.Tensor | None, layer: int) -> int:
    """The address of one layer's part of a contiguous tensor (layers, ...)."""
    if t is None:
        return 0
    return t.data_ptr() + layer * t.stride(0) * t.element_size() if layer else t.data_ptr()
