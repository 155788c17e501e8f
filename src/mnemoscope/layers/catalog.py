"""The list of all layers: what is exported here is offered by the package, the command line and the training."""

from mnemoscope.layers._arithmetic import RAC
from mnemoscope.layers._attentive import MemLSTM, MemRNN
from mnemoscope.layers._backtracking import SAB
from mnemoscope.layers._orthogonal import GORU, ExpRNN, OrthRNN
from mnemoscope.layers._plain import GRU, LSTM, RNN, LinearSystem
from mnemoscope.layers._relevancy import RelLSTM, RelRNN

# From the plainest to the most special, the order in which they are listed to users.
__all__ = [  # noqa: RUF022
    "LinearSystem",
    "RNN",
    "LSTM",
    "GRU",
    "OrthRNN",
    "ExpRNN",
    "GORU",
    "MemRNN",
    "MemLSTM",
    "SAB",
    "RelRNN",
    "RelLSTM",
    "RAC",
]
