"""Projections: functions that keep the weights inside a set, called after each update."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import Layer, project_

Projection = Callable[[nn.Module], object]


def stable_projection(lam: float) -> Projection:
    """Return the projection onto the stable set (Miller & Hardt 2018), where each step contracts by at most `lam`."""

    def project(model: nn.Module) -> None:
        layers = [module for module in model.modules() if isinstance(module, Layer | nn.RNNBase)]
        if not layers:
            raise MnemoscopeError(f"stable = {lam} needs a recurrent layer; {type(model).__name__} has none")
        for layer in layers:
            _project(layer, lam)

    return project


@torch.no_grad()
def _project(layer: nn.Module, lam: float) -> None:
    try:
        project_(layer, lam)
    except TypeError as error:  # the layer has no stable set: here that is a wrong configuration
        raise MnemoscopeError(f"stable = {lam} is not allowed: {error}") from error
