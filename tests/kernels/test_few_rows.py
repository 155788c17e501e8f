"""Products of few rows: another way through the weights for one row than for several, and the same numbers."""

from __future__ import annotations

import pytest
import torch

import mnemoscope as ms
from mnemoscope.kernels._cpu.library import available

pytestmark = pytest.mark.skipif(not available(torch.float32), reason="no compiled CPU kernels here")


def run(layer: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return what the rows of a batch have for themselves: outputs, and the gradients of the inputs."""
    x = x.clone().requires_grad_()
    y = layer(x)[0]
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    return [y.detach(), dx]


@pytest.mark.parametrize("name", ["RNN", "LSTM", "RelRNN", "RelLSTM", "MemRNN"])
@pytest.mark.parametrize("n", [1, 7, 16, 31, 33, 49, 64, 66, 97, 130])  # one panel of columns or several, of all widths
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_row_alone_is_the_row_in_a_batch(name: str, n: int, dtype: torch.dtype) -> None:
    """To the bit, on both sides of every number of rows at which the product goes another way."""
    torch.manual_seed(0)
    layer = getattr(ms, name)(3, n, dtype=dtype)
    x = torch.randn(4, 9, 3, dtype=dtype)
    alone = [run(layer, x[:, b : b + 1]) for b in range(9)]
    for rows in (2, 3, 4, 5, 8, 9):
        for found, *each in zip(run(layer, x[:, :rows]), *alone[:rows], strict=True):
            assert torch.equal(found, torch.cat(each, 1)), rows
