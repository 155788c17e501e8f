"""What the equations of a layer read: its parameters by their plain names."""

from typing import TYPE_CHECKING

from torch import Tensor


class Weights:
    """The parameters of one layer in one direction, by their names without the suffix: ``w.weight_hh``."""

    def __init__(self, **parameters: Tensor) -> None:
        for name, parameter in parameters.items():  # torch.compile cannot trace a SimpleNamespace
            setattr(self, name, parameter)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor: ...
        def __setattr__(self, name: str, value: Tensor) -> None: ...
