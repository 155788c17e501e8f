"""Whatever reads sequences -> what can be examined of it: torch's layers, a step, a plain forward, Hugging Face."""

from mnemoscope.adapters.adapt import adapt, made
from mnemoscope.adapters.adapted import Adapted
from mnemoscope.adapters.recurrent import Between, as_recurrence
from mnemoscope.adapters.stepped import Stepped
from mnemoscope.adapters.torchs import from_torch

__all__ = ["Adapted", "Between", "Stepped", "adapt", "as_recurrence", "from_torch", "made"]
