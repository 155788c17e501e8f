"""Random numbers that depend on their purpose only."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator(*purpose: str | int) -> torch.Generator:
    """Return a CPU generator seeded by `purpose` only, so any batch can be made without the ones before it.

    The seed is a hash. So purposes that differ anywhere (`"train"`, `"test"`) have unrelated streams. It is the same on
    every platform and in every process (Python's own `hash` is not).
    """
    words = [word if isinstance(word, str) else int(word) for word in purpose]  # numpy's integers print differently
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest, "little") >> 1)


def normal(shape: tuple[int, ...], std: float, generator: torch.Generator) -> Tensor:
    """Return normal float64 numbers (`shape`) by inverse transform: torch.randn depends on the CPU's vector width."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu").clamp_min_(2**-54)
    return torch.special.ndtri(uniform).mul_(std)


def random_permutations(length: int, count: int, generator: torch.Generator) -> Tensor:
    """Return independent random permutations of 0 .. length - 1, one per column (length, count)."""
    keys = torch.rand((length, count), generator=generator, dtype=torch.float64, device="cpu")
    return keys.argsort(dim=0, stable=True)


def one_hot(symbols: Tensor, classes: int) -> Tensor:
    """Return integers (...) as float32 one-hot vectors (..., classes); several times faster than F.one_hot (int64)."""
    zeros = torch.zeros(*symbols.shape, classes, device=symbols.device, dtype=torch.float32)
    return zeros.scatter_(-1, symbols.unsqueeze(-1), 1.0)
