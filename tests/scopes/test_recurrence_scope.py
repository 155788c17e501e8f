import math

import pytest
import torch
from torch import nn

from mnemoscope import LSTM, SAB, LinearSystem, MemRNN, MnemoscopeError, RelLSTM, examine
from mnemoscope.scopes import Watch, horizon, recurrence, separation


class Classifier(nn.Module):
    """(batch, time, features) -> one output a sequence, by the last step of the layer."""

    def __init__(self, layer):
        super().__init__()
        self.rnn, self.head = layer, nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Causal(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.causal = causal

    def forward(self, x):
        steps = x.shape[1]
        mask = torch.triu(torch.full((steps, steps), -torch.inf), 1) if self.causal else None
        return self.layer(x, src_mask=mask)


class Detached(nn.Module):
    input_size = 4

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 5)

    def initial_state(self, batch):
        return torch.zeros(batch, 5)

    def step(self, x, state):
        h = self.cell(x, state.detach())
        return h, h


class Blur(nn.Conv1d):
    """A convolution that looks at both neighbors in time."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


TIME_FIRST = [
    ("recurrent", nn.LSTM(4, 5)),
    ("recurrent", LSTM(4, 5)),
    ("recurrent", MemRNN(4, 5)),
    ("recurrent", SAB(4, 5)),
    ("recurrent", RelLSTM(4, 5)),
    ("recurrent", nn.RNNCell(4, 5)),
    ("detached", Detached()),
    ("bidirectional", nn.LSTM(4, 5, bidirectional=True)),
    ("bidirectional", nn.GRU(4, 5, 2, bidirectional=True)),
]
BATCH_FIRST = [
    ("recurrent", nn.GRU(4, 5, 2, batch_first=True)),
    ("recurrent", Causal()),
    ("recurrent", lambda x: x.cumsum(1)),
    ("recurrent", lambda x: x + 1e-5 * x.cumsum(1)),  # as a block that starts out near the identity
    ("recurrent", Classifier(nn.LSTM(4, 5, batch_first=True))),
    ("memoryless", nn.Linear(4, 2)),
    ("memoryless", torch.ones_like),
    ("memoryless", lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=x.shape[1], dim=1)),
    ("reads the future", Causal(causal=False)),
    ("reads the future", lambda x: x + 1e-5 * x.flip(1).cumsum(1).flip(1)),
    ("reads the future", Blur(4, 4, 3, padding=1)),
    ("mixes sequences", lambda x: x.cumsum(1) - x.mean(0)),
    ("mixes sequences", lambda x: x[:, -1].flip(0).cumsum(0).flip(0)),  # each reads the ones after it
]


@pytest.mark.parametrize(
    ("kind", "model", "shape"),
    [(*row, (9, 3, 4)) for row in TIME_FIRST] + [(*row, (3, 9, 4)) for row in BATCH_FIRST],
)
def test_kind_of_model(kind, model, shape):
    found = recurrence(model, torch.randn(shape))
    assert found.labels["kind"] == kind
    assert bool(found.warnings) == (kind != "recurrent")
    assert "3 sequences of 9 steps" in found.sentence


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_memory_in_half_precision_that_weighs_little(dtype):
    found = recurrence(lambda x: x + x.cumsum(1) / 16, torch.randn(3, 9, 4).to(dtype))
    assert found.labels["kind"] == "recurrent"


@pytest.mark.parametrize("batch_first", [True, False])
def test_what_remembers_nothing_may_have_its_time_in_the_other_dimension(batch_first):
    """Whichever was read, the advice names both."""
    found = recurrence(nn.Linear(4, 2), torch.randn(6, 9, 4), batch_first=batch_first)
    assert found.labels["kind"] == "memoryless"
    assert "batch_first=True or False, --batch-first or --time-first" in found.warnings[0]


def test_a_readout_of_zeros_hides_the_memory_before_it():
    model = Classifier(nn.LSTM(4, 5, batch_first=True))
    nn.init.zeros_(model.head.weight)
    found = recurrence(model, torch.randn(3, 9, 4))
    assert found.labels["kind"] == "memoryless"
    assert "depends on no input at all (3 sequences of 9 steps)" in found.sentence
    assert found.warnings[0].startswith("if the read-out still has the zeros that it began with")


def test_forgotten_batch_first():
    """nn.LSTM made without batch_first, on inputs that are said to be (batch, time, features)."""
    found = recurrence(nn.LSTM(4, 5), torch.randn(6, 9, 4), batch_first=True)
    assert found.labels["kind"] == "runs over the batch"
    assert "batch_first=True" in found.warnings[0]
    assert "batch_first=False, or --time-first" in found.warnings[0]  # for a model that is meant to read time first


def test_forgotten_batch_first_is_found_by_the_outputs():
    found = recurrence(Classifier(nn.LSTM(4, 5)), torch.randn(6, 9, 4))
    assert found.labels["kind"] == "runs over the batch"
    assert "6 sequences of 9 steps" in found.sentence


def test_forgotten_batch_first_is_found_by_the_targets():
    layer, x = nn.LSTM(4, 5), torch.randn(6, 9, 4)
    found = recurrence(layer, x, targets=torch.randint(0, 5, (6,)))
    assert found.labels["kind"] == "runs over the batch"


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("others", [[], ["recurrence"]])
@pytest.mark.parametrize("model", [nn.LSTM(3, 5), lambda x: x.cumsum(1) - x.mean(0)])
def test_mixed_sequences_are_not_looked_at_side_by_side(model, others, batch):
    """Rows of a run look at different output steps: of mixed sequences, one's lags would be those of others."""
    found = examine(model, torch.randn(batch, 9, 3), batch_first=True, scopes=[*others, "horizon", "separation"])
    for scope in ("horizon", "separation"):
        assert found[scope].status == "not applicable"
        assert "what is seen of one sequence is partly that of others" in found[scope].why


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("scope", [horizon, separation])
def test_mixed_sequences_are_found_by_a_scope_on_its_own(scope, batch):
    """One sequence is run beside copies of itself."""
    found = scope(lambda x: x.cumsum(1) - x.mean(0), torch.randn(batch, 9, 3), batch_first=True)
    assert found.status == "not applicable"
    assert "mixes sequences: what is seen of one sequence is partly that of others" in found.why


def test_a_watch_refuses_what_mixes_sequences():
    with pytest.raises(MnemoscopeError, match=r"^watch does not apply: .* mixes sequences"):
        Watch(lambda x: x.cumsum(1) - x.mean(0), torch.randn(6, 9, 3), batch_first=True)


def test_series_by_step():
    found = recurrence(lambda x: x + nn.functional.pad(x, (0, 0, 3, 0))[:, :-3], torch.randn(2, 12, 4))  # x_t + x_{t-3}
    step, changed = int(found.figures["step"]), int(found.figures["changed_step"])
    assert [t for t, size in enumerate(found.series["gradient_by_step"]) if size > 0] == [step - 3, step]
    assert [t for t, size in enumerate(found.series["change_by_step"]) if size > 0] == [changed, changed + 3]


def test_rounding_is_not_a_leak():
    """A causal convolution by FFT touches the future by rounding errors alone."""

    def model(x):
        steps = x.shape[1]
        kernel = torch.fft.rfft(0.9 ** torch.arange(steps), 2 * steps)
        return torch.fft.irfft(torch.fft.rfft(x, 2 * steps, dim=1) * kernel[:, None], dim=1)[:, :steps]

    found = recurrence(model, torch.randn(3, 50, 4))
    assert found.series["change_by_step"][: int(found.figures["changed_step"])].max() > 0
    assert found.labels["kind"] == "recurrent"


def test_refuses_nan_outputs():
    with pytest.raises(MnemoscopeError, match="NaN or infinite from step 0"):
        recurrence(lambda x: x / 0, torch.randn(3, 9, 4))


def test_refuses_a_single_step():
    with pytest.raises(MnemoscopeError, match="at least 2 steps"):
        recurrence(nn.LSTM(4, 5), torch.randn(1, 3, 4))


def test_huge_inputs_do_not_overflow_what_is_compared() -> None:
    """Squares of 1e36 have no place in float32: the sizes that are compared are those of float64."""
    found = recurrence(LinearSystem(3, 4), 1e36 * torch.randn(24, 3, 3))
    assert found.labels["kind"] == "recurrent"
    assert all(math.isfinite(value) for value in found.figures.values())
    assert 0 < found.figures["change_of_later"] <= 1


def test_one_sequence_is_said_so() -> None:
    assert "(1 sequence of 9 steps)" in recurrence(nn.RNN(2, 3), torch.randn(9, 1, 2)).sentence


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("last", [False, True], ids=["every step", "last step"])
def test_nothing_is_said_of_what_could_not_be_looked_at(last, batch) -> None:
    """One sequence shows nothing of others, and one output has no later inputs."""
    layer = nn.GRU(2, 3, batch_first=True)
    sentence = recurrence(lambda x: layer(x)[0][:, -1] if last else layer(x)[0], torch.randn(batch, 9, 2)).sentence
    assert "depends on earlier inputs" in sentence
    assert ("later" in sentence) == (not last)
    assert ("other sequence" in sentence) == (batch > 1)


class Delay(nn.Module):
    """Gives the input of `by` steps ago."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        return nn.functional.pad(x, (0, 0, self.by, 0))[:, : x.shape[1]]


class WithinBlocks(nn.Module):
    """The running sum of each block of steps."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return x.unflatten(1, (-1, self.block)).cumsum(2).flatten(1, 2)


class SilentAtFirst(nn.Module):
    """The running sum, but nothing before the last ten steps, as where a task asks for its answer at the end."""

    def forward(self, x):
        return x.cumsum(1) * (torch.arange(x.shape[1]) >= x.shape[1] - 10)[:, None]


PARTLY = [Delay(33), Delay(63), WithinBlocks(2), WithinBlocks(8), WithinBlocks(32), SilentAtFirst()]


@pytest.mark.parametrize("model", PARTLY)
def test_memory_that_the_middle_of_the_sequence_does_not_show(model):
    found = recurrence(model, torch.randn(3, 64, 4))
    assert found.labels["kind"] == "recurrent"
    assert found.figures["gradient_by_earlier"] > 0
    assert recurrence(model, torch.randn(1, 64, 4)).labels["kind"] == "recurrent"


def test_a_state_that_is_detached_within_blocks_is_seen():
    class Detaching(WithinBlocks):
        def forward(self, x):
            return x + super().forward(x).detach()

    assert recurrence(Detaching(32), torch.randn(3, 64, 4)).labels["kind"] == "detached"


@pytest.mark.parametrize("steps", [2, 9, 30])
def test_sequences_that_were_turned_around_read_the_future(steps):
    """In the middle they seem to be one step late: an earlier input is read, and no later one."""
    found = recurrence(lambda x: x.flip(1), torch.randn(4, steps, 3))
    assert found.labels["kind"] == "reads the future"
    assert found.figures["gradient_by_later"] == 1


@pytest.mark.parametrize("steps", [16, 64, 1000])
def test_rounding_of_a_fourier_transform_is_no_future(steps):
    """Its first output reads no input but by rounding, which is as large for later inputs as for its own."""

    def convolve(x):
        lags = torch.arange(float(steps))
        spectrum = torch.fft.rfft(lags * 0.9**lags, 2 * steps)[:, None] * torch.fft.rfft(x, 2 * steps, dim=1)
        return torch.fft.irfft(spectrum, 2 * steps, dim=1)[:, :steps]

    assert recurrence(convolve, torch.randn(4, steps, 3)).labels["kind"] == "recurrent"
