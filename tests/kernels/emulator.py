"""Runs the CUDA kernels on the CPU: compiled by g++ over emulated.h."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from mnemoscope import kernels
from mnemoscope.kernels import _autograd, _cuda, _dispatch, _fused
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout, weight_gradients
from mnemoscope.kernels._operator import OPERATORS
from mnemoscope.torch_internals import dispatches_plainly

LIMITS = layout.Limits(clusters=(1, 2, 4), multiprocessors=4, shared_floats=227 * 256)

_FOLDER = tempfile.TemporaryDirectory()  # for the process: one library per kernel and set of sizes


def compile_kernel(name: str, defines: dict[str, int | str], *flags: str) -> Path:
    """Compile one kernel for one set of sizes; raises CalledProcessError if g++ refuses it."""
    code = (
        compiler.source(name)
        + f"""
        extern "C" void run(int grid, int threads, int shared_bytes, void** args) {{
            emulated::launch<{name}>(grid, threads, shared_bytes, args);
        }}"""
    )
    stem = Path(_FOLDER.name) / f"{name}-{abs(hash(frozenset(defines.items())))}"
    source = stem.with_suffix(".cpp")
    library = stem.with_suffix(".so")
    source.write_text(code)
    command = ["g++", "-std=c++17", "-O0", "-shared", "-fPIC", "-w", "-DMNEMOSCOPE_EMULATED"]
    command += [f"-I{compiler.FOLDER}", f"-I{Path(__file__).parent}", *compiler.options(defines)]
    command += [*flags, "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


@functools.cache
def _load(name: str, defines: frozenset) -> ctypes.CDLL:
    return ctypes.CDLL(str(compile_kernel(name, dict(defines))))


_C_TYPES = {"P": ctypes.c_void_p, "i": ctypes.c_int, "d": ctypes.c_double}


def launch_steps(name: str, defines: dict, *, args: dict, steps=None, before=None, **sizes: int) -> None:
    """`compiler.launch_steps`, on CPU tensors."""
    for t in steps:
        before(t)
        launch(name, defines, args={**args, "t": t}, **sizes)


def launch(name: str, defines: dict, *, blocks: int, threads: int, shared_floats: int, args: dict) -> None:
    """`compiler.launch`, on CPU tensors."""
    sizes = {"THREADS": threads, "SHARED_FLOATS": shared_floats}
    library = _load(name, frozenset({**defines, **sizes}.items()))
    values, _ = compiler.pack_arguments(name, args)
    boxes = [_C_TYPES[p.format](value) for p, value in zip(compiler.parameters(name), values, strict=True)]
    pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
    library.run(blocks, threads, 4 * shared_floats, pointers)


_new_empty = torch.Tensor.new_empty


def _filled_with_nan(like, *size, **options):
    """`Tensor.new_empty`, but a kernel that reads what it has not written gives NaN."""
    made = _new_empty(like, *size, **options)
    return made.fill_(torch.nan) if made.is_floating_point() else made


def _supports(device, dtype, family, n, cell, buffer, relevant):
    return _cuda.supports(family, n=n, dtype=dtype, device=device, cell=cell, buffer=buffer, relevant=relevant)


def _operator_may_project(x, lengths):
    if kernels.is_recording(lengths) or torch.compiler.is_compiling():
        return False
    return dispatches_plainly()


def replace_cpu_kernels(monkeypatch: Any) -> list[str]:
    """Have layers on CPU tensors run the CUDA kernels; return the list of those that ran, which grows with each."""
    ran: list[str] = []
    torch.manual_seed(0)

    def recorded(run):
        def call(name, *rest, **named):
            if name != "weight_gradients":  # which runs behind any of the others
                ran.append(name)
            run(name, *rest, **named)

        return call

    monkeypatch.setattr(torch.Tensor, "new_empty", _filled_with_nan)
    monkeypatch.setattr(compiler, "launch", recorded(launch))
    monkeypatch.setattr(compiler, "launch_steps", recorded(launch_steps))
    monkeypatch.setattr(layout, "limits", lambda device: LIMITS)
    monkeypatch.setattr("torch.cuda._utils._nvrtc_compile", len, raising=False)
    monkeypatch.setattr(_dispatch, "backend_supports", _supports)
    monkeypatch.setattr(_fused, "_starts_from_zero", lambda xp: True)
    monkeypatch.setattr(kernels, "should_fuse_projection", lambda *_: False)  # CPU tensors, but not the CPU kernels
    monkeypatch.setattr(kernels, "operator_may_project", _operator_may_project)
    monkeypatch.setitem(op.saved_without_V, "cpu", op.saved_without_V["cuda"])
    monkeypatch.setitem(_autograd.weight_gradient_backends, "cpu", weight_gradients.weight_gradients)
    for operator in OPERATORS.values():
        monkeypatch.setattr(operator, "with_projection", {})
        if "cuda" in operator.backends:
            monkeypatch.setitem(operator.backends, "cpu", operator.backends["cuda"])
    return ran
