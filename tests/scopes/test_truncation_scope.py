import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from mnemoscope import LSTM, RNN, LinearSystem, MnemoscopeError, RelRNN
from mnemoscope.layers import project_
from mnemoscope.recurrence import Recurrence
from mnemoscope.scopes import truncation
from mnemoscope.training import NetworkConfig, SequenceModel


def scalar(a):
    layer = LinearSystem(1, 1, bias=False).double()
    layer.weight_hh_l0.data.fill_(a)
    layer.weight_ih_l0.data.fill_(1.0)
    return layer


def test_output_error_of_a_scalar_system():
    """With x = 1, y_T = (1 - a^T)/(1 - a), so the relative error of a window is a^k (1 - a^(T-k))/(1 - a^T)."""
    a, steps = 0.9, 100
    found = truncation(scalar(a), torch.ones(steps, 2, 1, dtype=torch.float64), windows=100)
    k = found.series["window"]
    wanted = a**k * (1 - a ** (steps - k)) / (1 - a**steps)
    np.testing.assert_allclose(found.series["output_error"], wanted, atol=1e-12)
    assert found.figures["window"] == 44  # by bisection: of those tried, 45 is the first
    assert 44 not in k
    assert "The last 44 inputs" in found.sentence
    assert found.status == "estimated"  # its windows are measured
    assert found.certified == ("certified_window",)  # Theorem 1 asks for more than the weights of today
    assert found.figures["certified_window"] >= 44
    assert found.figures["trained_window"] >= found.figures["certified_window"]


def test_gradient_error_of_a_scalar_system():
    """dy_T/da = sum_j j a^(j-1) and dy_T/db = y_T, the sums over as many inputs as are seen."""
    a, steps = 0.8, 40
    found = truncation(scalar(a), torch.ones(steps, 1, 1, dtype=torch.float64), windows=40)

    def of(n):
        j = np.arange(n)
        return (a**j).sum(), (j * a ** (j - 1.0)).sum()

    (y, y_a), errors = of(steps), []
    for k in found.series["window"]:
        y_k, y_ka = of(k)
        errors.append(np.hypot(y * y_a - y_k * y_ka, y**2 - y_k**2) / np.hypot(y * y_a, y**2))
    np.testing.assert_allclose(found.series["gradient_error"], errors, atol=1e-10)
    within = found.series["window"][np.array(errors) <= 0.01]
    assert within[0] - 2 <= found.figures["gradient_window"] <= within[0]  # by bisection below those tried


def test_an_output_that_is_mostly_bias_gives_no_window():
    torch.manual_seed(0)
    model = nn.Sequential(LSTM(3, 8), Part(), nn.Linear(8, 2)).double()
    model[2].bias.data.fill_(100.0)
    found = truncation(model, torch.randn(40, 6, 3, dtype=torch.float64), batch_first=False)
    assert found.figures["output_variation"] < 0.01
    assert found.sentence.startswith(
        "Its last output hardly depends on the inputs: from sequence to sequence it varies"
    )
    model[2].bias.data.fill_(0.0)
    found = truncation(model, torch.randn(40, 6, 3, dtype=torch.float64), batch_first=False)
    assert found.figures["output_variation"] > 0.1
    assert "hardly depends" not in found.sentence


class Part(nn.Module):
    """The outputs of a recurrent layer without its state."""

    def forward(self, result):
        return result[0]


def test_both_ends_of_a_bidirectional_model_are_looked_at():
    layer = nn.LSTM(2, 3, bidirectional=True)
    with torch.no_grad():  # the forward direction forgets at once, the backward one keeps
        for name, p in layer.named_parameters():
            if name.startswith("bias"):
                p[3:6] = 20.0 if name.endswith("_reverse") else -20.0
    found = truncation(layer, torch.randn(30, 2, 2), windows=30)
    assert found.figures["window"] > 20  # the first output: its backward direction reads all inputs
    assert "first and last output" in found.sentence
    assert found.labels["ends"] == "first and last"
    assert truncation(nn.LSTM(2, 3), torch.randn(30, 2, 2)).labels["ends"] == "last"


class WithoutParameters(Recurrence):
    input_size = hidden_size = 2

    def initial_state(self, batch):
        return torch.zeros(1, batch, 2)

    def step(self, x, state):
        state = 0.5 * state + x
        return state[0], state


def test_truncation_without_parameters_has_no_gradient_window():
    found = truncation(WithoutParameters(), torch.randn(30, 2, 2))
    assert 5 <= found.figures["window"] <= 10
    assert "bptt_window" not in found.figures
    assert found.sentence.endswith("could replace it.")


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["LinearSystem", "RNN", "LSTM"]),
    st.integers(1, 6),
    st.floats(0.1, 0.9),
    st.integers(0, 999),
    st.booleans(),
)
def test_bounds_are_above_measured_errors(kind, n, scale, seed, read_out):
    torch.manual_seed(seed)
    if read_out:
        model = SequenceModel(2, 3, NetworkConfig(model=kind, hidden_size=n)).double()
        layer = model.layer
    else:
        model = layer = {"LinearSystem": LinearSystem, "RNN": RNN, "LSTM": LSTM}[kind](2, n).double()
    with torch.no_grad():
        norm = torch.linalg.matrix_norm(layer.weight_hh_l0, ord=2)
        layer.weight_hh_l0.mul_(scale / norm if kind != "LSTM" else 0.05 * scale / norm)
    found = truncation(model, torch.randn(25, 3, 2, dtype=torch.float64), windows=8)
    if kind != "LSTM":
        assert "certified_window" in found.certified
    if found.certified:
        slack = 1e-9 + 1e-9 * found.series["output_bound"]
        assert (found.series["output_error"] <= found.series["output_bound"] + slack).all()
        assert (found.series["gradient_error"] <= found.series["gradient_bound"] + 1e-9).all()
        k = found.figures["certified_window"]
        assert (found.series["output_error"][found.series["window"] >= k] <= 0.01 + 1e-9).all()


def test_lstm_is_certified():
    torch.manual_seed(0)
    layer = LSTM(2, 4).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(0.1)
    found = truncation(layer, torch.randn(25, 3, 2, dtype=torch.float64))
    assert "certified_window" in found.certified
    assert "Proposition 5" in found.why


def test_window_of_a_convolution():
    def model(x):  # (B, T, d)
        return nn.functional.avg_pool1d(nn.functional.pad(x.transpose(1, 2), (4, 0)), 5, 1).transpose(1, 2)

    found = truncation(model, torch.randn(3, 20, 2), windows=20)
    assert found.figures["window"] == 5
    assert found.status == "estimated"
    assert "bptt_window" not in found.figures


def test_no_window_for_a_sum():
    found = truncation(scalar(1.0), torch.ones(30, 2, 1, dtype=torch.float64), needs=20)
    assert found.figures["window"] == 30
    assert found.sentence.startswith("No window shorter than the 30 steps")
    assert found.status == "estimated"
    assert not found.warnings


def test_layer_that_runs_over_the_batch_has_no_window():
    """Its output depends on the other sequences: no network over its own last inputs could replace it."""

    class Forgotten(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(3, 4)

        def forward(self, x):
            return self.layer(x)[0][:, -1]

    found = truncation(Forgotten(), torch.randn(4, 20, 3), batch_first=True)
    assert found.status == "not applicable"
    assert "runs over the batch" in found.why
    assert not found.figures


def test_warning_if_the_window_is_below_the_need():
    found = truncation(scalar(0.5), torch.ones(30, 2, 1, dtype=torch.float64), needs=20)
    assert "as far back as the task needs" in found.warnings[0]


def test_fitted_lambda():
    torch.manual_seed(0)
    layer = LinearSystem(4, 4, bias=False).double()
    layer.weight_hh_l0.data = 0.7 * torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    found = truncation(layer, torch.randn(60, 8, 4, dtype=torch.float64))
    assert found.figures["lambda_fit"] == pytest.approx(0.7, abs=0.05)


def test_truncation_of_a_memory():
    found = truncation(RelRNN(3, 4, buffer=2, relevant=2), torch.randn(20, 2, 3), windows=5)
    assert found.series["output_error"][-1] == 0
    assert found.series["bptt_error"][-1] == 0
    assert found.series["bptt_error"][0] > 0


@pytest.mark.parametrize("error", [0, 2])
def test_refuses_errors_of_nothing_and_of_all(error):
    with pytest.raises(MnemoscopeError, match=f"error must lie between 0 and 1; got {error}"):
        truncation(scalar(0.5), torch.ones(30, 2, 1, dtype=torch.float64), error=error)


@pytest.mark.parametrize("seed", range(4))
def test_trained_window_is_enough_for_a_training(seed):
    """Theorem 1 on a training that is carried out: windows of that length end where the whole sequences end."""
    torch.manual_seed(seed)
    steps, updates, rate = 120, 30, 0.02
    start = RNN(2, 3, bias=False).double()
    with torch.no_grad():
        start.weight_hh_l0.mul_(0.5 / torch.linalg.matrix_norm(start.weight_hh_l0, ord=2))
    x = 0.3 * torch.randn(steps, 1, 2, dtype=torch.float64)
    found = truncation(start, x, rate=rate, updates=updates)
    k = int(found.figures["trained_window"])
    assert found.status_of("trained_window") == "estimated"
    assert any("training keeps the weights" in text for text in found.assumptions)
    assert k < steps

    def trained(window):
        model = copy.deepcopy(start)
        for t in range(1, updates + 1):
            loss = model(x[-window:])[0][-1].square().sum() / 2
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for weight, gradient in zip(model.parameters(), gradients, strict=True):
                    weight -= rate / t * gradient
                left, values, right = torch.linalg.svd(model.weight_hh_l0)
                model.weight_hh_l0.copy_(left @ values.clamp(max=0.5).diag() @ right)  # the theorem's training projects
        return model

    whole = trained(steps)(x)[0][-1]
    allowed = 0.01 * start(x)[0][-1].norm()
    assert (whole - trained(k)(x[-k:])[0][-1]).norm() <= allowed
    assert (whole - trained(1)(x[-1:])[0][-1]).norm() > allowed  # too short a window does not do


def test_the_gradient_of_a_layer_inside_a_model_is_said_to_be_its_own() -> None:
    layer = nn.GRU(3, 4, batch_first=True)
    alone = truncation(layer, torch.randn(4, 20, 3))
    inside = truncation(nn.Sequential(layer, Part(), nn.Linear(4, 2)), torch.randn(4, 20, 3))
    assert alone.labels["gradient_of"] == "the model"
    assert "the gradient to 1 %" in alone.sentence
    assert inside.labels["gradient_of"] == "its recurrent layer alone"
    assert "its recurrent layer's own gradient to 1 %" in inside.sentence


def test_without_a_gradient_no_bound_on_it_is_drawn() -> None:
    x = torch.ones(30, 2, 1, dtype=torch.float64)
    found = truncation(scalar(0.5), x, targets=x, loss=lambda y, _: 0 * y.sum())
    assert found.labels["gradient"] == "zero"
    assert "output_bound" in found.series
    assert "gradient_bound" not in found.series


def small_directions(layer):
    parametrizations.weight_norm(layer, "weight_hh_l0")
    with torch.no_grad():
        layer.parametrizations.weight_hh_l0.original1.mul_(1e-3)  # the weight is the same, the gradient 1000 times
    return layer


def tied_biases(layer):
    layer.bias_ih_l0 = layer.bias_hh_l0
    return layer


@pytest.mark.parametrize("change", [small_directions, tied_biases])
def test_gradients_by_other_parameters_than_the_weights_are_not_bounded(change):
    """A weight may be computed from parameters by which gradients are as large as one likes."""
    torch.manual_seed(0)
    layer, x = project_(RNN(3, 8, dtype=torch.float64), 0.8), torch.randn(60, 6, 3, dtype=torch.float64)
    whole = truncation(layer, x)
    found = truncation(change(layer), x)
    assert found.status == "estimated"
    assert found.certified == ("certified_window",)
    assert {"gradient_bound"} == set(whole.series) - set(found.series)
    assert "trained_window" not in found.figures
