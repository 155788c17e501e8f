"""The known recurrences equal torch's own, number by number and weight by weight."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import mnemoscope

PAIRS = [
    pytest.param(mnemoscope.LSTM, nn.LSTM, {}, id="LSTM"),
    pytest.param(mnemoscope.GRU, nn.GRU, {}, id="GRU"),
    pytest.param(mnemoscope.RNN, nn.RNN, {}, id="RNN-tanh"),
    pytest.param(mnemoscope.RNN, nn.RNN, dict(nonlinearity="relu"), id="RNN-relu"),
]


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS)
@pytest.mark.parametrize(("layers", "bias", "both"), itertools.product((1, 2), (True, False), (False, True)))
def test_state_dict_and_numbers_are_torchs(ours, theirs, options, layers, bias, both) -> None:
    torch.manual_seed(0)
    arguments = dict(num_layers=layers, bias=bias, bidirectional=both, dtype=torch.float64, **options)
    our_layer, other = ours(5, 6, **arguments), theirs(5, 6, **arguments)
    x = torch.randn(9, 4, 5, dtype=torch.float64, requires_grad=True)
    for source, sink in ((our_layer, other), (other, our_layer)):
        source.reset_parameters()
        sink.load_state_dict(source.state_dict())
        assert list(source.state_dict()) == list(sink.state_dict())
        torch.testing.assert_close(our_layer(x), other(x), rtol=1e-12, atol=1e-12)
        our_grads = torch.autograd.grad(our_layer(x)[0].square().sum(), [x, *our_layer.parameters()])
        other_grads = torch.autograd.grad(other(x)[0].square().sum(), [x, *other.parameters()])
        torch.testing.assert_close(our_grads, other_grads, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS)
def test_float32_agrees_with_torch(ours, theirs, options) -> None:
    torch.manual_seed(0)
    our_layer, other = ours(10, 32, **options), theirs(10, 32, **options)
    our_layer.load_state_dict(other.state_dict())
    x = torch.randn(20, 8, 10)
    torch.testing.assert_close(our_layer(x), other(x), rtol=1e-6, atol=1e-6)


def test_a_linear_system_is_a_sum_of_powers() -> None:
    torch.manual_seed(0)
    system = mnemoscope.LinearSystem(3, 4, bias=False, dtype=torch.float64)
    x = torch.randn(6, 1, 3, dtype=torch.float64)
    V, U = system.weight_hh_l0, system.weight_ih_l0
    expected = sum(torch.linalg.matrix_power(V, 5 - t) @ U @ x[t, 0] for t in range(6))
    torch.testing.assert_close(system(x)[0][-1, 0], expected)


def test_both_forms_of_question_5_are_one_recurrence() -> None:
    """Nabli 2019, eqs 20-21: with h_t the pre-activation form, g_t = phi(h_t) follows the usual one."""
    torch.manual_seed(0)
    usual = mnemoscope.RNN(3, 4, dtype=torch.float64)
    before = mnemoscope.RNN(3, 4, preactivation=True, dtype=torch.float64)
    before.load_state_dict(usual.state_dict())
    x, h = torch.randn(7, 2, 3, dtype=torch.float64), torch.randn(1, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.tanh(before(x, h)[0]), usual(x, torch.tanh(h))[0])


def test_any_function_or_module_can_be_the_nonlinearity() -> None:
    x = torch.randn(4, 2, 3)
    by_name = mnemoscope.RNN(3, 4)
    by_function = mnemoscope.RNN(3, 4, nonlinearity=torch.tanh)
    by_module = mnemoscope.RNN(3, 4, nonlinearity=nn.PReLU())
    by_function.load_state_dict(by_name.state_dict())
    torch.testing.assert_close(by_function(x)[0], by_name(x)[0])
    assert "nonlinearity.weight" in dict(by_module.named_parameters())
    by_module(x)[0].sum().backward()
    assert by_module.nonlinearity.weight.grad is not None
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"Unknown nonlinearity 'tan'. Select from tanh, relu"):
        mnemoscope.RNN(3, 4, nonlinearity="tan")


def test_modrelu_keeps_the_sign_and_shifts_the_modulus() -> None:
    z = torch.tensor([-2.0, -0.3, 0.0, 0.3, 2.0])
    torch.testing.assert_close(mnemoscope.layers.modrelu(z, torch.tensor(-0.5)), torch.tensor([-1.5, 0, 0, 0, 1.5]))
    torch.testing.assert_close(mnemoscope.layers.modrelu(z, torch.tensor(0.5)), torch.tensor([-2.5, -0.8, 0, 0.8, 2.5]))
