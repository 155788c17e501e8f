"""CUDA C++ compiled on the user's machine by the runtime compiler that torch brings: no toolkit, no nvcc."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError

FOLDER = Path(__file__).parents[1] / "csrc" / "cuda"
_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14  # CUfunction_attribute
_PORTABLE_CLUSTER = 8
_entered = threading.local()


def launch(
    name: str,
    defines: Mapping[str, int | str | bool],
    blocks: int,
    threads: int,
    shared_floats: int,
    args: Sequence[Tensor | int | float | None],
) -> None:
    """Run a kernel, compiled for `defines`, on the current stream; None stands for a pointer that it does not use."""
    like = next(arg for arg in args if isinstance(arg, Tensor))
    key = tuple(sorted((k, int(d) if isinstance(d, bool) else d) for k, d in defines.items()))
    with torch.cuda.device_of(like):
        _enter(like.device)
        kernel = _built(name, key, 4 * shared_floats, like.device)
        given = [like if arg is None else arg for arg in args]
        kernel((blocks, 1, 1), (threads, 1, 1), given, shared_mem=4 * shared_floats)


def _enter(device: torch.device) -> None:
    """A thread that has made no call of its own has no CUDA context yet: the autograd engine's, on its first kernel."""
    known = _entered.__dict__.setdefault("devices", set())
    if device not in known:
        torch.cuda.mem_get_info(device)
        known.add(device)


@cache
def _built(name: str, defines: tuple[tuple[str, int | str], ...], shared_bytes: int, device: torch.device) -> Any:
    return build(name, dict(defines), shared_bytes)


def source(name: str) -> str:
    """The file that holds the kernel `name`: cells.cu has cells_forward and cells_backward."""
    whole, family = FOLDER / f"{name}.cu", FOLDER / f"{name.rpartition('_')[0]}.cu"
    return (whole if whole.exists() else family).read_text()


def build(name: str, defines: Mapping[str, int | str], shared_bytes: int) -> Any:
    """Compile one kernel for the current device; the only place that knows torch's private name for that."""
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None:
        raise MnemoscopeError(
            f"torch {torch.__version__} has no runtime compiler for CUDA; torch 2.11 to 2.13 have: use one of them, or"
            " the eager path (mnemoscope.kernels.backend('eager'))"
        )
    options = [f"-D{key}={value}" for key, value in defines.items()]
    with _no_toolkit_needed():
        kernel = compile_kernel(source(name), name, cuda_include_dirs=[str(FOLDER)], nvcc_options=options)
    kernel.set_shared_memory_config(shared_bytes)
    if int(defines["C"]) > _PORTABLE_CLUSTER:
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuFuncSetAttribute(kernel.func, _NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1):
            raise MnemoscopeError(f"this GPU refuses clusters of {defines['C']} blocks; use the eager path")
    return kernel


@contextmanager
def _no_toolkit_needed() -> Iterator[None]:
    """torch asks for the toolkit's headers before it compiles; these kernels include none of them."""
    from torch.utils import cpp_extension

    found = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = found or str(FOLDER)
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = found
