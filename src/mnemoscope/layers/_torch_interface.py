"""What scripts written for torch's recurrent layers ask of one, besides calling it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mnemoscope.layers._checks import warn_caller


class TorchInterface(nn.RNNBase):
    """nn.RNNBase for a layer whose weights are its own parameters, and computed anew where they are parametrized.

    It comes last among a layer's bases. `mode` is "LSTM", "GRU", "RNN_TANH", "RNN_RELU", or RNN_ and another name.
    `get_expected_hidden_size`, `all_weights` and the other methods are torch's; they read what is defined here.
    """

    if TYPE_CHECKING:
        _registered: list[dict[str, str]]

    # torch's layers keep a second list of their weights up to date in these; here that list is made when asked for.
    __setattr__ = nn.Module.__setattr__  # type: ignore[assignment]
    __getstate__ = object.__getstate__
    __setstate__ = nn.Module.__setstate__
    _apply = nn.Module._apply
    _replicate_for_data_parallel = nn.Module._replicate_for_data_parallel

    @property
    def _all_weights(self) -> list[list[str]]:  # type: ignore[override]
        """The names of all parameters, a list for each layer and direction."""
        return [list(names.values()) for names in self._registered]

    @property
    def _flat_weights_names(self) -> list[str]:  # type: ignore[override]
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Any]:  # type: ignore[override]
        return [getattr(self, name) for name in self._flat_weights_names]

    @property
    def all_weights(self) -> list[list[Tensor]]:  # type: ignore[override]
        return [[getattr(self, name) for name in names] for names in self._all_weights]


class Described:
    """The printed form of a layer with nn.LSTM's arguments."""

    if TYPE_CHECKING:
        input_size: int
        hidden_size: int

    def _get_name(self) -> str:
        return type(self).__name__.removeprefix("Parametrized")  # torch renames a class that it parametrizes

    def flatten_parameters(self) -> None:
        """Do nothing; here because scripts written for nn.LSTM call it."""

    def extra_repr(self) -> str:
        shown = [f"{self.input_size}, {self.hidden_size}"]
        defaults = dict(num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False, proj_size=0)
        shown += [f"{name}={getattr(self, name)}" for name, usual in defaults.items() if getattr(self, name) != usual]
        return ", ".join(shown + self.options_repr())

    def options_repr(self) -> list[str]:
        """Return a subclass's own options, for its printed form."""
        return []


class Unquantized:
    """A module that torch.ao.quantization leaves as it is, and that says so."""

    @property
    def qconfig(self) -> Any:
        """What torch.ao.quantization attaches to every module; it has no quantized form of this one."""
        if "_qconfig" not in self.__dict__:
            raise AttributeError("qconfig")
        return self.__dict__["_qconfig"]

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        if "_qconfig" not in self.__dict__:
            warn_caller(
                f"{type(self).__name__} has no quantized form: quantization leaves it as it is, in floating point"
            )
        self.__dict__["_qconfig"] = value

    @qconfig.deleter
    def qconfig(self) -> None:
        del self.__dict__["_qconfig"]
