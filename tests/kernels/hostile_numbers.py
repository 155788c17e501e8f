"""Numbers that kernels index by, out of every range, put past the checks of the layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import mnemoscope
from mnemoscope.layers import _base
from mnemoscope.recurrence import leaves, rebuild

CLOCKS = [-1, -5, -(2**31) - 1, -(2**63), 2**31 + 3, 2**63 - 1]
LENGTHS = [-1, -(2**63), 10**6, 2**31 + 1, 2**63 - 1]
ORIGIN, CLOCK = -3, -1  # of a state's leaves
BATCH, TIME = 2, 7


def layers(n: int = 5) -> dict[str, mnemoscope.layers.Layer]:
    torch.manual_seed(0)
    return {
        "RelRNN": mnemoscope.RelRNN(3, n, buffer=3, relevant=2),
        "RelRNN without a buffer": mnemoscope.RelRNN(3, n, buffer=0, relevant=3),
        "RelLSTM": mnemoscope.RelLSTM(3, n, buffer=4, relevant=0),
        "MemRNN": mnemoscope.MemRNN(3, n),
        "MemLSTM": mnemoscope.MemLSTM(3, n),
        "SAB": mnemoscope.SAB(3, n, store_every=3, top=2, truncation=4),
        "SAB that stores every state": mnemoscope.SAB(3, n, store_every=1, top=3, truncation=2),
    }


def unchecked(monkeypatch: Any) -> None:
    """Let every state pass."""
    monkeypatch.setattr(_base, "check_state", lambda layer, state, x, batch: layer.coerce_state(state))


def with_counters(state: Any, origin: Tensor, clock: Tensor) -> Any:
    tensors = leaves(state)
    tensors[ORIGIN] = origin
    tensors[CLOCK] = clock
    return rebuild(state, tensors)


def check_clock(layer: mnemoscope.layers.Layer, clock: int) -> None:
    """A clock out of range is taken modulo whatever it is counted by, forwards and backwards."""
    x = torch.randn(TIME, BATCH, 3)
    state = mnemoscope.detach(layer(x)[1])
    origin = leaves(state)[ORIGIN]
    strange = torch.where(origin < 0, origin, clock)  # any sign: negative origins are empty slots
    in_range = torch.where(strange < 0, -1, 0)
    found = []
    for number, made in ((clock, strange), (clock % 3600, in_range)):
        output, _ = layer(x, with_counters(state, made, torch.full((1, BATCH), number)))
        output.square().sum().backward()
        found.append(output.detach())
    torch.testing.assert_close(*found)


def check_lengths(layer: mnemoscope.layers.Layer, length: int) -> None:
    """A length out of range is that of no step or of all of them."""
    x = torch.randn(TIME, BATCH, 3)
    found = []
    for wanted in (length, min(max(length, 0), TIME)):
        output, _ = layer.run_sequence(x, None, torch.tensor([3, wanted]))
        output.square().sum().backward()
        found.append(output.detach())
    torch.testing.assert_close(*found)


def check_saved_slots(layer: mnemoscope.layers.Layer, seed: int, dtype: torch.dtype = torch.float32) -> None:
    """What the backward pass reads may have been changed by hooks: gradients are then wrong, and nothing else is."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(TIME, BATCH, 3, dtype=dtype)
    state = mnemoscope.detach(layer(x)[1])

    def unpack(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.int32:
            wide = torch.randint(-(2**31), 2**31 - 1, tensor.shape, generator=generator)
            near = torch.randint(-2, 3 * TIME, tensor.shape, generator=generator)
            return torch.where(torch.rand(tensor.shape, generator=generator) < 0.5, wide, near).int()
        if tensor.dtype == torch.int64:  # origins and clocks
            return torch.randint(-(2**63), 2**63 - 1, tensor.shape, generator=generator)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        output, _ = layer(x, state)
        output.square().sum().backward()
