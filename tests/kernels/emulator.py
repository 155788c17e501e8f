"""Runs the CUDA kernels on the CPU: compiled by g++ over emulated.h."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from fused_truth import assert_fused_equals_eager, calm

from mnemoscope import kernels
from mnemoscope.kernels import _cuda, _dispatch, _fused, _weight_gradients
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout, weight_gradients
from mnemoscope.kernels._operator import OPERATORS
from mnemoscope.recurrence import detach
from mnemoscope.torch_internals import dispatches_plainly

LIMITS = layout.Limits(clusters=(1, 2, 4), multiprocessors=4, shared_floats=227 * 256)

_FOLDER = tempfile.TemporaryDirectory()  # for the process: one library per kernel and set of sizes


def compile_kernel(
    name: str, defines: dict[str, int | str], *flags: str, sources: Path = compiler.FOLDER, races: bool = False
) -> Path:
    """Compile one kernel for one set of sizes; raises CalledProcessError if g++ refuses it.

    Args:
        sources: the folder of the kernels.
        races: whether its launches find races (races.h).
    """
    code = (
        (sources / f"{name}.cu").read_text()
        + f"""
        extern "C" const char* run(int grid, int threads, int shared_bytes, void** args) {{
            emulated::launch<{name}>(grid, threads, shared_bytes, args);
            return emulated::failure;
        }}
        extern "C" const void* failed_at(int i) {{ return emulated::failed_at[i]; }}
        """
    )
    stem = Path(_FOLDER.name) / f"{name}-{abs(hash((frozenset(defines.items()), sources, races)))}"
    source, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    source.write_text(code)
    command = ["g++", "-std=c++17", "-O0", "-fPIC", "-w", "-DMNEMOSCOPE_EMULATED"]
    command += [f"-I{sources}", f"-I{Path(__file__).parent}", *compiler.options(defines), *flags]
    if not races:
        _call([*command, "-shared", "-o", str(library), str(source)])
        return library
    # races.h takes the place of the thread sanitizer's own library: it must not be linked.
    watched = stem.with_suffix(".o")
    _call([*command, "-O1", "-g1", "-fsanitize=thread", "-DMNEMOSCOPE_RACES", "-c", "-o", str(watched), str(source)])
    _call(["g++", "-shared", "-o", str(library), str(watched)])
    return library


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class Watch:
    """Whether launches find races, and from which sources kernels are compiled."""

    races = False
    sources = compiler.FOLDER


@functools.cache
def _load(name: str, defines: frozenset, sources: Path, races: bool) -> ctypes.CDLL:
    library = ctypes.CDLL(str(compile_kernel(name, dict(defines), sources=sources, races=races)))
    library.run.restype = ctypes.c_char_p
    library.failed_at.restype = ctypes.c_void_p
    return library


def _places(library: ctypes.CDLL) -> str:
    """The lines of the two accesses of a race."""
    loaded = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(library._name))
    start = int(loaded.partition("-")[0], 16)
    found = []
    for place in filter(None, (library.failed_at(0), library.failed_at(1))):
        command = ["addr2line", "-i", "-e", library._name, hex(place - start - 1)]  # -i: from the inside out
        lines = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")
        found.append(" in ".join(Path(line).name.partition(" ")[0] for line in lines if line))
    return "; ".join(found)


_C_TYPES = {"P": ctypes.c_void_p, "i": ctypes.c_int, "d": ctypes.c_double}


class KernelError(Exception):
    """What the emulator found wrong in a launch."""


def launch_steps(name: str, defines: dict, *, args: dict, steps=None, before=None, **sizes: int) -> None:
    """`compiler.launch_steps`, on CPU tensors."""
    for t in steps:
        before(t)
        launch(name, defines, args={**args, "t": t}, **sizes)


def launch(name: str, defines: dict, *, blocks: int, threads: int, shared_floats: int, args: dict) -> None:
    """`compiler.launch`, on CPU tensors."""
    sizes = {"THREADS": threads, "SHARED_FLOATS": shared_floats}
    library = _load(name, frozenset({**defines, **sizes}.items()), Watch.sources, Watch.races)
    values, _ = compiler.pack_arguments(name, args)
    boxes = [_C_TYPES[p.format](value) for p, value in zip(compiler.parameters(name), values, strict=True)]
    pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
    for tensor in args.values() if Watch.races else ():
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            library.watch(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes))
    failure = library.run(blocks, threads, 4 * shared_floats, pointers).decode()
    if Watch.races:
        library.forget()
    if failure:
        raise KernelError(f"{name}: {failure} ({_places(library)})")


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
    monkeypatch.setitem(_weight_gradients.weight_gradient_backends, "cpu", weight_gradients.weight_gradients)
    for operator in OPERATORS.values():
        monkeypatch.setattr(operator, "with_projection", {})
        if "cuda" in operator.backends:
            monkeypatch.setitem(operator.backends, "cpu", operator.backends["cuda"])
    return ran


def carried(layer, ran, T=4, B=2):
    """A state to begin with, as it is after some steps."""
    state = detach(layer(2 * torch.randn(T, B, layer.input_size))[1])
    ran.clear()
    return state


def check(layer: Any, ran: list[str], family: str, T: int = 6, B: int = 2, state: Any = None) -> None:
    """Compare a layer's kernels with its eager loop; both of this family, and no others, must have run."""
    assert_fused_equals_eager(calm(layer), 2 * torch.randn(T, B, layer.input_size), state)
    assert set(ran) == {f"{family}_forward", f"{family}_backward"}
