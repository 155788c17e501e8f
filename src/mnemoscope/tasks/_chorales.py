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
from mnemoscope.tasks._data import read_data_file
from mnemoscope.tasks._finite import FiniteData
from mnemoscope.tasks._task import Batch, Split, require, require_at_least

NOTES = 88
PADDING = -1
_FILES = {"jsb": "polyphonic/JSB_Chorales.mat", "nottingham": "polyphonic/Nottingham.mat"}


@dataclass(frozen=True)
class Chorales(FiniteData):
    """Predict which of 88 notes sound in the next frame of a piece; in nats per frame, summed over the notes.

    Every frame counts, also the first: it is predicted from silence. The pieces of a batch are padded at their end.
    Padded frames are -1 in the targets (T, B, 88) and do not count.
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
        require_at_least(self, cut=0)

    @cached_property
    def length(self) -> int:
        """Steps of the longest piece, of any split."""
        return max(len(piece) for split in ("train", "valid", "test") for piece in _pieces(self.data, self.cut, split))

    @cached_property
    def baseline(self) -> float:
        """The sum of the notes' entropies: the loss of predicting each note's frequency in the training pieces."""
        frequency = torch.cat(_pieces(self.data, self.cut, "train")).double().mean(0)
        return (torch.special.entr(frequency) + torch.special.entr(1 - frequency)).sum().item()

    def _count(self, split: Split) -> int:
        return len(_pieces(self.data, self.cut, split))

    def _select(self, rows: Tensor, split: Split) -> Batch:
        pieces = _pieces(self.data, self.cut, split)
        targets = pad_sequence([pieces[row] for row in rows.tolist()], padding_value=PADDING).float()  # (T, B, 88)
        silence = torch.zeros_like(targets[:1])
        return Batch(torch.cat([silence, targets[:-1].clamp_min(0)]), targets)

    def weight(self, targets: Tensor) -> int:
        return int(_frame_mask(targets).sum())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        frames = _frame_mask(targets)
        return F.binary_cross_entropy_with_logits(outputs[frames], targets[frames], reduction="sum") / frames.sum()

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """`accuracy` is the number of right notes over that of right, missed and wrong ones (Bay et al. 2009)."""
        loss = self.loss(outputs, targets).item()
        frames = _frame_mask(targets)
        predicted = outputs[frames] > 0
        true = targets[frames] > 0
        accuracy = (predicted & true).sum() / (predicted | true).sum().clamp_min(1)
        return {"loss": loss, "nll": loss, "accuracy": accuracy.item()}


def _frame_mask(targets: Tensor) -> Tensor:
    """Return which frames are not padding (T, B)."""
    return targets[..., 0] != PADDING


@lru_cache(maxsize=12)
def _pieces(data: str, cut: int, split: Split) -> tuple[Tensor, ...]:
    """Return the pieces of a split, (frames, 88) int8 each."""
    pieces = _decode(data)[split]
    return tuple(part for piece in pieces for part in piece.split(cut or len(piece)))


@lru_cache(maxsize=2)
def _decode(data: str) -> dict[str, list[Tensor]]:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise MnemoscopeError("piano rolls need scipy: pip install mnemoscope[music]") from None
    path = _FILES[data]
    cells = loadmat(BytesIO(read_data_file(path)), variable_names=["traindata", "validdata", "testdata"])
    return {split: [_roll(roll, path) for roll in cells[f"{split}data"][0]] for split in ("train", "valid", "test")}


def _roll(roll: np.ndarray, path: str) -> Tensor:
    if roll.ndim != 2 or roll.shape[1] != NOTES or roll.dtype.kind not in "fiub" or not np.isin(roll, (0, 1)).all():
        raise MnemoscopeError(f"{path} holds something other than piano rolls of {NOTES} notes")
    return torch.from_numpy(roll.astype(np.int8))
