"""Piano rolls of J. S. Bach's chorales and of the Nottingham folk tunes (Boulanger-Lewandowski et al. 2012)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks._classification import batches, epoch_rows
from mnemoscope.tasks._data import read
from mnemoscope.tasks._task import Batch, Split, Task, at_least, require

NOTES = 88
PADDING = -1
_FILES = {"jsb": "polyphonic/JSB_Chorales.mat", "nottingham": "polyphonic/Nottingham.mat"}


@dataclass(frozen=True)
class Chorales(Task):
    """Predict which of 88 notes sound in the next frame of a piece; in nats a frame, summed over the notes.

    Every frame counts, the first too: it is predicted from silence. Pieces of a batch are padded at their end; padded
    frames are -1 in the targets (T, B, 88) and count for nothing.
    """

    name = "chorales"
    metric = "nll"
    higher_is_better = False
    input_size = NOTES
    output_size = NOTES

    data: Literal["jsb", "nottingham"] = "jsb"
    """Bach's chorales or the Nottingham tunes."""
    cut: int = 0
    """Cut pieces into parts of at most this many frames; 0 keeps them whole."""

    def __post_init__(self) -> None:
        require(self.data in _FILES, "data", self.data, "'jsb' or 'nottingham'")
        at_least(self, cut=0)

    @cached_property
    def length(self) -> int:
        return max(len(piece) for split in ("train", "valid", "test") for piece in _pieces(self.data, self.cut, split))

    @cached_property
    def baseline(self) -> float:
        """Each note sounds by chance, as often as it does in the training pieces: the sum of their entropies."""
        often = torch.cat(_pieces(self.data, self.cut, "train")).double().mean(0)
        return (torch.special.entr(often) + torch.special.entr(1 - often)).sum().item()

    def steps_per_epoch(self, size: int, split: Split = "train") -> int:
        return batches(len(_pieces(self.data, self.cut, split)), size, split)

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        pieces = _pieces(self.data, self.cut, split)
        rows = epoch_rows(self, len(pieces), step, size, split).tolist()
        targets = pad_sequence([pieces[row] for row in rows], padding_value=PADDING).float()  # (T, B, 88)
        silence = torch.zeros_like(targets[:1])
        return Batch(torch.cat([silence, targets[:-1].clamp_min(0)]), targets)

    def weight(self, targets: Tensor) -> int:
        return int(_counts(targets).sum())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        frames = _counts(targets)
        return F.binary_cross_entropy_with_logits(outputs[frames], targets[frames], reduction="sum") / frames.sum()

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """`accuracy` is right notes over right, missed and wrong ones (Bay et al. 2009)."""
        loss, frames = self.loss(outputs, targets).item(), _counts(targets)
        said, true = outputs[frames] > 0, targets[frames] > 0
        accuracy = (said & true).sum() / (said | true).sum().clamp_min(1)
        return {"loss": loss, "nll": loss, "accuracy": accuracy.item()}


def _counts(targets: Tensor) -> Tensor:
    """(T, B): which frames are not padding."""
    return targets[..., 0] != PADDING


@lru_cache(maxsize=12)
def _pieces(data: str, cut: int, split: Split) -> tuple[Tensor, ...]:
    """The pieces of a split, (frames, 88) int8 each."""
    pieces = _decode(data)[split]
    return tuple(part for piece in pieces for part in piece.split(cut or len(piece)))


@lru_cache(maxsize=2)
def _decode(data: str) -> dict[str, list[Tensor]]:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise MnemoscopeError("piano rolls need scipy: pip install mnemoscope[music]") from None
    path = _FILES[data]
    cells = loadmat(BytesIO(read(path)), variable_names=["traindata", "validdata", "testdata"])
    return {split: [_roll(roll, path) for roll in cells[f"{split}data"][0]] for split in ("train", "valid", "test")}


def _roll(roll: np.ndarray, path: str) -> Tensor:
    if roll.ndim != 2 or roll.shape[1] != NOTES or roll.dtype.kind not in "fiub" or not np.isin(roll, (0, 1)).all():
        raise MnemoscopeError(f"{path} holds something other than piano rolls of {NOTES} notes")
    return torch.from_numpy(roll.astype(np.int8))
