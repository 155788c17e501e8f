"""Compiles the CUDA kernels on the user's machine and launches them.

The runtime compiler (NVRTC) comes with torch: neither a toolkit nor nvcc is needed.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.torch_internals import assumed_cuda_toolkit, cuda_compiler

FOLDER = Path(__file__).parents[1] / "csrc" / "cuda"
_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14  # CUfunction_attribute
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
    ordered = order_arguments(name, args)
    like = next(arg for arg in ordered if isinstance(arg, Tensor))
    sizes = {"THREADS": threads, "SHARED_FLOATS": shared_floats}
    with torch.cuda.device_of(like):
        _create_context(like.device)
        kernel = _built(name, frozenset({**defines, **sizes}.items()), like.device)
        pointers = [like if arg is None else arg for arg in ordered]
        kernel((blocks, 1, 1), (threads, 1, 1), pointers, shared_mem=4 * shared_floats)


class Parameter(NamedTuple):
    """A parameter of a kernel; `dtype` is what it points to, None for a number."""

    name: str
    dtype: torch.dtype | None


_POINTERS = {"float*": torch.float32, "int*": torch.int32, "long long*": torch.int64}
_NUMBERS = {"int", "double"}


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
        found.append(Parameter(parameter_name, _POINTERS.get(kind)))
    return tuple(found)


def order_arguments(name: str, args: Mapping[str, Argument]) -> list[Argument]:
    """Return the arguments in the order of the kernel's parameters; their names and types must agree."""
    expected = parameters(name)
    names = _names(name)
    assert args.keys() == names, f"{name}: {sorted(args.keys() ^ names)} are not in both"
    ordered = []
    for parameter_name, dtype in expected:
        arg = args[parameter_name]
        if isinstance(arg, Tensor):
            fits = arg.dtype is dtype and arg.is_contiguous()
        else:
            fits = arg is None or dtype is None
        assert fits, f"{name}: {parameter_name} must be contiguous and {dtype or 'a number'}"
        ordered.append(arg)
    return ordered


@cache
def _names(name: str) -> frozenset[str]:
    return frozenset(parameter.name for parameter in parameters(name))


def _create_context(device: torch.device) -> None:
    """Make sure that this thread has a CUDA context; the autograd engine's may not, before its first kernel."""
    known = _threads.__dict__.setdefault("devices", set())
    if device not in known:
        torch.cuda.mem_get_info(device)
        known.add(device)


@cache
def _built(name: str, defines: frozenset[tuple[str, int | str]], device: torch.device) -> Any:
    return build(name, dict(sorted(defines)))


@cache
def source(name: str) -> str:
    return (FOLDER / f"{name}.cu").read_text()


def options(defines: Defines) -> list[str]:
    """Return the compiler's options for `defines`; a flag is 0 or 1."""
    return [f"-D{key}={int(value) if isinstance(value, bool) else value}" for key, value in defines.items()]


def build(name: str, defines: Defines) -> Any:
    """Compile one kernel for the current device."""
    compile_kernel = cuda_compiler()
    if compile_kernel is None:
        raise MnemoscopeError(
            f"torch {torch.__version__} has no runtime compiler for CUDA; torch 2.11 to 2.13 have: use one of them, or"
            " the eager path (mnemoscope.kernels.backend('eager'))"
        )
    with assumed_cuda_toolkit(str(FOLDER)):  # the kernels include nothing from it
        kernel = compile_kernel(source(name), name, cuda_include_dirs=[str(FOLDER)], nvcc_options=options(defines))
    kernel.set_shared_memory_config(4 * int(defines["SHARED_FLOATS"]))

    # Clusters of 16 blocks are possible, but must be asked for.
    blocks = int(defines["CLUSTER_BLOCKS"])
    if blocks > _PORTABLE_CLUSTER:
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuFuncSetAttribute(kernel.func, _NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1):
            raise MnemoscopeError(f"this GPU refuses clusters of {blocks} blocks; use the eager path")
    return kernel
