import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mnemoscope import LSTM, RNN, LinearSystem, MnemoscopeError, RelRNN
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


def chunked_gradient(layer, x, k, loss):
    """Truncated BPTT as one writes it: a backward pass for every chunk, the last a whole one, the state carried on."""
    layer.zero_grad()
    state, start = None, 0
    rest = len(x) % k
    for chunk in (*x[:rest].split(k), *x[rest:].split(k)):
        if not len(chunk):
            continue
        y, state = layer(chunk, state)
        loss(y, slice(start, start + len(chunk))).backward()
        state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        start += len(chunk)
    return torch.cat([p.grad.flatten() for p in layer.parameters()])


def test_bptt_error_is_that_of_chunks_with_a_carried_state():
    layer, x = LSTM(3, 4).double(), torch.randn(30, 2, 3, dtype=torch.float64)
    targets = torch.randn(30, 2, 4, dtype=torch.float64)
    free = truncation(layer, x, windows=5)
    given = truncation(layer, x, windows=5, targets=targets, loss=nn.functional.mse_loss)
    losses = (lambda y, _: y.square().sum() / 120, lambda y, part: (y - targets[part]).square().sum() / targets.numel())
    for found, loss in zip((free, given), losses, strict=True):
        whole = chunked_gradient(layer, x, 30, loss)
        errors = [chunked_gradient(layer, x, int(k), loss) - whole for k in found.series["window"]]
        wanted = [float(error.norm() / whole.norm()) for error in errors]
        np.testing.assert_allclose(found.series["bptt_error"], wanted, atol=1e-12)
    assert (free.labels["loss"], given.labels["loss"]) == ("1/2 ||y||^2 at every step", "the given one")


def test_chunks_for_a_loss_at_the_last_step_alone():
    """What is left over before the whole chunks makes no difference: from some length on all chunks will do."""
    layer, x = scalar(0.9), torch.randn(200, 4, 1, dtype=torch.float64)
    targets = torch.randn(200, 4, 1, dtype=torch.float64)

    def loss(y, targets):
        return (y - targets)[-1].square().mean()

    found = truncation(layer, x, windows=100, targets=targets, loss=loss)
    window = found.figures["bptt_window"]
    assert found.figures["bptt_window_coarse"] < window < 80
    whole = chunked_gradient(layer, x, 200, lambda y, part: loss(y, targets[part]) * (part.stop == 200))
    for k in (int(window), 99, 150, 199):
        error = chunked_gradient(layer, x, k, lambda y, part: loss(y, targets[part]) * (part.stop == 200)) - whole
        assert error.norm() <= 0.01 * whole.norm()


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


@pytest.mark.parametrize("layer", [LSTM(3, 8), nn.GRU(3, 8), scalar(0.6)], ids=["LSTM", "GRU", "scalar"])
def test_chunks_of_the_safe_length_keep_the_promise(layer):
    layer = layer.double()
    x = torch.randn(200, 4, layer.input_size, dtype=torch.float64)
    found = truncation(layer, x, error=0.1)

    def loss(y, _):
        return y.square().sum() / (2 * 200 * 4)

    k = int(found.figures["bptt_window"])
    assert k < 200
    whole = chunked_gradient(layer, x, 200, loss)
    assert (chunked_gradient(layer, x, k, loss) - whole).norm() <= 0.1 * whole.norm()


def two_rates(slow, fast, rows):
    """A diagonal system, and sequences each of which moves one of its two units alone."""
    layer = LinearSystem(2, 2, bias=False).double()
    layer.weight_hh_l0.data = torch.tensor([[slow, 0.0], [0.0, fast]], dtype=torch.float64)
    layer.weight_ih_l0.data = torch.eye(2, dtype=torch.float64)
    return layer, torch.nn.functional.one_hot(torch.tensor(rows), 2).double().repeat(100, 1, 1)


SPREAD = ("window", "bptt_window", "bptt_window_measured")


@pytest.mark.parametrize("loss", [None, nn.functional.mse_loss, lambda y, t: (y - t).square().sum()])
def test_spread_covers_sequences_of_two_rates(loss):
    layer, x = two_rates(0.9, 0.5, [0, 1])
    targets = torch.tensor([0.3, -0.2], dtype=torch.float64).expand(x.shape)
    given = {} if loss is None else {"targets": targets, "loss": loss}
    found = truncation(layer, x, error=0.1, **given)
    assert found.labels["over"] == "2 sequences"
    alone = []
    for row in range(2):
        part = {} if loss is None else {"targets": targets[:, [row]], "loss": loss}
        alone.append(truncation(layer, x[:, [row]], error=0.1, **part))
    for name in ("bptt_window", "bptt_window_measured"):
        slow, fast = (one.figures[name] for one in alone)
        assert fast < found.figures[name] <= slow < 100
        assert found.spread[name].tolist() == [fast, slow]
    assert not any(name in one.spread for one in alone for name in SPREAD)
    low, high = found.spread["bptt_window"]
    assert f" ({low:.0f} to {high:.0f} over 2 sequences) gives the gradient" in found.sentence


def test_spread_of_the_window_of_outputs():
    """y_T of unit a has the error a^k (1 - a^(T-k)) / (1 - a), relative to the median size."""
    layer, x = two_rates(0.9, 0.5, [0, 1, 1])
    found = truncation(layer, x)
    k = np.arange(1, 101)
    size = (1 - 0.5**100) / 0.5
    shortest = [k[a**k * (1 - a ** (100 - k)) / (1 - a) <= 0.01 * size].min() for a in (0.5, 0.9)]
    assert found.spread["window"].tolist() == shortest
    assert found.figures["window"] == shortest[1]
    assert f"The last {shortest[1]} inputs ({shortest[0]} to {shortest[1]} over sequences) give" in found.sentence


def test_equal_sequences_have_no_spread():
    torch.manual_seed(0)
    x = torch.randn(60, 1, 3, dtype=torch.float64).expand(-1, 6, -1)
    found = truncation(LSTM(3, 4).double(), x, error=0.05)
    assert found.labels["over"] == "4 groups of sequences"
    for name in SPREAD:
        assert found.spread[name].tolist() == [found.figures[name]] * 2
    assert "(" not in found.sentence


def test_groups_leave_out_sequences_without_a_gradient():
    layer, x = two_rates(0.9, 0.5, [0, 1, 1])
    x[:, 1] = 0
    found = truncation(layer, x, error=0.1)
    assert found.labels["over"] == "2 sequences"
    x[:, 2] = 0
    assert "bptt_window" not in truncation(layer, x, error=0.1).spread


def test_sequences_that_are_mixed_have_no_groups():
    """Each sequence moves on with the mean state of all: a group alone gives other gradients."""

    class Mixing(LinearSystem):
        def cell(self, w, u, state):
            return super().cell(w, u, state.mean(0, keepdim=True).expand_as(state))

    torch.manual_seed(0)
    found = truncation(Mixing(2, 2).double(), torch.randn(40, 3, 2, dtype=torch.float64), error=0.1)
    assert found.figures["bptt_window"] < 40
    assert "bptt_window" not in found.spread
    assert "over" not in found.labels


def test_a_need_above_the_chunks_has_no_spread_of_its_own():
    layer, x = two_rates(0.9, 0.5, [0, 1])
    found = truncation(layer, x, error=0.2, needs=80)
    assert found.spread["bptt_window"].tolist() == [81, 81]
    assert found.spread["bptt_window_measured"][0] < found.spread["bptt_window_measured"][1] < 81


@pytest.mark.parametrize(("size", "gradient"), [(0.0, "zero"), (1e36, "not finite")])
def test_without_a_gradient_no_chunk_is_called_safe(size, gradient):
    """Saturated units pass no gradient at all, and that of squares overflows in float32: nothing can be compared."""
    layer = LinearSystem(2, 2) if size else RNN(2, 2)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(0.9 * torch.eye(2))
        layer.weight_ih_l0.copy_(torch.eye(2))
    found = truncation(layer, torch.full((30, 2, 2), size or 1e20))
    assert found.labels["gradient"] == gradient
    assert not {"bptt_window", "gradient_window", "lambda_fit"} & set(found.figures)
    said = "no gradient of the loss reaches its weights" if gradient == "zero" else "the gradient of the loss overflows"
    assert said in found.sentence


def test_no_chunk_below_what_the_task_needs_is_safe():
    found = truncation(scalar(0.5), torch.ones(60, 2, 1, dtype=torch.float64), needs=40, error=0.5)
    assert found.figures["bptt_window_measured"] < 40
    assert found.figures["bptt_window"] == 41
    assert "the task needs 40 steps back: backpropagate through at least 41" in found.sentence
    found = truncation(scalar(0.5), torch.ones(60, 2, 1, dtype=torch.float64), needs=110, error=0.5)
    assert found.figures["bptt_window"] == 60


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
