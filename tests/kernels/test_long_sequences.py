"""Long sequences: a linear system by chunks of time, and activations kept at a few steps only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import pack_padded_sequence

from mnemoscope import kernels, layers
from mnemoscope.kernels import _scan
from mnemoscope.kernels._cpu.library import available
from mnemoscope.recurrence import leaves

compiled = pytest.mark.skipif(not available(torch.float32), reason="no compiled CPU kernels here")


def gradients(layer: torch.nn.Module, given: Any) -> list[Tensor]:
    layer.zero_grad()
    output, final = layer(given)
    data = output if isinstance(output, Tensor) else output.data
    loss = data.square().sum() + sum(t.sum() for t in leaves(final) if t.requires_grad)
    loss.backward()
    return [data.detach(), *[p.grad.clone() for p in layer.parameters()]]


def assert_equal(found: list[Tensor], truth: list[Tensor], tolerance: float = 1e-11) -> None:
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@compiled
@pytest.mark.parametrize(("steps", "batch", "threads"), [(16, 1, 1), (33, 1, 2), (100, 3, 2), (1001, 1, 4), (64, 9, 1)])
def test_chunks_of_a_linear_system_are_the_system(steps: int, batch: int, threads: int) -> None:
    torch.manual_seed(0)
    layer = layers.LinearSystem(3, 7, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0 *= 0.95 / torch.linalg.matrix_norm(layer.weight_hh_l0, 2)
    x = torch.randn(steps, batch, 3, dtype=torch.float64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = gradients(layer, x)
    finally:
        torch.set_num_threads(before)
    with kernels.backend("eager"):
        assert_equal(found, gradients(layer, x))


@compiled
def test_few_rows_run_by_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    run = _scan._run

    def counted(xp: Tensor, *rest: Tensor) -> Tensor:
        batches.append(xp.shape[1])
        return run(xp, *rest)

    monkeypatch.setattr(_scan, "_run", counted)
    layers.LinearSystem(2, 3)(torch.randn(160, 1, 2))
    assert batches == [min(8 * torch.get_num_threads(), 10)] * 2


@compiled
@pytest.mark.parametrize("radius", [1e3, 3.0])  # V^50 overflows, or V^100 alone: where its chunks have 50 steps
def test_an_explosive_system_runs_step_by_step(radius: float) -> None:
    layer = layers.LinearSystem(1, 2)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.diag(torch.tensor([radius, 0.5])))
        for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
            getattr(layer, name).zero_()
    state = torch.tensor([[[0.0, 1.0]]])  # nothing on the axis that explodes
    assert layer(torch.zeros(400, 1, 1), state)[0].isfinite().all()


def test_a_long_linear_system_is_traced() -> None:
    """Whether V explodes cannot be asked of a tensor without numbers."""
    layer, x = layers.LinearSystem(1, 2), torch.randn(160, 1, 1)
    traced = make_fx(lambda x: layer(x)[0])(x)
    torch.testing.assert_close(traced(2 * x), layer(2 * x)[0])
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(x))[0].shape == (160, 1, 2)


SCREENED = dict(buffer=3, relevant=2)
CHECKPOINTED = {"RNN": {}, "LSTM": {}, "GRU": {}, "RelRNN": SCREENED, "RelLSTM": SCREENED}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpoints_change_no_number(name: str, packed: bool) -> None:
    torch.manual_seed(0)
    sizes = dict(num_layers=2, bidirectional=True, dtype=torch.float64)
    layer = getattr(layers, name)(3, 5, **CHECKPOINTED[name], **sizes)
    given: Any = torch.randn(23, 4, 3, dtype=torch.float64)
    if packed:
        given = pack_padded_sequence(given, torch.tensor([23, 11, 5, 1]))
    truth = gradients(layer, given)
    layer.checkpoint = True
    assert_equal(gradients(layer, given), truth)


@compiled
def test_checkpoints_keep_a_fraction_of_the_activations() -> None:
    def kept(checkpoint: bool) -> int:
        layer, seen = layers.RelLSTM(4, 16, checkpoint=checkpoint), {}

        def note(tensor: Tensor) -> Tensor:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            layer(torch.randn(400, 2, 4))
        return sum(seen.values())

    assert kept(True) < kept(False) / 4
