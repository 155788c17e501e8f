"""The fused GRU of the CPU against torch.nn.GRU: outputs and all gradients."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from mnemoscope import kernels, layers
from mnemoscope.kernels._cpu.library import available

pytestmark = pytest.mark.skipif(not available(torch.float32), reason="no compiled CPU kernels here")

TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-13}
SIZES = [(1, 1, 1, 1), (9, 3, 5, 4), (20, 37, 33, 40), (30, 19, 64, 7)]  # steps, batch, hidden units, inputs


def outcome(layer: nn.Module, x: Tensor, h0: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """Outputs, the final state, and the gradients of x, h0 and the parameters."""
    x, h0 = x.clone().requires_grad_(), h0.clone().requires_grad_()
    sequence = x if lengths is None else pack_padded_sequence(x, lengths, enforce_sorted=False)
    output, final = layer(sequence, h0)
    if lengths is not None:
        output, _ = pad_packed_sequence(output)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in (output, final)]
    loss = (output * weights[0]).sum() + (final * weights[1]).sum()
    return [output, final, *torch.autograd.grad(loss, [x, h0, *layer.parameters()])]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_gru_is_nn_gru(
    dtype: torch.dtype, sizes: tuple[int, int, int, int], packed: bool, bidirectional: bool, bias: bool
) -> None:
    torch.manual_seed(0)
    steps, batch, n, inputs = sizes
    options = dict(bidirectional=bidirectional, bias=bias, dtype=dtype)
    theirs = nn.GRU(inputs, n, **options)
    ours = layers.GRU(inputs, n, **options)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(steps, batch, inputs, dtype=dtype)
    h0 = torch.randn(1 + bidirectional, batch, n, dtype=dtype)
    lengths = torch.randint(1, steps + 1, (batch,)) if packed else None
    if lengths is not None:
        lengths[0] = steps

    with mock.patch.object(kernels, "gru", wraps=kernels.gru) as fused:
        found = outcome(ours, x, h0, lengths)
    assert fused.call_count == 1 + bidirectional
    expected = outcome(theirs, x, h0, lengths)

    for a, b in zip(found, expected, strict=True):
        scale = max(1.0, float(b.detach().abs().max()))
        assert torch.allclose(a, b, rtol=0, atol=TOLERANCE[dtype] * scale)
