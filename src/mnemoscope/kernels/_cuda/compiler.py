"""Compiles the CUDA kernels on the user's machine and launches them.

The runtime compiler (NVRTC) comes with torch: neither a toolkit nor nvcc is needed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels._cuda import binary_cache, driver
from mnemoscope.torch_internals import assumed_cuda_toolkit, cuda_compiler, cuda_stream

FOLDER = Path(__file__).parents[1] / "csrc" / "cuda"
_PORTABLE_CLUSTER = 8
_threads = threading.local()

Defines = Mapping[str, int | str]
Argument = Tensor | int | float | None


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
    launch_steps(name, defines, blocks=blocks, threads=threads, shared_floats=shared_floats, args=args)


def launch_steps(
    name: str,
    defines: Defines,
    *,
    blocks: int,
    threads: int,
    shared_floats: int,
    args: Mapping[str, Argument],
    steps: Iterable[int] | None = None,
    before: Callable[[int], None] | None = None,
) -> None:
    """Run a kernel once for each of `steps`, which is its parameter t, after `before(t)`; without steps, once."""
    if steps is not None:
        args = {**args, "t": 0}
    ordered = order_arguments(name, args)
    index = next(arg for arg in ordered if isinstance(arg, Tensor)).get_device()
    with torch.cuda.device(index) if index != torch.cuda.current_device() else nullcontext():
        _create_context(index)
        function = _function(name, tuple(defines.items()), threads, shared_floats, index)
        stream = cuda_stream(index)
        values = [arg.data_ptr() if isinstance(arg, Tensor) else arg or 0 for arg in ordered]
        if steps is None:
            function.launch(blocks, stream, values)
            return
        t_index = args_in_order(name).index("t")
        for t in steps:
            if before is not None:
                before(t)
            values[t_index] = t
            function.launch(blocks, stream, values)


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


def order_arguments(name: str, args: Mapping[str, Argument]) -> list[Argument]:
    """Return the arguments in the order of the kernel's parameters; their names and types must agree."""
    names = _names(name)
    assert args.keys() == names, f"{name}: {sorted(args.keys() ^ names)} are not in both"
    ordered = []
    for parameter_name, dtype, _ in parameters(name):
        arg = args[parameter_name]
        if isinstance(arg, Tensor):
            fits = arg.dtype is dtype and arg.is_contiguous()
        else:
            fits = arg is None or dtype is None
        assert fits, f"{name}: {parameter_name} must be contiguous and {dtype or 'a number'}"
        ordered.append(arg)
    return ordered


@cache
def args_in_order(name: str) -> tuple[str, ...]:
    """Return the names of a kernel's parameters."""
    return tuple(parameter.name for parameter in parameters(name))


@cache
def _names(name: str) -> frozenset[str]:
    return frozenset(args_in_order(name))


def _create_context(index: int) -> None:
    """Make sure that this thread has a CUDA context; the autograd engine's may not, before its first kernel."""
    known = _threads.__dict__.setdefault("devices", set())
    if index not in known:
        torch.cuda.mem_get_info(index)
        known.add(index)


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
