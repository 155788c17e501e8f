"""The rows of the shared table: adding a layer is adding a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import mnemoscope

INPUT, HIDDEN, BATCH, TIME = 3, 4, 3, 8


@dataclass(frozen=True)
class Row:
    layer: type
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = (f"-{key}={getattr(value, '__name__', value)}" for key, value in self.options.items())
        return self.layer.__name__ + "".join(options)

    def make(self, **arguments: Any) -> mnemoscope.layers.Layer:
        return self.build(INPUT, **{**self.options, **arguments})

    def build(self, input_size: int, hidden_size: int = HIDDEN, **arguments: Any) -> mnemoscope.layers.Layer:
        torch.manual_seed(0)
        layer = self.layer(input_size, hidden_size, **{"dtype": torch.float64, **arguments})
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if self.layer is mnemoscope.SAB and "score" in name:
                    parameter.mul_(150)  # no two scores so close that rounding decides which is kept
                if self.layer is mnemoscope.RAC and "weight" in name:
                    parameter.copy_(torch.softmax(3 * parameter, 1))  # polynomials of a high degree stay near one
        return layer


def near_one(x: torch.Tensor) -> torch.Tensor:
    return 1 + 0.3 * torch.tanh(x)


small = dict(buffer=2, relevant=2)  # so that eight steps see screening, eviction and refusal

ROWS = [
    Row(mnemoscope.LinearSystem),
    Row(mnemoscope.RNN),
    Row(mnemoscope.RNN, dict(nonlinearity="relu")),
    Row(mnemoscope.RNN, dict(nonlinearity="modrelu", recurrent_init="cayley")),
    Row(mnemoscope.RNN, dict(nonlinearity="sigmoid", preactivation=True)),
    Row(mnemoscope.LSTM),
    Row(mnemoscope.GRU),
    Row(mnemoscope.OrthRNN, dict(nonlinearity="tanh")),
    Row(mnemoscope.ExpRNN),
    Row(mnemoscope.ExpRNN, dict(trivialization="dynamic")),
    Row(mnemoscope.GORU),
    Row(mnemoscope.GORU, dict(layout="tunable", rotations=2)),
    Row(mnemoscope.MemRNN),
    Row(mnemoscope.MemRNN, dict(mix="mean", output="s", nonlinearity="modrelu")),
    Row(mnemoscope.MemLSTM),
    Row(mnemoscope.SAB, dict(store_every=2, top=2, truncation=100, detach_scores=False)),
    Row(mnemoscope.SAB, dict(store_every=1, top=2, truncation=3, output="h")),
    Row(mnemoscope.RelRNN, small),
    Row(mnemoscope.RelRNN, dict(buffer=2, relevant=1, decay=0.5, refresh=True, mix="mean", output="s")),
    Row(mnemoscope.RelRNN, dict(buffer=0, relevant=2)),
    Row(mnemoscope.RelRNN, dict(buffer=3, relevant=0, nonlinearity="modrelu")),
    Row(mnemoscope.RelLSTM, small),
    Row(mnemoscope.RAC, dict(feature=near_one)),
    Row(mnemoscope.RAC, dict(feature=near_one, bias=True)),
]
