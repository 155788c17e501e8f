"""One layer in one direction over a sequence: by a fused kernel, by the readable loop, or in checkpointed segments."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mnemoscope import kernels
from mnemoscope.layers._carried import AttentiveState
from mnemoscope.layers._checks import warn_caller
from mnemoscope.layers._onnx import onnx_loop, onnx_operator, run_torch_operator
from mnemoscope.layers._state import where_active
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import State, leaves, map_state
from mnemoscope.torch_internals import in_onnx_export

if TYPE_CHECKING:
    from mnemoscope.layers._base import Layer


class KernelSpec(NamedTuple):
    """Which fused kernel computes a layer's equations.

    Attributes:
        family: the kernel's name, as `kernels.fused_dtype` knows it.
        cell, buffer, relevant: what attention's kernels must know to say whether they fit.
        portable: whether torch's own operations can run the kernel where none is compiled.
        options: what `run_kernel` finds in its `KernelChoice`: the equations as the kernel knows them.
    """

    family: str
    cell: str = "rnn"
    buffer: int = -1
    relevant: int = 0
    portable: bool = False
    options: Any = None


class KernelChoice(NamedTuple):
    """How a fused kernel runs: the type it computes in, whether it is a compiled one, and its `KernelSpec.options`."""

    dtype: torch.dtype
    compiled: bool
    options: Any = None


def run(layer: Layer, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
    """Return the outputs (time, batch, step_size), zero past the lengths, and the last state.

    A state of None is zero, if the layer `starts_from_zero`.
    """
    if layer.checkpoint and layer.constant_state_size and torch.is_grad_enabled():
        return _run_checkpointed(layer, w, x, state, lengths)
    return _run_once(layer, w, x, state, lengths)


def _run_once(layer: Layer, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
    if in_onnx_export():
        return run_for_onnx(layer, w, x, state, lengths)
    by_cudnn = choose_cudnn(layer, x, lengths)
    if by_cudnn is not None:
        before = None if state is None else map_state(lambda t: t.unsqueeze(0), state)
        output, last = layer.run_cudnn(*by_cudnn, w, x, before)
        return output, map_state(lambda t: t.squeeze(0), last)
    choice = _choose_kernel(layer, x)
    if choice is not None:
        if choice.dtype is not x.dtype and not kernels.in_autocast(x):  # under autocast the kernel's caller converts
            return _run_in_float32(layer, choice, w, x, state, lengths)
        return layer.run_kernel(choice, w, x, state, lengths)
    if state is None:
        state = layer.initial_cell_state(w, x.shape[1])
    return run_eager(layer, w, x, state, lengths)


def _run_in_float32(
    layer: Layer, choice: KernelChoice, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None
) -> tuple[Tensor, State]:
    """Run a layer of half precision by a kernel of float32, and round its results to the type of x."""

    def wide(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype is x.dtype else tensor  # a state counts in integers, too

    def rounded(tensor: Tensor) -> Tensor:
        return tensor.to(x.dtype) if tensor.dtype is torch.float32 else tensor

    weights = Weights(**{name: wide(tensor) for name, tensor in vars(w).items()})
    before = None if state is None else map_state(wide, state)
    output, last = layer.run_kernel(choice, weights, x.float(), before, lengths)
    return rounded(output), map_state(rounded, last)


def choose_cudnn(layer: Layer, x: Tensor, lengths: Tensor | None) -> tuple[torch.dtype, str] | None:
    """Return the dtype and the cell in which cuDNN should run the layer over x; None if it should or can not."""
    if not x.is_cuda:
        return None
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # a graph may be for batches of any size
        return None
    has_kernel = x.dtype is not torch.float64
    if has_kernel and layer.hidden_size <= kernels.ours_up_to(x.device):
        return None
    cell = layer.cudnn_cell()
    if cell is None:
        return None
    if has_kernel and not kernels.cudnn_is_faster(cell, layer.hidden_size, x.shape[1], x.device):
        return None
    dtype = kernels.cudnn_dtype(x, lengths)
    return None if dtype is None else (dtype, cell)


def run_for_onnx(
    layer: Layer, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None
) -> tuple[Tensor, State]:
    """Run without our kernels, which ONNX does not know: by an operator or a loop that it knows, else unrolled."""
    if state is None:
        state = layer.initial_cell_state(w, x.shape[1])
    operator = onnx_operator(layer) if lengths is None and torch.jit.is_tracing() else None
    if operator is not None:
        return run_torch_operator(operator, layer, w, x, state)
    if lengths is None and (layer.constant_state_size or isinstance(state, AttentiveState)):
        return onnx_loop(layer, w, x, state)
    warn_caller(
        f"{layer._get_name()} is exported step by step, for sequences of the example's length alone: "
        + ("they are packed" if lengths is not None else "its state grows")
    )
    return run_eager(layer, w, x, state, lengths)


def _choose_kernel(layer: Layer, x: Tensor) -> KernelChoice | None:
    """Return how a fused kernel may run the layer over x; None if the readable loop must."""
    spec = layer.kernel_spec()
    if spec is None:
        return None
    dtype = kernels.fused_dtype(
        spec.family, x, layer.hidden_size, cell=spec.cell, buffer=spec.buffer, relevant=spec.relevant
    )
    if dtype is not None:
        return KernelChoice(dtype, True, spec.options)
    dtype = kernels.portable_dtype(x) if spec.portable else None
    return None if dtype is None else KernelChoice(dtype, False, spec.options)


def _run_checkpointed(
    layer: Layer, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None
) -> tuple[Tensor, State]:
    """Run about sqrt(T) segments of about sqrt(T) steps, keeping only their first states for the backward pass."""
    size = math.isqrt(len(x) - 1) + 1
    # The segments that the backward pass runs again must make the choices of the first run. torch.compile runs again
    # only what it has traced, and cannot trace the context.
    context: dict[str, Any] = {"context_fn": lambda: (nullcontext(), kernels.CapturedDispatch())}
    if torch.compiler.is_compiling():
        context = {}
    outputs = []
    for start in range(0, len(x), size):
        rest = None if lengths is None else (lengths - start).clamp(0, size)
        output, state = checkpoint(
            _run_once,
            layer,
            w,
            x[start : start + size],
            state,
            rest,
            use_reentrant=False,
            preserve_rng_state=False,
            **context,
        )
        outputs.append(output)
    return torch.cat(outputs), state


def run_eager(layer: Layer, w: Weights, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
    """Run the readable equations, one step after the other: what every kernel is measured against."""
    if not kernels.is_recording(lengths):
        return _loop(layer, layer.cell, w, x, state, lengths)
    hidden: list[Tensor] = []

    def recorded_cell(w: Weights, u: Tensor, state: State) -> tuple[Tensor, State]:
        output, new = layer.cell(w, u, state)
        hidden.append(leaves(new)[0])  # h: the rest of the state is computed from this tensor, or without it
        return output, new

    result = _loop(layer, recorded_cell, w, x, state, lengths)
    kernels.record(torch.stack(hidden), tuple(hidden), lambda *gradients: torch.stack(gradients))
    return result


def _loop(
    layer: Layer,
    cell: Callable[[Weights, Tensor, State], tuple[Tensor, State]],
    w: Weights,
    x: Tensor,
    state: State,
    lengths: Tensor | None,
) -> tuple[Tensor, State]:
    outputs = []
    for t, u in enumerate(layer.project(w, x).unbind(0)):
        output, new = cell(w, u, state)
        if lengths is not None:
            active = t < lengths  # (batch,)
            output = where_active(active, output, torch.zeros_like(output))
            new = layer.keep_where_active(active, new, state)
        state = new
        outputs.append(output)
    return torch.stack(outputs), state
