"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from mnemoscope.errors import MnemoscopeError
from mnemoscope.training._config import LoopConfig


def make_optimizer(parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]], config: LoopConfig) -> Optimizer:
    """Return the configured optimizer over parameters, or over groups of them with their own rates."""
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    match config.optimizer:
        case "adam":
            return Adam(parameters, **common, fused=True)  # one pass over each parameter instead of a dozen
        case "rmsprop":
            return RMSprop(parameters, momentum=config.momentum, **common)
        case "sgd":
            return SGD(parameters, momentum=config.momentum, **common)


def state_names(config: LoopConfig) -> set[str]:
    """Return the names of what the configured optimizer keeps of a parameter."""
    momentum = {"momentum_buffer"} if config.momentum else set()
    match config.optimizer:
        case "adam":
            return {"step", "exp_avg", "exp_avg_sq"}
        case "rmsprop":
            return {"step", "square_avg"} | momentum
        case "sgd":
            return momentum


def check_optimizer_state(name: str, key: str, tensor: Tensor, parameter: Tensor | None) -> None:
    """Refuse what an optimizer cannot have kept of a parameter: torch's fused updates read it unchecked."""
    if parameter is None:
        raise MnemoscopeError(f"optimizer.{name} belongs to no parameter")
    if key == "step":
        if tensor.dim() or not tensor.is_floating_point() or not tensor >= 0:
            raise MnemoscopeError(f"optimizer.{name} must be a number of steps; it is {tensor.tolist()!r:.40}")
    elif tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
        found = f"{list(tensor.shape)} of {tensor.dtype}"
        raise MnemoscopeError(
            f"optimizer.{name} is {found} where the parameter is {list(parameter.shape)} of {parameter.dtype}"
        )


def make_schedule(
    optimizer: Optimizer, config: LoopConfig, milestones: Sequence[int] = ()
) -> LambdaLR | ReduceLROnPlateau:
    """Return the configured schedule. Plateau steps after each evaluation, all others after each update.

    Args:
        optimizer: whose rates are changed.
        config: names the schedule.
        milestones: the configuration's, in updates.
    """
    match config.schedule:
        case "constant":
            return LambdaLR(optimizer, lambda update: 1.0)
        case "inverse":  # alpha_t = alpha / t, t = 1, 2, ... (Miller & Hardt, Proposition 2)
            return LambdaLR(optimizer, lambda update: 1 / (update + 1))
        case "inverse-sqrt":
            return LambdaLR(optimizer, lambda update: 1 / math.sqrt(update + 1))
        case "step":
            return LambdaLR(optimizer, lambda update: config.factor ** (update // config.step_every))
        case "milestones":
            return LambdaLR(optimizer, lambda update: config.factor ** bisect_right(milestones, update))
        case "plateau":
            return ReduceLROnPlateau(optimizer, factor=config.factor, patience=config.patience, threshold=0.0)


_STATE_FIELDS = ("last_epoch", "best", "num_bad_epochs")  # all that the schedules above keep from step to step


def schedule_state(schedule: LambdaLR | ReduceLROnPlateau) -> dict[str, float | None]:
    """Return a schedule's state for JSON. The infinity that `best` starts from becomes null."""
    values = {name: getattr(schedule, name) for name in _STATE_FIELDS if hasattr(schedule, name)}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def load_schedule_state(schedule: LambdaLR | ReduceLROnPlateau, numbers: dict[str, float | None]) -> None:
    """Load what `schedule_state` returned."""
    for name in schedule_state(schedule):
        value = numbers[name]
        setattr(schedule, name, math.inf if value is None else value)
