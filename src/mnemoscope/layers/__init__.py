"""Recurrences, one family a file. Each takes nn.LSTM's arguments and gives its results."""

from mnemoscope.layers.arithmetic import RAC
from mnemoscope.layers.attentive import MemLSTM, MemRNN
from mnemoscope.layers.backtracking import SAB
from mnemoscope.layers.initial import cayley_, henaff_, orthogonal_
from mnemoscope.layers.initialisation import variance_preserving_
from mnemoscope.layers.memory import AttentiveState, Memory
from mnemoscope.layers.orthogonal import GORU, ExpRNN, OrthRNN, parameter_groups
from mnemoscope.layers.plain import GRU, LSTM, RNN, LinearSystem, modrelu
from mnemoscope.layers.relevancy import RelLSTM, RelRNN
from mnemoscope.layers.sequence import Layer
from mnemoscope.layers.stable import project_, stable

LAYERS: dict[str, type[Layer]] = {
    layer.__name__: layer
    for layer in (
        LinearSystem, RNN, LSTM, GRU, OrthRNN, ExpRNN, GORU, MemRNN, MemLSTM, SAB, RelRNN, RelLSTM, RAC,
    )
}
"""Every layer by its name."""

__all__ = [
    "GORU", "GRU", "LAYERS", "LSTM", "RAC", "RNN", "SAB", "AttentiveState", "ExpRNN", "Layer", "LinearSystem",
    "MemLSTM", "MemRNN", "Memory", "OrthRNN", "RelLSTM", "RelRNN", "cayley_", "henaff_", "modrelu", "orthogonal_",
    "parameter_groups", "project_", "stable", "variance_preserving_",
]
