"""Measure a model without changing it: afterwards it is what it was before, whatever happens in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.scopes._frame.snapshot import Snapshot


@contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Restore mode, gradients, requires_grad, buffers, attributes and random state on exit, also after an error.

    Inside, the model is in eval mode and no parameter requires a gradient or has one: a scope that differentiates by
    parameters sets requires_grad itself. Autograd is enabled. cuDNN is off, as it cannot differentiate a layer in eval
    mode.
    """
    _check_initialized(model)
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    with ExitStack() as stack:
        stack.enter_context(_random_state(_devices(modules)))
        stack.enter_context(_modes(modules))
        stack.enter_context(_parameters(model))
        stack.enter_context(_attributes(model))
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        yield


def _check_initialized(model: Any) -> None:
    """Raise if a lazy layer has not made its parameters yet."""
    parameters = model.named_parameters() if isinstance(model, nn.Module) else ()
    for name, parameter in parameters:
        if nn.parameter.is_lazy(parameter):
            raise MnemoscopeError(
                f"the model's {name} belongs to a lazy layer and has no values yet: run the model once on its inputs"
            )


def _devices(modules: list[nn.Module]) -> list[torch.device]:
    tensors = [t for module in modules for t in (*module.parameters(recurse=False), *module.buffers(recurse=False))]
    return sorted({t.device for t in tensors if t.is_cuda}, key=str)


@contextmanager
def _random_state(devices: list[torch.device]) -> Iterator[None]:
    python = random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002  the global state is what a model may use
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def _modes(modules: list[nn.Module]) -> Iterator[None]:
    before = [(module, module.training) for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def _parameters(model: Any) -> Iterator[None]:
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    before = [(p, p.requires_grad, p.grad) for p in parameters]
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    registered = [(module, dict(module._parameters)) for module in modules]
    try:
        for p in parameters:
            p.grad = None
            p.requires_grad_(False)
        yield
    finally:
        for p, required, grad in before:
            p.requires_grad_(required)
            p.grad = grad
        for module, own in registered:  # dropout of a weight, assigned to a layer's name, is the weight in eval mode
            if list(module._parameters.keys()) != list(own):  # a module of torch.jit has a dict of its own
                module._parameters.clear()
                module._parameters.update(own)


@contextmanager
def _attributes(model: Any) -> Iterator[None]:
    before = Snapshot(model)
    try:
        yield
    finally:
        before.restore()
