"""Runs the CUDA kernels on the CPU: compiled by g++ over emulated.h."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import torch

from mnemoscope.kernels._cuda import compiler

_FOLDER = tempfile.TemporaryDirectory()  # kept for the process: one library a kernel and set of sizes


class Kernel:
    """One kernel, compiled for one set of sizes."""

    def __init__(self, name: str, defines: dict[str, int | str]) -> None:
        code = (
            compiler.source(name)
            + f"""
            extern "C" void run(int grid, int threads, int shared_bytes, void** args) {{
                emulated::launch({name}, grid, threads, shared_bytes, args);
            }}"""
        )
        stem = Path(_FOLDER.name) / f"{name}-{abs(hash(tuple(sorted(defines.items()))))}"
        stem.with_suffix(".cpp").write_text(code)
        subprocess.run(
            ["g++", "-std=c++17", "-O0", "-shared", "-fPIC", "-w", "-DMNEMOSCOPE_EMULATED", f"-I{compiler.FOLDER}",
             f"-I{Path(__file__).parent}", *(f"-D{k}={d}" for k, d in defines.items()), "-o",
             str(stem.with_suffix(".so")), str(stem.with_suffix(".cpp"))],
            check=True,
        )  # fmt: skip
        self._run = ctypes.CDLL(str(stem.with_suffix(".so"))).run

    def __call__(self, blocks: int, threads: int, shared_bytes: int, args: list) -> None:
        boxes = [self._box(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        self._run(blocks, threads, shared_bytes, pointers)

    @staticmethod
    def _box(arg: torch.Tensor | int | float | None) -> ctypes._SimpleCData:
        if arg is None:
            return ctypes.c_void_p(0)
        if isinstance(arg, torch.Tensor):
            assert arg.is_contiguous()
            return ctypes.c_void_p(arg.data_ptr())
        return ctypes.c_double(arg) if isinstance(arg, float) else ctypes.c_int(arg)


@functools.cache
def _built(name: str, defines: tuple) -> Kernel:
    return Kernel(name, dict(defines))


def launch(name: str, defines: dict, blocks: int, threads: int, shared_floats: int, args: list) -> None:
    """`compiler.launch`, on CPU tensors."""
    key = tuple(sorted((k, int(d) if isinstance(d, bool) else d) for k, d in defines.items()))
    _built(name, key)(blocks, threads, 4 * shared_floats, args)
