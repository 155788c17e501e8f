"""Orthogonal recurrences stay orthogonal, and start as their authors start them."""

from __future__ import annotations

import math

import pytest
import torch

import mnemoscope
from mnemoscope.layers import _init
from mnemoscope.layers._orthogonal import rotation


def departure(q: torch.Tensor) -> float:
    return (q.mT @ q - torch.eye(len(q), dtype=q.dtype)).abs().max().item()


@pytest.mark.parametrize("fill", [_init.henaff_, _init.cayley_, _init.orthogonal_])
@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_initializations_are_orthogonal(fill, n: int) -> None:
    torch.manual_seed(n)
    assert departure(fill(torch.empty(n, n, dtype=torch.float64))) < 1e-12


def test_henaff_angles_fill_the_circle_and_cayley_angles_a_quarter() -> None:
    torch.manual_seed(0)
    for fill, low, high in ((_init.henaff_, -math.pi, math.pi), (_init.cayley_, 0, math.pi / 2)):
        matrices = [fill(torch.empty(200, 200, dtype=torch.float64)) for _ in range(10)]  # ten small ones cost less
        even = torch.arange(0, 200, 2)
        angles = torch.cat([torch.atan2(q[even, even + 1], q[even, even]) for q in matrices])
        assert low <= angles.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < angles.max() <= high
        assert abs(angles.mean() - (low + high) / 2) < 0.05 * (high - low)


def test_the_cayley_map_of_its_published_blocks_gives_the_same_matrix() -> None:
    """(I + A)^-1 (I - A) with blocks s = -sqrt((1 - cos theta) / (1 + cos theta)) rotates by theta."""
    theta = torch.tensor([0.3], dtype=torch.float64)
    s = -torch.sqrt((1 - torch.cos(theta)) / (1 + torch.cos(theta)))
    skew = _init.skew_blocks(2, s)
    eye = torch.eye(2, dtype=torch.float64)
    expected = torch.linalg.solve(eye + skew, eye - skew)
    torch.testing.assert_close(torch.linalg.matrix_exp(_init.skew_blocks(2, -2 * torch.atan(s))), expected)
    torch.testing.assert_close(-2 * torch.atan(s), theta)


def train(layer: torch.nn.Module, updates: int = 100) -> None:
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(mnemoscope.parameter_groups(layer, lr=1e-2))
    for _ in range(updates):
        optimizer.zero_grad()
        (layer(torch.randn(5, 8, 3))[0] - 1).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("trivialization", ["static", "dynamic"])
@pytest.mark.parametrize("start", ["henaff", "cayley", "orthogonal"])
def test_exprnn_stays_orthogonal_through_training(trivialization: str, start: str) -> None:
    torch.manual_seed(0)
    if (trivialization, start) == ("static", "orthogonal"):
        with pytest.raises(mnemoscope.MnemoscopeError, match="dynamic"):
            mnemoscope.ExpRNN(3, 16, trivialization=trivialization, recurrent_init=start)
        return
    layer = mnemoscope.ExpRNN(3, 16, trivialization=trivialization, recurrent_init=start)
    before = layer.weight_hh_l0.detach().clone()
    assert departure(before) < 1e-5
    train(layer)
    assert departure(layer.weight_hh_l0) < 1e-5
    assert (layer.weight_hh_l0 - before).abs().max() > 1e-2


def test_the_static_map_starts_from_the_rotations_it_says() -> None:
    torch.manual_seed(3)
    layer = mnemoscope.ExpRNN(3, 6, dtype=torch.float64)
    torch.manual_seed(3)
    again = mnemoscope.ExpRNN(3, 6, dtype=torch.float64)
    assert torch.equal(layer.weight_hh_l0, again.weight_hh_l0)
    blocks = layer.weight_hh_l0.detach().clone()
    for k in (0, 2, 4):
        blocks[k : k + 2, k : k + 2] = 0
    assert blocks.abs().max() < 1e-12  # nothing outside the 2 x 2 blocks
    assert layer.weight_hh_l0.detach()[:2, :2].det() == pytest.approx(1)


def test_rebase_moves_the_base_and_not_the_matrix() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.ExpRNN(3, 8, trivialization="dynamic")
    train(layer, 20)
    before = layer.weight_hh_l0.detach().clone()
    layer.rebase()
    torch.testing.assert_close(layer.weight_hh_l0, before)
    layer.zero_grad()
    layer(torch.randn(5, 2, 3))[0].sum().backward()
    assert all(p.grad.abs().max() > 0 for p in layer.slow_parameters())
    with pytest.raises(mnemoscope.MnemoscopeError, match="dynamic"):
        mnemoscope.ExpRNN(3, 8).rebase()


@pytest.mark.parametrize("trivialization", ["static", "dynamic"])
def test_bfloat16_computes_the_exponential_in_float32(trivialization: str) -> None:
    layer = mnemoscope.ExpRNN(3, 8, trivialization=trivialization)
    exact = layer.weight_hh_l0.detach().clone()
    coarse = layer.to(torch.bfloat16).weights(0).weight_hh
    assert coarse.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.float(), exact, atol=0.05, rtol=0)


def test_parameter_groups_give_skew_matrices_a_tenth_of_the_rate() -> None:
    model = torch.nn.Sequential(mnemoscope.ExpRNN(3, 8), torch.nn.Linear(8, 1))
    fast, slow = mnemoscope.parameter_groups(model, lr=1e-3)
    assert (fast["lr"], slow["lr"]) == (1e-3, pytest.approx(1e-4))
    assert len(slow["params"]) == 1
    assert len(fast["params"]) + len(slow["params"]) == len(list(model.parameters()))
    assert len(mnemoscope.parameter_groups(torch.nn.LSTM(3, 4), lr=1e-3)) == 1


@pytest.mark.parametrize(("layout", "options"), [("fft", {}), ("tunable", dict(rotations=4)), ("tunable", {})])
def test_gorus_rotation_stays_orthogonal_through_training(layout: str, options: dict) -> None:
    torch.manual_seed(0)
    layer = mnemoscope.GORU(3, 16, layout=layout, **options)
    before = layer.angles_l0.detach().clone()
    train(layer)
    assert (layer.angles_l0 - before).abs().max() > 1e-2
    assert departure(layer.weights(0).rotation) < 1e-5


def test_fft_rotations_mix_all_coordinates_and_tunable_ones_only_neighbors() -> None:
    torch.manual_seed(0)
    mixed = rotation(torch.rand(3, 4) + 0.1, "fft")
    assert (mixed.abs() > 1e-8).all()
    near = rotation(torch.rand(2, 4) + 0.1, "tunable")
    assert near[0].nonzero().flatten().tolist() == [0, 1, 6, 7]  # coordinates 0 and 7, each with its other neighbor


def test_a_rotation_of_two_coordinates_is_the_one_known() -> None:
    angle = torch.tensor([[0.4]], dtype=torch.float64)
    expected = torch.tensor([[math.cos(0.4), -math.sin(0.4)], [math.sin(0.4), math.cos(0.4)]], dtype=torch.float64)
    torch.testing.assert_close(rotation(angle, "fft"), expected)


def test_goru_by_hand() -> None:
    """One step of the equations of Jing et al. 2017, written out."""
    torch.manual_seed(0)
    layer = mnemoscope.GORU(3, 4, dtype=torch.float64)
    with torch.no_grad():
        layer.bias_modrelu_l0.uniform_(-0.3, 0.3)
    x, h = torch.randn(3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    W_r, W_g = layer.weight_hh_l0.chunk(2)
    U_r, U_g, U_c = layer.weight_ih_l0.chunk(3)
    b_r, b_g = layer.bias_gates_l0.chunk(2)
    assert (b_r == 2).all()
    r, g = torch.sigmoid(W_r @ h + U_r @ x + b_r), torch.sigmoid(W_g @ h + U_g @ x + b_g)
    z = r * (rotation(layer.angles_l0, "fft") @ h) + U_c @ x
    c = torch.sign(z) * torch.relu(z.abs() + layer.bias_modrelu_l0)
    torch.testing.assert_close(layer(x[None, None], h[None, None])[0][0, 0], g * h + (1 - g) * c)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(hidden_size=6), "power of two; got 6"),
        (dict(hidden_size=5, layout="tunable"), "even hidden_size"),
        (dict(hidden_size=8, layout="tunable", rotations=3), "even number of rotations"),
        (dict(hidden_size=8, layout="tunable", rotations=2.0), "rotations should be of type int, got: float"),
        (dict(hidden_size=8, layout="tunable", rotations="4"), "rotations should be of type int, got: str"),
        (dict(hidden_size=8, layout="butterfly"), "'fft' or 'tunable'; got 'butterfly'"),
    ],
)
def test_goru_says_what_its_layouts_need(options: dict, message: str) -> None:
    with pytest.raises(mnemoscope.MnemoscopeError, match=message):
        mnemoscope.GORU(3, **options)


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_rotations_are_the_exponential_of_their_skew_blocks(size: int) -> None:
    angles = _init.henaff_angles(size // 2, torch.empty(0))
    expected = torch.linalg.matrix_exp(_init.skew_blocks(size, angles))
    torch.testing.assert_close(_init.rotation_blocks(size, angles), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("fill", [_init.henaff_, _init.cayley_])
def test_rotations_fill_square_matrices_only(fill) -> None:
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"square matrix; got \[8, 4\]"):
        fill(torch.empty(8, 4))
