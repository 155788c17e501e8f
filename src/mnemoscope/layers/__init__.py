"""Recurrences, one family a file. Each takes nn.LSTM's arguments and gives its results.

All layers are listed in `catalog` and exported here, with their initialization, states and stable sets.
"""

from mnemoscope.equations import modrelu
from mnemoscope.layers import _carried_operations, _state_pytree, catalog
from mnemoscope.layers._base import Layer
from mnemoscope.layers._carried import AttentiveState, CarryingTensor
from mnemoscope.layers._init import VARIANCE_GAIN, cayley_, henaff_, orthogonal_, variance_preserving_
from mnemoscope.layers._memory import Memory
from mnemoscope.layers._options import Option, options
from mnemoscope.layers._orthogonal import parameter_groups
from mnemoscope.layers._stable import project_, stable
from mnemoscope.layers._trimmed import trim_memory
from mnemoscope.layers._weights import Weights
from mnemoscope.layers.catalog import *  # noqa: F403

_carried_operations.register()
_state_pytree.register()

LAYERS: dict[str, type[Layer]] = {name: getattr(catalog, name) for name in catalog.__all__}
"""Every layer by its name."""

__all__ = [
    "LAYERS",
    "VARIANCE_GAIN",
    "AttentiveState",
    "CarryingTensor",
    "Layer",
    "Memory",
    "Option",
    "Weights",
    "cayley_",
    "henaff_",
    "modrelu",
    "options",
    "orthogonal_",
    "parameter_groups",
    "project_",
    "stable",
    "trim_memory",
    "variance_preserving_",
]
__all__ += catalog.__all__
