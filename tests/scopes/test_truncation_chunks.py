"""Chunks of truncated backpropagation: the error of their gradient, the safe length, and its spread over sequences."""

import numpy as np
import pytest
import torch
from torch import nn

from mnemoscope import LSTM, RNN, LinearSystem
from mnemoscope.scopes import truncation
from mnemoscope.scopes._frame.subject import subject_of
from mnemoscope.scopes._measures.chunks import Chunks
from mnemoscope.scopes._truncation import _weights


def scalar(a):
    layer = LinearSystem(1, 1, bias=False).double()
    layer.weight_hh_l0.data.fill_(a)
    layer.weight_ih_l0.data.fill_(1.0)
    return layer


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
    layer, x = Mixing(2, 2).double(), torch.randn(40, 3, 2, dtype=torch.float64)
    found = truncation(layer, x, error=0.1)
    assert found.status == "not applicable"
    assert "mixes sequences" in found.why
    subject = subject_of(layer, x)
    chunks = Chunks(subject, _weights(subject))
    assert chunks.error(5) > 0
    assert len(chunks.windows_of_groups(5, np.arange(1, 41), 0.1)) == 0


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
