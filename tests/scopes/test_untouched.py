import random

import numpy as np
import pytest
import torch
from torch import nn

from mnemoscope import LSTM, MnemoscopeError, RelRNN, examine
from mnemoscope.scopes import SCOPES, untouched

NAMES = ["recurrence", "horizon", "stability", "truncation", "signal", "attention"]


class Restless(nn.Module):
    """Dropout, normalization with running statistics, a counter, and random numbers of every kind."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(4, 2)
        self.rnn = nn.GRU(3, 4, 2, batch_first=True, dropout=0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        noise = 1e-3 * (random.random() + np.random.rand() + torch.rand(()))  # noqa: NPY002
        return self.head(self.rnn(self.norm(x.transpose(1, 2)).transpose(1, 2))[0]) + noise


def stacked():
    model = LSTM(3, 4, 2, dropout=0.5)
    model.weight_hh_l1.requires_grad_(False)
    return model


def frozen_torch():
    model = nn.LSTM(3, 4, 2, dropout=0.5).eval()
    model.bias_ih_l0.requires_grad_(False)
    return model


def screened():
    return RelRNN(3, 4, buffer=2, relevant=2)


class WeightDropped(nn.Module):
    """Dropout of recurrent weights, assigned to the layer's own name: in eval mode that is the weight itself."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)
        self.raw = self.rnn._parameters.pop("weight_hh_l0")
        self.rnn.weight_hh_l0 = self.raw.detach()

    def forward(self, x):
        self.rnn.weight_hh_l0 = torch.nn.functional.dropout(self.raw, 0.5, self.training)
        return self.rnn(x)[0]


def snapshot(model):
    """All that a scope must leave as it was."""
    numbers = {name: value.clone() for name, value in model.state_dict().items()}
    grads = {name: (id(p.grad), None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()}
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    registered = [list(m._parameters) for m in model.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]
    own = [sorted(vars(m)) for m in model.modules()]
    modes = [m.training for m in model.modules()]
    state = np.random.get_state()  # noqa: NPY002
    dice = (torch.get_rng_state(), random.getstate(), state[1].copy(), state[2])
    switches = (torch.is_grad_enabled(), torch.backends.cudnn.enabled, torch.get_num_threads())
    return numbers, grads, flags, registered, hooks, own, modes, dice, switches


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def trained(make):
    model = make()
    x = torch.randn(4, 6, 3)
    out = model(x)
    (out[0] if isinstance(out, tuple) else out).square().mean().backward()
    return model


MODELS = [Restless, stacked, frozen_torch, screened, WeightDropped]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", MODELS)
def test_scopes_leave_the_model_unchanged(make, name):
    model = trained(make)
    before = snapshot(model)
    SCOPES[name].measure(model, torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0)))
    after = snapshot(model)
    assert all(map(same, before, after)), [same(a, b) for a, b in zip(before, after, strict=True)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", MODELS)
def test_model_is_unchanged_after_an_interrupt(make, name):
    model = trained(make)
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    if SCOPES[name].measure(model, x).status == "not applicable":
        pytest.skip("it does not begin")
    before = snapshot(model)

    def press(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SCOPES[name].measure(model, x, progress=press)
    assert all(map(same, before, snapshot(model)))


@pytest.mark.parametrize("call", [1, 3, 4, 5, 9])  # the second asks if the hook changes the layer
def test_model_is_unchanged_after_an_error(call):
    model = trained(Restless)
    count = iter(range(1, 99))

    def fail(*_):
        if next(count) == call:
            raise RuntimeError("of the model's own")

    x = torch.randn(4, 6, 3)
    model.rnn.register_forward_pre_hook(fail)
    before = snapshot(model)

    def all_of_them():
        for name in NAMES:
            SCOPES[name].measure(model, x)

    with pytest.raises(MnemoscopeError, match="of the model's own"):
        all_of_them()
    assert all(map(same, before, snapshot(model)))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_scopes_under_no_grad_and_inference_mode(context):
    model, x = LSTM(3, 4), torch.randn(6, 2, 3)
    with context():
        found = SCOPES["horizon"].measure(model, x)
        assert torch.is_grad_enabled() == (context is torch.enable_grad)
    again = SCOPES["horizon"].measure(model, x)
    assert found.series["input_gradient"].tolist() == again.series["input_gradient"].tolist()


def test_sequences_and_targets_made_in_inference_mode():
    with torch.inference_mode():
        x, y = torch.randn(20, 2, 3), torch.randn(20, 2, 4)
    found = examine(LSTM(3, 4), x, y, torch.nn.functional.mse_loss, scopes=["horizon", "truncation", "landscape"])
    assert [finding.status for finding in found] == ["estimated"] * 3
    assert not any("nference" in text for finding in found for text in finding.warnings)


def test_untouched_sets_eval_mode_and_no_requires_grad():
    model = trained(stacked)
    with untouched(model):
        assert not any(module.training for module in model.modules())
        assert all(p.grad is None and not p.requires_grad for p in model.parameters())
        model(torch.randn(4, 6, 3, requires_grad=True))[0].sum().backward()
    assert model.weight_ih_l0.grad is not None
    assert model.weight_hh_l1.grad is None
