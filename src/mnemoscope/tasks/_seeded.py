"""Random numbers that depend on what they are for and on nothing else."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator(*purpose: str | int) -> torch.Generator:
    """A CPU generator seeded by `purpose` alone: any step's batch can be made without the ones before it.

    The seed is a hash, so purposes that differ anywhere (`"train"`, `"test"`) have unrelated streams, and it is the
    same on every platform and in every process (Python's own `hash` is not).
    """
    words = [word if isinstance(word, str) else int(word) for word in purpose]  # numpy's integers print differently
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest, "little") >> 1)


def normal(shape: tuple[int, ...], std: float, generator: torch.Generator) -> Tensor:
    """Normal float64 numbers by inverting their distribution: those of torch.randn depend on the CPU's vector width."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu").clamp_min_(2**-54)
    return torch.special.ndtri(uniform).mul_(std)


def permutations(length: int, count: int, generator: torch.Generator) -> Tensor:
    """(length, count): every column 0 .. length - 1 in a random order of its own."""
    keys = torch.rand((length, count), generator=generator, dtype=torch.float64, device="cpu")
    return keys.argsort(dim=0, stable=True)


def one_hot(symbols: Tensor, classes: int) -> Tensor:
    """(...) integers -> (..., classes) float32; several times faster than torch's, which goes through int64."""
    return torch.zeros(*symbols.shape, classes, device=symbols.device, dtype=torch.float32).scatter_(
        -1, symbols.unsqueeze(-1), 1.0
    )
