import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mnemoscope import LSTM, RNN, LinearSystem, MnemoscopeError, RelRNN
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
    assert found.figures["window"] == k[wanted <= 0.01][0] == 45  # 44 would do, and was not among those tried
    assert "The last 45 inputs" in found.sentence
    assert found.status == "estimated"  # its windows are measured
    assert found.certified == ("certified_window", "trained_window")
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
    assert found.figures["gradient_window"] == within[0]


def test_bptt_error_equals_a_detached_state():
    layer, x = LSTM(3, 4).double(), torch.randn(30, 2, 3, dtype=torch.float64)
    found = truncation(layer, x, windows=5)

    def gradient(k):
        with torch.no_grad():
            state = layer(x[: 30 - k])[1] if k < 30 else None
        y = layer(x[30 - k :], state)[0][-1]
        return torch.cat([g.flatten() for g in torch.autograd.grad(y.square().sum() / 4, list(layer.parameters()))])

    whole = gradient(30)
    wanted = [float((gradient(int(k)) - whole).norm() / whole.norm()) for k in found.series["window"]]
    np.testing.assert_allclose(found.series["bptt_error"], wanted, atol=1e-12)


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


def test_layer_that_runs_over_the_batch_has_no_gradient_window():
    class Forgotten(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(3, 4)

        def forward(self, x):
            return self.layer(x)[0][:, -1]

    found = truncation(Forgotten(), torch.randn(4, 20, 3), batch_first=True)
    assert found.figures["window"] == 1
    assert "bptt_window" not in found.figures


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


@pytest.mark.parametrize("options", [{"error": 0}, {"error": 2}, {"windows": 1}])
def test_refuses_wrong_options(options):
    with pytest.raises(MnemoscopeError, match="0 < error < 1, at least 2 windows"):
        truncation(scalar(0.5), torch.ones(30, 2, 1, dtype=torch.float64), **options)
