"""Lyapunov exponents with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope.adapters import as_recurrence
from mnemoscope.scopes import landscape, stability
from mnemoscope.scopes._lyapunov import _regime, _sentence, kaplan_yorke, lyapunov
from mnemoscope.scopes._measures.fixed_points import fixed_points
from mnemoscope.scopes._measures.growth import standard_error
from mnemoscope.scopes._measures.state_vectors import jacobians
from mnemoscope.systems import RandomTanhNetwork
from mnemoscope.theory.smoothness import chaotic_lstm


def test_exponents_of_a_linear_system_are_its_eigenvalues() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.LinearSystem(2, 6, dtype=torch.float64)
    with torch.no_grad():  # a turned diagonal: moduli well apart, a pair among them
        basis = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
        block = torch.diag(torch.tensor([1.2, 0.0, 0.0, 0.5, 0.3, 0.1], dtype=torch.float64))
        block[1:3, 1:3] = 0.8 * torch.tensor([[0.6, -0.8], [0.8, 0.6]])
        layer.weight_hh_l0.copy_(basis @ block @ basis.mT)
    found = lyapunov(layer, torch.randn(50, 2, 2, dtype=torch.float64), steps=400)
    np.testing.assert_allclose(found.series["exponents"], np.log([1.2, 0.8, 0.8, 0.5, 0.3, 0.1]), atol=1e-3)
    assert found.labels["regime"] == "diverging"
    assert "grow without bound, and the distance of neighboring ones doubles every 4 steps" in found.sentence


def test_orthogonal_network_is_at_the_edge() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.ExpRNN(2, 8, nonlinearity="identity", dtype=torch.float64)
    found = lyapunov(layer, torch.randn(60, 2, 2, dtype=torch.float64))
    np.testing.assert_allclose(found.series["exponents"], 0, atol=1e-10)
    assert found.labels["regime"] == "marginally stable"


def test_orthogonal_weights_of_float32_are_at_the_edge_in_float64() -> None:
    """They stretch by 1e-8 a step: states that inputs drive away were said to diverge by it."""
    torch.manual_seed(0)
    layer = mnemoscope.LinearSystem(2, 4)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.linalg.qr(torch.randn(4, 4)).Q)
    found = lyapunov(layer.double(), torch.randn(60, 2, 2, dtype=torch.float64))
    assert found.labels["regime"] == "marginally stable"


@pytest.mark.parametrize(("s", "low", "high"), [(1.0, 0.05, 0.5), (0.5, -0.62, -0.49)])
def test_chaotic_lstm(s: float, low: float, high: float) -> None:
    """Ribeiro et al. 2019, A.1: positive at s = 1, ln(21/64)/2 = -0.557 at s = 0.5."""
    layer = mnemoscope.LSTM(1, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.zero_()
        layer.weight_hh_l0.copy_(chaotic_lstm(s).weight_hh)

    class Started(mnemoscope.Recurrence):
        input_size, hidden_size = 1, 2

        def initial_state(self, batch: int):
            return tuple(torch.full((1, batch, 2), 0.5, dtype=torch.float64) for _ in range(2))

        def step(self, x, state):
            return layer.step(x, state)

    found = lyapunov(Started(), torch.zeros(300, 1, 1, dtype=torch.float64))
    assert low < found.figures["largest"] < high
    if s == 0.5:
        assert found.figures["largest"] == pytest.approx(math.log(21 / 64) / 2, abs=0.02)
    assert found.labels["regime"] == ("chaotic" if s == 1 else "contractive")


def test_warning_if_float32_digits_are_used_up() -> None:
    layer = RandomTanhNetwork(50, gain=6.0).float()
    x = torch.ones(60, 1, 1)
    found = lyapunov(layer, x)
    assert found.labels["regime"] == "chaotic"
    assert found.figures["horizon_of_prediction"] == pytest.approx(23 * math.log(2) / found.figures["largest"])
    assert "float32" in found.warnings[0]
    assert not lyapunov(layer.double(), torch.ones(20, 1, 1, dtype=torch.float64)).warnings


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [(torch.float32, "; use float64 or shorter sequences"), (torch.float64, "; use shorter sequences")],
)
def test_the_remedy_for_rounding_errors_is_one_that_is_left(dtype, remedy) -> None:
    layer = RandomTanhNetwork(50, gain=6.0).to(dtype)
    x = torch.ones(120, 1, 1, dtype=dtype)
    assert lyapunov(layer, x).warnings[0].endswith(remedy)
    cost = {"targets": layer(x)[0].detach(), "loss": nn.functional.mse_loss, "points": 3}
    assert landscape(layer, x, **cost).warnings[0].endswith(remedy)


@pytest.mark.parametrize(("steps", "word"), [(21, "expanding"), (22, "chaotic")])
def test_a_few_steps_are_too_few_to_call_it_chaos(steps: int, word: str) -> None:
    """A tenth is not counted: 19 steps, and 20."""
    found = lyapunov(RandomTanhNetwork(50, gain=6.0), torch.ones(steps, 1, 1, dtype=torch.float64))
    assert found.labels["regime"] == word
    assert found.sentence.startswith(word.capitalize())
    assert ("along 19 steps, which are too few to call it chaos" in found.sentence) == (word == "expanding")


def test_an_unstable_fixed_point_is_not_chaos() -> None:
    layer = RandomTanhNetwork(20, gain=3.0)
    found = lyapunov(layer, layer.inputs(steps=100))  # zero inputs from a zero state
    assert found.figures["largest"] > 0.5
    assert found.labels["regime"] == "unstable fixed point"
    assert "the state does not move" in found.sentence


def test_slow_contraction_is_not_the_edge() -> None:
    layer = mnemoscope.LinearSystem(1, 3, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(0.99 * torch.eye(3))
    found = lyapunov(layer, torch.randn(90, 2, 1, dtype=torch.float64))
    assert found.figures["largest"] == pytest.approx(math.log(0.99))
    assert found.labels["regime"] == "contractive"


@pytest.mark.parametrize("steps", [50, 200, 1000])
@pytest.mark.parametrize("units", [2, 3, 5])
def test_the_error_covers_a_mean_that_has_not_settled(units: int, steps: int) -> None:
    """A Jordan block: its powers grow like t^(units - 1) beside 0.9^t, so the mean is too large for long."""
    layer = mnemoscope.LinearSystem(1, units, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(0.9 * torch.eye(units) + torch.diag(torch.ones(units - 1), 1))
    found = lyapunov(layer, torch.randn(steps, 4, 1, dtype=torch.float64), exponents=1)
    largest, error = found.figures["largest"], found.figures["standard_error"]
    assert largest - 2 * error < math.log(0.9) < largest
    assert found.labels["regime"] in ("contractive", "unclear")


def test_identical_sequences_count_once_in_the_standard_error() -> None:
    torch.manual_seed(0)
    layer, x = mnemoscope.RNN(2, 6, dtype=torch.float64), torch.randn(200, 1, 2, dtype=torch.float64)
    one = lyapunov(layer, x, exponents=6)
    same = lyapunov(layer, x.expand(-1, 4, -1), exponents=6)
    assert same.figures["standard_error"] > 0.7 * one.figures["standard_error"]


def test_standard_error_of_independent_and_of_correlated_blocks() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4000, 2, 1, generator=generator, dtype=torch.float64)
    assert float(standard_error(noise)) == pytest.approx(1 / math.sqrt(8000), rel=0.1)
    smooth = noise.cumsum(0)
    smooth = smooth[9:] - torch.cat([torch.zeros(1, 2, 1), smooth[:-10]])  # sums of 10: their mean varies as much
    assert float(standard_error(smooth[::5])) == pytest.approx(10 / math.sqrt(8000), rel=0.3)
    assert math.isnan(float(standard_error(noise[:1, :1])))


def test_sum_of_exponents_is_the_mean_log_determinant() -> None:
    torch.manual_seed(0)
    layer, x = mnemoscope.GRU(2, 3, dtype=torch.float64), torch.randn(40, 1, 2, dtype=torch.float64)
    found = lyapunov(layer, x, discard=0)
    state, total = layer.initial_state(1), 0.0
    for x_t in x:
        jacobian = torch.func.jacrev(lambda h, x_t=x_t: layer.step(x_t, h[None, None])[1][0, 0])(state[0, 0])
        total += torch.linalg.slogdet(jacobian).logabsdet.item() / len(x)
        state = layer.step(x_t, state)[1]
    assert found.series["exponents"].sum() == pytest.approx(total, rel=1e-9)


def test_fewer_exponents_are_the_largest_ones() -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(2, 8).double(), torch.randn(150, 2, 2, dtype=torch.float64)
    some, most = lyapunov(model, x, exponents=2), lyapunov(model, x)
    np.testing.assert_allclose(some.series["exponents"], most.series["exponents"][:2], atol=0.02)
    assert most.series["exponents"].shape == (16,)
    assert (np.diff(most.series["exponents"]) <= 0).all()
    assert math.isnan(some.figures["kaplan_yorke"]) or some.figures["kaplan_yorke"] == 0


@pytest.mark.parametrize(
    ("exponents", "size", "dimension"),
    [
        ([-1.0, -2.0], 2, 0.0),
        ([0.0, -1.0], 2, 1.0),
        ([0.42, -1.62], 2, 1 + 0.42 / 1.62),  # Henon's map
        ([0.9, 0.0, -14.57], 3, 2 + 0.9 / 14.57),  # Lorenz's system
        ([0.5, 0.1], 2, 2.0),
        ([0.5, 0.1], 9, math.nan),
    ],
)
def test_kaplan_yorke(exponents: list[float], size: int, dimension: float) -> None:
    assert kaplan_yorke(np.array(exponents), size) == pytest.approx(dimension, nan_ok=True)


class Cut(mnemoscope.LinearSystem):
    """A linear system that every step cuts from the graph."""

    def cell(self, w, u, state):
        return super().cell(w, u, state.detach())


def test_exponents_of_a_detached_step_by_differences() -> None:
    torch.manual_seed(0)
    layer, x = Cut(2, 3, dtype=torch.float64), torch.randn(200, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.diag(torch.tensor([0.9, 0.5, 0.2])))
    np.testing.assert_allclose(lyapunov(layer, x).series["exponents"], np.log([0.9, 0.5, 0.2]), atol=1e-4)
    assert stability(layer, x).figures["lambda"] == pytest.approx(0.9, abs=1e-6)


@pytest.mark.parametrize(("dtype", "gain"), [(torch.float64, 1.0), (torch.float64, 1.5), (torch.float32, 0.8)])
def test_a_kink_has_the_slope_of_its_steeper_side(dtype: torch.dtype, gain: float) -> None:
    """ReLU units at rest: half of the slope was taken, and h -> relu(1.5 h) was said to come to rest at 0."""
    torch.manual_seed(0)
    layer, x = nn.RNN(2, 4, nonlinearity="relu", bias=False).to(dtype), torch.zeros(60, 2, 2, dtype=dtype)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(gain * torch.linalg.qr(torch.randn(4, 4)).Q)
    allowed = 1e-4 if dtype == torch.float64 else 0.01
    np.testing.assert_allclose(lyapunov(layer, x).series["exponents"], math.log(gain), atol=allowed)
    assert stability(layer, x).figures["largest_jacobian"] == pytest.approx(gain, rel=allowed)
    found = fixed_points(as_recurrence(layer), x[0, 0], torch.zeros(1, 4, dtype=dtype))
    np.testing.assert_allclose(found.eigenvalues.abs(), gain, rtol=allowed)
    assert found.stable.tolist() == [gain < 1]


class PartlyCut:
    """h -> 0.8 h + x, of which autograd sees 0.3 h."""

    def initial_state(self, batch):
        return torch.zeros(batch, 3)

    def step(self, x, h):
        h = 0.5 * h.detach() + 0.3 * h + x
        return h, h


def test_a_part_of_the_state_that_is_detached_is_not_forgotten() -> None:
    found, x = PartlyCut(), torch.randn(60, 4, 3)
    np.testing.assert_allclose(lyapunov(found, x).series["exponents"], math.log(0.8), atol=1e-4)
    assert stability(found, x).figures["largest_jacobian"] == pytest.approx(0.8, rel=1e-3)


class Oscillator(nn.Module):
    """A leapfrog step of q'' = -q/2, whose force detaches q where no graph is recorded."""

    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor(0.5))

    def initial_state(self, batch):
        return torch.zeros(batch, 1), torch.zeros(batch, 1)

    def step(self, x, state):
        q, p = state
        with torch.enable_grad():
            at = q if q.requires_grad else q.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.stiffness * at.square().sum() / 2, at, create_graph=True)
        p = p - 0.3 * slope + x
        q = q + 0.3 * p
        return q, (q, p)


def test_a_step_that_differentiates_an_energy() -> None:
    """In forward mode its force was constant: an oscillator was called chaotic."""
    found = lyapunov(Oscillator(), torch.randn(60, 4, 1))
    assert found.figures["largest"] == pytest.approx(0, abs=0.02)
    assert found.labels["regime"] == "marginally stable"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saturated_step_keeps_its_gradient(dtype: torch.dtype) -> None:
    """Its states change by less than their last digit: differences would be zero."""
    layer, x = scalar_tanh(1e-3).to(dtype), torch.full((30, 2, 1), 6.0, dtype=dtype)
    slope = 1e-3 * (1 - math.tanh(6.0) ** 2)
    assert lyapunov(layer, x).figures["largest"] == pytest.approx(math.log(slope), abs=0.05)


def scalar_tanh(weight: float) -> nn.RNN:
    layer = nn.RNN(1, 1, bias=False)
    with torch.no_grad():
        layer.weight_hh_l0.fill_(weight)
        layer.weight_ih_l0.fill_(1.0)
    return layer


def test_differences_of_a_smooth_step_are_central() -> None:
    """h -> h^2 at its lowest point: the sides differ by the curvature, and the slope is 0."""
    smooth = as_recurrence(DetachedSquare(), 1)
    slope = jacobians(smooth, torch.zeros(1, 1), torch.zeros(1, 1, 1)).item()
    assert slope == 0


class DetachedSquare:
    def initial_state(self, batch):
        return torch.zeros(batch, 1)

    def step(self, x, h):
        return h, h.detach() ** 2


def test_detached_state_is_not_forgotten() -> None:
    torch.manual_seed(0)
    often, never = mnemoscope.SAB(3, 5, truncation=3), mnemoscope.SAB(3, 5, truncation=10**6)
    never.load_state_dict(often.state_dict())
    x = torch.randn(60, 2, 3)
    one, other = (lyapunov(layer, x, exponents=3).series["exponents"] for layer in (often, never))
    np.testing.assert_allclose(one, other, rtol=1e-3)


def test_memory_is_constant() -> None:
    found = lyapunov(mnemoscope.MemRNN(2, 4), torch.randn(20, 2, 2))
    assert found.figures["largest"] < 0
    assert any("remembered" in assumption for assumption in found.assumptions)
    assert found.labels["regime"] == "contractive between remembered states"
    assert found.sentence.startswith("Contractive between remembered states: ")


@pytest.mark.parametrize("nonlinearity", ["identity", "relu"])
def test_diverging_state_is_not_contractive(nonlinearity: str) -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RNN(3, 6, nonlinearity=nonlinearity)
    with torch.no_grad():
        layer.weight_hh_l0.mul_(30)
    with pytest.raises(mnemoscope.MnemoscopeError, match="the state is NaN or infinite"):
        lyapunov(layer, torch.randn(60, 4, 3))


def test_refuses_bad_options() -> None:
    model, x = mnemoscope.RNN(2, 4), torch.randn(20, 2, 2)
    with pytest.raises(mnemoscope.MnemoscopeError, match="between 1 and the state's size 4; got 9"):
        lyapunov(model, x, exponents=9)
    with pytest.raises(mnemoscope.MnemoscopeError, match="at least 2 more steps; got steps=20, discard=20"):
        lyapunov(model, x, discard=20)


def test_one_step_has_no_exponent():
    """A mean over one step has no error, and says nothing about the long run."""
    with pytest.raises(mnemoscope.MnemoscopeError, match="at least 2 steps; got 1"):
        lyapunov(nn.RNN(2, 3), torch.randn(1, 3, 2))
    with pytest.raises(mnemoscope.MnemoscopeError, match="at least 2 more steps"):
        lyapunov(nn.RNN(2, 3), torch.randn(9, 3, 2), discard=8)


@pytest.mark.parametrize(
    ("factor", "said"), [(0.5, "is multiplied by 0.5 at every step ("), (0.84, "halves every 4 steps (")]
)
def test_a_fast_decay_is_told_by_the_step(factor, said):
    layer = mnemoscope.LinearSystem(1, 1, bias=False).double()
    layer.weight_hh_l0.data.fill_(factor)
    found = lyapunov(layer, torch.randn(40, 2, 1, dtype=torch.float64))
    assert said in found.sentence


def test_an_exponent_that_is_hardly_known_is_not_called_zero():
    assert _regime(-0.369, 0.2, None, torch.float64) == "unclear"
    assert _regime(-0.001, 0.002, None, torch.float64) == "marginally stable"
    assert _regime(0.0, math.nan, None, torch.float64) == "marginally stable"
    assert _sentence("unclear", "", -0.369, 0.2, 100).startswith("Too short to tell if neighboring states converge")
    assert _sentence("marginally stable", "", -0.001, 0.002, 100) == (
        "Marginally stable: neighboring states neither converge nor diverge (largest exponent -0.001 ± 0.004)."
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_does_not_hide_an_exponent_that_is_measured_in_float32(dtype):
    layer = nn.RNN(1, 1, bias=False, batch_first=True)
    layer.weight_hh_l0.data.fill_(0.7)
    layer.weight_ih_l0.data.fill_(1e-3)  # so that tanh is linear
    found = lyapunov(nn.Sequential(layer, FirstOf()).to(dtype), torch.randn(2, 30, 1).to(dtype))
    assert found.figures["largest"] == pytest.approx(math.log(0.7), abs=0.02)
    assert found.labels["regime"] == "contractive"


class FirstOf(nn.Module):
    def forward(self, result):
        return result[0]


def test_a_sequence_whose_units_are_all_off_does_not_hide_the_others() -> None:
    """ReLU: the first sequence turns all units off at each step; in the others differences grow by 3 at every step."""
    layer = nn.RNN(1, 2, nonlinearity="relu", bias=False)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(3 * torch.eye(2))
        layer.weight_ih_l0.fill_(1.0)
    x = torch.ones(40, 3, 1)
    x[:, 0] = -1.0
    found = lyapunov(layer, x)
    assert found.figures["largest"] == pytest.approx(math.log(3))
    assert found.labels["regime"] == "diverging"
    assert found.sentence.endswith("Left out: 1 of 3 sequences, where a step makes all states equal.")
    assert lyapunov(layer, x[:, :1]).figures["largest"] == -math.inf


def test_directions_that_end_do_not_hide_others_in_other_sequences() -> None:
    """Two ReLU units that keep their value: the first is off once in each sequence, in one after the second was."""
    layer = nn.RNN(2, 2, nonlinearity="relu", bias=False)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.eye(2))
        layer.weight_ih_l0.copy_(torch.eye(2))
    x = torch.rand(40, 2, 2)
    x[0, 0, 1] = x[20, :, 0] = -100.0
    found = lyapunov(layer, x)
    assert found.figures["largest"] == pytest.approx(0, abs=0.05)  # the first directions turn once
    assert found.series["exponents"][1] == -math.inf
