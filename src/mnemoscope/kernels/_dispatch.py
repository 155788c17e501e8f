"""When a fused kernel runs instead of the eager loop.

A backend is a package `kernels/_<device>/` with `supports(family, n=..., dtype=..., device=..., cell=..., buffer=...,
relevant=...) -> bool`. Importing it registers its loops with the operators of `_operators`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels._settings import settings
from mnemoscope.torch_internals import (
    constant_when_compiled,
    dispatches_plainly,
    in_dispatch_mode,
    in_forward_ad,
    in_functorch,
)

_BACKENDS = ("auto", "portable", "eager")


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Choose how layers run inside a ``with``, in this thread.

    Args:
        name: "auto" is the usual choice. "eager" is the readable loop over `step`. "portable" does without compiled
            kernels, as on a machine that has none.

    Examples:
        >>> from mnemoscope.kernels import backend
        >>> with backend("eager"):
        ...     output, h = mnemoscope.GRU(3, 16)(torch.randn(20, 4, 3))
    """
    if name not in _BACKENDS:
        raise MnemoscopeError(f"backend must be one of {', '.join(_BACKENDS)}; got {name!r}")
    before = settings.backend
    settings.backend = name
    try:
        yield
    finally:
        settings.backend = before


class CapturedDispatch:
    """A context manager that restores the dispatch settings of the moment at which it was made.

    Activation checkpointing runs the forward pass again in the backward pass, which may happen in another thread. It
    must take the backend and the recording of the first run, and save the same tensors: a profile or a mode of torch
    may watch one of the two runs alone. It is entered once for each backward pass: a retained graph has several.
    """

    def __init__(self) -> None:
        self._captured = settings.backend, settings.recorded is not None, calls_plainly()

    def __enter__(self) -> None:
        backend, recording, plainly = self._captured
        self._before = settings.backend, settings.recorded, settings.plainly
        settings.backend = backend
        settings.recorded = [] if recording else None
        settings.plainly = plainly

    def __exit__(self, *_: object) -> None:
        settings.backend, settings.recorded, settings.plainly = self._before


def calls_plainly() -> bool:
    """True if a layer may choose what is called without torch's dispatcher, and saves other tensors for it.

    In a checkpoint that is run again, this is the answer of its first run.
    """
    if torch.compiler.is_compiling():
        return False
    return dispatches_plainly() if settings.plainly is None else settings.plainly


@constant_when_compiled
def backend_supports(
    device: torch.device, dtype: torch.dtype, family: str, n: int, cell: str, buffer: int, relevant: int
) -> bool:
    """True if the backend of this device has a kernel of this kind and size. It is imported when first asked."""
    return _backend_supports(device, dtype, family, n, cell, buffer, relevant)


@cache
def _backend_supports(
    device: torch.device, dtype: torch.dtype, family: str, n: int, cell: str, buffer: int, relevant: int
) -> bool:
    loops = importlib.import_module(f"mnemoscope.kernels._{device.type}")
    return loops.supports(family, n=n, dtype=dtype, device=device, cell=cell, buffer=buffer, relevant=relevant)


def needs_eager_loop(x: Tensor) -> bool:
    """True if the eager loop must run: empty input, unsupported device, or functorch / forward-mode AD."""
    if not (x.is_cpu or x.is_cuda) or in_functorch_or_forward_ad():
        return True
    return not torch.jit.is_tracing() and (x.shape[0] == 0 or x.shape[1] == 0)  # a trace is for sequences of any size


def in_functorch_or_forward_ad() -> bool:
    """True inside torch.func or forward-mode AD, which see through torch's own operations and nothing else."""
    if torch.compiler.is_compiling():
        return False
    return in_functorch() or in_forward_ad()


def is_traced_or_transformed() -> bool:
    """True under tracing or transforms, where control flow must not depend on tensor values."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return in_dispatch_mode() or in_functorch_or_forward_ad()  # make_fx and FakeTensor are modes


def in_autocast(x: Tensor) -> bool:
    """True under autocast for the device of x."""
    return torch.is_autocast_enabled("cuda" if x.is_cuda else x.device.type)  # a device's type is made when asked for


def fused_dtype(
    family: str, x: Tensor, n: int, *, cell: str = "rnn", buffer: int = -1, relevant: int = 0
) -> torch.dtype | None:
    """Return the dtype in which a compiled kernel would run x (T, B, ...) with n units; None if the eager loop must.

    It is that of x, or under autocast autocast's, if the backend has kernels for it. Else it is float32 under autocast
    and for half precision.
    """
    if settings.backend != "auto" or needs_eager_loop(x):
        return None
    dtypes = [x.dtype]
    if in_autocast(x) and x.dtype is not torch.float64:  # which autocast leaves alone
        dtypes = [torch.get_autocast_dtype(x.device.type), torch.float32]
    elif x.dtype in (torch.bfloat16, torch.float16):
        dtypes = [x.dtype, torch.float32]
    for dtype in dtypes:
        if backend_supports(x.device, dtype, family, n, cell, buffer, relevant):
            return dtype
    return None


def portable_dtype(x: Tensor) -> torch.dtype | None:
    """Return the dtype in which `_portable.py` would run attention on x; None if the eager loop must."""
    if settings.backend == "eager" or needs_eager_loop(x):
        return None
    dtype = x.dtype
    if in_autocast(x) and dtype is not torch.float64:
        dtype = torch.float32
    return dtype if dtype in (torch.float32, torch.float64) else None


def can_step(family: str, x: Tensor) -> bool:
    """True if a compiled kernel may run one step on x (B, ...): on the CPU, outside of traces and autocast."""
    if settings.backend != "auto" or not x.is_cpu or x.shape[0] == 0 or is_traced_or_transformed():
        return False
    return not torch.is_autocast_enabled("cpu") and backend_supports(x.device, x.dtype, family, 0, "rnn", -1, 0)
