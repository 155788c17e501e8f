"""When a fused kernel may stand in for the readable loop.

A backend is a module `kernels/<device>/` with `supports(family, n=..., dtype=..., device=..., cell=..., buffer=...,
relevant=...) -> bool`; importing it registers its loops with the operators of `ops.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mnemoscope.errors import MnemoscopeError

_CHOICES = ("auto", "eager")
_chosen: ContextVar[str] = ContextVar("mnemoscope_backend", default="auto")


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Choose how layers run inside a ``with``: "eager" forces the readable loop, "auto" is the usual choice."""
    if name not in _CHOICES:
        raise MnemoscopeError(f"backend must be one of {', '.join(_CHOICES)}; got {name!r}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


@lru_cache
def _loops(device: str) -> ModuleType | None:
    """The backend of a type of device, imported when first asked for."""
    if device not in ("cpu", "cuda"):
        return None
    return importlib.import_module(f"mnemoscope.kernels.{device}")


def _differentiated_otherwise() -> bool:
    """Inside torch.func or forward-mode differentiation, which follow torch's own operations and nothing else."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def supported(
    family: str, x: Tensor, n: int, *, cell: str = "rnn", buffer: int = -1, relevant: int = 0
) -> torch.dtype | None:
    """The type in which a fused kernel would run x (T, B, ...) with n units; None where the readable loop must.

    Under autocast that is autocast's type where the backend has kernels for it, else float32.
    """
    loops = _loops(x.device.type)
    if loops is None or _chosen.get() == "eager" or 0 in x.shape[:2] or _differentiated_otherwise():
        return None
    autocast = torch.is_autocast_enabled(x.device.type)
    wanted = (torch.get_autocast_dtype(x.device.type), torch.float32) if autocast else (x.dtype,)
    for dtype in wanted:
        if loops.supports(family, n=n, dtype=dtype, device=x.device, cell=cell, buffer=buffer, relevant=relevant):
            return dtype
    return None
