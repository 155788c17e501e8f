"""The equations of one step, against torch's own cells and values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mnemoscope import equations

n, B = 4, 3


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_lstm_cell_is_torchs() -> None:
    cell, x, h, c = nn.LSTMCell(2, n, dtype=torch.float64), draw(B, 2), draw(B, n, seed=1), draw(B, n, seed=2)
    z = F.linear(x, cell.weight_ih, cell.bias_ih) + F.linear(h, cell.weight_hh, cell.bias_hh)
    torch.testing.assert_close(equations.lstm_cell(z, c), cell(x, (h, c)))


def test_gru_cell_is_torchs() -> None:
    cell, x, h = nn.GRUCell(2, n, dtype=torch.float64), draw(B, 2), draw(B, n, seed=1)
    u, v = F.linear(x, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh)
    torch.testing.assert_close(equations.gru_cell(u, v, h), cell(x, h))


def test_goru_cell_gates_between_state_and_candidate() -> None:
    h, rotated, u = torch.tensor([[2.0]]), torch.tensor([[4.0]]), torch.tensor([[-1.0]])
    even = torch.zeros(1, 2)  # r = g = 1/2: the candidate is 4/2 - 1 = 1
    torch.testing.assert_close(equations.goru_cell(even, rotated, u, h, None), torch.tensor([[1.5]]))
    b = torch.tensor([-0.5])  # modReLU moves the candidate to 1/2
    torch.testing.assert_close(equations.goru_cell(even, rotated, u, h, b), torch.tensor([[1.25]]))
    keep = torch.tensor([[0.0, 40.0]])  # g = 1
    torch.testing.assert_close(equations.goru_cell(keep, rotated, u, h, None), h)


def test_modrelu_keeps_the_sign_and_moves_the_modulus() -> None:
    z, b = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0]), torch.tensor(-1.0)
    assert equations.modrelu(z, b).tolist() == [-2.0, 0.0, 0.0, 0.0, 1.0]
    assert equations.modrelu(z, -b).tolist() == [-4.0, -2.0, 0.0, 1.5, 3.0]


def test_additive_attention_of_one_unit() -> None:
    query, keys = torch.tensor([[0.5]]), torch.tensor([[[0.0], [0.25], [9.0]]])
    values, v = torch.tensor([[[1.0], [3.0], [100.0]]]), torch.tensor([2.0])
    context, weights = equations.additive_attention(query, keys, values, v, torch.tensor([[True, True, False]]))
    e = [2 * math.tanh(0.5), 2 * math.tanh(0.75)]
    expected = torch.tensor([[math.exp(e[0]), math.exp(e[1]), 0.0]]) / (math.exp(e[0]) + math.exp(e[1]))
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(context, (expected @ torch.tensor([1.0, 3.0, 0.0]))[:, None])


def test_masked_softmax_ignores_empty_slots() -> None:
    scores, filled = draw(B, 5), torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    weights = equations.masked_softmax(scores.requires_grad_(), filled)
    torch.testing.assert_close(weights[0, filled[0]], scores[0, filled[0]].softmax(0))
    assert (weights[~filled] == 0).all()  # an empty row has no weight, and no NaN
    torch.testing.assert_close(weights[2], scores[2].softmax(0))
    (gradient,) = torch.autograd.grad((weights * draw(B, 5, seed=1)).sum(), scores)
    assert (gradient[~filled] == 0).all()


def test_attention_without_slots_is_zero() -> None:
    empty = torch.zeros(B, 0, n)
    context, weights = equations.additive_attention(
        torch.zeros(B, n), empty, empty, torch.ones(n), torch.zeros(B, 0, dtype=torch.bool)
    )
    assert weights.shape == (B, 0)
    assert torch.equal(context, torch.zeros(B, n))


def test_sparse_weights_keep_scores_above_the_k_top_th() -> None:
    scores = torch.tensor([[5.0, 1.0, 3.0, 4.0], [5.0, 1.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    filled = torch.tensor([[True] * 4, [True, True, True, False], [True] * 4])
    weights = equations.sparse_attention_weights(scores, filled, 3)
    margin = 1e-7  # the authors' value
    kept = torch.tensor([2.0, 0.0, 0.0, 1.0], dtype=torch.float64)  # above the third largest, 3
    kept = torch.where(kept > 0, kept - margin, 0)
    torch.testing.assert_close(weights[0], kept / (kept.sum() + margin), rtol=0, atol=1e-15)
    torch.testing.assert_close(weights[1, :3], scores[1, :3].softmax(0))  # no more than 3 are filled: dense
    assert weights[1, 3] == 0
    assert (weights[2] == 0).all()  # none exceeds the third largest


@pytest.mark.parametrize("top", [4, 9])
def test_sparse_weights_are_a_softmax_where_all_slots_fit(top: int) -> None:
    scores, filled = draw(B, 4), torch.ones(B, 4, dtype=torch.bool)
    torch.testing.assert_close(equations.sparse_attention_weights(scores, filled, top), scores.softmax(1))


def test_attention_is_differentiable_twice() -> None:
    inputs = [draw(*shape, seed=k).requires_grad_() for k, shape in enumerate([(B, n), (B, 5, n), (B, 5, n), (n,)])]
    filled = draw(B, 5, seed=9) > -0.5
    assert torch.autograd.gradgradcheck(lambda *t: equations.additive_attention(*t, filled), inputs)
