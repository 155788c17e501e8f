"""Compiles the CUDA kernels on the user's machine and launches them.

The runtime compiler (NVRTC) comes with torch: neither a toolkit nor nvcc is needed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels._cuda import binary_cache, driver
from mnemoscope.torch_internals import assumed_cuda_toolkit, cuda_compiler, cuda_stream

FOLDER = Path(__file__).parents[1] / "csrc" / "cuda"
_PORTABLE_CLUSTER = 8

Defines = Mapping[str, int | str]
Argument = Tensor | int | float | None


class KeptDefines(dict[str, int | str]):
    """Sizes and flags that kernels are compiled with, made once and kept: each finds its kernels without a search.

    Attributes:
        functions: the kernels, by name, threads, shared memory and device.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.functions: dict[tuple[str, int, int, int], driver.Function] = {}


def launch(
    name: str,
    defines: Defines,
    *,
    blocks: int,
    threads: int,
    shared_floats: int,
    args: Mapping[str, Argument],
) -> None:
    """Run a kernel, compiled for `defines`, on the current stream.

    `args` are the kernel's parameters by name; None is for a pointer that the kernel does not use. The kernel checks at
    compile time that it needs `threads` and `shared_floats`.
    """
    values, index = pack_arguments(name, args)
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            _launch(name, defines, blocks, threads, shared_floats, values, index)
    else:
        _launch(name, defines, blocks, threads, shared_floats, values, index)


def _launch(
    name: str, defines: Defines, blocks: int, threads: int, shared_floats: int, values: list[int | float], index: int
) -> None:
    """Run a kernel on the current device, which is that of this index."""
    _ensure_context(index)
    _compiled(name, defines, threads, shared_floats, index).launch(blocks, cuda_stream(index), values)


def launch_steps(
    name: str,
    defines: Defines,
    *,
    blocks: int,
    threads: int,
    shared_floats: int,
    args: Mapping[str, Argument],
    steps: Iterable[int],
    before: Callable[[int], None],
) -> None:
    """Run a kernel once for each of `steps`, which is its parameter t, after `before(t)`."""
    values, index = pack_arguments(name, {**args, "t": 0})
    with torch.cuda.device(index):
        _ensure_context(index)
        function = _compiled(name, defines, threads, shared_floats, index)
        launch_step = function.varying(args_in_order(name).index("t"), blocks, cuda_stream(index), values)
        for t in steps:
            before(t)
            launch_step(t)


class Parameter(NamedTuple):
    """A parameter of a kernel; `dtype` is what it points to, None for a number. `format` is `struct`'s."""

    name: str
    dtype: torch.dtype | None
    format: str


_POINTERS = {"float*": torch.float32, "int*": torch.int32, "long long*": torch.int64}
_NUMBERS = {"int": "i", "double": "d"}


@cache
def parameters(name: str) -> tuple[Parameter, ...]:
    """Return the parameters of a kernel, read from its source."""
    declared = re.search(rf"^KERNEL {name}\((.*?)\)", source(name), re.MULTILINE | re.DOTALL)
    assert declared is not None, f"{name}.cu does not declare the kernel {name}"
    found = []
    for parameter in declared[1].split(","):
        kind, _, parameter_name = " ".join(parameter.split()).rpartition(" ")
        kind = kind.removeprefix("const ")
        assert kind in _POINTERS or kind in _NUMBERS, f"{name}: no such type here: {kind}"
        found.append(Parameter(parameter_name, _POINTERS.get(kind), _NUMBERS.get(kind, "P")))
    return tuple(found)


def pack_arguments(name: str, args: Mapping[str, Argument]) -> tuple[list[int | float], int]:
    """Return the arguments in the order of the kernel's parameters, tensors as addresses, and the tensors' device.

    Names and types must agree with the kernel's.
    """
    order = _order(name)
    if len(args) != len(order.names):  # of as many names, one that is missing is not found below
        raise TypeError(f"{name}: {sorted(args.keys() ^ order.names)} are not in both")
    values: list[Any] = []
    some = None
    for dtype, tensor in zip(order.dtypes, order.pick_tensors(args), strict=True):
        if tensor is None:
            values.append(0)
        elif tensor.dtype is dtype and tensor.is_contiguous():
            values.append(tensor.data_ptr())
            some = tensor
        else:
            raise TypeError(_misfit(name, args))
    values += order.pick_numbers(args)
    return values, -1 if some is None else some.get_device()


def _misfit(name: str, args: Mapping[str, Any]) -> str:
    """Say which tensor is not what its kernel reads."""
    for parameter in parameters(name):
        arg = args[parameter.name]
        if isinstance(arg, Tensor) and (arg.dtype is not parameter.dtype or not arg.is_contiguous()):
            return f"{name}: {parameter.name} must be contiguous and {parameter.dtype}; it is {arg.dtype}"
    return f"{name}: a tensor is not what the kernel reads"


class _Order(NamedTuple):
    """How a kernel's arguments are put in order: tensors, of these types, before numbers."""

    names: frozenset[str]
    dtypes: tuple[torch.dtype, ...]
    pick_tensors: Callable[[Mapping[str, Any]], tuple[Tensor | None, ...]]
    pick_numbers: Callable[[Mapping[str, Any]], tuple[int | float, ...]]


@cache
def _order(name: str) -> _Order:
    declared = parameters(name)
    tensors = [parameter.name for parameter in declared if parameter.dtype is not None]
    numbers = [parameter.name for parameter in declared if parameter.dtype is None]
    assert [parameter.name for parameter in declared] == tensors + numbers, f"{name}: numbers come after tensors"
    dtypes = tuple(parameter.dtype for parameter in declared if parameter.dtype is not None)
    return _Order(frozenset(tensors + numbers), dtypes, itemgetter(*tensors), itemgetter(*numbers))


@cache
def args_in_order(name: str) -> tuple[str, ...]:
    """Return the names of a kernel's parameters."""
    return tuple(parameter.name for parameter in parameters(name))


class _Contexts(threading.local):
    """The devices of which this thread is known to have a CUDA context."""

    def __init__(self) -> None:
        self.of_thread: set[int] = set()


_contexts = _Contexts()


def _ensure_context(index: int) -> None:
    """Make sure that this thread has a CUDA context; the autograd engine's may not, before its first kernel."""
    if index not in _contexts.of_thread:
        torch.cuda.mem_get_info(index)
        _contexts.of_thread.add(index)


def _compiled(name: str, defines: Defines, threads: int, shared_floats: int, index: int) -> driver.Function:
    """Return the kernel on the device of this index."""
    if not isinstance(defines, KeptDefines):
        return _function(name, tuple(defines.items()), threads, shared_floats, index)
    key = name, threads, shared_floats, index
    function = defines.functions.get(key)
    if function is None:
        function = defines.functions[key] = _function(name, tuple(defines.items()), threads, shared_floats, index)
    return function


@cache
def _function(
    name: str, defines: tuple[tuple[str, int | str], ...], threads: int, shared_floats: int, index: int
) -> driver.Function:
    """Return the kernel on the device of this index, compiled at its first use."""
    all_defines = {**dict(defines), "THREADS": threads, "SHARED_FLOATS": shared_floats}
    return driver.Function(
        build(name, all_defines),
        name,
        "".join(parameter.format for parameter in parameters(name)),
        threads=threads,
        shared_bytes=4 * shared_floats,
        large_clusters=int(all_defines["CLUSTER_BLOCKS"]) > _PORTABLE_CLUSTER,
    )


@cache
def source(name: str) -> str:
    return (FOLDER / f"{name}.cu").read_text()


@cache
def _headers() -> str:
    return "".join(path.read_text() for path in sorted(FOLDER.glob("*.cuh")))


def options(defines: Defines) -> list[str]:
    """Return the compiler's options for `defines`; a flag is 0 or 1."""
    return [f"-D{key}={int(value) if isinstance(value, bool) else value}" for key, value in sorted(defines.items())]


def build(name: str, defines: Defines) -> bytes:
    """Return one kernel's binary for the current device, from the cache on disk or compiled now."""
    compile_kernel = cuda_compiler()
    if compile_kernel is None:
        raise MnemoscopeError(
            f"torch {torch.__version__} has no runtime compiler for CUDA; torch 2.11 to 2.13 have: use one of them, or"
            " the eager path (mnemoscope.kernels.backend('eager'))"
        )
    capability = "{}{}".format(*torch.cuda.get_device_capability())
    versions = f"{torch.__version__} {torch.version.cuda} {driver.version()} {capability}"
    key = binary_cache.key(source(name), _headers(), " ".join(options(defines)), versions)
    binary = binary_cache.load(key)
    if binary is None:
        with assumed_cuda_toolkit(str(FOLDER)):  # the kernels include nothing from it
            binary = compile_kernel(source(name), name, capability, str(FOLDER), options(defines))
        binary_cache.store(key, binary)
    return binary
