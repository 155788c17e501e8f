"""The compiled loops: which of them this machine can run, and how they are called.

They are plain C functions over raw memory, so one build serves every version of torch. A function takes one structure,
whose fields are the operator's arguments and results by name (`structures.py`).
"""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from mnemoscope.kernels._cpu import huge_pages
from mnemoscope.kernels._cpu.structures import STRUCTURES

_SUPPORTED = {"AVX512": ("avx512", "avx2", "generic"), "AVX2": ("avx2", "generic")}
_FALLBACK = ("generic",)
_NAMES = {torch.float32: "float", torch.float64: "double"}


def builds(name: str) -> list[Path]:
    """The shared objects compiled for one instruction set; MNEMOSCOPE_CPU_KERNELS names one to take instead."""
    if named := os.environ.get("MNEMOSCOPE_CPU_KERNELS"):
        return [Path(named)]
    folder = Path(__file__).parent
    return sorted([*folder.glob(f"_{name}.*so"), *folder.glob(f"_{name}.*pyd")])


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The fastest build that this CPU can run, or None where none was compiled."""
    for name in _SUPPORTED.get(torch.backends.cpu.get_cpu_capability(), _FALLBACK):
        for path in builds(name):
            try:
                return ctypes.CDLL(str(path))
            except OSError:  # built for another interpreter or machine
                continue
    warnings.warn(
        "mnemoscope: no compiled CPU kernels in this installation; layers use torch's own operations, which is slower. "
        "Install a C++ compiler and reinstall to have them.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def available(dtype: torch.dtype) -> bool:
    return dtype in _NAMES and library() is not None


def described() -> dict[str, list[tuple[str, int, int, str]]]:
    """What the compiled library says of its structures: (name, offset, size in bytes, kind) of each field."""
    loops = library()
    assert loops is not None
    loops.describe_structures.restype = ctypes.c_char_p
    found: dict[str, list[tuple[str, int, int, str]]] = {}
    for line in loops.describe_structures().decode().splitlines():
        structure, field, offset, size, kind = line.split()
        found.setdefault(structure, []).append((field, int(offset), int(size), kind))
    return found


@lru_cache(maxsize=1)
def _borrowed_threads() -> int:
    """The address of GOMP_parallel in torch's own OpenMP runtime; 0 where it cannot be found.

    There may be other runtimes in the process. A name is looked up in a library and in those that it was linked with.
    """
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
        torchs = next(line.split(maxsplit=5)[5] for line in mapped if "/libtorch_cpu." in line)
        return ctypes.cast(ctypes.CDLL(torchs).GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError, StopIteration):
        return 0


def call(name: str, dtype: torch.dtype, **fields: Tensor | int | float | None) -> None:
    """Run one compiled loop with torch's number of threads.

    Args:
        name: the operator, whose structure is STRUCTURES[name].
        dtype: the type of its floating-point tensors.
        fields: every field of the structure by its name, `threads` excepted; a tensor by its address.
    """
    loops = library()
    assert loops is not None
    structure = STRUCTURES[name]
    if fields.keys() != structure.names:
        wrong = sorted(fields.keys() ^ structure.names)
        raise TypeError(f"{name}: missing or unknown fields {', '.join(wrong)}")
    words: list[int | float] = []
    for field in structure.order:
        value = fields[field]
        if isinstance(value, Tensor):
            if value.nbytes >= huge_pages.PAGE:
                huge_pages.ask_for(value)
            value = value.data_ptr()
        words.append(value or 0)
    packed = structure.packer.pack(*words, torch.get_num_threads(), _borrowed_threads())
    if getattr(loops, f"{name}_{_NAMES[dtype]}")(packed):
        raise MemoryError(f"{name} could not allocate its working memory")
