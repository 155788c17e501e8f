"""The fused recurrences: the arguments, results and shapes of every operator.

Each family is a pair. `*_forward` runs a whole sequence; `*_backward` runs it backwards in time and returns the
gradients of what was added before each nonlinearity. Gradients of weights are one matrix product after the loop,
written once in `_derivatives.py` for all devices. A backend registers a loop with `@rnn_forward.implement("cpu")`.

Common to all: tensors are time-major and contiguous; T steps, B rows, n units. `xp` holds the input projections
with all biases. `lengths` (B,) int64 or None: past its length a row has zeros in every output (anything in
`slots`), and its state stays as it was at its length. `save=False` (nothing will be differentiated) gives every
tensor that only the backward pass reads 0 steps instead of T.

A state before the first step (h0, c0, s0, the carried memory) without elements is zero, or an empty memory: for CUDA's
loops of cells and of screened attention. Every other loop is given its zeros (`_fused.py`).

On the CPU the loops of rnn, lstm and attentive can also compute the projection, and in the backward pass the gradients
of the weights. Then V is [V, U, b] (Gn, n + E) and xp is the inputs followed by a one, [x, 1] (T, B, E). The backward
pass of such a run is `*_backward_with_inputs`; without `needs_dx` its dx has no steps. modReLU is not among them: its
bias needs each step's gradient.
"""

from __future__ import annotations

from mnemoscope.kernels._operators.attention import (
    AttentionOptions,
    AttentionState,
    AttentionWeights,
    AttentiveGradients,
    AttentiveInputGradients,
    AttentiveOutputGradients,
    AttentiveRun,
    AttentiveSaved,
    StepResults,
    allocate_run,
    attentive_backward,
    attentive_backward_with_inputs,
    attentive_forward,
    kernel_widths,
    portable_backward,
    portable_forward,
    saved_without_V,
)
from mnemoscope.kernels._operators.backtracking import (
    SabGradients,
    SabOptions,
    SabRun,
    SabSaved,
    sab_backward,
    sab_forward,
)
from mnemoscope.kernels._operators.cells import (
    GatedRun,
    LstmGradients,
    LstmInputGradients,
    LstmRun,
    RnnGradients,
    RnnInputGradients,
    StateProductGradients,
    goru_backward,
    goru_forward,
    gru_backward,
    gru_forward,
    lstm_backward,
    lstm_backward_with_inputs,
    lstm_forward,
    rac_backward,
    rac_forward,
    rnn_backward,
    rnn_backward_with_inputs,
    rnn_forward,
)
from mnemoscope.kernels._operators.memory import CarriedMemory, empty_memory

__all__ = [
    "AttentionOptions",
    "AttentionState",
    "AttentionWeights",
    "AttentiveGradients",
    "AttentiveInputGradients",
    "AttentiveOutputGradients",
    "AttentiveRun",
    "AttentiveSaved",
    "CarriedMemory",
    "GatedRun",
    "LstmGradients",
    "LstmInputGradients",
    "LstmRun",
    "RnnGradients",
    "RnnInputGradients",
    "SabGradients",
    "SabOptions",
    "SabRun",
    "SabSaved",
    "StateProductGradients",
    "StepResults",
    "allocate_run",
    "attentive_backward",
    "attentive_backward_with_inputs",
    "attentive_forward",
    "empty_memory",
    "goru_backward",
    "goru_forward",
    "gru_backward",
    "gru_forward",
    "kernel_widths",
    "lstm_backward",
    "lstm_backward_with_inputs",
    "lstm_forward",
    "portable_backward",
    "portable_forward",
    "rac_backward",
    "rac_forward",
    "rnn_backward",
    "rnn_backward_with_inputs",
    "rnn_forward",
    "sab_backward",
    "sab_forward",
    "saved_without_V",
]
