"""The recurrences fused over time, for the CPU and for CUDA. Layers choose by themselves; `backend` overrides.

A layer's equations live in its `step`, which any kernel must reproduce. Running a sequence through it takes five parts:

Operators (`_operators`): each family (rnn, lstm, rac, goru, gru, attentive, sab) is a pair of torch operators,
`*_forward` and `*_backward`, over whole sequences. An operator is declared once, by a function whose signature
names its arguments and whose body allocates its results; its schema, the shapes that tracers see and the C
structure of its compiled loop are derived from that (`_operator.py`).

Autograd (`_autograd.py`, `_derivatives.py`, `_weight_gradients.py`): how torch differentiates an operator. The
backward loop returns the gradients of what was added before each nonlinearity; one matrix product per weight does the
rest, on every device. A gradient that must itself be differentiable is taken through the plain loops of `_naive.py`.
`_final_memory.py` is the memory that attention leaves behind, and `_state_gradients.py` records what is needed for
the total gradient of every state.

Fused calls (`_fused.py`, `_scan.py`, `_input_projection.py`): what layers call. They bring tensors to one dtype and
contiguous, call the operator and record the run if asked to.

Dispatch (`_dispatch.py`, `_settings.py`): whether a layer may call them. `fused_dtype` gives the dtype to run in,
or None if the eager loop must run: no kernel of that kind, a transform of torch.func, or the user's choice by
`backend`.

Backends: `_cpu` calls the C++ loops of `csrc/cpu` through a plain C boundary with named fields; `_cuda` compiles the
kernels of `csrc/cuda` when first used; `_portable.py` runs attention in torch's own operations where neither applies.

A family that one layer alone uses stands beside that layer, by the names that are exported here for it: `operator`,
`register_derivative`, `register_cuda_cell` and what they need (CONTRIBUTING.md has a whole one).
"""

from mnemoscope.kernels._autograd import Gradients, SavedRun, register_derivative
from mnemoscope.kernels._cell_step import cell_step
from mnemoscope.kernels._cpu.library import build_id
from mnemoscope.kernels._cpu.step import attentive_step
from mnemoscope.kernels._cudnn import CudnnWeights, cudnn, cudnn_dtype, cudnn_is_faster, ours_up_to
from mnemoscope.kernels._dispatch import (
    CapturedDispatch,
    backend,
    calls_plainly,
    can_step,
    fused_dtype,
    in_autocast,
    is_traced_or_transformed,
    portable_dtype,
)
from mnemoscope.kernels._fused import (
    Attended,
    attentive,
    contiguous,
    goru,
    gru,
    last_valid_state,
    lstm,
    needs_grad,
    rac,
    rnn,
    sab,
)
from mnemoscope.kernels._input_projection import (
    loop_may_project,
    operator_may_project,
    pack_projection,
    should_fuse_projection,
)
from mnemoscope.kernels._naive import active_rows, masked
from mnemoscope.kernels._operator import Projection, operator, register_cuda_cell
from mnemoscope.kernels._operators import (
    AttentionOptions,
    AttentionState,
    AttentionWeights,
    CarriedMemory,
    SabOptions,
    StepResults,
)
from mnemoscope.kernels._scan import linear
from mnemoscope.kernels._state_gradients import RecordedRun, is_recording, record, recording
from mnemoscope.kernels._steps import steps_in_range
from mnemoscope.kernels._weight_gradients import weight_gradient

__all__ = [
    "Attended",
    "AttentionOptions",
    "AttentionState",
    "AttentionWeights",
    "CapturedDispatch",
    "CarriedMemory",
    "CudnnWeights",
    "Gradients",
    "Projection",
    "RecordedRun",
    "SabOptions",
    "SavedRun",
    "StepResults",
    "active_rows",
    "attentive",
    "attentive_step",
    "backend",
    "build_id",
    "calls_plainly",
    "can_step",
    "cell_step",
    "contiguous",
    "cudnn",
    "cudnn_dtype",
    "cudnn_is_faster",
    "fused_dtype",
    "goru",
    "gru",
    "in_autocast",
    "is_recording",
    "is_traced_or_transformed",
    "last_valid_state",
    "linear",
    "loop_may_project",
    "lstm",
    "masked",
    "needs_grad",
    "operator",
    "operator_may_project",
    "ours_up_to",
    "pack_projection",
    "portable_dtype",
    "rac",
    "record",
    "recording",
    "register_cuda_cell",
    "register_derivative",
    "rnn",
    "sab",
    "should_fuse_projection",
    "steps_in_range",
    "weight_gradient",
]
