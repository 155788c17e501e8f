"""Mnemoscope shows how far back a recurrent network remembers, and gives it layers that remember further."""

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import (
    GORU,
    GRU,
    LSTM,
    RAC,
    RNN,
    SAB,
    ExpRNN,
    LinearSystem,
    MemLSTM,
    MemRNN,
    OrthRNN,
    RelLSTM,
    RelRNN,
    parameter_groups,
)
from mnemoscope.recurrence import Recurrence, State, Trace, detach, select, to, trace

__version__ = "0.1.0"
__all__ = [
    "GORU", "GRU", "LSTM", "RAC", "RNN", "SAB", "ExpRNN", "LinearSystem", "MemLSTM", "MemRNN", "MnemoscopeError",
    "OrthRNN", "Recurrence", "RelLSTM", "RelRNN", "State", "Trace", "detach", "parameter_groups", "select", "to",
    "trace",
]
