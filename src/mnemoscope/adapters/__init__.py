"""Whatever reads sequences -> what can be examined of it: torch's layers, a step, a plain forward, Hugging Face."""

from mnemoscope.adapters._adapt import adapt, made
from mnemoscope.adapters._adapted import Adapted
from mnemoscope.adapters._recurrent import Between, as_recurrence
from mnemoscope.adapters._step import Stepped
from mnemoscope.adapters._torch_layers import from_torch

__all__ = ["Adapted", "Between", "Stepped", "adapt", "as_recurrence", "from_torch", "made"]
