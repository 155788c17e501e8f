"""The bidirectional network of Nabli 2019, question 6, with its gradients derived by hand (eqs 26-32)."""

from __future__ import annotations

import torch

import mnemoscope


def test_hand_derived_gradients_equal_autograds() -> None:
    """grad_{h_t} L = V^T grad_{o_t} L + U^T diag(h_{t+1} (1 - h_{t+1})) grad_{h_{t+1}} L, and its mirror image.

    The paper's eqs 31 and 32 leave out the first term, by which h_t itself reaches the output at t.
    """
    torch.manual_seed(0)
    T, n, k = 6, 4, 2
    layer = mnemoscope.RNN(3, n, nonlinearity="sigmoid", bidirectional=True, dtype=torch.float64)
    V = torch.randn(k, 2 * n, dtype=torch.float64)  # o_t = V [h_t^(f); h_t^(b)]
    x, target = torch.randn(T, 1, 3, dtype=torch.float64), torch.randn(T, k, dtype=torch.float64)
    h = layer(x)[0][:, 0].detach().requires_grad_()  # (T, 2 n)
    outputs = h @ V.mT
    by_output = torch.autograd.grad((outputs - target).square().sum() / 2, outputs)[0]  # grad_{o_t} L, (T, k)

    direct = by_output @ V  # (T, 2 n)
    forward, backward = torch.zeros(T, n, dtype=torch.float64), torch.zeros(T, n, dtype=torch.float64)
    h_f, h_b = h.detach()[:, :n], h.detach()[:, n:]
    for t in reversed(range(T)):  # eq. 31 with the direct term
        later = layer.weight_hh_l0.mT @ (h_f[t + 1] * (1 - h_f[t + 1]) * forward[t + 1]) if t + 1 < T else 0
        forward[t] = direct[t, :n] + later
    for t in range(T):  # eq. 32 with the direct term
        earlier = layer.weight_hh_l0_reverse.mT @ (h_b[t - 1] * (1 - h_b[t - 1]) * backward[t - 1]) if t else 0
        backward[t] = direct[t, n:] + earlier

    # The gradient of U, W and b follows from grad_{h_t} L; autograd knows those of the layer.
    grads = dict(
        zip(
            dict(layer.named_parameters()),
            torch.autograd.grad((layer(x)[0][:, 0] @ V.mT - target).square().sum() / 2, list(layer.parameters())),
            strict=True,
        )
    )
    for suffix, by_h, states in (("", forward, h_f), ("_reverse", backward.flip(0), h_b.flip(0))):
        inputs = x[:, 0] if not suffix else x[:, 0].flip(0)
        by_z = by_h * states * (1 - states)  # (T, n): eqs 29-30
        before = torch.cat([torch.zeros(1, n, dtype=torch.float64), states[:-1]])
        torch.testing.assert_close(grads[f"weight_hh_l0{suffix}"], by_z.mT @ before)
        torch.testing.assert_close(grads[f"weight_ih_l0{suffix}"], by_z.mT @ inputs)
        torch.testing.assert_close(grads[f"bias_ih_l0{suffix}"], by_z.sum(0))
