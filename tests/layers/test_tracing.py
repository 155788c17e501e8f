"""What torch's tracers, quantizers and autocast make of a layer, compared with what they make of nn.LSTM."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from table import BATCH, HIDDEN, INPUT, TIME
from torch import Tensor, nn

import mnemoscope
from mnemoscope.recurrence import leaves

LAYERS = [mnemoscope.layers.LAYERS[name] for name in mnemoscope.layers.LAYERS if name != "RAC"]
every_layer = pytest.mark.parametrize("kind", LAYERS)


def tensors(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


@every_layer
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit_trace_takes_other_lengths_and_batches(kind: type) -> None:
    layer = kind(INPUT, HIDDEN, num_layers=2, bidirectional=True)
    with warnings.catch_warnings():
        quiet = kind in (mnemoscope.RNN, mnemoscope.LSTM, mnemoscope.GRU, mnemoscope.GORU)
        warnings.simplefilter("error" if quiet else "ignore", torch.jit.TracerWarning)
        traced = torch.jit.trace(layer, (torch.randn(TIME, BATCH, INPUT),))
    saved = io.BytesIO()
    torch.jit.save(traced, saved)
    saved.seek(0)
    for model in (traced, torch.jit.load(saved)):
        x = torch.randn(TIME + 3, BATCH + 1, INPUT)
        output, state = model(x)
        expected, final = layer(x)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
        for found, right in zip(tensors(state), tensors(final), strict=True):
            assert type(found) is Tensor
            assert torch.allclose(found, right, rtol=1e-4, atol=1e-4)
    (found,) = torch.autograd.grad(traced(x)[0].sum(), layer.weight_hh_l0) if kind is not mnemoscope.ExpRNN else (None,)
    if found is not None:
        (right,) = torch.autograd.grad(layer(x)[0].sum(), layer.weight_hh_l0)
        torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)


class Tagger(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.layer = kind(INPUT, HIDDEN)
        self.head = nn.Linear(self.layer.output_size, 2)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.layer(x)
        return self.head(output)


@every_layer
def test_fx_takes_a_layer_for_a_leaf(kind: type) -> None:
    model, x = Tagger(kind), torch.randn(TIME, BATCH, INPUT)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["layer", "head"]
    torch.testing.assert_close(traced(x), model(x))


@every_layer
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_autocast_gives_the_dtypes_of_nn_lstm(kind: type, backend: str) -> None:
    layer, x = kind(INPUT, HIDDEN), torch.randn(TIME, BATCH, INPUT)
    with torch.autocast("cpu", torch.bfloat16), mnemoscope.kernels.backend(backend):
        expected, (h, c) = nn.LSTM(INPUT, HIDDEN)(x)
        output, state = layer(x)
        assert output.dtype == expected.dtype
        assert {t.dtype for t in tensors(state)} == {h.dtype, c.dtype}
        assert layer(x, state)[0].dtype == expected.dtype
        assert layer.double()(x.double())[0].dtype == torch.float64  # which autocast leaves alone
    if hasattr(state, "memory"):
        assert {t.dtype for t in leaves(state) if t.is_floating_point()} == {torch.bfloat16, torch.float32}


@every_layer
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantization_says_that_it_leaves_a_layer_alone(kind: type) -> None:
    model, x = Tagger(kind), torch.randn(TIME, BATCH, INPUT)
    with pytest.warns(
        UserWarning, match=f"{kind.__name__} has no quantized form: quantization leaves it as it is"
    ) as seen:
        quantized = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM, nn.GRU, nn.Linear})
    assert any(warning.filename == __file__ for warning in seen)
    assert type(quantized.head) is not nn.Linear
    assert torch.equal(quantized.layer(x)[0], model.layer(x)[0])
    assert not hasattr(model.layer, "qconfig")
