"""The private names of torch that the library uses still do what they are used for: one test each.

All of them are in `torch_internals.py`, which is tested, too.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import mnemoscope
from mnemoscope import torch_internals as internals
from mnemoscope.torch_internals import pytree

PACKAGE = Path(mnemoscope.__file__).parent


def test_in_functorch_is_true_inside_vmap_alone() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(internals.in_functorch())
        return x

    torch.func.vmap(function)(torch.ones(2))
    assert seen == [True]
    assert not internals.in_functorch()


def test_what_vmap_maps_is_known_from_what_it_does_not() -> None:
    seen = []

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append((internals.is_mapped(x), internals.is_mapped(y)))
        return x

    torch.func.vmap(function, in_dims=(0, None))(torch.ones(2), torch.ones(2))
    assert seen == [(True, False)]
    assert not internals.is_mapped(torch.ones(2))


def test_forward_hooks_of_every_kind_are_seen() -> None:
    hooks = ("register_forward_hook", "register_forward_pre_hook")
    for register, with_kwargs in itertools.product(hooks, (False, True)):
        module = torch.nn.Linear(1, 1)
        assert not internals.has_forward_hooks(module)
        handle = getattr(module, register)(lambda *_: None, with_kwargs=with_kwargs)
        assert internals.has_forward_hooks(module)
        handle.remove()
        assert not internals.has_forward_hooks(module)


def test_in_forward_ad_is_true_inside_a_dual_level_alone() -> None:
    with forward_ad.dual_level():
        assert internals.in_forward_ad()
    assert not internals.in_forward_ad()


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_in_dispatch_mode_is_true_inside_a_mode_alone() -> None:
    assert not internals.in_dispatch_mode()
    with _Mode():
        assert internals.in_dispatch_mode()
    assert not internals.in_dispatch_mode()


def test_in_dispatch_mode_is_true_while_make_fx_traces_before_dispatch() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(internals.in_dispatch_mode())
        return x + 1

    make_fx(function, pre_dispatch=True)(torch.ones(2))
    assert seen == [True]


def test_any_requires_grad_looks_at_tensors_among_other_arguments() -> None:
    x = torch.ones(2)
    assert not internals.any_requires_grad(x, None, "tanh", 1)
    assert internals.any_requires_grad(None, "tanh", 1, x.clone().requires_grad_())


def test_below_autograd_records_no_derivative() -> None:
    x = torch.ones(2, requires_grad=True)
    with internals.below_autograd():
        assert not (2 * x).requires_grad
    assert (2 * x).requires_grad


def test_torch_compile_takes_a_constant_function_for_a_constant() -> None:
    calls = []

    @internals.constant_when_compiled
    def three() -> int:
        calls.append(1)
        return len([1, 2, 3])

    compiled = torch.compile(lambda x: x * three(), backend="eager", fullgraph=True)
    for _ in range(3):
        assert compiled(torch.ones(1)).item() == 3
    assert len(calls) == 1


def test_torch_has_a_runtime_compiler_for_cuda() -> None:
    from torch.cuda import _utils

    assert internals.cuda_compiler() is not None
    parameters = inspect.signature(_utils._nvrtc_compile).parameters
    expected = ["kernel_source", "kernel_name", "compute_capability", "cuda_include_dirs", "nvcc_options"]
    assert list(parameters)[:2] == expected[:2]
    assert set(expected) <= parameters.keys()


@pytest.mark.cuda
def test_the_current_stream_has_its_address() -> None:
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        assert internals.cuda_stream(0) == torch.cuda.current_stream().cuda_stream


def test_an_assumed_cuda_toolkit_is_seen_by_torch_and_forgotten() -> None:
    from torch.utils import cpp_extension

    before = cpp_extension.CUDA_HOME
    with internals.assumed_cuda_toolkit("/some/folder"):
        assert (before or "/some/folder") == cpp_extension.CUDA_HOME
    assert before == cpp_extension.CUDA_HOME


def test_pytree_takes_registered_classes_apart() -> None:
    class Pair:
        def __init__(self, a: int, b: int) -> None:
            self.a, self.b = a, b

    pytree.register_pytree_node(Pair, lambda pair: ([pair.a, pair.b], None), lambda leaves, _: Pair(*leaves))
    doubled = pytree.tree_map(lambda leaf: 2 * leaf, Pair(1, 2))
    assert (doubled.a, doubled.b) == (2, 4)


def private_names_of_torch(source: str) -> Iterator[str]:
    """Every `torch._x`, `torch.a._x` and `from torch.a import _x` in a source file."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            private = [part for part in rest if part.startswith("_") and not part.endswith("__")]
            if first in ("torch", "forward_ad") and private and "(" not in name:
                yield name


def test_no_other_module_uses_a_private_name_of_torch() -> None:
    for path in PACKAGE.rglob("*.py"):
        found = set(private_names_of_torch(path.read_text()))
        assert bool(found) == (path.name == "torch_internals.py"), f"{path}: {found}"


def test_tensors_made_outside_dispatch_modes_are_ordinary() -> None:
    with FakeTensorMode():
        assert type(torch.empty(1)) is FakeTensor
        with internals.outside_dispatch_modes():
            assert type(torch.empty(1)) is torch.Tensor


def test_version_counts_writes() -> None:
    x = torch.zeros(2)
    before = internals.version(x)
    x[:1].add_(1)  # through a view
    assert internals.version(x) == before + 1
    with torch.inference_mode():
        assert internals.version(torch.zeros(2)) is None


def test_cudnn_takes_its_arguments_in_this_order() -> None:
    forward = torch.ops.aten._cudnn_rnn.default._schema
    names = [argument.name for argument in forward.arguments]
    assert names[:6] == ["input", "weight", "weight_stride0", "weight_buf", "hx", "cx"]
    options = ["mode", "hidden_size", "proj_size", "num_layers", "batch_first", "dropout", "train", "bidirectional"]
    assert names[6:] == [*options, "batch_sizes", "dropout_state"]
    pack = [argument.name for argument in torch.ops.aten._cudnn_rnn_flatten_weight.default._schema.arguments]
    assert pack == ["weight_arr", "weight_stride0", "input_size", *options[:5], "bidirectional"]
    backward = [argument.name for argument in torch.ops.aten._cudnn_rnn_backward.default._schema.arguments]
    assert backward[:10] == [*names[:6], "output", "grad_output", "grad_hy", "grad_cy"]
    assert backward[10:] == [*names[6:], "reserve", "output_mask"]


def test_cudnn_is_called_by_torchs_own_binding() -> None:
    assert callable(torch._cudnn_rnn)


def test_flattened_tensors_lie_one_behind_the_other() -> None:
    tensors = [torch.randn(2, 3), torch.randn(4), torch.nn.Parameter(torch.randn(1, 2))]
    with torch.no_grad():
        assert torch.equal(internals.flatten_tensors(tensors), torch.cat([t.view(-1) for t in tensors]))


@pytest.mark.cuda
def test_cudnn_computes_an_lstm() -> None:
    theirs = torch.nn.LSTM(3, 5).cuda()
    x = torch.randn(4, 2, 3, device="cuda")
    zeros = x.new_zeros(1, 2, 5)
    weights = list(theirs.parameters())
    packed = internals.cudnn_pack_weights([t.detach() for t in weights], 4, 3, 2, 5, 0, 1, False, False)
    h, *_ = internals.cudnn_rnn(x, weights, 4, packed, zeros, zeros, 2, 5, 0, 1, False, 0.0, True, False, [], None)
    torch.testing.assert_close(h, theirs(x)[0], rtol=1e-3, atol=1e-3)


def test_without_torch_function_a_subclass_is_a_plain_tensor() -> None:
    class Counting(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.calls += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    tensor = torch.ones(2).as_subclass(Counting)
    Counting.calls = 0
    with internals.without_torch_function():
        assert (tensor + 1).sum() == 4
    assert Counting.calls == 0
    tensor + 1
    assert Counting.calls == 1


def test_in_onnx_export_is_false_in_a_trace_for_something_else() -> None:
    assert not internals.in_onnx_export()
    seen = []
    torch.export.export(Seen(seen), (torch.zeros(2),))
    assert seen == [False]


class Seen(torch.nn.Module):
    def __init__(self, seen: list[bool]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(internals.in_onnx_export())
        return x + 1


def _step(
    weights: tuple[torch.Tensor, ...], carried: tuple[torch.Tensor, ...], u: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    return weights[0] * carried[0], (carried[0] + u, carried[1] + 1)


def _run_loop(loop, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    outputs, (total, count) = loop(_step, (torch.tensor(2.0),), (torch.zeros(1), torch.zeros(1)), x)
    return outputs.flatten(), total, count


def test_scan_is_a_loop() -> None:
    outputs, total, count = _run_loop(internals.scan, torch.arange(4.0)[:, None])
    assert (total.item(), count.item()) == (6, 4)
    assert outputs.tolist() == [0, 0, 2, 6]


def test_a_traced_loop_stays_a_loop() -> None:
    traced = torch.jit.trace(lambda x: _run_loop(internals.traced_loop, x), torch.zeros(2, 1), check_trace=False)
    outputs, total, count = traced(torch.arange(4.0)[:, None])  # of another length than the example
    assert (total.item(), count.item()) == (6, 4)
    assert outputs.tolist() == [0, 0, 2, 6]


def test_a_paused_trace_records_nothing() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with internals.paused_trace():
            assert not torch.jit.is_tracing()
            constant = float(x.sum())
        assert torch.jit.is_tracing()
        return x + constant

    traced = torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert traced(torch.zeros(2)).tolist() == [2, 2]


def test_fx_passes_proxies() -> None:
    assert not internals.is_fx_proxy(torch.zeros(1))
    torch.fx.symbolic_trace(lambda x: pytest.fail("no proxy") if not internals.is_fx_proxy(x) else x)


def test_apply_function_is_a_functions_own_apply() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    x = torch.ones(2, requires_grad=True)
    y = internals.apply_function(Double)(x)
    y.sum().backward()
    assert y.grad_fn.name() == "DoubleBackward"
    assert x.grad.tolist() == [2, 2]


def test_plain_tensors_are_numbers_in_memory() -> None:
    x = torch.ones(2)
    with torch.inference_mode():
        y = torch.ones(2)
    assert internals.are_plain([x, None, torch.nn.Parameter(x), y, torch.arange(2)], on_cuda=False)
    for other in (torch._neg_view(x), torch._efficientzerotensor(2), x.as_subclass(mnemoscope.layers.CarryingTensor)):
        assert not internals.are_plain([x, other], on_cuda=False)
    assert not internals.are_plain([x], on_cuda=True)
    assert internals.are_of_plain_types([x, None, torch.nn.Parameter(x)])
    assert not internals.are_of_plain_types([x, x.as_subclass(mnemoscope.layers.CarryingTensor)])


def test_operators_are_dispatched_plainly_outside_of_modes_transforms_traces_and_profiles() -> None:
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(internals.dispatches_plainly())
        return x + 0

    x = torch.ones(2, requires_grad=True)
    look(x)
    with torch.no_grad(), torch.autocast("cpu"):
        look(x)
    with torch.inference_mode():
        look(x)
    assert seen == [True] * 3
    seen.clear()

    with _Mode():
        look(x)
    with FakeTensorMode():
        look(torch.ones(2))
    with torch.device("cpu"):  # a mode of functions
        look(x)
    with torch.autograd.profiler.profile():
        look(x)
    torch.func.vmap(look)(x)
    torch.func.grad(lambda x: look(x).sum())(x)
    torch.jit.trace(look, x, check_trace=False)
    x.register_hook(look)
    torch.autograd.grad(x * 2, x, torch.eye(2), is_grads_batched=True)
    assert seen
    assert not any(seen)
