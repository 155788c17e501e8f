"""Lemmas 7 and 8 and Remark 6 against the gradients that training a real MemRNN uses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.layers import MemRNN, RelRNN
from mnemoscope.recurrence import trace
from mnemoscope.theory.attention import (
    SelfAttentiveNet,
    alignment_gradient,
    attention_blocks,
    recurrence_gradient,
    score_gradient,
    state_gradients,
)

N, INPUTS, T = 4, 3, 9


def trained_run(cls=MemRNN, seed=0, **options):
    """A model, its blocks, the gradients that autograd gives its parameters, and what Lemmas 7-8 start from."""
    torch.manual_seed(seed)
    model = cls(INPUTS, N, output="s", dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    x, readout = torch.randn(T, INPUTS, dtype=torch.float64), torch.randn(T, N, dtype=torch.float64)
    (model(x)[0] * readout).sum().backward()
    blocks = attention_blocks(model, x)
    before = torch.stack([state.s[0, 0] for state in trace(model, x[:, None]).states[:-1]])
    dh, ds = state_gradients(blocks, readout)
    return model, x, blocks, before, dh, ds


def score_derivatives(model, blocks, before):
    """de_{i,t}/d(v, W_a, U_a) by autograd on each score alone, as eq. 95 has it."""
    names = ("weight_score_l0", "weight_query_l0", "weight_key_l0")
    parts = {
        name: torch.zeros(*blocks.origin.shape, *getattr(model, name).shape, dtype=torch.float64) for name in names
    }
    for t, row in enumerate(blocks.origin.tolist()):
        for slot, i in enumerate(row):
            if i >= 0:
                v, W_a, U_a = (getattr(model, name) for name in names)
                score = v @ torch.tanh(W_a @ before[t] + U_a @ blocks.hidden[i])
                for name, part in zip(names, torch.autograd.grad(score, (v, W_a, U_a)), strict=True):
                    parts[name][t, slot] = part
    return parts


@pytest.mark.parametrize(
    ("cls", "options"),
    [(MemRNN, {}), (MemRNN, {"mix": "mean"}), (RelRNN, {"buffer": 3, "relevant": 2})],
)
def test_lemma_7_is_the_gradient_that_training_uses(cls, options):
    model, _, blocks, before, _, ds = trained_run(cls, **options)
    for name, by_parameter in score_derivatives(model, blocks, before).items():
        found = alignment_gradient(blocks, ds, by_parameter)
        torch.testing.assert_close(found, getattr(model, name).grad, rtol=1e-10, atol=1e-11)


def test_eq_98_as_printed():
    """sum_{j,t} alpha_j dL/ds_t d2f h_j sum_i (1_{i=j} - alpha_i) de_i, for the parameter v."""
    model, _, blocks, before, _, ds = trained_run()
    by_v = score_derivatives(model, blocks, before)["weight_score_l0"]
    printed = torch.zeros(N, dtype=torch.float64)
    for t in range(T):
        alpha = blocks.attention[t]
        for j in range(t + 1):
            bracket = sum((float(i == j) - alpha[i]) * by_v[t, i] for i in range(t + 1))
            printed += alpha[j] * (ds[t] @ blocks.hidden[j]) * bracket
    torch.testing.assert_close(printed, alignment_gradient(blocks, ds, by_v), rtol=1e-10, atol=1e-12)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_scores_of_a_step_share_no_gradient_in_total(seed):
    """Adding the same number to all scores of a step changes nothing: dL/de sums to zero."""
    _, _, blocks, _, _, ds = trained_run(seed=seed)
    torch.testing.assert_close(
        score_gradient(blocks, ds).sum(1), torch.zeros(T, dtype=torch.float64), rtol=0, atol=1e-12
    )


def slopes(model, x, before):
    bias = model.bias_ih_l0 + model.bias_hh_l0
    a = before @ model.weight_hh_l0.T + x @ model.weight_ih_l0.T + bias
    return (1 - torch.tanh(a) ** 2).detach()


@pytest.mark.parametrize(("cls", "options"), [(MemRNN, {}), (RelRNN, {"buffer": 2, "relevant": 2, "mix": "mean"})])
def test_lemma_8_is_the_gradient_that_training_uses(cls, options):
    model, x, _, before, dh, _ = trained_run(cls, **options)
    found = recurrence_gradient(before, x, dh, slopes(model, x, before))
    for gradient, name in zip(found, ("weight_hh_l0", "weight_ih_l0", "bias_hh_l0"), strict=True):
        torch.testing.assert_close(gradient, getattr(model, name).grad, rtol=1e-10, atol=1e-11)


def test_lemma_8_with_the_printed_slope_is_wrong():
    """phi'(a_t) with a_t = V s_t + U x_{t+1} + b, as eqs 105-106 read."""
    model, x, _, before, dh, _ = trained_run()
    shifted = slopes(model, x, before).roll(-1, 0)
    _, _, db = recurrence_gradient(before, x, dh, shifted)
    assert (db - model.bias_hh_l0.grad).norm() > 0.1 * model.bias_hh_l0.grad.norm()


def test_a_state_that_nobody_attends_still_teaches():
    """Remark 6 denies it: with h_2 hidden from every step, dL/dh_2 is not zero but dL/ds_2 itself."""
    generator = torch.Generator().manual_seed(0)
    shapes = dict(V=(N, N), U=(N, INPUTS), b=(N,), W_a=(N, N), U_a=(N, N), v=(N,))
    weights = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    seen = torch.ones(T, T).tril().bool()
    seen[:, 2] = False
    net = SelfAttentiveNet(**weights, attended=seen)
    x = torch.randn(T, INPUTS, generator=generator, dtype=torch.float64)
    blocks = net.blocks(x)
    assert not blocks.attention[:, 2].any()
    last = torch.zeros(T, N, dtype=torch.float64)
    last[-1] = 1
    dh, ds = state_gradients(blocks, last)
    h_2 = net.run(x).hidden[2].requires_grad_()
    (truth,) = torch.autograd.grad(net.run(x, {2: h_2}).macro[-1].sum(), h_2)
    torch.testing.assert_close(dh[2], truth, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(dh[2], ds[2])
    assert truth.norm() > 1e-6
