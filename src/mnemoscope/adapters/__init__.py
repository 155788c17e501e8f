"""Bring any model that reads sequences into the form that scopes examine.

Torch's layers and cells, objects with a step, modules with a plain ``forward``, Hugging Face models.
"""

from mnemoscope.adapters._adapt import adapt, instantiate, unwrap
from mnemoscope.adapters._adapted import Adapted
from mnemoscope.adapters._call import Output
from mnemoscope.adapters._layout import Layout
from mnemoscope.adapters._recurrent import WithReadout, as_recurrence
from mnemoscope.adapters._step import Stepped
from mnemoscope.adapters._torch_layers import from_torch
from mnemoscope.adapters._vocabulary import find_vocabulary

__all__ = [
    "Adapted",
    "Layout",
    "Output",
    "Stepped",
    "WithReadout",
    "adapt",
    "as_recurrence",
    "find_vocabulary",
    "from_torch",
    "instantiate",
    "unwrap",
]
