"""Every private name of torch that the library needs, one small function each.

`tests/test_torch_internals.py` has a test for each of them, which fails when torch changes what they do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

Function = TypeVar("Function", bound=Callable[..., Any])


pytree = _pytree  # nests of tensors taken apart and put together; torch has no public module for it


def in_functorch() -> bool:
    """True inside a transform of torch.func, such as vmap or jacrev."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_mapped(tensor: Tensor) -> bool:
    """True for one of the slices that torch.func.vmap runs together: its values cannot be looked at."""
    return torch._C._functorch.is_batchedtensor(tensor)


def in_forward_ad() -> bool:
    """True inside `torch.autograd.forward_ad.dual_level()`."""
    return forward_ad._current_level >= 0


def in_dispatch_mode() -> bool:
    """True inside a TorchDispatchMode, such as FakeTensorMode or make_fx."""
    return torch._C._len_torch_dispatch_stack() + torch._ops._len_torch_dispatch_stack_pre_dispatch() > 0


def has_forward_hooks(module: nn.Module) -> bool:
    """True if functions run before or after a module's ``forward``, which may change what it reads or gives."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


def without_torch_function() -> AbstractContextManager[Any]:
    """Inside, torch treats a subclass of Tensor as a tensor: its __torch_function__ is not called."""
    return torch._C.DisableTorchFunctionSubclass()


_in_scan = False


def in_onnx_export() -> bool:
    """True while torch.onnx exports a model, by either of its exporters.

    torch is asked only inside a trace or an export: its own function imports both exporters.
    """
    if _in_scan:  # whose step torch.compile traces, which sees no export
        return True
    if not torch.jit.is_tracing() and not torch.compiler.is_exporting():
        return False
    try:
        return torch.onnx.is_in_onnx_export()
    except ImportError:  # a package that the exporters need is not there
        return False


Step: TypeAlias = Callable[[tuple[Tensor, ...], tuple[Tensor, ...], Tensor], tuple[Tensor, tuple[Tensor, ...]]]
"""One step of a loop: from weights, carried tensors and the step's input to its output and the next carried tensors."""


def scan(
    step: Step, weights: tuple[Tensor, ...], carried: tuple[Tensor, ...], xs: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the stacked outputs and what a step over xs carries out, as one operator of an exported graph."""
    from torch._higher_order_ops.scan import scan as torch_scan  # loads torch's compiler

    def swapped(carried: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
        output, new = step(weights, tuple(carried), x)
        return list(new), output

    global _in_scan
    _in_scan = True
    try:
        last, outputs = torch_scan(swapped, list(carried), xs)
    finally:
        _in_scan = False
    return outputs, tuple(last)


_scripted_loops: list[Any] = []  # a graph does not own the functions it calls; torch, too, keeps what it scripts


def traced_loop(
    step: Step, weights: tuple[Tensor, ...], carried: tuple[Tensor, ...], xs: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Do what `scan` does in a trace of torch.jit, which knows no loops: by a scripted one around a traced step."""
    with paused_trace():
        example = tuple(tuple(t.detach().clone() for t in tensors) for tensors in (weights, carried))
        first = xs[0].detach().clone()
        traced = torch.jit.trace(step, (*example, first), check_trace=False)  # noqa: F841  (torch looks it up by name)
        many, few = (f"Tuple[{', '.join(['Tensor'] * len(tensors))}]" for tensors in (weights, carried))
        unit = torch.jit.CompilationUnit(f"""
def loop(weights: {many}, carried: {few}, xs: Tensor):
    outputs: List[Tensor] = []
    for t in range(xs.size(0)):
        output, carried = traced(weights, carried, xs[t])
        outputs.append(output)
    return torch.stack(outputs), carried
""")
    _scripted_loops.append(unit)
    return unit.loop(weights, carried, xs)


@contextmanager
def paused_trace() -> Iterator[None]:
    """Inside, nothing is recorded by the trace of torch.jit that is under way, and another one may begin."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def is_fx_proxy(value: Any) -> bool:
    """True for what torch.fx passes through a module instead of a tensor."""
    fx = sys.modules.get("torch.fx")
    return fx is not None and isinstance(value, fx.Proxy)


def outside_dispatch_modes() -> AbstractContextManager[Any]:
    """Inside, no TorchDispatchMode sees what happens: tensors are ordinary ones."""
    return _disable_current_modes()


def version(tensor: Tensor) -> int | None:
    """Return how often a tensor, or one that shares its memory, was written to; None where torch does not count."""
    if torch.compiler.is_compiling() or tensor.is_inference():
        return None
    return tensor._version


def any_requires_grad(*arguments: Any) -> bool:
    """True if some tensor among an operator's arguments requires a gradient."""
    return torch._C._any_requires_grad(*arguments)


def below_autograd() -> AbstractContextManager[None]:
    """Inside, an operator runs its backend's kernel without recording a derivative."""
    return torch._C._AutoDispatchBelowAutograd()


def apply_function(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` for callers that are in no transform of torch.func: without the search for its tensors."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


_PLAIN_TYPES = (Tensor, torch.nn.Parameter)
_PLAIN_OR_NONE = frozenset([*_PLAIN_TYPES, type(None)])


def are_of_plain_types(tensors: Iterable[Tensor | None]) -> bool:
    """True if no tensor is of a subclass, parameters aside. All in one call of the interpreter."""
    return _PLAIN_OR_NONE.issuperset(map(type, tensors))


def are_plain(tensors: Iterable[Tensor | None], on_cuda: bool) -> bool:
    """True if all tensors are just numbers in the memory of one kind of device.

    That is, of no subclass, no negated view, and no zeros without memory.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN_TYPES or tensor.is_cuda is not on_cuda or tensor.is_neg():
            return False
        if tensor._is_zerotensor():
            return False
    return True


def _key_set(*keys: str) -> int:
    key_set = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    for key in keys:
        key_set = key_set | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return key_set.raw_repr()


_PLAIN_KEYS = (_key_set("BackendSelect", "ADInplaceOrView"), _key_set("BackendSelect"))  # the latter in inference mode


def dispatches_plainly() -> bool:
    """True if an operator on ordinary tensors goes straight to autograd and its backend.

    That is, not inside a mode of torch, a transform of torch.func, vmap over gradients, a trace or a profile.
    """
    if torch._C._dispatch_tls_local_include_set().raw_repr() not in _PLAIN_KEYS:
        return False
    return torch._C._len_torch_function_stack() == 0 and not torch.autograd._profiler_enabled()


def constant_when_compiled(function: Function) -> Function:
    """Let torch.compile call this function while it traces, and take the result for a constant.

    That is torch.compiler.assume_constant_result, which imports all of torch's compiler to set one attribute.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def cuda_compiler() -> Callable[[str, str, str, str, list[str]], bytes] | None:
    """torch's runtime compiler for CUDA; None in a torch that has none.

    It makes the binary of one kernel from the source, the kernel's name, the compute capability ("90"), a folder of
    headers and the compiler's options.
    """
    from torch.cuda import _utils

    nvrtc_compile = getattr(_utils, "_nvrtc_compile", None)
    if nvrtc_compile is None:
        return None

    def compile_kernel(source: str, name: str, capability: str, headers: str, options: list[str]) -> bytes:
        binary, _ = nvrtc_compile(
            source, name, compute_capability=capability, cuda_include_dirs=[headers], nvcc_options=options
        )
        return binary

    return compile_kernel


def cuda_stream(index: int) -> int:
    """The address of the current stream of a device."""
    return torch._C._cuda_getCurrentRawStream(index)


@contextmanager
def assumed_cuda_toolkit(folder: str) -> Iterator[None]:
    """Let torch take `folder` for the CUDA toolkit where none is installed.

    It looks for the toolkit's headers before it compiles, though a kernel may include none of them.
    """
    from torch.utils import cpp_extension

    before = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = before or folder
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = before


def cudnn_rnn(*arguments: Any) -> tuple[Tensor, ...]:
    """cuDNN's recurrent networks: outputs, the last h and c, the reserve for the backward pass, the packed weights.

    By torch's own binding: torch.ops would match the arguments with a schema, which takes twice as long.
    """
    return torch._cudnn_rnn(*arguments)


def cudnn_pack_weights(*arguments: Any) -> Tensor:
    """One buffer with all weights, as cuDNN reads them. The weights that are given become parts of it."""
    return torch.ops.aten._cudnn_rnn_flatten_weight.default(*arguments)


def flatten_tensors(tensors: list[Tensor]) -> Tensor:
    """All numbers of contiguous tensors of one dtype, concatenated in new memory.

    What torch.cat makes of views, without a call from Python for each view.
    """
    return torch._C._nn.flatten_dense_tensors(tensors)


def cudnn_rnn_backward(*arguments: Any) -> tuple[Any, ...]:
    """The gradients of `cudnn_rnn`: of the inputs, of the first h and c, and of the weights."""
    return torch.ops.aten._cudnn_rnn_backward.default(*arguments)
