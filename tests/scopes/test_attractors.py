"""Orbits, periods, fixed points and bifurcations with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import mnemoscope
import mnemoscope.systems
from mnemoscope.scopes._attractors import attractors
from mnemoscope.scopes._measures.fixed_points import fixed_points
from mnemoscope.systems import ChaoticLSTM, LogisticMap
from mnemoscope.theory.smoothness import chaotic_lstm, stability_limit
from mnemoscope.training import NetworkConfig, SequenceModel


def scalar(weight: float) -> mnemoscope.RNN:
    """h -> tanh(weight h)."""
    layer = mnemoscope.RNN(1, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.fill_(weight)
        layer.weight_ih_l0.fill_(1.0)
    return layer


SILENCE = torch.zeros(5, 2, 1, dtype=torch.float64)


def test_pitchfork_has_two_stable_fixed_points_and_one_unstable() -> None:
    found = attractors(scalar(2.0), SILENCE, starts=20)
    root = next(h for h in np.linspace(0.95, 0.96, 100_001) if math.tanh(2 * h) <= h)
    assert found.figures["attractors"] == 2
    assert found.figures["fixed_points"] == 3
    np.testing.assert_allclose(np.sort(found.series["fixed_points"][:, 0]), [-root, 0, root], atol=1e-6)
    by_point = dict(zip(found.series["fixed_points"][:, 0].round(6), found.series["stable"], strict=True))
    assert [bool(by_point[p]) for p in sorted(by_point)] == [True, False, True]
    slope = 2 * (1 - root**2)
    stable = found.series["eigenvalues"][found.series["stable"], 0, 0]
    np.testing.assert_allclose(stable, slope, atol=1e-5)


def test_contraction_has_one_fixed_point() -> None:
    found = attractors(scalar(0.5), SILENCE)
    assert found.figures["attractors"] == 1
    assert (found.series["period"] == 1).all()
    assert (found.series["basins"] == 1).all()
    assert "keeps nothing" in found.sentence


def test_negative_weight_has_period_two() -> None:
    found = attractors(scalar(-2.0), SILENCE)
    assert (found.series["period"] == 2).all()
    assert found.figures["attractors"] == 1  # both phases of one cycle
    assert "one attractor, with a period of up to 2" in found.sentence


def test_constant_input_removes_an_attractor() -> None:
    found = attractors(scalar(2.0), SILENCE, constants=torch.tensor([[0.0], [3.0]]), starts=20)
    assert len(set(found.series["basins"][0])) >= 1
    assert (found.series["basins"][1] == 1).all()
    assert (found.series["basins"][0] < 1).all()


def test_basins_add_up() -> None:
    found = attractors(scalar(2.0), SILENCE, starts=40)
    ends = np.sign(found.series["orbits"][0, :, -1])
    for sign in (-1, 1):
        np.testing.assert_allclose(found.series["basins"][0][ends == sign], (ends == sign).mean())


def chaotic() -> mnemoscope.LSTM:
    layer = mnemoscope.LSTM(1, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.zero_()
        layer.weight_hh_l0.copy_(chaotic_lstm(1.0).weight_hh)
    return layer


def test_chaotic_lstm_period_doubling() -> None:
    """Ribeiro et al. 2019, fig. 3: the origin, then cycles, doublings, and chaos at s = 1 with periodic windows."""
    values = [0.5, stability_limit() - 0.05, 0.82, 0.86, 1.0]
    found = attractors(chaotic(), SILENCE, path="scale", values=values, steps=1500)
    still, near, cycle, doubled, chaos = (set(row) for row in found.series["period"].tolist())
    assert still == {1}
    assert 1 in near
    assert cycle == {3}
    assert doubled == {6}
    assert chaos == {0}
    assert "have none" in found.sentence


def test_path_equals_single_parameter_vectors() -> None:
    layer, weights = chaotic(), chaotic_lstm(1.0).weight_hh
    path = attractors(layer, SILENCE, path=lambda s: {"weight_hh_l0": s * weights}, values=[0.8, 1.2], steps=50)
    for k, s in enumerate((0.8, 1.2)):
        alone = attractors(layer, SILENCE, path=lambda _, s=s: {"weight_hh_l0": s * weights}, values=[0.0], steps=50)
        np.testing.assert_allclose(path.series["orbits"][k, :, :5], alone.series["orbits"][0, :, :5], atol=1e-8)
    torch.testing.assert_close(layer.weight_hh_l0.detach(), weights)


def test_fixed_point_of_a_linear_map() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.LinearSystem(2, 5, dtype=torch.float64)
    x = torch.randn(2, dtype=torch.float64)
    found = fixed_points(layer, x, torch.randn(4, 5, dtype=torch.float64))
    V, U, b = layer.weight_hh_l0, layer.weight_ih_l0, layer.bias_ih_l0 + layer.bias_hh_l0
    wanted = torch.linalg.solve(torch.eye(5, dtype=torch.float64) - V, U @ x + b)
    torch.testing.assert_close(found.points, wanted[None], rtol=1e-8, atol=1e-8)
    moduli = torch.linalg.eigvals(V).abs().sort(descending=True).values
    torch.testing.assert_close(found.eigenvalues[0].abs(), moduli)


@pytest.mark.parametrize("make", [nn.LSTM, lambda *sizes: nn.GRU(*sizes, num_layers=2), mnemoscope.ExpRNN])
def test_attractors_of_any_recurrence(make) -> None:
    torch.manual_seed(0)
    found = attractors(make(3, 8), torch.randn(10, 4, 3), steps=50, recorded=8)
    inputs, starts, recorded = found.series["orbits"].shape
    assert (inputs, recorded) == (4, 8)
    assert starts in (10, 40)  # more of them where basins differ
    assert np.isfinite(found.series["orbits"]).all()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_fallback_without_vmap(kind) -> None:
    torch.manual_seed(0)
    layer, x = (nn.LSTM if kind is nn.LSTMCell else nn.GRU)(3, 4), torch.randn(5, 2, 3)
    cell = kind(3, 4)
    cell.load_state_dict({name.removesuffix("_l0"): p for name, p in layer.state_dict().items()})
    one, other = attractors(cell, x), attractors(layer, x)
    np.testing.assert_allclose(one.series["orbits"], other.series["orbits"], atol=1e-5)


def test_fixed_points_skip_nan_starts() -> None:
    layer = mnemoscope.LinearSystem(3, 6)
    with torch.no_grad():
        layer.weight_hh_l0.mul_(30)
    found = attractors(layer, torch.randn(5, 2, 3))
    V, b = layer.weight_hh_l0.detach(), (layer.bias_ih_l0 + layer.bias_hh_l0).detach()
    assert found.figures["aperiodic"] == 1
    np.testing.assert_allclose(found.series["fixed_points"][0], torch.linalg.solve(torch.eye(6) - V, b), rtol=1e-3)


def linear(factor: float) -> mnemoscope.LinearSystem:
    """h -> factor h + x, in three dimensions."""
    layer = mnemoscope.LinearSystem(3, 3, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(factor * torch.eye(3))
    return layer


@pytest.mark.parametrize("factor", [0.9, 0.99, 0.9999])
def test_slow_contraction_has_one_attractor(factor: float) -> None:
    found = attractors(linear(factor), torch.randn(5, 2, 3, dtype=torch.float64))
    assert found.figures["attractors"] == 1
    assert (found.series["period"] == 1).all()
    assert "every start ends in one fixed point" in found.sentence


def test_sums_keep_a_continuous_value() -> None:
    found = attractors(linear(1.0), torch.randn(5, 2, 3, dtype=torch.float64), starts=6)
    assert "each of 6 starts ends in a fixed point of its own" in found.sentence
    assert "over all inputs 75 % do not settle" in found.sentence  # they add up, under any input but zero


def test_diverging_orbits_are_no_attractor() -> None:
    found = attractors(linear(1.1), torch.randn(5, 2, 3, dtype=torch.float64))
    assert found.figures["attractors"] == 0
    assert found.figures["diverged"] == 1
    assert "diverges" in found.sentence


class ScalarMap(mnemoscope.Recurrence):
    """h -> function(x, h), of one number."""

    input_size = hidden_size = 1

    def __init__(self, function):
        super().__init__()
        self.function = function

    def initial_state(self, batch):
        return torch.zeros(1, batch, 1, dtype=torch.float64)

    def step(self, x, state):
        state = self.function(x, state)
        return state[0], state


def test_orbits_that_diverge_are_told_beside_a_fixed_point() -> None:
    """h -> h^3 leads to 0 from |h| < 1, and to infinity from beyond."""
    found = attractors(ScalarMap(lambda x, h: h**3), torch.randn(5, 2, 1, dtype=torch.float64))
    assert 0 < found.figures["diverged"] < 1
    assert "every start" not in found.sentence
    assert f"{100 * found.figures['diverged']:.3g} % leave all bounds" in found.sentence


def test_no_orbits_are_left_over_by_rounding() -> None:
    """Of ten starts nine diverge under each of seven inputs; "1.11e-14 %" were said to wander beside them."""
    layer = mnemoscope.RNN(3, 4, bias=False, nonlinearity="relu", dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(1.5 * torch.eye(4))
        layer.weight_ih_l0.zero_()
    inputs = torch.randn(5, 2, 3, dtype=torch.float64)
    found = attractors(layer, inputs, constants=torch.randn(7, 3, dtype=torch.float64))
    assert 0 < found.figures["diverged"] == found.figures["aperiodic"] < 1
    assert "do not settle" not in found.sentence


def test_chaos_under_one_constant_input_is_told_beside_fixed_points_under_others() -> None:
    def logistic(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        h = h.clamp(0.01, 0.99)  # so that no start is left outside
        return torch.where(x.abs() < 1e-9, 3.9, 2.0) * h * (1 - h)

    found = attractors(ScalarMap(logistic), torch.randn(5, 2, 1, dtype=torch.float64))
    assert found.figures["aperiodic"] == 0.25
    assert found.figures["attractors"] == 1  # under each input
    assert "75 % of the orbits settle, with a period of up to 1; 25 % do not settle" in found.sentence


@pytest.mark.parametrize("seed", range(3))
def test_a_stable_fixed_point_that_no_start_reached_is_an_attractor(seed: int) -> None:
    """At s = 0.78 the chaotic LSTM has a cycle of three and, with a small basin, the origin."""
    system = ChaoticLSTM(s=0.78)
    found = attractors(system, system.inputs(), seed=seed)
    assert found.figures["attractors"] == 2
    assert found.figures["starts"] == 40  # more of them, as there are several attractors


def test_a_wandering_orbit_does_not_belong_to_a_fixed_point() -> None:
    found = attractors(chaotic(), SILENCE)
    assert found.figures["aperiodic"] == 1
    # How long orbits are followed depends on whether one seems to come nearer: in chaos, on rounding.
    assert found.figures["transient"] in (600, 2400)
    assert f"no orbit settles within {found.figures['transient']:.0f} steps" in found.sentence


def test_not_applicable_with_a_memory() -> None:
    found = attractors(mnemoscope.RelLSTM(3, 4), torch.randn(5, 2, 3))
    assert found.status == "not applicable"
    assert "carries past states" in found.why


def test_refuses_bad_options() -> None:
    with pytest.raises(mnemoscope.MnemoscopeError, match="unit must lie between 0 and 0; got 3"):
        attractors(scalar(1.0), SILENCE, unit=3)
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"constants must be \(V, 1\); got \[2, 4\]"):
        attractors(scalar(1.0), SILENCE, constants=torch.zeros(2, 4))
    with pytest.raises(mnemoscope.MnemoscopeError, match="gives nothing_l0, which the model lacks"):
        attractors(scalar(1.0), SILENCE, path=lambda s: {"nothing_l0": torch.zeros(1)})
    with pytest.raises(mnemoscope.MnemoscopeError, match="or 'scale'; got 'spiral'"):
        attractors(scalar(1.0), SILENCE, path="spiral")


def test_one_attractor_of_a_random_network_with_complex_eigenvalues() -> None:
    """Of spectral radius 0.975, seen after 300 steps: orbits that turned seemed to be on cycles of 2, 4 and 5."""
    network = mnemoscope.systems.RandomTanhNetwork(seed=3)
    found = attractors(network, network.inputs(10), seed=3)
    assert (found.figures["attractors"], found.figures["periods"]) == (1, 1)


def network(**options) -> SequenceModel:
    """The network that `mnemoscope train` trains, on 5 different ids or on vectors of 5 numbers."""
    config = NetworkConfig(model="LSTM", hidden_size=3, **options)
    return SequenceModel(5, 2 if not config.tied else 5, config, token_input=bool(config.embedding)).double()


def between(start: nn.Module, end: nn.Module):
    """s -> (1 - s) start + s end, as a user writes it."""
    before, after = start.state_dict(), end.state_dict()
    return lambda s: {name: (1 - s) * before[name] + s * after[name] for name in before}


def test_path_of_state_dicts_outputs_and_several_constants() -> None:
    """Ribeiro et al. 2019, figs 5, 8, 9: the outputs under each constant symbol, along the way to another network."""
    torch.manual_seed(0)
    start, end = network(), network()
    x, symbols = torch.zeros(4, 2, 5, dtype=torch.float64), torch.eye(5, dtype=torch.float64)[:3]
    options = dict(steps=20, recorded=6, starts=4, outputs=True, fixed=False)
    found = attractors(start, x, path=between(start, end), values=[0.0, 0.5, 1.0], constants=symbols, **options)
    assert found.series["outputs"].shape == (3, 3, 4, 6, 2)
    assert found.series["period"].shape == (3, 3, 4)
    assert found.labels["x"] == "s, along the path"
    for k, symbol in enumerate(symbols):  # the end of the path under each symbol is the other network under it
        alone = attractors(end, x, constants=symbol[None], **options)
        np.testing.assert_allclose(found.series["outputs"][k, 2], alone.series["outputs"][0], atol=1e-12)
        np.testing.assert_allclose(found.series["orbits"][k, 2], alone.series["orbits"][0], atol=1e-12)


def test_outputs_are_read_from_the_states() -> None:
    torch.manual_seed(0)
    model, x = network(), torch.zeros(4, 2, 5, dtype=torch.float64)
    chosen = attractors(model, x, steps=20, recorded=6, outputs=[1], fixed=False)
    whole = attractors(model, x, steps=20, recorded=6, outputs=True, fixed=False)
    np.testing.assert_allclose(chosen.series["outputs"][..., 0], whole.series["outputs"][..., 1])
    assert chosen.labels["outputs"] == ["output 1"]
    state, y = model.initial_state(1), None
    start = attractors(model, x, constants=x[0, :1], start=state, steps=20, recorded=6, outputs=True, fixed=False)
    for _ in range(int(start.figures["transient"]) + 6):
        y, state = model.step(x[0, :1], state)
    np.testing.assert_allclose(start.series["outputs"][0, 0, -1], y.detach()[0], atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_embedding_moves_along_the_path(tied: bool) -> None:
    torch.manual_seed(0)
    start, end = (network(embedding=3, tied=tied) for _ in range(2))
    ids, both = torch.randint(5, (4, 2)), torch.tensor([1, 4])
    options = dict(steps=20, recorded=6, starts=3, outputs=[0], fixed=False)
    found = attractors(start, ids, path=between(start, end), values=[0.0, 1.0], constants=both, **options)
    for k, symbol in enumerate((1, 4)):
        alone = attractors(end, ids, constants=end.embed(torch.tensor([symbol])).detach(), **options)
        np.testing.assert_allclose(found.series["outputs"][k, 1], alone.series["outputs"][0], atol=1e-12)


def test_fixed_points_under_an_id() -> None:
    torch.manual_seed(0)
    model, ids = network(embedding=3), torch.randint(5, (4, 2))
    by_id = attractors(model, ids, constants=torch.tensor([2]))
    by_row = attractors(model, ids, constants=model.embed(torch.tensor([2])).detach())
    np.testing.assert_allclose(by_id.series["fixed_points"], by_row.series["fixed_points"])


def test_a_given_start_is_taken_as_it_is() -> None:
    """The chaotic LSTM from (.5, .5): no noise, so that its orbit is the system's own."""
    layer = chaotic()
    half = torch.full((1, 1, 2), 0.5, dtype=torch.float64)
    found = attractors(layer, SILENCE, path="scale", values=[1.0], start=(half, half), steps=10, recorded=5)
    own = ChaoticLSTM(s=1.0)(torch.zeros(200, 1, 1, dtype=torch.float64))[0][:, 0, 0].detach()
    assert found.series["orbits"].shape == (1, 1, 5)
    begin = int(found.figures["transient"])
    np.testing.assert_allclose(found.series["orbits"][0, 0], own[begin : begin + 5], rtol=1e-6)
    more = attractors(layer, SILENCE, start=(half, half), starts=3, steps=10, recorded=5, fixed=False)
    assert more.series["orbits"].shape[1] == 3
    assert found.labels["x"] == "factor of the recurrent weights"


def test_a_weight_of_a_layer_inside_a_model_has_both_names() -> None:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(3, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0])

    model, other, x = Net(), Net(), torch.randn(5, 2, 3)
    whole = attractors(model, x, path=lambda _: other.state_dict(), values=[0.0], steps=20, recorded=4)
    inner = attractors(model, x, path=lambda _: other.rnn.state_dict(), values=[0.0], steps=20, recorded=4)
    np.testing.assert_array_equal(whole.series["orbits"], inner.series["orbits"])
    alone = attractors(other.rnn, x, constants=torch.zeros(1, 3), steps=20, recorded=4, fixed=False)
    np.testing.assert_allclose(whole.series["orbits"], alone.series["orbits"], atol=1e-6)


def test_refuses_bad_starts_constants_and_outputs() -> None:
    half = torch.zeros(1, 2, 3)
    with pytest.raises(mnemoscope.MnemoscopeError, match="start must be a state of the model"):
        attractors(scalar(1.0), SILENCE, start=half)
    with pytest.raises(mnemoscope.MnemoscopeError, match="starts = 1 is fewer than the 2 states in start"):
        attractors(scalar(1.0), SILENCE, start=torch.zeros(1, 2, 1), starts=1)
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"or ids \(V,\) for a model whose step reads ids"):
        attractors(scalar(1.0), SILENCE, constants=torch.tensor([1]))
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"outputs must lie between 0 and 0; got \[1\]"):
        attractors(scalar(1.0), SILENCE, outputs=[1])


def test_scale_moves_the_recurrent_weights_alone() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RNN(2, 3).double()
    constants = torch.randn(1, 2, dtype=torch.float64)
    options = {"values": [0.5], "constants": constants, "steps": 20, "recorded": 4}
    scaled = attractors(layer, torch.randn(5, 2, 2, dtype=torch.float64), path="scale", **options)
    half = attractors(
        layer,
        torch.randn(5, 2, 2, dtype=torch.float64),
        path=lambda s: {"weight_hh_l0": s * layer.weight_hh_l0},
        **options,
    )
    np.testing.assert_allclose(scaled.series["orbits"], half.series["orbits"], atol=1e-12)


def test_bounded_orbits_without_a_period_are_one_attractor() -> None:
    start = torch.tensor([[[0.2], [0.3], [0.45]]], dtype=torch.float64)
    found = attractors(LogisticMap(3.9), SILENCE, start=start)
    assert found.figures["aperiodic"] == 1
    assert found.figures["attractors"] == 1
