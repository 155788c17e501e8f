import copy

import numpy as np
import pytest
import torch
from torch import nn

from mnemoscope import LSTM, RAC, MemRNN, MnemoscopeError, RelRNN, examine

pytestmark = pytest.mark.cuda
SCOPES = ["recurrence", "horizon", "stability", "truncation", "signal", "attention"]
MODELS = [lambda: LSTM(3, 16), lambda: nn.GRU(3, 16, 2), lambda: RelRNN(3, 16), lambda: MemRNN(3, 16)]


@pytest.mark.parametrize("make", MODELS)
def test_cuda_figures_equal_cpu(make):
    torch.manual_seed(0)
    model, x = make(), torch.randn(30, 4, 3)
    here = examine(model, x, scopes=SCOPES)
    there = examine(copy.deepcopy(model).cuda(), x.cuda(), scopes=SCOPES)
    for one, other in zip(here, there, strict=True):
        assert one.status == other.status, other.why
        assert one.labels == other.labels
    assert there["horizon"].figures["rate"] == pytest.approx(here["horizon"].figures["rate"], rel=1e-2)
    assert there["stability"].figures["lambda"] == pytest.approx(here["stability"].figures["lambda"], rel=1e-3)
    profiles = (found["horizon"].series["state_gradient"] for found in (there, here))
    np.testing.assert_allclose(*profiles, rtol=1e-2)


@pytest.mark.parametrize("make", [*MODELS, lambda: RAC(3, 4)])
def test_all_scopes_on_cuda(make):
    torch.manual_seed(0)
    model, x, y = make(), torch.randn(20, 4, 3), torch.zeros(())
    loss = lambda output, target: (output - target).square().mean()  # noqa: E731
    here = examine(model, x, y, loss)
    there = examine(copy.deepcopy(model).cuda(), x.cuda(), y.cuda(), loss)
    assert [(found.scope, found.status) for found in there] == [(found.scope, found.status) for found in here]


def test_cuda_random_state_is_restored():
    model, x = nn.LSTM(3, 8, 2, dropout=0.5).cuda(), torch.randn(30, 4, 3, device="cuda")
    before = torch.cuda.get_rng_state()
    examine(model, x, scopes=["recurrence", "horizon"])
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert next(model.parameters()).is_cuda


def test_refuses_model_on_another_device():
    with pytest.raises(MnemoscopeError, match=r"is on cuda:0, the inputs are on cpu"):
        examine(nn.LSTM(3, 8).cuda(), torch.randn(30, 4, 3))
