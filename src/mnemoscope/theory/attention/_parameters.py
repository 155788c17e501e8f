"""Gradients of the parameters from those of the states (Kerg et al. 2020, Lemmas 7-8)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.attention._hops import state_gradients
from mnemoscope.theory.attention._jacobians import AttentionBlocks
from mnemoscope.theory.attention._net import (
    SelfAttentiveNet,
    example_nets,
    random_net,
    relative_error_row,
    standard_normal,
)


def score_gradient(blocks: AttentionBlocks, macro_total: Tensor) -> Tensor:
    """dL/de_{i,t} = alpha_{i,t} dL/ds_t d2f (h_i - c_t) for each slot, from the total dL/ds_t (T, n): (T, m)."""
    n = blocks.hidden.shape[1]
    pulled = torch.einsum("ti,tij->tj", macro_total, blocks.f2[:, :n])
    return blocks.weight * torch.einsum("tj,tmj->tm", pulled, blocks.deviation)


def alignment_gradient(blocks: AttentionBlocks, macro_total: Tensor, score_by_parameter: Tensor) -> Tensor:
    """dL/dtheta for a parameter of the scores e_{i,t} = a(s_{t-1}, h_i, theta) (Lemma 7, eq. 98).

    Args:
        blocks: a run of T steps.
        macro_total: the total derivatives dL/ds_t, (T, n), from `state_gradients`.
        score_by_parameter: de_{i,t}/dtheta, (T, m, *theta's shape).
    """
    return torch.einsum("tm,tm...->...", score_gradient(blocks, macro_total), score_by_parameter)


def recurrence_gradient(
    macro_before: Tensor, x: Tensor, hidden_total: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dL/dV, dL/dU, dL/db in the shapes of V, U and b (Lemma 8, eq. 106).

    Args:
        macro_before: s_{t-1}, (T, n).
        x: x_t, (T, inputs).
        hidden_total: the total derivatives dL/dh_t, (T, n), from `state_gradients`.
        slope: phi'(V s_{t-1} + U x_t + b), (T, n); eq. 106 prints phi'(a_t), by eq. 105 that of the next step.
    """
    pulled = hidden_total * slope  # (T, n): dL/da
    return pulled.T @ macro_before, pulled.T @ x, pulled.sum(0)


def _gradients(net: SelfAttentiveNet, x: Tensor, readout: Tensor) -> dict[str, Tensor]:
    """d(sum readout s)/d(each parameter) by automatic differentiation."""
    names = ("V", "U", "b", "W_a", "U_a", "v")
    weights = {name: getattr(net, name).clone().requires_grad_() for name in names}
    moved = SelfAttentiveNet(**weights, phi=net.phi, f=net.f, attended=net.attended)
    computed = torch.autograd.grad((readout * moved.run(x).macro).sum(), list(weights.values()))
    return dict(zip(names, computed, strict=True))


@statement(
    "kerg-lemma-7",
    paper=PAPERS["attention"],
    where="Lemma 7, eq. 98",
    status="holds",
    claim="the gradient of the alignment's parameters, each state's part weighted by its attention",
)
def lemma_7() -> Iterator[Row]:
    for case, net, x in example_nets():
        blocks = net.blocks(x)
        readout = standard_normal(12, 6, seed=9)
        _, ds = state_gradients(blocks, readout)
        hidden, macro, _ = net.run(x)
        before = torch.cat([torch.zeros_like(macro[:1]), macro[:-1]])
        activation = torch.tanh((before @ net.W_a.T)[:, None] + hidden @ net.U_a.T)  # (T, T, n)
        slope = net.v * (1 - activation**2)
        by = {
            "v": activation,
            "W_a": torch.einsum("tmi,tj->tmij", slope, before),
            "U_a": torch.einsum("tmi,mj->tmij", slope, hidden),
        }
        expected = _gradients(net, x, readout)
        for name, score_by_parameter in by.items():
            computed = alignment_gradient(blocks, ds, score_by_parameter)
            yield relative_error_row(f"{case}, {name}", computed, expected[name])


@statement(
    "kerg-lemma-8",
    paper=PAPERS["attention"],
    where="Lemma 8, eqs 105-106",
    status="corrected",
    claim="[dL/dV, dL/dU, dL/db] = sum_t [s_{t-1}, x_t, 1] dL/dh_t diag(phi'(V s_{t-1} + U x_t + b))",
    correction="By eq. 105 h_t = phi(a_{t-1}), so eq. 106 needs phi'(a_{t-1}), as its proof has it (eq. 110); it "
    "prints phi'(a_t), the slope of the next step.",
)
def lemma_8() -> Iterator[Row]:
    for case, net, x in example_nets():
        readout = standard_normal(12, 6, seed=9)
        dh, _ = state_gradients(net.blocks(x), readout)
        macro = net.run(x).macro
        before = torch.cat([torch.zeros_like(macro[:1]), macro[:-1]])
        computed = recurrence_gradient(before, x, dh, _slope(net, before, x))
        expected = _gradients(net, x, readout)
        for name, gradient in zip(("V", "U", "b"), computed, strict=True):
            yield relative_error_row(f"{case}, {name}", gradient, expected[name])


def _slope(net: SelfAttentiveNet, before: Tensor, x: Tensor) -> Tensor:
    a = (before @ net.V.T + x @ net.U.T + net.b).requires_grad_()
    return torch.autograd.grad(net.phi(a).sum(), a)[0]


@statement(
    "kerg-remark-6",
    paper=PAPERS["attention"],
    where="Remark 6",
    status="corrected",
    claim="a state that nobody attends reaches the loss only through the macro-state it is mixed into: dL/dh_i = "
    "dL/ds_i d1f",
    correction="The remark says that such a state does not contribute to learning at all; but E_0 keeps R~_0 = d1f "
    "(eq. 85), so it still contributes through s_i and the recurrence. What vanishes with alpha are its "
    "skip connections.",
)
def remark_6() -> Iterator[Row]:
    ignored = 4
    attended = torch.ones(12, 12).tril().bool()
    attended[:, ignored] = False
    for seed in (1, 2):
        net = random_net(6, 3, seed=seed, attended=attended)
        x = standard_normal(12, 3, seed=0)
        readout = torch.zeros(12, 6, dtype=torch.float64)
        readout[-1] = standard_normal(6, seed=9)
        dh, ds = state_gradients(net.blocks(x), readout)
        expected = readout[-1] @ net.differentiated(x, ignored)[1][-1]
        yield relative_error_row(f"h_4 unattended, net {seed}, dL/dh_4", dh[ignored], expected)
        case = f"h_4 unattended, net {seed}, |dL/dh_4| = |dL/ds_4|"
        yield Row(case, float(ds[ignored].norm()), float(expected.norm()), "==")
