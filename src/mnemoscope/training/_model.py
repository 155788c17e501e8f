"""The network that is trained: a recurrent layer between an embedding and a read-out."""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemoscope import layers
from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Attention, Recurrence, Screening, State, detach
from mnemoscope.tasks import Gaussian, Task
from mnemoscope.training._config import NetworkConfig
from mnemoscope.training._layer_options import models
from mnemoscope.training._output_layer import OutputLayer


class SequenceModel(Recurrence):
    """Embedding (for ids) -> recurrent layer -> a relu layer if there is a head -> linear read-out at every step.

    `forward(inputs, state=None)` takes inputs (T, B, input_size), or ids (T, B) with `token_input`. It returns outputs
    (T, B, output_size) and the state after the last step, so that a sequence can be processed in pieces.
    """

    def __init__(self, input_size: int, output_size: int, config: NetworkConfig, *, token_input: bool = False) -> None:
        super().__init__()
        if config.embedding and not token_input:
            raise MnemoscopeError(
                f"embedding = {config.embedding} needs a task whose inputs are ids (characters can: ids); use 0"
            )
        if config.tied and input_size != output_size:
            raise MnemoscopeError(f"tied = True needs as many outputs as ids; got {output_size} and {input_size}")
        self.config = config
        self.input_size = input_size
        self.hidden_size = config.hidden_size
        self.num_layers = config.num_layers
        self.token_input = token_input

        features = config.embedding or input_size
        self.embedding = nn.Embedding(input_size, config.embedding) if config.embedding else None
        self.layer = make_layer(config, features)
        hidden = getattr(self.layer, "output_size", config.hidden_size)
        self.head = nn.Linear(hidden, config.head) if config.head else None
        self.readout = OutputLayer(config.head or hidden, output_size)
        self.direct = OutputLayer(features, output_size, bias=False) if config.skip else None
        self.drop = nn.Dropout(config.dropout)
        self._initialize(config)
        if config.truncated:
            self.layer = _truncated(self.layer, config)

    def _initialize(self, config: NetworkConfig) -> None:
        """Draw the initial weights of all modules."""
        if config.init == "xavier":
            self._xavier_initialization()
        elif config.init == "uniform":
            self._uniform_initialization()
        with torch.no_grad():
            self.readout.weight.mul_(config.readout_gain)
            if self.embedding is not None:
                self.embedding.weight.mul_(config.embedding_gain)
        if self.head is not None:
            nn.init.orthogonal_(self.head.weight, math.sqrt(2))
            nn.init.zeros_(self.head.bias)
        if config.forget_bias:
            self._open_forget_gates(config.forget_bias)
        if config.tied and self.embedding is not None:
            self.readout.weight = self.embedding.weight
            nn.init.uniform_(self.readout.weight, -0.1, 0.1)  # an embedding's usual N(0, 1) would give huge logits

    @staticmethod
    def for_task(task: Task, config: NetworkConfig) -> SequenceModel:
        """Return the network whose input and output sizes are the task's."""
        model = SequenceModel(task.input_size, task.output_size, config, token_input=task.token_input)
        if config.init == "system":
            model._start_from_system(task)
        return model

    @torch.no_grad()
    def _xavier_initialization(self) -> None:
        """Draw input and read-out weights as in Kerg et al. 2020, gate by gate. RAC multiplies: it keeps its own."""
        nn.init.xavier_normal_(self.readout.weight)
        if isinstance(self.layer, layers.RAC):
            return
        for name, matrix in self.layer.named_parameters():
            if name.startswith("weight_ih"):
                for gate in matrix.split(self.hidden_size):
                    nn.init.xavier_normal_(gate)

    @torch.no_grad()
    def _open_forget_gates(self, amount: float) -> None:
        """Add to the biases of forget gates, the second of the four gates of an LSTM, so that they begin open."""
        if not isinstance(self.layer, layers.LSTM | nn.LSTM) or not self.layer.bias:
            raise MnemoscopeError(f"forget_bias = {amount:g} needs forget gates with biases; got {self.config.model}")
        for name, bias in self.layer.named_parameters():
            if name.startswith("bias_ih"):
                bias[self.hidden_size : 2 * self.hidden_size] += amount

    def _uniform_initialization(self) -> None:
        """Draw embedding and read-out as PyTorch's word_language_model does, whose results Miller & Hardt report."""
        if self.embedding is not None:
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.readout.weight, -0.1, 0.1)
        nn.init.zeros_(self.readout.bias)

    @torch.no_grad()
    def _start_from_system(self, task: Task) -> None:
        """Start from the random system of the task gaussian: h_t = phi(W h + U x_t), y = C h + D x_t."""
        if not isinstance(task, Gaussian):
            raise MnemoscopeError(f"init = 'system' needs the task gaussian, whose system it is; got {task.name}")
        layer: Any = self.layer.layer if self.config.truncated else self.layer
        plain = type(layer) in (layers.RNN, layers.LinearSystem, nn.RNN) and layer.num_layers == 1
        if not plain or self.direct is None or self.head is not None or self.hidden_size != task.hidden:
            needs = f"one layer of RNN or LinearSystem, skip, and hidden-size = {task.hidden}"
            raise MnemoscopeError(f"init = 'system' needs {needs}, as the task's system")
        system = task.system()
        for parameter in layer.parameters():
            parameter.zero_()
        layer.weight_hh_l0.copy_(system.W)
        layer.weight_ih_l0.copy_(system.U)
        self.readout.weight.copy_(system.C)
        self.readout.bias.zero_()
        self.direct.weight.copy_(system.D)

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

    def observe(self, x: Tensor, state: State) -> tuple[Tensor, State, tuple[Attention, ...] | None]:
        if not isinstance(self.layer, Recurrence):
            return *self.step(x, state), None
        x = self.embed(x)
        h, state, attention = self.layer.observe(x, state)
        return self.read(h, x), state, attention

    @property
    def screening(self) -> Screening | None:
        return self.layer.screening if isinstance(self.layer, Recurrence) else None

    def forward(
        self, x: Tensor, state: State | None = None, *, starts: Tensor | None = None, bptt: int = 0
    ) -> tuple[Tensor, State]:
        """Return the outputs (T, B, output_size) and the state after the last step.

        Args:
            x: inputs (T, B, input_size), or ids (T, B).
            state: before the first step; by default the initial one.
            starts: (T, B), True where a new sequence begins, for layers of mnemoscope's.
            bptt: steps after which back-propagation is truncated while the state is carried on; 0 never truncates.
                The recurrent layer alone runs in such pieces: embedding, dropout and read-out see all steps at once.
        """
        x = self.embed(x)
        if not bptt:
            h, state = self._recur(x, state, starts)
            return self.read(h, x), state
        pieces = []
        begins = repeat(None) if starts is None else starts.split(bptt)
        for piece, begin in zip(x.split(bptt), begins, strict=False):
            h, state = self._recur(piece, state, begin)
            state = None if state is None else detach(state)
            pieces.append(h)
        return self.read(torch.cat(pieces), x), state

    def _recur(self, x: Tensor, state: State | None, starts: Tensor | None) -> tuple[Tensor, State]:
        """Run the recurrent layer; torch's own layers do not know `starts`."""
        return self.layer(x, state) if starts is None else self.layer(x, state, starts=starts)

    def embed(self, x: Tensor) -> Tensor:
        """Return the recurrent layer's inputs (..., features) for ids or features `x`."""
        if not self.token_input:
            return x
        if self.embedding is None:
            return F.one_hot(x, self.input_size).to(self.readout.weight.dtype)
        return self.drop(self.embedding(x))

    @property
    def affine_readout(self) -> Tensor | None:
        """C of y = C h + c(x), on which proofs about outputs rest; None if there is a head or `read` was changed."""
        if self.head is not None:
            return None
        modules = [module for module in (self.readout, self.direct) if module is not None]
        linear = all(type(module).forward in (nn.Linear.forward, OutputLayer.forward) for module in modules)
        return self.readout.weight if linear and type(self).read is SequenceModel.read else None

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        """Return y = C h + c, with `skip` also + D x (Miller & Hardt, A.5); a head puts relu(A h + a) in place of h."""
        h = self.drop(h)
        y = self.readout(h if self.head is None else torch.relu(self.head(h)))
        if self.direct is not None:
            y = y + self.direct(x)
        return y


def _truncated(layer: nn.Module, config: NetworkConfig) -> nn.Module:
    """Return a layer that starts anew at every step and reads its last `truncated` inputs."""
    from mnemoscope.theory.stability import Truncated

    if not isinstance(layer, Recurrence):
        raise MnemoscopeError(f"truncated = {config.truncated} needs a layer of mnemoscope's; got {config.model}")
    return Truncated(layer, config.truncated)


def make_layer(config: NetworkConfig, input_size: int) -> nn.Module:
    """Return the recurrent layer of a configuration, with the options that it sets."""
    kind = models()[config.model]
    dropout = config.dropout if config.num_layers > 1 else 0.0  # the last layer's output is dropped before the read-out
    try:
        return kind(input_size, config.hidden_size, config.num_layers, dropout=dropout, **config.options)
    except MnemoscopeError:
        raise
    except (TypeError, ValueError) as error:  # torch's layers, and combinations of options that a layer refuses
        raise MnemoscopeError(f"{config.model} cannot be made with {config.options}: {error}") from error
