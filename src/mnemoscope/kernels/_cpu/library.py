"""The compiled loops: which build this machine can run, and how a loop is called.

They are plain C functions over raw memory, so one build serves every version of torch. A function takes one structure,
whose fields are the operator's arguments and results by name (`structures.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from mnemoscope.kernels._cpu import huge_pages
from mnemoscope.kernels._cpu.structures import ENUMERATIONS, STRUCTURES, Arguments, Field, expected_fields

_SUPPORTED = {"AVX512": ("avx512", "avx2", "generic"), "AVX2": ("avx2", "generic")}
_FALLBACK = ("generic",)
_NAMES = {torch.float32: "float", torch.float64: "double"}


def builds(name: str) -> list[Path]:
    """Return the shared objects compiled for one instruction set; MNEMOSCOPE_CPU_KERNELS names one to take instead."""
    path = os.environ.get("MNEMOSCOPE_CPU_KERNELS")
    if path:
        return [Path(path)]
    folder = Path(__file__).parent
    return sorted([*folder.glob(f"_{name}.*so"), *folder.glob(f"_{name}.*pyd")])


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the fastest build that this CPU can run; None, with a warning, if none was compiled from these sources."""
    problem = "no compiled CPU kernels in this installation"
    remedy = "install a C++ compiler and reinstall to have them"
    for name in _SUPPORTED.get(torch.backends.cpu.get_cpu_capability(), _FALLBACK):
        for path in builds(name):
            try:
                loops = ctypes.CDLL(str(path))
            except OSError:  # built for another interpreter or machine
                continue
            if described(loops) == expected_fields() and hasattr(loops, "steps_in_range"):
                loops.steps_in_range.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
                return loops
            problem = f"the compiled CPU kernels in {path} were built from other sources"
            remedy = "rebuild them with pip install -e ."
    warnings.warn(
        f"mnemoscope: {problem}; layers use torch's own operations, up to ten times slower: {remedy}",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


@lru_cache(maxsize=1)
def build_id() -> str:
    """Return a name of the build that runs on this CPU: its instruction set and a hash of it, or "none"."""
    loops = library()
    if loops is None:
        return "none"
    path = Path(loops._name)
    name = path.name.partition(".")[0].strip("_")
    return f"{name}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def available(dtype: torch.dtype) -> bool:
    """True if there are compiled loops for this dtype."""
    return dtype in _NAMES and library() is not None


def has_loop(name: str) -> bool:
    """True if the library has the loop of this operator."""
    return hasattr(library(), f"{name}_float")


def described(loops: ctypes.CDLL) -> dict[str, list[Field]]:
    """Return what a compiled library says of its structures; nothing of one that cannot say it."""
    found: dict[str, list[Field]] = {}
    try:
        loops.describe_structures.restype = ctypes.c_char_p
        for line in loops.describe_structures().decode().splitlines():
            structure, name, offset, size, kind = line.split()
            found.setdefault(structure, []).append(Field(name, int(offset), int(size), kind))
    except (AttributeError, ValueError):  # another library, or another format
        return {}
    return found


@lru_cache(maxsize=1)
def _gomp_parallel() -> int:
    """Return the address of GOMP_parallel in torch's own OpenMP runtime; 0 if it is not found.

    There may be other runtimes in the process. A name is looked up in a library and in those that it was linked with.
    """
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
        torchs = next(line.split(maxsplit=5)[5] for line in mapped if "/libtorch_cpu." in line)
        return ctypes.cast(ctypes.CDLL(torchs).GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError, StopIteration):
        return 0


_LONG = 256  # steps of all sequences: shorter calls are not worth a watch for signals
_OUT_OF_MEMORY, _STOPPED = 1, 2


def call(name: str, dtype: torch.dtype, values: Sequence[Tensor | int | float | str | None]) -> bool:
    """Run one compiled loop with torch's number of threads, and return whether it came to its end.

    It does not if Ctrl-C or a termination signal came meanwhile. Python then runs the handler of that signal, which
    usually raises; if it does not, the call is to be made once more, with new results.

    Args:
        name: the loop, whose structure is STRUCTURES[name].
        dtype: the type of its floating-point tensors.
        values: one for each field of `STRUCTURES[name].order` (`run.Loop` puts them in order by name). A tensor becomes
            its address, which is null for one without elements, a string its value in ENUMERATIONS.
    """
    structure = STRUCTURES[name]
    words: list[int | float] = []
    for field, expected, value in zip(structure.order, structure.dtypes, values, strict=True):
        if isinstance(value, Tensor):
            if value.dtype is not (expected or dtype) or not value.is_contiguous():
                raise TypeError(f"{name}: {field} must be contiguous and of {expected or dtype}; it is {value.dtype}")
            if value.nbytes >= huge_pages.PAGE:
                huge_pages.advise(value)
            words.append(value.data_ptr())
        elif isinstance(value, str):
            words.append(ENUMERATIONS[field][value])
        else:
            words.append(value or 0)
    return run(name, dtype, structure, words)


def run(name: str, dtype: torch.dtype, structure: type[Arguments], words: Sequence[int | float]) -> bool:
    """Run one compiled loop with the words of its structure, and return whether it came to its end (`call`)."""
    loops = library()
    assert loops is not None
    steps, batch = words[:2]
    watches_signals = steps * batch >= _LONG and threading.current_thread() is threading.main_thread()
    packed = structure.packer.pack(*words, torch.get_num_threads(), _gomp_parallel(), watches_signals)
    status = getattr(loops, f"{name}_{_NAMES[dtype]}")(packed)
    if status == _OUT_OF_MEMORY:
        raise MemoryError(f"{name} could not allocate its working memory")
    return status != _STOPPED
