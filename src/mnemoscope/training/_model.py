"""A recurrent layer between an embedding and a read-out: the network that tasks are taught to."""

from __future__ import annotations

from dataclasses import fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemoscope import layers
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence, State
from mnemoscope.tasks import Task
from mnemoscope.training._config import NetworkConfig

_TORCHS: dict[str, type[nn.Module]] = {"torch.RNN": nn.RNN, "torch.LSTM": nn.LSTM, "torch.GRU": nn.GRU}


def models() -> dict[str, type[nn.Module]]:
    """Every recurrent layer by the name it has in a configuration: ours, and torch's own for comparison."""
    return {**layers.LAYERS, **_TORCHS}


class SequenceModel(Recurrence):
    """Embedding (for ids) -> recurrent layer -> linear read-out at every step.

    `forward(inputs, state=None)` takes inputs (T, B, input_size), or ids (T, B) where `token_input`, and gives outputs
    (T, B, output_size) and the state after the last step, so that a sequence can be fed in pieces.
    """

    def __init__(self, input_size: int, output_size: int, config: NetworkConfig, *, token_input: bool = False) -> None:
        super().__init__()
        if config.embedding and not token_input:
            raise MnemoscopeError(f"embedding = {config.embedding} needs a task whose inputs are ids; use 0")
        if config.tied and input_size != output_size:
            raise MnemoscopeError(f"tied = True needs as many outputs as ids; got {output_size} and {input_size}")
        features = config.embedding or input_size
        self.input_size, self.hidden_size, self.token_input = input_size, config.hidden_size, token_input
        self.config, self.num_layers = config, config.num_layers
        self.embedding = nn.Embedding(input_size, config.embedding) if config.embedding else None
        self.layer = make_layer(config, features)
        self.readout = nn.Linear(getattr(self.layer, "output_size", config.hidden_size), output_size)
        self.direct = nn.Linear(features, output_size, bias=False) if config.skip else None
        self.drop = nn.Dropout(config.dropout)
        if config.init == "xavier":
            self._start_by_xavier()
        with torch.no_grad():
            self.readout.weight.mul_(config.readout_gain)
        if config.tied and self.embedding is not None:
            self.readout.weight = self.embedding.weight
            nn.init.uniform_(self.readout.weight, -0.1, 0.1)  # an embedding's usual N(0, 1) would give huge logits

    @staticmethod
    def for_task(task: Task, config: NetworkConfig) -> SequenceModel:
        """The network whose sizes are the task's."""
        return SequenceModel(task.input_size, task.output_size, config, token_input=task.token_input)

    @torch.no_grad()
    def _start_by_xavier(self) -> None:
        """Input and read-out weights as in Kerg et al. 2020, gate by gate; a circuit multiplies: it has its own."""
        nn.init.xavier_normal_(self.readout.weight)
        if isinstance(self.layer, layers.RAC):
            return
        for name, matrix in self.layer.named_parameters():
            for gate in matrix.split(self.hidden_size) if name.startswith("weight_ih") else ():
                nn.init.xavier_normal_(gate)

    @property
    def output_size(self) -> int:
        return self.readout.out_features

    def initial_state(self, batch: int) -> State:
        if isinstance(self.layer, Recurrence):
            return self.layer.initial_state(batch)
        zeros = self.readout.weight.new_zeros(self.num_layers, batch, self.hidden_size)
        return (zeros, zeros) if isinstance(self.layer, nn.LSTM) else zeros

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        x = self.embed(x)
        if isinstance(self.layer, Recurrence):
            h, state = self.layer.step(x, state)
        else:
            h, state = self.layer(x.unsqueeze(0), state)
            h = h.squeeze(0)
        return self.read(h, x), state

    def observe(self, x: Tensor, state: State) -> tuple[Tensor, State, tuple[Tensor, ...] | None]:
        if not isinstance(self.layer, Recurrence):
            return *self.step(x, state), None
        x = self.embed(x)
        h, state, attention = self.layer.observe(x, state)
        return self.read(h, x), state, attention

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        x = self.embed(x)
        h, state = self.layer(x, state)
        return self.read(h, x), state

    def embed(self, x: Tensor) -> Tensor:
        """Ids or features -> what the recurrent layer reads, (..., features)."""
        if not self.token_input:
            return x
        if self.embedding is None:
            return F.one_hot(x, self.input_size).to(self.readout.weight.dtype)
        return self.drop(self.embedding(x))

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        """y = C h + c, and + D x with `skip` (Miller & Hardt, A.5)."""
        y = self.readout(self.drop(h))
        return y if self.direct is None else y + self.direct(x)


_COMMON = {"model", "hidden_size", "num_layers", "embedding", "tied", "skip", "dropout", "init", "readout_gain"}


def make_layer(config: NetworkConfig, input_size: int) -> nn.Module:
    """The recurrent layer that a configuration names, with the options it sets."""
    kind = models().get(config.model)
    if kind is None:
        raise MnemoscopeError(f"model = {config.model!r} is not a layer; layers are {', '.join(models())}")
    names = [field.name for field in fields(config) if field.name not in _COMMON]
    options = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    for name in options:
        if name not in options_of(kind):
            allowed = ", ".join(sorted(options_of(kind) & set(names))) or "none"
            raise MnemoscopeError(f"{config.model} has no option {name}; its options are: {allowed}")
    dropout = config.dropout if config.num_layers > 1 else 0.0  # the last layer's output is dropped before the read-out
    try:
        return kind(input_size, config.hidden_size, config.num_layers, dropout=dropout, **options)
    except MnemoscopeError:
        raise
    except (TypeError, ValueError) as error:  # torch's own layers, and options that a layer fixes for itself
        raise MnemoscopeError(f"{config.model} cannot be made with {options}: {error}") from error


def options_of(kind: type[nn.Module]) -> set[str]:
    """The names of a layer's own options."""
    if issubclass(kind, nn.RNNBase):
        return {"nonlinearity"} if kind is nn.RNN else set()
    return set(layers.options(kind))
