"""Loops that project their inputs: they read x, U and the biases where these are, without a packed copy of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mnemoscope.kernels._cpu.run import Loop
from mnemoscope.kernels._cpu.structures import PROJECTION, PROJECTION_BACKWARD
from mnemoscope.kernels._operator import Operator, ProjectedRun, Projection, ProjectionGradients

NO_PROJECTION: Mapping[str, Tensor | None] = dict.fromkeys(PROJECTION)
NO_GRADIENTS: Mapping[str, Tensor | None] = dict.fromkeys(PROJECTION_BACKWARD)


def loop_inputs(xp: Tensor | Projection, n: int, lengths: Tensor | None) -> tuple[Tensor, Mapping[str, Tensor | None]]:
    """Return what a loop of n units reads as xp, and the tensors beside it: those of a projection, and h_T.

    A run over sequences of several lengths has no h_T: its gradient is that of the last step.
    """
    if isinstance(xp, Tensor):
        return xp, NO_PROJECTION
    if not _loops_read(xp):
        return xp.project(), NO_PROJECTION
    x = xp.x.contiguous()
    beside = {
        "U": xp.U.contiguous(),
        "b_ih": None if xp.b_ih is None else xp.b_ih.contiguous(),
        "b_hh": None if xp.b_hh is None else xp.b_hh.contiguous(),
        "h_T": x.new_empty(x.shape[1], n) if lengths is None else None,
    }
    return x, beside


def _loops_read(projection: Projection) -> bool:
    """True if loops can read a projection where it is: with both biases, of all gates, or with none.

    And with features: a U without elements is a null pointer, by which loops know that there is no projection.
    """
    _, U, b_ih, b_hh = projection
    if not U.shape[1]:
        return False
    if b_ih is None or b_hh is None:
        return b_ih is b_hh
    return b_ih.shape[0] == b_hh.shape[0]


def implement_forward(operator: Operator) -> None:
    """Register the loop of a cell, which takes a `Projection` in place of xp."""
    loop = Loop(operator, scratch=PROJECTION)
    lengths_at = operator.parameters.index("lengths") - 1  # behind xp

    @operator.implement("cpu", projects=True)
    def run(xp: Tensor | Projection, V: Tensor, *rest: Any) -> Any:
        x, beside = loop_inputs(xp, V.shape[1], rest[lengths_at - 1])
        found = loop(x, V, *rest, **beside)
        return found if isinstance(xp, Tensor) else ProjectedRun(found, beside["h_T"])


def implement_backward(operator: Operator) -> None:
    """Register the backward loop of a cell."""
    loop = Loop(operator, scratch=PROJECTION_BACKWARD)
    operator.implement("cpu")(lambda *arguments: loop(*arguments, **NO_GRADIENTS))
    if "needs_dx" in operator.parameters:
        operator.with_projection["cpu"] = making_projection_gradients(loop)


def making_projection_gradients(loop: Loop) -> Callable[..., tuple[Any, ProjectionGradients] | None]:
    """Return a function of a projection and a backward operator's arguments (`Operator.with_projection`)."""

    def run(projection: Projection, *arguments: Any) -> tuple[Any, ProjectionGradients] | None:
        if not _loops_read(projection):
            return None
        U = projection.U.contiguous()
        dU = torch.zeros_like(U)
        db_ih = db_hh = None
        if projection.b_ih is not None:
            db_ih, db_hh = U.new_zeros(2, U.shape[0]).unbind(0)
        found = loop(*arguments, U=U, dU=dU, db_ih=db_ih, db_hh=db_hh)
        needs_dx = arguments[-1]
        return found, ProjectionGradients(found.dx if needs_dx else None, dU, db_ih, db_hh)

    return run
