"""The part of torch's global state that the results of a run depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def reproducible(seed: int, threads: int) -> Iterator[None]:
    """Seed torch and fix its number of threads inside the block; restore both afterwards.

    Parallel sums are split by the number of threads, so the same number gives the same rounding.
    """
    threads_before = torch.get_num_threads()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            torch.manual_seed(seed)
            torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(threads_before)


def seed_of_rank(seed: int, rank: int) -> int:
    """Return the seed of a rank's dropout: the run's own for the first, so that one process changes nothing."""
    return (seed + rank * 0x9E3779B97F4A7C15) % 2**63


@contextmanager
def deterministic() -> Iterator[None]:
    """Use torch's deterministic algorithms inside the block (on the CPU: accumulation by index)."""
    settings: Any = torch.utils.deterministic
    enabled = torch.are_deterministic_algorithms_enabled()
    fills = settings.fill_uninitialized_memory
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        settings.fill_uninitialized_memory = False  # costs time, and no result depends on it
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        settings.fill_uninitialized_memory = fills


@contextmanager
def tf32_products() -> Iterator[None]:
    """Let a GPU compute matrix products of float32 in TF32 inside the block."""
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def random_state() -> dict[str, torch.Tensor]:
    """Return the states of torch's generators, one tensor each."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """Load what `random_state` returned. The GPU's part is ignored on a machine without one."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
