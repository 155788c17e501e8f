"""The truncated model: a recurrence that forgets everything older than k inputs (Miller & Hardt 2018, eq. 3)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence, State, leaves, reset


class Window(NamedTuple):
    """What a truncated model carries on: its last k - 1 inputs, oldest first, and how many it has seen."""

    inputs: Tensor  # (1, batch, k - 1, input_size)
    clock: Tensor  # (1, batch)


class Truncated(Recurrence):
    """`layer` as a feed-forward net of depth k: at every step it starts anew and reads the last k inputs.

    h_t^k = phi(h_{t-1}^k, x_t) with h_{t-k}^k the initial state; the first k outputs are the layer's own. All windows
    of a sequence are evaluated at once, as one batch of `layer`; at most `rows` sequences of k inputs at a time.

    Args:
        layer: any `Recurrence` that runs forward in time.
        k: the number of inputs that an output may depend on, at least 1.
        rows: how many windows are put into one batch; less needs less memory.

    Examples:
        >>> from mnemoscope.theory import Truncated
        >>> model = Truncated(mnemoscope.RNN(3, 16), k=5)  # each output depends on the last 5 inputs
        >>> output, state = model(torch.randn(20, 4, 3))
    """

    def __init__(self, layer: Recurrence, k: int, *, rows: int = 8192) -> None:
        super().__init__()
        if k < 1 or rows < 1:
            raise MnemoscopeError(f"Truncated needs k >= 1 inputs and rows >= 1; got k={k}, rows={rows}")
        if not hasattr(layer, "observe"):
            raise MnemoscopeError(
                f"Truncated needs a Recurrence; got {type(layer).__name__}: mnemoscope.adapters.as_recurrence makes one"
            )
        if getattr(layer, "bidirectional", False):
            raise MnemoscopeError("Truncated needs a layer that runs forward in time; got a bidirectional one")
        self.layer = layer
        self.k = k
        self.rows = rows
        self.input_size = layer.input_size
        self.hidden_size = layer.hidden_size
        self.batch_first = bool(getattr(layer, "batch_first", False))

    @property
    def output_size(self) -> int:
        return self.layer.output_size

    def initial_state(self, batch: int) -> Window:
        like = leaves(self.layer.initial_state(batch))[0]
        empty = like.new_zeros(1, batch, self.k - 1, self.input_size)
        return Window(empty, torch.zeros(1, batch, dtype=torch.int64, device=like.device))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, Window]:
        """Read the window that ends in x, starting each sequence where its inputs begin."""
        inputs = torch.cat([state.inputs[0], x[:, None]], 1)  # (batch, k, input_size)
        missing = self.k - 1 - state.clock[0]  # (batch,): > 0 while a sequence is shorter than its window
        first = inner = self.layer.initial_state(len(x))
        for age, x_t in enumerate(inputs.unbind(1)):
            if age:
                inner = reset(inner, missing == age, first)
            output, inner = self.layer.step(x_t, inner)
        return output, Window(inputs[None, :, 1:], state.clock + 1)

    def forward(self, x: Tensor, state: State | None = None, *, starts: Tensor | None = None) -> tuple[Tensor, State]:
        """x (time, batch, input_size), or (batch, time, input_size) where the layer is batch_first."""
        if x.dim() != 3:
            raise MnemoscopeError(f"Truncated expects batched input with 3 dimensions; got {list(x.shape)}")
        x = x.transpose(0, 1) if self.batch_first else x
        starts = starts.transpose(0, 1) if self.batch_first and starts is not None else starts
        state = self.initial_state(x.shape[1]) if state is None else state
        seen = state.clock.clamp(max=self.k - 1).unique()
        if starts is not None or not x.shape[1]:
            output, after = super().forward(x, state, starts=starts)
        elif len(seen) == 1:
            output, after = self._forward(x, state, int(seen))
        else:  # windows of different lengths: step by step until all of them are full
            output, after = super().forward(x[: self.k - 1], state)
            if len(x) >= self.k:
                rest, after = self._forward(x[self.k - 1 :], after, self.k - 1)
                output = torch.cat([output, rest])
        return (output.transpose(0, 1) if self.batch_first else output), after

    def _forward(self, x: Tensor, state: Window, seen: int) -> tuple[Tensor, Window]:
        """All sequences have `seen` < k inputs in their windows: the first windows grow, the others slide."""
        past = state.inputs[0].transpose(0, 1)[self.k - 1 - seen :]
        whole = torch.cat([past, x])  # (seen + time, batch, input_size)
        outputs = [self._run(whole[: self.k])[seen:]]
        if len(whole) > self.k:
            windows = whole[1:].unfold(0, self.k, 1)  # (windows, batch, input_size, k)
            pieces = windows.split(max(1, self.rows // x.shape[1]))
            outputs += [self._slide(piece) for piece in pieces]
        newest = torch.cat([state.inputs[0].transpose(0, 1), x])[len(x) :]  # (k - 1, batch, input_size)
        return torch.cat(outputs), Window(newest.transpose(0, 1)[None], state.clock + len(x))

    def _slide(self, windows: Tensor) -> Tensor:
        """The last outputs (windows, batch, output_size) of windows (windows, batch, input_size, k)."""
        count, batch, size, k = windows.shape
        together = windows.permute(3, 0, 1, 2).reshape(k, count * batch, size)
        return self._run(together)[-1].view(count, batch, -1)

    def _run(self, x: Tensor) -> Tensor:
        if not self.batch_first:
            return self.layer(x)[0]
        return self.layer(x.transpose(0, 1))[0].transpose(0, 1)

    def extra_repr(self) -> str:
        return f"k={self.k}"
