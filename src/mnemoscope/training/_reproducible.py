"""The part of torch's global state that a run's numbers depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def reproducible(seed: int, threads: int) -> Iterator[None]:
    """Seed torch and fix its number of threads; leave everything as it was found.

    Sums over threads are split by their number, so the same number gives the same rounding.
    """
    threads_before = torch.get_num_threads()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            torch.manual_seed(seed)
            torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(threads_before)


@contextmanager
def deterministic() -> Iterator[None]:
    """Have torch sum in a fixed order where it has a choice (on the CPU: accumulation by index)."""
    settings: Any = torch.utils.deterministic
    enabled, fills = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        settings.fill_uninitialized_memory = False  # costs time, and no result depends on it
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        settings.fill_uninitialized_memory = fills


def random_state() -> dict[str, torch.Tensor]:
    """The state of torch's generators, a tensor each."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """Put back what `random_state` gave; a GPU's part is passed over where there is none."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
