"""Forwards as people write them: other arguments, other results, other layouts."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import mnemoscope
from mnemoscope import MnemoscopeError, examine
from mnemoscope.adapters import Layout, adapt
from mnemoscope.scopes import separation, truncation


class LanguageModel(nn.Module):
    """The recurrent part of PyTorch's examples/word_language_model: a state, time first, flattened outputs."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 5, 2)
        self.decoder = nn.Linear(5, 11)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        decoded = self.decoder(output).view(-1, 11)
        return torch.log_softmax(decoded, 1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(2, bsz, 5), weight.new_zeros(2, bsz, 5)


def test_init_hidden_and_flattened_outputs():
    model, ids = LanguageModel(), torch.randint(0, 11, (9, 4))
    found = adapt(model, ids)
    wanted, _ = model(ids, model.init_hidden(4))
    torch.testing.assert_close(found.run(found.features), wanted.view(9, 4, 11))
    assert list(found.run(found.features.repeat(1, 3, 1)).shape) == [9, 12, 11]
    assert found.starts_itself
    assert list(found.recurrence_inputs.shape) == [9, 4, 6]


class CharRNN(nn.Module):
    """The tutorial's network: forward reads one step, initHidden knows no batch."""

    def __init__(self):
        super().__init__()
        self.i2h = nn.Linear(3 + 8, 8)
        self.h2o = nn.Linear(8, 2)

    def forward(self, input, hidden):
        hidden = torch.tanh(self.i2h(torch.cat((input, hidden), 1)))
        return self.h2o(hidden), hidden

    def initHidden(self):
        return torch.zeros(1, 8)


def test_forward_that_reads_one_step():
    model, x = CharRNN(), torch.randn(9, 4, 3)
    found = adapt(model, x)
    hidden, outputs = torch.zeros(4, 8), []
    for x_t in x:
        output, hidden = model(x_t, hidden)
        outputs.append(output)
    torch.testing.assert_close(found.run(found.features), torch.stack(outputs))
    assert found.recurrence is not None
    assert found.name == "CharRNN"
    assert len(list(found.recurrence.parameters())) == 4


class WithLengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.rnn = nn.GRU(6, 5, batch_first=True)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def test_lengths_are_filled_in():
    model, ids = WithLengths(), torch.randint(1, 11, (4, 9))
    found = adapt(model, ids)
    torch.testing.assert_close(found.run(found.features), model(ids, torch.full((4,), 9)).transpose(0, 1))
    assert list(found.run(found.features[:6, :1]).shape) == [6, 1, 5]
    assert list(found.recurrence_inputs.shape) == [9, 4, 6]


def test_kwargs_follow_the_batch_and_the_steps():
    model, ids = WithLengths(), torch.randint(1, 11, (4, 9))
    lengths = torch.tensor([9, 3, 5, 9])
    found = adapt(model, ids, kwargs={"lengths": lengths})
    wanted = model(ids, lengths).transpose(0, 1)
    torch.testing.assert_close(found.run(found.features), wanted)
    torch.testing.assert_close(found.run(found.features.repeat(1, 2, 1)), wanted.repeat(1, 2, 1))
    torch.testing.assert_close(found.run(found.features[:4]), wanted[:4])


def leak(x, dt):
    """y_t = exp(-dt_t) y_{t-1} + x_t, with the times between steps beside the inputs (batch, time)."""
    y, outputs = torch.zeros_like(x[:, 0]), []
    for x_t, dt_t in zip(x.unbind(1), dt.unbind(1), strict=True):
        y = torch.exp(-dt_t)[:, None] * y + x_t
        outputs.append(y)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("late", [0.0, 2.0])
def test_a_window_of_the_last_steps_has_what_was_given_for_these(late):
    x = torch.randn(3, 40, 2, generator=torch.Generator().manual_seed(0))
    dt = torch.where(torch.arange(40) < 20, 2.0 - late, late).expand(3, 40)
    beside = truncation(leak, x, kwargs={"dt": dt})
    among = truncation(lambda both: leak(both[..., :2], both[..., 2]), torch.cat([x, dt[..., None]], 2))
    assert beside.figures == among.figures
    assert beside.figures["window"] == (3 if late else pytest.approx(22, abs=1))


def test_a_missing_argument_is_named():
    with pytest.raises(MnemoscopeError, match=r"also takes 'temperature': pass kwargs=\{'temperature': ...\}"):
        adapt(lambda x, temperature: x / temperature, torch.randn(2, 7, 3))
    found = adapt(lambda x, temperature: x / temperature, torch.randn(2, 7, 3), kwargs={"temperature": 2.0})
    torch.testing.assert_close(found.run(found.features), found.features / 2)


@dataclass
class Scored:
    attention: torch.Tensor = field(init=False)  # never set
    loss: torch.Tensor
    scores: torch.Tensor


LOGITS = nn.Linear(3, 5)
RESULTS = {
    "loss and logits": lambda x: (x.mean(), LOGITS(x)),
    "dict": lambda x: {"loss": x.mean(), "mask": x > 0, "scores": LOGITS(x)},
    "dataclass": lambda x: Scored(x.mean(), LOGITS(x)),
    "nested": lambda x: {"head": (LOGITS(x), None)},
    "namedtuple": lambda x: torch.return_types.max((LOGITS(x), x.argmax(-1))),
    "packed": lambda x: pack_padded_sequence(LOGITS(x), [x.shape[1]] * len(x), batch_first=True),
}


@pytest.mark.parametrize("name", RESULTS)
def test_the_main_tensor_of_a_result(name):
    x = torch.randn(2, 7, 3)
    found = adapt(RESULTS[name], x)
    torch.testing.assert_close(found.run(found.features), LOGITS(x).transpose(0, 1))


@pytest.mark.parametrize("output", ["hidden", lambda result: result["hidden"]])
def test_output_says_which_part_is_meant(output):
    x = torch.randn(2, 7, 3)
    found = adapt(lambda x: {"logits": LOGITS(x), "hidden": x}, x, output=output)
    torch.testing.assert_close(found.run(found.features), found.features)
    by_place = adapt(lambda x: (LOGITS(x), x), x, output=1)
    torch.testing.assert_close(by_place.run(by_place.features), by_place.features)


def test_an_output_that_is_not_there():
    with pytest.raises(MnemoscopeError, match="output='states' is not in the model's result, a dict; it has logits"):
        adapt(lambda x: {"logits": x}, torch.randn(2, 7, 3), output="states")


def test_inputs_are_contiguous():
    found = adapt(lambda x: x.view(-1, 3).view(*x.shape), torch.randn(2, 7, 3), batch_first=True)
    assert found.run(found.features).shape == (7, 2, 3)
    by_time = adapt(nn.Identity(), torch.randn(7, 2, 3), batch_first=False)
    assert by_time.run(by_time.features.transpose(0, 1).contiguous().transpose(0, 1)).is_contiguous()


class Convolution(nn.Module):
    def __init__(self, turned, **options):
        super().__init__()
        self.convolution = nn.Conv1d(2, 5, 3, **options)
        self.turned = turned

    def forward(self, x):
        y = self.convolution(x.transpose(1, 2) if self.turned else x)
        return y.transpose(1, 2) if self.turned else y


@pytest.mark.parametrize("shape", [(4, 2, 30), (2, 2, 30), (4, 2, 4)])
def test_channels_first_is_seen_at_the_first_convolution(shape):
    model, x = Convolution(False, padding=1), torch.randn(shape)
    found = adapt(nn.Sequential(nn.Tanh(), model), x)
    assert found.layout is Layout.CHANNELS_FIRST
    torch.testing.assert_close(found.features, x.permute(2, 0, 1))
    torch.testing.assert_close(found.run(found.features), model(x.tanh()).permute(2, 0, 1))


@pytest.mark.parametrize("steps", [30, 2])
def test_a_convolution_that_turns_its_inputs_reads_batch_first(steps):
    model, x = Convolution(True, padding=1), torch.randn(4, steps, 2)
    found = adapt(model, x)
    assert found.layout is Layout.BATCH_FIRST
    torch.testing.assert_close(found.run(found.features), model(x).transpose(0, 1))


def test_channels_first_can_be_said():
    found = adapt(lambda x: x.cumsum(-1), torch.randn(4, 2, 30), channels_first=True)
    assert list(found.features.shape) == [30, 4, 2]
    torch.testing.assert_close(found.run(found.features), found.features.cumsum(0))
    with pytest.raises(MnemoscopeError, match="leave out batch_first=False"):
        adapt(lambda x: x, torch.randn(4, 2, 30), False, channels_first=True)


@pytest.mark.parametrize(("stride", "steps"), [(1, 28), (2, 14)])
def test_fewer_outputs_than_inputs(stride, steps):
    found = adapt(Convolution(True, stride=stride), torch.randn(4, 30, 2))
    assert found.run(found.features).shape == (steps, 4, 5)


class StepByStep(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        state, outputs = None, []
        for t in range(x.shape[1]):
            if isinstance(self.layer, nn.RNNCellBase):
                state = self.layer(x[:, t], state)
                output = state[0] if isinstance(state, tuple) else state
                outputs.append(output[:, None])
            else:
                output, state = self.layer(x[:, t : t + 1], state)
                outputs.append(output)
        return torch.cat(outputs, 1)


@pytest.mark.parametrize("layer", [nn.LSTM(3, 4, 2, batch_first=True), nn.LSTMCell(3, 4), nn.GRUCell(3, 4)], ids=str)
def test_a_layer_that_is_called_step_by_step(layer):
    model, x = StepByStep(layer), torch.randn(2, 7, 3)
    found = adapt(model, x)
    torch.testing.assert_close(found.recurrence_inputs, x.transpose(0, 1))
    torch.testing.assert_close(found.recurrence(found.recurrence_inputs)[0], model(x).transpose(0, 1))
    assert found.starts_itself


class Decoder(nn.Module):
    """Reads its own last output beside the input, by a weight `back`; also from two steps ago, or detached."""

    def __init__(self, layer, back=1.0, delay=1, detached=False):
        super().__init__()
        self.layer, self.back, self.delay, self.detached = layer, back, delay, detached

    def forward(self, x):
        state, outputs = None, [x.new_zeros(len(x), 3)] * self.delay
        for t in range(x.shape[1]):
            fed = outputs[t].detach() if self.detached else outputs[t]
            read = x[:, t] + self.back * fed
            if isinstance(self.layer, nn.RNNCellBase):
                state = self.layer(read, state)
                outputs.append(state[0] if isinstance(state, tuple) else state)
            else:
                output, state = self.layer(read[:, None], state)
                outputs.append(output[:, 0])
        return torch.stack(outputs[self.delay :], 1)


@pytest.mark.parametrize(
    "layer",
    [nn.RNNCell(3, 3), nn.LSTMCell(3, 3), nn.GRU(3, 3, batch_first=True), mnemoscope.RNN(3, 3, batch_first=True)],
)
def test_a_layer_whose_outputs_are_fed_back_is_not_the_recurrence(layer):
    x = torch.randn(2, 7, 3)
    for model in (Decoder(layer), Decoder(layer, delay=2), Decoder(layer, detached=True)):
        found = adapt(model, x)
        assert found.recurrence is None
        assert "feeds what its" in found.no_step
        torch.testing.assert_close(found.run(found.features), model(x).transpose(0, 1))
    assert adapt(Decoder(layer, back=0.0), x).recurrence is not None


def test_chunks_of_a_layer_are_not_told_of_a_model_that_feeds_back():
    torch.manual_seed(0)
    cell = nn.RNNCell(3, 3)
    with torch.no_grad():
        cell.weight_hh.zero_()  # the cell alone forgets at once; what it gives comes back by the input
        cell.weight_ih.copy_(1.2 * torch.linalg.qr(torch.randn(3, 3)).Q)
    found = mnemoscope.examine(Decoder(cell), torch.randn(3, 20, 3), scopes=["horizon", "truncation", "stability"])
    assert found["horizon"].figures["horizon"] > 5
    assert found["stability"].status == "not applicable"
    assert "bptt_window" not in found["truncation"].figures
    assert "chunks" not in found.verdict


class Ponder(nn.Module):
    """Makes three steps of its cell for every input."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, x):
        h, outputs = x.new_zeros(len(x), 3), []
        for t in range(x.shape[1]):
            for _ in range(3):
                h = self.cell(x[:, t], h)
            outputs.append(h)
        return torch.stack(outputs, 1)


def test_steps_of_a_layer_that_are_not_those_of_the_model_are_told():
    scopes = ["horizon", "lyapunov", "stability"]
    found = mnemoscope.examine(Ponder(), torch.randn(2, 8, 3), scopes=scopes)
    for scope in ("lyapunov", "stability"):
        assert found[scope].sentence.endswith("; in steps of its recurrent layer, 24 where the model reads 8 steps.")
    assert "in steps of" not in found["horizon"].sentence
    assert "state_gradient" not in found["horizon"].series  # its lags would be others
    same = mnemoscope.examine(StepByStep(nn.GRUCell(3, 3)), torch.randn(2, 8, 3), scopes=scopes)
    assert "in steps of" not in f"{same}"
    assert "state_gradient" in same["horizon"].series


def test_a_layer_that_is_called_on_unrelated_single_steps():
    layer = nn.GRU(3, 4, batch_first=True)

    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return torch.cat([layer(x[:, t : t + 1])[0] for t in range(x.shape[1])], 1)

    found = adapt(Forgetful(), torch.randn(2, 7, 3))
    assert found.recurrence is None
    assert "more than once and not on one sequence" in found.no_step


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("make", [lambda: nn.LSTMCell(3, 4), lambda: CellStep()], ids=["cell", "step"])
def test_what_reads_single_steps_has_no_layout_of_its_own(make, batch_first):
    x = torch.randn(7, 2, 3)
    model = make()
    found = adapt(model, x.transpose(0, 1) if batch_first else x, batch_first)
    torch.testing.assert_close(found.recurrence_inputs, x)
    torch.testing.assert_close(found.run(found.features), adapt(model, x).run(x))


class CellStep:
    input_size = 3

    def __init__(self):
        self.cell = nn.GRUCell(3, 4)

    def initial_state(self, batch):
        return torch.zeros(batch, 4)

    def step(self, x, h):
        h = self.cell(x, h)
        return h, h


@pytest.mark.parametrize(("steps", "batch", "features"), [(9, 4, 5), (9, 4, 9), (9, 9, 5), (9, 9, 9), (12, 4, 9)])
@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (0, 2, 1)])
def test_the_axis_of_time_in_an_output_whose_shape_does_not_show_it(steps, batch, features, axes):
    layer, head = nn.GRU(3, 6, batch_first=True), nn.Linear(6, features)
    x = torch.randn(batch, steps, 3)
    found = adapt(lambda x: head(layer(x)[0]).permute(axes), x)
    wanted = head(layer(x)[0]).transpose(0, 1)
    torch.testing.assert_close(found.run(found.features), wanted)
    torch.testing.assert_close(found.run(found.features[:9]), wanted[:9])


class WithState(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(3, 4, 2, batch_first=True)

    def forward(self, x, h0):
        return self.layer(x, h0)


def test_a_first_state_has_its_batch_after_its_layers():
    """Of two layers and two sequences, the layers were repeated with the batch."""
    torch.manual_seed(0)
    model, x, h0 = WithState(), torch.randn(2, 30, 3), torch.randn(2, 2, 4)
    found = adapt(model, x, kwargs={"h0": h0})
    wanted = model(x, h0)[0].transpose(0, 1)
    torch.testing.assert_close(found.run(found.features.repeat(1, 3, 1)), wanted.repeat(1, 3, 1))
    assert examine(model, x, kwargs={"h0": h0}, scopes=["horizon"])["horizon"].figures["horizon"] > 1


class WithCovariate(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(3 + 2, 4, batch_first=True)

    def forward(self, x, static):
        return self.layer(torch.cat([x, static[:, None].expand(-1, x.shape[1], -1)], -1))[0]


def test_sequences_joined_of_two_have_no_arguments_of_their_own():
    """They were given those of any sequence, and the rank was that of this mixture."""
    torch.manual_seed(0)
    model, x, static = WithCovariate(), torch.randn(30, 12, 3), 9 * torch.randn(30, 2)
    assert separation(model, x, kwargs={"static": static}).status == "not applicable"
    assert separation(model, x, kwargs={"static": static[:1].expand(30, -1)}).status == "estimated"
    assert separation(model, x[:1], kwargs={"static": static[:1]}).status == "estimated"
