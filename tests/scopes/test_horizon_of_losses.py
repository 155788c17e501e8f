"""The gradient of a given loss by inputs and states, and the mean of its sizes over positions."""

import numpy as np
import pytest
import torch
from torch import nn

from mnemoscope import LSTM, RNN, LinearSystem, MnemoscopeError
from mnemoscope.scopes import horizon


def test_loss_gradient_by_input():
    layer, x, y = LSTM(3, 4), torch.randn(7, 2, 3), torch.randn(7, 2, 4)
    found = horizon(layer, x, targets=y, loss=nn.functional.mse_loss)
    x = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(nn.functional.mse_loss(layer(x)[0], y), x)
    np.testing.assert_allclose(found.series["loss_gradient"], wanted.flatten(1).norm(dim=1), rtol=1e-5)


def test_loss_gradient_by_state():
    """For h_t = V h_{t-1} + U x_t and the loss sum_t 1/2 ||h_t||^2: g_t = h_t + V^T g_{t+1}."""
    layer, x = LinearSystem(3, 4).double(), torch.randn(7, 1, 3, dtype=torch.float64)
    found = horizon(layer, x, targets=torch.zeros(()), loss=lambda y, _: y.square().sum() / 2)
    h, wanted, g = layer(x)[0][:, 0].detach(), [], torch.zeros(4, dtype=torch.float64)
    for t in reversed(range(7)):
        g = h[t] + layer.weight_hh_l0.detach().T @ g
        wanted.append(float(g.norm()))
    np.testing.assert_allclose(found.series["loss_gradient_by_state"], wanted[::-1], rtol=1e-9)


def test_loss_gets_the_models_layout():
    layer, x, y = nn.LSTM(3, 4, batch_first=True), torch.randn(2, 7, 3), torch.randn(2, 7, 4)

    def loss(outputs, targets):
        assert outputs.shape == targets.shape
        return (outputs - targets).square().mean()

    assert len(horizon(layer, x, targets=y, loss=loss).series["loss_gradient"]) == 7


def test_mean_of_the_sizes_of_the_losses_gradients() -> None:
    """Miller & Hardt 2018, fig. 2: ||d loss_{t+i} / d x_t|| averaged over all t and sequences."""
    torch.manual_seed(0)
    layer, x, y = LSTM(3, 4, dtype=torch.float64), *torch.randn(2, 6, 2, 4, dtype=torch.float64)
    x = x[..., :3].contiguous()
    found = horizon(layer, x, targets=y, loss=nn.functional.mse_loss, loss_positions=6)
    leaf = x.clone().requires_grad_()
    each = (layer(leaf)[0] - y).square().sum(-1) / y.numel()  # (T, B), which add up to the loss
    norms = {lag: [] for lag in range(6)}
    for t in range(6):
        for b in range(2):
            (gradient,) = torch.autograd.grad(each[t, b], leaf, retain_graph=True)
            for lag in range(t + 1):
                norms[lag].append(gradient[t - lag, b].norm().item())
    wanted = [np.mean(norms[lag]) for lag in range(6)]
    np.testing.assert_allclose(found.series["mean_loss_gradient"], wanted, rtol=1e-9)
    assert found.spread["mean_loss_gradient"].shape == (2, 6)
    last = horizon(layer, x, targets=y, loss=nn.functional.mse_loss, loss_positions=1)
    only = [np.mean(norms[lag][-2:]) for lag in range(6)]
    np.testing.assert_allclose(last.series["mean_loss_gradient"], only, rtol=1e-9)


def test_mean_loss_gradient_by_states_of_a_linear_system() -> None:
    """d loss_t / d h_{t-k} = V^k dl/dh_t for outputs h and a loss of each: the fused pass and any other step agree."""
    torch.manual_seed(0)
    layer, x = LinearSystem(3, 4, bias=False, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    found = horizon(layer, x, targets=torch.zeros(()), loss=lambda y, _: y.square().sum() / 2, loss_positions=5)
    V, h = layer.weight_hh_l0.detach(), layer(x)[0].detach()
    for lag in range(5):
        power = torch.linalg.matrix_power(V.mT, lag)
        wanted = torch.stack([(power @ h[t].mT).norm(dim=0) for t in range(lag, 5)]).mean()
        assert found.series["mean_loss_gradient_by_state"][lag] == pytest.approx(wanted.item(), rel=1e-9)


def test_mean_loss_gradient_of_one_output_per_sequence() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0][:, -1]

    torch.manual_seed(0)
    model, x, y = Last(), torch.randn(2, 5, 3), torch.randn(2, 4)
    found = horizon(model, x, targets=y, loss=nn.functional.mse_loss, loss_positions=10)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.mse_loss(model(leaf), y), leaf)
    wanted = gradient.norm(dim=2).mean(0).flip(0)
    np.testing.assert_allclose(found.series["mean_loss_gradient"], wanted, rtol=1e-4)


def test_refuses_bad_loss_positions() -> None:
    layer, x = RNN(3, 4), torch.randn(5, 2, 3)
    with pytest.raises(MnemoscopeError, match="loss_positions needs targets= and loss="):
        horizon(layer, x, loss_positions=5)
    with pytest.raises(MnemoscopeError, match="loss_positions must be a whole number of at least 1; got 0"):
        horizon(layer, x, targets=layer(x)[0].detach(), loss=nn.functional.mse_loss, loss_positions=0)
