"""cuDNN's recurrent networks without a GPU: torch's own operators, with a backend on the CPU that computes nothing.

Our layers and torch's then do all that they do around cuDNN: Python, torch's dispatcher, its autograd, packing of
weights. What torch's layers do inside `torch.lstm` before they come to cuDNN is left out, which favors them: they ask
cuDNN where each of their weights lies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from mnemoscope import kernels
from mnemoscope.kernels import _cudnn

PEERS: dict[str, Callable[..., nn.Module]] = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
_library = torch.library.Library("aten", "IMPL")  # what it registers lasts as long as it does


def pretend_cudnn() -> None:
    """Send RNN, LSTM and GRU of any width, ours and torch's, to cuDNN; after `pretend_cuda`."""
    _library.impl("_cudnn_rnn", _forward, "CPU")
    _library.impl("_cudnn_rnn_backward", _backward, "CPU")
    _library.impl("_cudnn_rnn_flatten_weight", _pack, "CPU")
    replaced: dict[tuple[Any, str], Any] = {
        (kernels, "ours_up_to"): lambda device: 0,
        (kernels, "cudnn_is_faster"): lambda *_: True,
        (torch.backends.cudnn, "is_available"): lambda: True,
    }
    for name, mode in (("rnn_tanh", 1), ("lstm", 2), ("gru", 3)):
        replaced[nn.modules.rnn._VF, name] = _torch_function(mode)
    for (owner, name), value in replaced.items():
        mock.patch.object(owner, name, value).start()


def _torch_function(mode: int) -> Callable[..., Any]:
    """Return torch.lstm or its like: one layer in one direction, whose weights lie in one buffer already."""
    buffer = torch.zeros(1)

    def run(x: Tensor, hx: Any, weights: list[Tensor], *options: Any) -> Any:
        train = options[3]  # behind has_biases, num_layers and dropout
        h0, c0 = hx if mode == _cudnn._MODES["lstm"] else (hx, None)
        rest = (mode, h0.shape[2], 0, 1, False, 0.0, train, False, [], None)
        h, h_T, c_T, _, _ = torch.ops.aten._cudnn_rnn.default(x, weights, len(weights), buffer, h0, c0, *rest)
        return (h, h_T) if c0 is None else (h, h_T, c_T)

    return run


def _forward(x: Tensor, weights: list[Tensor], stride: int, packed: Tensor, h0: Tensor, c0: Any, *options: Any) -> Any:
    h = x.new_empty(x.shape[0], x.shape[1], h0.shape[2])
    c_T = x.new_empty(0) if c0 is None else torch.empty_like(c0)
    return h, torch.empty_like(h0), c_T, x.new_empty(0), packed


def _backward(x: Tensor, weights: list[Tensor], stride: int, packed: Tensor, h0: Tensor, c0: Any, *rest: Any) -> Any:
    dc0 = x.new_empty(0) if c0 is None else torch.empty_like(c0)
    return torch.empty_like(x), torch.empty_like(h0), dc0, [torch.empty_like(weight) for weight in weights]


def _pack(weights: list[Tensor], *_: Any) -> Tensor:
    """Lay the weights one behind the other, as cuDNN was seen to do."""
    packed = torch.cat([weight.reshape(-1) for weight in weights])
    start = 0
    for weight in weights:
        weight.set_(packed[start : start + weight.numel()].view_as(weight))  # type: ignore[call-overload]
        start += weight.numel()
    return packed
