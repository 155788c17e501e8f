"""Recurrences, one family a file. Each takes nn.LSTM's arguments and gives its results."""

from mnemoscope.equations import modrelu
from mnemoscope.layers._arithmetic import RAC
from mnemoscope.layers._attentive import MemLSTM, MemRNN
from mnemoscope.layers._backtracking import SAB
from mnemoscope.layers._base import Layer
from mnemoscope.layers._init import cayley_, henaff_, orthogonal_
from mnemoscope.layers._memory import AttentiveState, Memory
from mnemoscope.layers._orthogonal import GORU, ExpRNN, OrthRNN, parameter_groups
from mnemoscope.layers._plain import GRU, LSTM, RNN, LinearSystem
from mnemoscope.layers._relevancy import RelLSTM, RelRNN
from mnemoscope.layers._stable import project_, stable
from mnemoscope.layers._variance_preserving import variance_preserving_

LAYERS: dict[str, type[Layer]] = {
    layer.__name__: layer
    for layer in (
        LinearSystem,
        RNN,
        LSTM,
        GRU,
        OrthRNN,
        ExpRNN,
        GORU,
        MemRNN,
        MemLSTM,
        SAB,
        RelRNN,
        RelLSTM,
        RAC,
    )
}
"""Every layer by its name."""

__all__ = [
    "GORU",
    "GRU",
    "LAYERS",
    "LSTM",
    "RAC",
    "RNN",
    "SAB",
    "AttentiveState",
    "ExpRNN",
    "Layer",
    "LinearSystem",
    "MemLSTM",
    "MemRNN",
    "Memory",
    "OrthRNN",
    "RelLSTM",
    "RelRNN",
    "cayley_",
    "henaff_",
    "modrelu",
    "orthogonal_",
    "parameter_groups",
    "project_",
    "stable",
    "variance_preserving_",
]
