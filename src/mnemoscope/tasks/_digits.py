"""MNIST a few pixels at a time, in reading order or permuted (Le et al. 2015; Kerg et al. 2020, figures 8 and 9)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor

from mnemoscope.tasks._archives import parse_idx
from mnemoscope.tasks._classification import SequenceClassification, entropy
from mnemoscope.tasks._data import read_data_file
from mnemoscope.tasks._finite import FiniteData
from mnemoscope.tasks._seeded import generator
from mnemoscope.tasks._task import Batch, Split, require, require_at_least

PIXELS = 28 * 28
_TRAINING = 50_000  # of the 60,000 in the training files; the others are the validation split


@dataclass(frozen=True)
class Digits(SequenceClassification, FiniteData):
    """Classify a handwritten digit after seeing all of its pixels, a few at each step."""

    name = "digits"
    output_size = 10

    order: Literal["sequential", "permuted"] = "sequential"
    """Whether pixels come in reading order or in one random order, the same for every image and drawn from the seed."""
    pixels: int = 1
    """Pixels per step: 1, 7 for groups, 28 for whole rows, or another divisor of 784."""

    def __post_init__(self) -> None:
        require(self.order in ("sequential", "permuted"), "order", self.order, "'sequential' or 'permuted'")
        require_at_least(self, pixels=1)
        require(PIXELS % self.pixels == 0, "pixels", self.pixels, f"a divisor of {PIXELS}")

    @property
    def input_size(self) -> int:
        return self.pixels

    @property
    def length(self) -> int:
        return PIXELS // self.pixels

    @cached_property
    def baseline(self) -> float:
        """The entropy of the classes, near ln 10."""
        return entropy(_images("train")[1].bincount())

    @property
    def permutation(self) -> Tensor:
        """The order of the pixels (784,)."""
        return _permutation(self.seed) if self.order == "permuted" else torch.arange(PIXELS, device="cpu")

    def _count(self, split: Split) -> int:
        return len(_images(split)[1])

    def _select(self, rows: Tensor, split: Split) -> Batch:
        images, labels = _images(split)
        pixels = images[rows]  # (B, 784)
        if self.order == "permuted":
            pixels = pixels[:, self.permutation]
        steps = pixels.view(len(rows), self.length, self.pixels).transpose(0, 1)  # (T, B, pixels)
        return Batch(steps.float().div_(255).contiguous(), labels[rows])


@lru_cache(maxsize=4)
def _permutation(seed: int) -> Tensor:
    """Return a permutation that depends on the seed only, so that training and evaluation see the same one."""
    return torch.randperm(PIXELS, generator=generator("digits", seed, "permutation"), device="cpu")


@lru_cache(maxsize=3)
def _images(split: Split) -> tuple[Tensor, Tensor]:
    """Return the images (N, 784) uint8 and labels (N,) int64 of a split."""
    images, labels = _file("t10k" if split == "test" else "train")
    rows = {"train": slice(_TRAINING), "valid": slice(_TRAINING, None), "test": slice(None)}[split]
    return images[rows], labels[rows]


@lru_cache(maxsize=2)
def _file(part: str) -> tuple[Tensor, Tensor]:
    images, labels = (f"mnist/{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    pixels = torch.from_numpy(parse_idx(read_data_file(images), images).reshape(-1, PIXELS).copy())
    return pixels, torch.from_numpy(parse_idx(read_data_file(labels), labels).astype("int64"))
