"""Layers exported to ONNX by both of torch's exporters, run by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mnemoscope
from mnemoscope.recurrence import leaves, rebuild

pytest.importorskip("onnx", reason="onnx is not installed (extra `clients`)")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (extra `clients`)")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra `clients`)")

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

TIME, BATCH, INPUT, HIDDEN = 6, 3, 5, 4
OPTIONS: dict[type, dict[str, Any]] = {  # a memory that is full before the sequence ends
    mnemoscope.RelRNN: dict(buffer=2, relevant=2),
    mnemoscope.RelLSTM: dict(buffer=2, relevant=2),
    mnemoscope.SAB: dict(top=2),
}
every_layer = pytest.mark.parametrize("kind", mnemoscope.layers.LAYERS.values())
SHAPES = [(TIME, BATCH), (TIME + 5, BATCH + 2), (2, 1), (19, 2)]


class Model(nn.Module):
    """Outputs and the last h, as a model reads them."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.output_size, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output, state = self.layer(x)
        h = state[0] if isinstance(state, tuple) else state
        return self.head(output), h[-1]


def run(path: Path, *inputs: Tensor) -> list[np.ndarray]:
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options)
    return session.run(None, {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)})


def assert_same(found: list[np.ndarray], wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        expected = other.detach().numpy()
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@every_layer
def test_new_exporter(kind: type, tmp_path: Path) -> None:
    """The new exporter (torch.export): every layer, for sequences of any length and batches of any size."""
    model = Model(kind(INPUT, HIDDEN, **OPTIONS.get(kind, {}))).eval()
    x = torch.randn(TIME, BATCH, INPUT)
    sizes = {0: torch.export.Dim("time", min=2), 1: torch.export.Dim("batch", min=1)}
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=True, dynamic_shapes=(sizes,), verbose=False)
    check_other_shapes(tmp_path / "model.onnx", model)


@every_layer
@pytest.mark.parametrize("layers", [1, 2])
def test_old_exporter(kind: type, layers: int, tmp_path: Path) -> None:
    """The old exporter (tracing): every layer, for sequences of any length and batches of any size."""
    model = Model(kind(INPUT, HIDDEN, layers, **OPTIONS.get(kind, {}))).eval()
    x = torch.randn(TIME, BATCH, INPUT)
    sizes = {0: "time", 1: "batch"}
    torch.onnx.export(
        model, (x,), tmp_path / "model.onnx", dynamo=False, input_names=["x"], dynamic_axes={"x": sizes}, verbose=False
    )
    check_other_shapes(tmp_path / "model.onnx", model)


def check_other_shapes(path: Path, model: Model) -> None:
    """Compare an exported model with the model, on shapes that the exporter has not seen."""
    for time, batch in SHAPES:
        given = 0.5 * torch.randn(time, batch, INPUT)
        assert_same(run(path, given), model(given))


@pytest.mark.parametrize("kind", [mnemoscope.LSTM, mnemoscope.GRU, mnemoscope.RelLSTM])
def test_two_directions_and_batch_first(kind: type, tmp_path: Path) -> None:
    """Two directions and `batch_first`, exported with any length and batch."""
    layer = kind(INPUT, HIDDEN, batch_first=True, bidirectional=True).eval()
    x = torch.randn(BATCH, TIME, INPUT)
    sizes = ({0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("time", min=2)},)

    class Outputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0]

    torch.onnx.export(Outputs(), (x,), tmp_path / "m.onnx", dynamo=True, dynamic_shapes=sizes, verbose=False)
    other = torch.randn(BATCH + 1, TIME + 4, INPUT)
    assert_same(run(tmp_path / "m.onnx", other), [layer(other)[0]])


class Streaming(nn.Module):
    """A layer whose state goes in and out as ordinary tensors."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        state = rebuild(self.layer.initial_state(x.shape[1]), tensors)
        output, state = self.layer(x, state)
        return output, *leaves(state)


@pytest.mark.parametrize("kind", [mnemoscope.RelRNN, mnemoscope.RelLSTM])
def test_memory_goes_in_and_out(kind: type, tmp_path: Path) -> None:
    """A sequence in pieces: the state with its memory is an input and an output of the exported model."""
    layer = kind(INPUT, HIDDEN, buffer=2, relevant=2).eval()
    model = Streaming(layer)
    x = torch.randn(TIME, BATCH, INPUT)
    state = layer(x)[1]
    torch.onnx.export(model, (x, *leaves(state)), tmp_path / "m.onnx", dynamo=True, verbose=False)
    first = run(tmp_path / "m.onnx", x, *leaves(layer.initial_state(BATCH)))
    second = run(tmp_path / "m.onnx", x, *map(torch.from_numpy, first[1:]))
    assert_same(second[:1], [layer(x, state)[0]])
