"""What a model keeps beside its parameters: put back as it was, after a measurement or before each run."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OWN_KEYS = ("_buffers", "_modules", "training")
IGNORED = frozenset(vars(nn.Module())) - frozenset(OWN_KEYS)  # hooks, and parameters: a scope may run it with others


class Snapshot:
    """The attributes and buffers of a model, and what they hold: tensors, containers, random generators.

    Seen are all modules, dataclasses and objects of the model's own package. What a function closes over, what is
    global and what other objects hide is not seen. Parameters are left alone.
    """

    def __init__(self, *models: Any) -> None:
        self._packages = {_package(model) for model in models} - {"builtins", "torch"}
        self._seen: dict[int, Any] = {}  # holds what was visited, so that no id is used twice
        self._restorers: list[Callable[[], None]] = []
        self._generators: list[Callable[[], None]] = []
        for model in models:
            self._visit(model)

    @property
    def holds_generators(self) -> bool:
        """True if the model has random generators of its own."""
        return bool(self._generators)

    def restore(self) -> None:
        """Put everything back, random generators included."""
        for restore in self._restorers:
            restore()
        self.restore_generators()

    def restore_generators(self) -> None:
        """Put back the state of the random generators that the model holds, and nothing else."""
        for restore in self._generators:
            restore()

    def _visit(self, thing: Any) -> None:
        """Save a thing and all that it holds."""
        if id(thing) in self._seen or isinstance(thing, str | bytes | int | float | nn.Parameter | type | None):
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            if not thing.is_meta:
                self._restorers.append(_tensor(thing))
        elif isinstance(thing, dict):
            self._save_dict(thing, frozenset())
        elif isinstance(thing, list | deque | set):
            self._restorers.append(_container(thing))
            self._visit_all(thing)
        elif isinstance(thing, tuple | frozenset):
            self._visit_all(thing)
        elif isinstance(thing, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
            self._generators.append(_generator(thing))
        elif self._has_own_attributes(thing):
            self._save_dict(vars(thing), IGNORED if isinstance(thing, nn.Module) else frozenset())

    def _visit_all(self, things: Any) -> None:
        for thing in list(things):
            self._visit(thing)

    def _save_dict(self, things: dict[Any, Any], ignored: frozenset[str]) -> None:
        before = {key: value for key, value in things.items() if key not in ignored}

        def restore() -> None:
            for key in [key for key in things if key not in before and key not in ignored]:
                del things[key]
            for key, value in before.items():
                if key not in things or things[key] is not value:
                    things[key] = value

        self._restorers.append(restore)
        self._visit_all(before.values())

    def _has_own_attributes(self, thing: Any) -> bool:
        """True for modules, dataclasses and objects of the model's package: another one may be a whole trainer."""
        known = isinstance(thing, nn.Module) or dataclasses.is_dataclass(thing) or _package(thing) in self._packages
        return known and isinstance(getattr(thing, "__dict__", None), dict)


def _package(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def _tensor(tensor: Tensor) -> Callable[[], None]:
    value = tensor.detach().clone()

    def restore() -> None:
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if not torch.equal(tensor, value):
                tensor.copy_(value)

    return restore


def _container(things: list[Any] | deque[Any] | set[Any]) -> Callable[[], None]:
    before = list(things)

    def restore() -> None:
        same = len(things) == len(before) and all(a is b for a, b in zip(things, before, strict=True))
        if not same:
            things.clear()
            for thing in before:
                things.add(thing) if isinstance(things, set) else things.append(thing)

    return restore


def _generator(generator: Any) -> Callable[[], None]:
    if isinstance(generator, torch.Generator):
        state = generator.get_state()

        def restore() -> None:
            generator.set_state(state)

        return restore
    if isinstance(generator, random.Random):
        python = generator.getstate()
        return lambda: generator.setstate(python)
    if isinstance(generator, np.random.RandomState):
        legacy = generator.get_state()
        return lambda: generator.set_state(legacy)
    bits = generator.bit_generator
    before = bits.state
    return lambda: setattr(bits, "state", before)
