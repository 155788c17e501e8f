"""When a fused kernel may stand in for the readable loop.

A backend is a module `kernels/<device>/` with `supports(family, n=..., dtype=..., device=..., cell=..., buffer=...,
relevant=...) -> bool`; importing it registers its loops with the operators of `ops.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mnemoscope.errors import MnemoscopeError

_CHOICES = ("auto", "portable", "eager")
_chosen = "auto"  # a plain global: torch.compile guards it, and would not trace a ContextVar


@contextmanager
def backend(name: str) -> Iterator[None]:
    """How layers run inside a ``with``, in all threads: "auto" is the usual choice, "eager" the readable loop.

    "portable" passes the compiled kernels by, as on a machine that has none.
    """
    if name not in _CHOICES:
        raise MnemoscopeError(f"backend must be one of {', '.join(_CHOICES)}; got {name!r}")
    global _chosen
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def chosen() -> str:
    """The backend that is open now."""
    return _chosen


def _covers(
    device: torch.device, dtype: torch.dtype, family: str, n: int, cell: str, buffer: int, relevant: int
) -> bool:
    """Whether the backend of this device, imported when first asked for, has a kernel of this kind and size."""
    loops = importlib.import_module(f"mnemoscope.kernels._{device.type}")
    return loops.supports(family, n=n, dtype=dtype, device=device, cell=cell, buffer=buffer, relevant=relevant)


# What torch.compiler.assume_constant_result does, which would import all of torch's compiler for it.
_covers._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _left_to_the_loop(x: Tensor) -> bool:
    """Nothing to run, a device that has no kernels, or a derivative that only torch's own operations have."""
    return 0 in x.shape[:2] or x.device.type not in ("cpu", "cuda") or _differentiated_otherwise()


def _differentiated_otherwise() -> bool:
    """Inside torch.func or forward-mode differentiation, which follow torch's own operations and nothing else."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def followed() -> bool:
    """Whether a tracer or a transform of torch follows what is done: a tensor's value may then decide nothing."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    modes = torch._C._len_torch_dispatch_stack() + torch._ops._len_torch_dispatch_stack_pre_dispatch()
    return modes > 0 or _differentiated_otherwise()  # make_fx and FakeTensor are modes


def supported(
    family: str, x: Tensor, n: int, *, cell: str = "rnn", buffer: int = -1, relevant: int = 0
) -> torch.dtype | None:
    """The type in which a fused kernel would run x (T, B, ...) with n units; None where the readable loop must.

    Under autocast that is autocast's type where the backend has kernels for it, else float32.
    """
    if _chosen != "auto" or _left_to_the_loop(x):
        return None
    autocast = torch.is_autocast_enabled(x.device.type)
    wanted = (torch.get_autocast_dtype(x.device.type), torch.float32) if autocast else (x.dtype,)
    for dtype in wanted:
        if _covers(x.device, dtype, family, n, cell, buffer, relevant):
            return dtype
    return None


def portably(x: Tensor) -> torch.dtype | None:
    """The type in which attention's recurrences run by `portable.py`, on any device; None where the loop must."""
    if _chosen == "eager" or _left_to_the_loop(x):
        return None
    dtype = torch.float32 if torch.is_autocast_enabled(x.device.type) else x.dtype
    return dtype if dtype in (torch.float32, torch.float64) else None
