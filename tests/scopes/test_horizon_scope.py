import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mnemoscope import LSTM, RNN, LinearSystem, MemRNN, MnemoscopeError, RelRNN
from mnemoscope.finding import Examination
from mnemoscope.recurrence import Recurrence
from mnemoscope.report import headlines
from mnemoscope.scopes import horizon, separation, signal
from mnemoscope.scopes._measures.decay import fit
from mnemoscope.scopes._measures.horizon_samples import horizon_range
from mnemoscope.systems import DelayLine, LeakySum


def powers(V, steps):
    return [np.linalg.matrix_power(V.detach().double().numpy(), k) for k in range(steps)]


@pytest.mark.parametrize("scale", [0.6, 1.0, 1.1])
def test_linear_system_gives_norms_of_matrix_powers(scale):
    layer = LinearSystem(3, 5).double()
    layer.weight_hh_l0.data *= scale / torch.linalg.eigvals(layer.weight_hh_l0.detach()).abs().max()
    found = horizon(layer, torch.randn(30, 2, 3, dtype=torch.float64), directions=5)
    V, U = powers(layer.weight_hh_l0, 30), layer.weight_ih_l0.detach().numpy()
    np.testing.assert_allclose(found.series["state_gradient_spectral"], [np.linalg.norm(v, 2) for v in V], rtol=1e-9)
    np.testing.assert_allclose(found.series["state_gradient"], [np.linalg.norm(v) for v in V], rtol=1e-9)
    np.testing.assert_allclose(found.series["input_gradient"], [np.linalg.norm(v @ U) for v in V], rtol=1e-9)


def test_random_directions_estimate_the_frobenius_norm():
    layer = LinearSystem(3, 6).double()
    found = horizon(layer, torch.randn(4, 4000, 3, dtype=torch.float64), directions=1)
    mean_square = np.square(found.series["state_gradient"][3])
    wanted = np.square(np.linalg.norm(powers(layer.weight_hh_l0, 4)[3]))
    assert 0.3 * wanted < mean_square < 2 * wanted  # a median of few degrees of freedom lies below the mean


def mem_rnn_by_equations(layer, x, nudge):
    """Kerg et al. 2020, eqs 9-10, with h_t moved by nudge[t]."""
    V, U, W, key, v = (getattr(layer, f"weight_{name}_l0") for name in ("hh", "ih", "query", "key", "score"))
    b = layer.bias_ih_l0 + layer.bias_hh_l0
    s, past = torch.zeros(5, dtype=x.dtype), []
    for x_t, move in zip(x, nudge, strict=True):
        h = torch.tanh(V @ s + U @ x_t + b) + move
        past.append(h)
        H = torch.stack(past)
        alpha = torch.softmax(torch.tanh(W @ s + H @ key.T) @ v, 0)
        s = h + alpha @ H
    return h


def test_gradients_through_attention():
    layer, x = MemRNN(3, 5).double(), torch.randn(9, 1, 3, dtype=torch.float64)
    for name in ("query", "key", "score"):
        getattr(layer, f"weight_{name}_l0").data *= 3
    found = horizon(layer, x, directions=5, ends=1)
    zero = torch.zeros(9, 5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda nudge: mem_rnn_by_equations(layer, x[:, 0], nudge), zero)
    wanted = [float(torch.linalg.matrix_norm(jacobian[:, 8 - k], ord=2)) for k in range(9)]
    np.testing.assert_allclose(found.series["state_gradient_spectral"], wanted, rtol=1e-9)


@pytest.mark.parametrize("output", ["h", "s"])
def test_state_gradient_for_both_outputs(output):
    layer, x = RelRNN(3, 5, buffer=2, relevant=2, output=output), torch.randn(12, 2, 3)
    profile = horizon(layer, x, directions=5).series["state_gradient"]
    assert (profile > 0).all()


@pytest.mark.parametrize("layer", [RNN(3, 4, 2), nn.GRU(3, 4, 2), LSTM(3, 4), nn.LSTMCell(3, 4)], ids=str)
def test_input_gradient_equals_autograd(layer):
    layer = layer.double()
    x = torch.randn(6, 1, 3, dtype=torch.float64)
    found = horizon(layer, x, directions=4, ends=1)

    def last(x):
        if isinstance(layer, nn.LSTMCell):
            state = (torch.zeros(1, 4, dtype=torch.float64),) * 2
            for x_t in x:
                state = layer(x_t, state)
            return state[0][0]
        return layer(x)[0][-1, 0]

    jacobian = torch.autograd.functional.jacobian(last, x)[:, :, 0]  # (m, T, d)
    wanted = [float(jacobian[:, 5 - k].norm()) for k in range(6)]
    np.testing.assert_allclose(found.series["input_gradient"], wanted, rtol=1e-9)


def scalar(a):
    layer = LinearSystem(1, 1, bias=False).double()
    layer.weight_hh_l0.data.fill_(a)
    layer.weight_ih_l0.data.fill_(1.0)
    return layer


def test_horizon_and_law_of_an_exponential():
    found = horizon(scalar(0.9), torch.randn(80, 3, 1, dtype=torch.float64), needs=60)
    assert found.figures["horizon"] == 44  # 0.9^43 > 1 % > 0.9^44, relative to the input one step ago
    assert found.figures["first_below"] == 45
    assert found.labels["law"] == "exponential"
    assert found.figures["rate"] == pytest.approx(0.9)
    assert "44 steps back," in found.sentence
    assert "the task needs 60" in found.sentence
    assert found.warnings
    assert list(found.series["horizon_by_sequence"]) == [44, 44, 44]


class KeepsFirst(torch.nn.Module):
    """A leaky sum of all inputs, and the first three: of what lies between nothing is left."""

    batch_first = False

    def forward(self, x):
        y, outputs = torch.zeros_like(x[0]), []
        for step in x:
            y = 0.6 * y + step
            outputs.append(y + x[:3].sum(0))
        return torch.stack(outputs)


def test_a_gap_in_the_memory_is_told():
    x = torch.randn(60, 3, 2, dtype=torch.float64)
    found = horizon(KeepsFirst(), x, needs=30, batch_first=False)
    assert found.figures["horizon"] == 59
    assert found.figures["first_below"] == 10  # 0.6^9 > 1 % > 0.6^10
    assert found.figures["returns_at"] == 57
    assert found.figures["at_need"] < 1e-6
    assert (
        "rise above it again 57 to 59 steps back, where the sequences begin; the task needs 30, where they"
        in found.sentence
    )
    assert found.warnings[0].startswith("the gradient is gone 30 steps back, where the task needs it")
    assert not horizon(KeepsFirst(), x, needs=58, batch_first=False).warnings
    shown = headlines({"m": Examination({"horizon": found}, "", {"needs": "30"})})[0].values[0]
    assert (shown.value, shown.tone) == ("9, and 57 to 59 steps", "bad")
    assert shown.spread == "the first the same for all sequences and output steps"


def test_agreement_after_two_prefixes():
    found = horizon(scalar(0.5), torch.randn(40, 3, 1, dtype=torch.float64))
    np.testing.assert_allclose(found.series["difference_after_prefix"], 0.5 ** np.arange(31), atol=1e-12)
    assert found.figures["agreement"] == 7  # 0.5^7 < 1 % < 0.5^6


def test_exploding_gradients():
    found = horizon(scalar(1.2), torch.randn(60, 2, 1, dtype=torch.float64))
    assert found.figures["explodes_at"] == 26  # 1.2^26 > 100 > 1.2^25
    assert "explode" in found.sentence
    assert "clip" in found.warnings[0]


def test_overflow_counts_as_explosion():
    found = horizon(scalar(1e30).float(), torch.randn(20, 2, 1), behavior=False)
    assert found.figures["explodes_at"] == 1
    assert "infinity" in found.sentence


def test_nan_is_an_error_and_not_an_explosion():
    with pytest.raises(MnemoscopeError, match="NaN or infinite"):
        horizon(lambda x: x.cumsum(1) * float("nan"), torch.randn(2, 10, 3))


def test_power_law_of_a_forward_only_model():
    weights = torch.arange(64, dtype=torch.float64).clamp(min=1) ** -1.5

    def model(x):  # (B, T, d): y_t = x_t + sum_k x_{t-k} k^-1.5
        padded = nn.functional.pad(x.transpose(1, 2), (63, 0))
        return nn.functional.conv1d(padded, weights.flip(0).view(1, 1, -1)).transpose(1, 2)

    found = horizon(model, torch.randn(2, 64, 1, dtype=torch.float64))
    assert found.labels["law"] == "power law"
    assert found.figures["exponent"] == pytest.approx(-1.5)
    assert "state_gradient" not in found.series


def test_horizon_of_a_memoryless_model():
    found = horizon(nn.Linear(3, 2), torch.randn(2, 10, 3))
    assert found.figures["horizon"] == 0
    assert found.figures["agreement"] == 1
    assert found.labels["law"] == "none"


def test_a_large_present_input_does_not_shorten_the_horizon():
    found = horizon(lambda x: 1000 * x + x.cumsum(1), torch.randn(2, 10, 3))
    assert found.figures["horizon"] == 9
    assert found.figures["present"] == pytest.approx(1001)
    assert "the present input weighs 1e+03 times the strongest earlier one" in found.sentence


@pytest.mark.parametrize("present", [0.0, 1.0, 10.0, 100.0, -1.0])
def test_horizon_of_a_leaky_sum_whatever_the_present_weighs(present):
    system = LeakySum(0.95, present)
    found = horizon(system, system.inputs())
    assert found.figures["horizon"] == 90  # 0.95^89 > 1 % > 0.95^90, relative to the input one step ago
    assert found.figures["present"] == pytest.approx(abs(1 + present) / 0.95)


@pytest.mark.parametrize("delay", [1, 10, 60, 98])
def test_horizon_of_a_delay_line_is_its_delay(delay):
    line = DelayLine(delay)
    found = horizon(line, line.inputs(batch=1))
    assert found.figures["horizon"] == delay
    assert list(found.spread["horizon"])[-1] == delay
    assert found.figures["explodes_at"] == math.inf


def test_horizon_of_a_shift_register_is_its_last_tap():
    taps = torch.tensor([0.0, 0.5, 0.0, 0.0, 2.0, 0.0, 0.3, 0.01], dtype=torch.float64)

    def model(x):  # (B, T, 1)
        return sum(tap * nn.functional.pad(x, (0, 0, k, 0))[:, : x.shape[1]] for k, tap in enumerate(taps))

    found = horizon(model, torch.randn(3, 50, 1, dtype=torch.float64))
    assert found.figures["horizon"] == 6  # the tap of 0.01 is under 1 % of 2
    np.testing.assert_allclose(found.series["input_gradient"][:8], taps)


class Resettable(Recurrence):
    """h' = 0.9 (1 - r) h + x for the input (x, r)."""

    input_size = 2
    hidden_size = 1

    def initial_state(self, batch):
        return torch.zeros(1, batch, 1, dtype=torch.float64)

    def step(self, x, state):
        state = 0.9 * (1 - x[:, 1:]) * state + x[:, :1]
        return state[0], state


def test_a_reset_at_the_last_step_does_not_hide_the_memory():
    x = torch.randn(100, 1, 2, dtype=torch.float64)
    x[..., 1] = 0
    x[-1, :, 1] = 1
    found = horizon(Resettable(), x)
    # The gradient by r at the step before is 0.9 h: only its size varies.
    assert 35 <= found.figures["horizon"] <= 55
    assert horizon(Resettable(), x, ends=1).figures["horizon"] <= 1


def test_transient_growth_is_no_explosion():
    layer = LinearSystem(1, 2, bias=False).double()
    layer.weight_hh_l0.data = torch.tensor([[0.8, 1000.0], [0.0, 0.8]], dtype=torch.float64)
    layer.weight_ih_l0.data.fill_(1.0)
    x = torch.randn(100, 2, 1, dtype=torch.float64)
    found = horizon(layer, x)
    assert found.figures["growth"] > 100
    assert found.figures["explodes_at"] == math.inf
    assert "explode" not in found.sentence
    sizes = np.array([np.hypot(0.8**k + 1000 * k * 0.8 ** (k - 1), 0.8**k) for k in range(1, 100)])
    assert found.figures["horizon"] == 1 + np.nonzero(sizes >= 0.01 * sizes.max())[0][-1]


@pytest.mark.parametrize("units", [4, 32])
def test_the_true_horizon_lies_within_the_spread_for_every_seed(units):
    generator = torch.Generator().manual_seed(0)
    layer = LinearSystem(3, units, bias=False).double()
    V = torch.randn(units, units, generator=generator, dtype=torch.float64)
    layer.weight_hh_l0.data = 0.9 * V / torch.linalg.eigvals(V).abs().max()
    U = layer.weight_ih_l0.detach().numpy()
    sizes = np.array([np.linalg.norm(v @ U) for v in powers(layer.weight_hh_l0, 100)])
    true = np.nonzero(sizes >= 0.01 * sizes[1:].max())[0][-1]
    x = torch.randn(100, 1, 3, dtype=torch.float64)
    for seed in range(8):
        found = horizon(layer, x, seed=seed)
        low, high = found.spread["horizon"]
        assert low <= true <= high
        assert abs(found.figures["horizon"] - true) <= 3


class Counting(Recurrence):
    input_size = hidden_size = 2
    steps = 0  # of the class: attributes of a model are put back

    def initial_state(self, batch):
        return torch.zeros(1, batch, 2)

    def step(self, x, state):
        Counting.steps += 1
        state = torch.tanh(x + 0.9 * state)
        return state[0], state


@pytest.mark.parametrize("length", [10, 40])
def test_every_lag_from_one_backward_pass(length):
    Counting.steps = 0
    found = horizon(Counting(), torch.randn(length, 3, 2), behavior=False)
    assert len(found.series["input_gradient"]) == len(found.series["state_gradient"]) == length
    before = 2 * length + 5 * length + 2  # two equal runs; is it recurrent, and does its state keep its shape?
    assert Counting.steps == before + length + 1  # one step for the number of outputs


class Clocked:
    """h' = h / 2 + x, and a clock beside it that no input moves: y = h' (1 + 0 t)."""

    def initial_state(self, batch):
        return torch.zeros(batch, 2, dtype=torch.float64), torch.zeros(batch, 1, dtype=torch.float64)

    def step(self, x, state):
        h, t = state
        h = h / 2 + x
        return h * (1 + 0 * t), (h, t + 1)


def test_a_state_that_no_input_moves():
    x = torch.randn(12, 3, 2, dtype=torch.float64)
    found = horizon(Clocked(), x)
    assert found.figures["rate"] == pytest.approx(0.5)
    assert found.series["state_gradient"][2] == pytest.approx(found.series["state_gradient"][1] / 2)
    assert signal(Clocked(), x).has_result


class Squeezed(nn.GRU):
    """One number per sequence, as people write it: of a single sequence the batch is squeezed away too."""

    def forward(self, x):
        return super().forward(x)[0][:, -1, :1].squeeze()


def test_a_squeezed_output():
    model, x = Squeezed(3, 4, batch_first=True), torch.randn(4, 9, 3)
    wanted = horizon(lambda x: nn.GRU.forward(model, x)[0][:, -1, :1], x).series["input_gradient"]
    for forward in (lambda x: model(x), nn.Sequential(model)):
        assert horizon(forward, x).series["input_gradient"] == pytest.approx(wanted)
        assert separation(forward, x).status == "estimated"


def test_state_gradient_if_the_output_skips_the_state():
    """Outputs of a user's step are read from an inner tensor: the lag 0 of states repeats lag 1."""

    class Inner(nn.Module):
        input_size = 2

        def initial_state(self, batch):
            return torch.zeros(batch, 2)

        def step(self, x, state):
            h = x + 0.9 * state
            return 2 * h, h

    found = horizon(Inner(), torch.randn(10, 3, 2), directions=2)
    wanted = 2 * np.sqrt(2) * 0.9 ** np.array([1, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    np.testing.assert_allclose(found.series["state_gradient"], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"fraction": 2}, "fraction"), ({"directions": 0}, "directions"), ({"lags": 3}, "no option 'lags'")],
)
def test_refuses_wrong_options(options, said):
    with pytest.raises(MnemoscopeError, match=said):
        horizon(LSTM(3, 4), torch.randn(5, 2, 3), **options)


def test_refuses_a_single_step():
    with pytest.raises(MnemoscopeError, match="at least 2 steps"):
        horizon(LSTM(3, 4), torch.randn(1, 2, 3))


@pytest.mark.parametrize(("law", "exponent"), [("exponential", -0.3), ("power law", -0.8)])
def test_fit_chooses_the_law_in_noise(law, exponent):
    k = np.arange(100)
    clean = np.exp(exponent * k / 5) if law == "exponential" else np.maximum(k, 1.0) ** exponent
    noisy = clean * np.exp(0.1 * np.random.default_rng(0).normal(size=100))
    assert fit(noisy, torch.float32).name == law


def test_rounding_of_a_parallel_scan_is_no_power_law():
    def gated_mean(x):  # y_t = (1 - z_t) y_{t-1} + z_t exp(x_t), computed at once by sums of logarithms
        keep = -torch.nn.functional.softplus(x).cumsum(1)
        return (keep + torch.logcumsumexp(torch.nn.functional.logsigmoid(x) + x - keep, 1)).exp()

    x = torch.randn(3, 100, 2, generator=torch.Generator().manual_seed(0))
    rate = float(-torch.nn.functional.softplus(x).mean())
    for inputs in (x, x.double()):
        found = horizon(gated_mean, inputs)
        assert found.labels["law"] == "exponential"
        assert found.figures["rate"] == pytest.approx(np.exp(rate), rel=0.05)


def test_inputs_read_at_every_other_step_are_not_one_gap():
    found = horizon(lambda x: x[:, ::2].cumsum(1), torch.randn(3, 24, 2))
    assert found.sentence.startswith(
        "Gradients reach 2 steps back, then fall under 1 % of their largest, and rise above it again and again, "
        "up to 22 steps back, where the sequences begin"
    )
    one_gap = horizon(lambda x: x + x.roll(10, 1) + x.roll(1, 1), torch.randn(3, 24, 2))
    assert "rise above it again 10 steps back" in one_gap.sentence


def test_fit_finds_no_law_for_a_single_lag():
    profile = 0.5 ** np.arange(60.0)
    profile[50] = 1.0
    assert fit(profile, torch.float64).name == "none"
    found = horizon(lambda x: x.cumsum(1) + 5 * x.roll(30, 1), torch.randn(2, 40, 1))
    assert found.figures["horizon"] == 39
    assert found.figures["present"] < 1
    assert "law" not in found.sentence
    assert "exponential" not in found.sentence


def test_a_sample_that_reaches_the_first_step_from_an_early_end_is_left_out():
    """Seen from step 10 the gradient goes back 10 steps at most: that says "at least"."""
    norms = SimpleNamespace(ends=np.array([[10, 10], [20, 20]]))
    assert horizon_range(norms, np.array([[10, 10], [15, 20]]), 15.0).tolist() == [15, 20]
    assert horizon_range(norms, np.array([[10, 9], [15, 20]]), 15.0).tolist() == [9, 20]


@pytest.mark.parametrize(
    ("padding", "words"), [((4, 0), "the last 5 steps and"), ((2, 2), "the last 3 steps, on later")]
)
def test_a_convolution_that_reads_later_inputs_is_said_to(padding, words) -> None:
    convolution = torch.nn.Conv1d(3, 4, 5)

    def model(x):
        return convolution(torch.nn.functional.pad(x.transpose(1, 2), padding)).transpose(1, 2)

    found = horizon(model, torch.randn(3, 40, 3))
    assert f"depends on {words}" in found.sentence
    assert "nothing earlier" in found.sentence
