"""What is said of models as people write them; each of these was once said wrongly."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mnemoscope import MnemoscopeError, examine
from mnemoscope.report import headlines
from mnemoscope.scopes import Watch, horizon, recurrence, truncation

MEMORY = ["recurrence", "horizon"]


class Head(nn.Module):
    """A recurrent layer and a linear one; `read` says what of the layer's outputs is read."""

    def __init__(self, layer, features, read=lambda h: h):
        super().__init__()
        self.layer, self.head, self.read = layer, nn.Linear(features, 2), read

    def forward(self, x):
        return self.head(self.read(self.layer(x)[0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make", [lambda: nn.LSTM(3, 8, batch_first=True), lambda: Head(nn.GRU(3, 8, 1, True, True), 8)]
)
def test_half_precision(make, dtype):
    model, x = make(), torch.randn(4, 30, 3)
    wanted = examine(model, x, scopes=MEMORY)
    found = examine(model.to(dtype), x.to(dtype))
    assert found["recurrence"].labels["kind"] == "recurrent"
    assert found["horizon"].figures["horizon"] == pytest.approx(wanted["horizon"].figures["horizon"], abs=1)
    assert not [finding.why for finding in found if finding.status == "failed"]
    assert next(model.parameters()).dtype == dtype


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 8, 2, dropout=0.5, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.layer(x)[0])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "compiled", [torch.jit.script, lambda model: torch.jit.trace(model.eval(), torch.ones(4, 30, 3))]
)
def test_a_model_of_torchscript(compiled):
    """Its dict of parameters cannot be listed, and no scope came to an end."""
    torch.manual_seed(0)
    model, x = Dropping(), torch.randn(4, 30, 3)
    wanted = examine(model, x, scopes=[*MEMORY, "truncation"])
    scripted = compiled(model)
    before = scripted.training
    found = examine(scripted, x, scopes=[*MEMORY, "truncation"])
    assert found["recurrence"].labels == {"kind": "recurrent"}
    assert found["horizon"].figures["horizon"] == wanted["horizon"].figures["horizon"]
    assert found["truncation"].figures["window"] == wanted["truncation"].figures["window"]
    assert scripted.training is before
    assert all(parameter.requires_grad for parameter in scripted.parameters())


def test_a_step_in_half_precision_that_forgets_nothing_is_not_random():
    found = examine(lambda x: x.cumsum(1), torch.randn(4, 30, 3).bfloat16(), scopes=MEMORY)
    assert found["recurrence"].labels["kind"] == "recurrent"


class CellStep:
    input_size = 3

    def __init__(self):
        self.cell = nn.GRUCell(3, 8)

    def initial_state(self, batch):
        return torch.zeros(batch, 8)

    def step(self, x, h):
        h = self.cell(x, h)
        return h, h


@pytest.mark.parametrize("make", [lambda: nn.LSTMCell(3, 8), CellStep])
def test_batch_first_of_what_reads_single_steps(make):
    model, x = make(), torch.randn(30, 4, 3)
    wanted = horizon(model, x).figures
    assert horizon(model, x.transpose(0, 1), batch_first=True).figures == wanted
    assert wanted["lags"] == 29


class Forecaster(nn.Module):
    """Five steps ahead from the last state."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1]).view(len(x), 5, 2)


class Translator(nn.Module):
    """An encoder and a decoder of seven steps."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.GRU(3, 8, batch_first=True), nn.GRU(2, 8, batch_first=True)

    def forward(self, x):
        _, h = self.encoder(x)
        return self.decoder(x.new_zeros(len(x), 7, 2), h)[0]


class Convolution(nn.Module):
    def __init__(self, width=3, **options):
        super().__init__()
        self.convolution = nn.Conv1d(3, 4, width, **options)

    def forward(self, x):
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("make", [Forecaster, Translator])
def test_outputs_after_the_end_do_not_read_the_future(make):
    found = examine(make(), torch.randn(4, 30, 3), scopes=MEMORY)
    assert found["recurrence"].labels["kind"] == "reads all"
    assert 3 <= found["horizon"].figures["horizon"] < 29
    assert "future" not in found.verdict


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"stride": 3, "dilation": 2}, {"padding": 3, "width": 4}])
def test_fewer_or_more_outputs_than_inputs_of_a_convolution(options):
    model = Convolution(**options)
    found = examine(model, torch.randn(4, 30, 3), scopes=MEMORY)
    assert found["recurrence"].labels["kind"] == "recurrent"
    width = 1 + (model.convolution.kernel_size[0] - 1) * model.convolution.dilation[0]
    wanted = 1 if "padding" in options else width  # padded at the end, the last output reads one input alone
    assert found["horizon"].figures["receptive_field"] == wanted


class Block(nn.Module):
    """A causal transformer block of GPT-2's kind: the residual stream carries the present input past all attention."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", norm_first=True, batch_first=True) for _ in range(2)
        )
        for layer in self.layers:
            layer.self_attn.out_proj.weight.data *= 0.02

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return x


def test_a_residual_model_remembers_beside_the_present():
    found = examine(Block(), torch.randn(4, 32, 8), scopes=MEMORY, needs=20)
    figures = found["horizon"].figures
    assert figures["present"] > 100
    assert figures["horizon"] == 31
    assert "RelLSTM" not in found.verdict
    assert headlines({"model": found})[0].values[0].value == "all 31 steps"


class StepByStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 8, batch_first=True)

    def forward(self, x):
        state, outputs = None, []
        for t in range(x.shape[1]):
            output, state = self.layer(x[:, t : t + 1], state)
            outputs.append(output)
        return torch.cat(outputs, 1)


def test_a_layer_called_step_by_step_is_measured_over_the_sequence():
    model, x = StepByStep(), torch.randn(4, 30, 3)
    scopes = ["horizon", "lyapunov", "truncation"]
    found, wanted = examine(model, x, scopes=scopes), examine(model.layer, x, scopes=scopes)
    assert len(found["horizon"].series["state_gradient"]) == 30
    assert found["lyapunov"].figures["largest"] == pytest.approx(wanted["lyapunov"].figures["largest"], rel=1e-4)
    assert found["truncation"].figures["bptt_window"] == wanted["truncation"].figures["bptt_window"]


def test_a_classifier_that_reads_the_first_token_does_not_explode():
    model = Head(nn.LSTM(8, 8, batch_first=True, bidirectional=True), 16, lambda h: h[:, 0])
    found = examine(model, torch.randn(4, 30, 8), scopes=MEMORY)
    assert found["horizon"].figures["growth"] > 100
    assert found["horizon"].figures["explodes_at"] == np.inf
    assert "explode" not in found.verdict


def test_a_classifier_that_explodes_still_does():
    layer = nn.RNN(3, 3, nonlinearity="relu", batch_first=True)
    layer.weight_hh_l0.data = 1.5 * torch.eye(3)
    layer.weight_ih_l0.data.abs_()
    layer.bias_ih_l0.data.fill_(1.0)
    found = examine(Head(layer, 3, lambda h: h[:, -1]), torch.rand(4, 30, 3), scopes=MEMORY)
    assert found["horizon"].figures["explodes_at"] < 29
    assert found.verdict.startswith("Gradients explode")


@pytest.mark.parametrize("parts", [{nn.LSTM, nn.Linear}, {nn.Linear}])
def test_a_quantized_model_is_measured_by_changes(parts):
    model, x = Head(nn.LSTM(3, 16, batch_first=True), 16).eval(), torch.randn(8, 30, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = examine(torch.ao.quantization.quantize_dynamic(model, parts), x, scopes=MEMORY)
    assert found["recurrence"].labels["kind"] == "without gradient"
    assert found["horizon"].labels["measured"] == "changes"
    assert 1 <= found["horizon"].figures["horizon"] < 15
    assert "quantized" in found.verdict


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_rounding_of_a_quantized_model_is_no_memory():
    """Steps that were forgotten seemed to come back, 20 and more steps back, in half of these models."""
    for seed in range(12):
        torch.manual_seed(seed)
        model, x = nn.Sequential(nn.LSTM(3, 16, batch_first=True)), torch.randn(4 + 4 * (seed % 2), 30, 3)
        quantized = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM})
        found = horizon(quantized, x, behavior=False).figures
        assert found["returns_at"] == math.inf
        assert 1 <= found["horizon"] <= horizon(model, x, behavior=False).figures["horizon"] + 1
    assert truncation(quantized, x).labels["ends"] == "last"  # its scales are those of the batch, not of the future


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantized_model_reads_symbols_that_sequences_share():
    """Where two sequences have one symbol nothing is changed, and rounding was divided by a change of nothing."""
    for seed in range(6):
        torch.manual_seed(seed)
        model, x = nn.Sequential(nn.LSTM(4, 16, batch_first=True)), F.one_hot(torch.randint(4, (6, 30)), 4).float()
        quantized = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM})
        assert 5 <= horizon(quantized, x, behavior=False).figures["horizon"] <= 20  # unquantized 9 to 11


def test_gradients_that_few_sequences_have_are_gradients():
    """The largest input so far: at no lag have half of the sequences a gradient. None was said to reach any input."""
    torch.manual_seed(0)
    x = torch.randn(8, 40, 1)
    found = horizon(lambda x: x.cummax(1).values, x)
    lags = 39 - x[:, :, 0].argmax(1)  # of the last output
    assert found.figures["horizon"] >= int(lags.median())
    assert "Gradients reach" in found.sentence
    pooled = horizon(lambda x: x.amax(1), x)
    assert not any("padding" in warning for warning in pooled.warnings)  # without a gradient, but compared


def test_changes_agree_with_gradients_where_there_are_both():
    layer = nn.LSTM(3, 8, batch_first=True)

    class Detached(nn.Module):
        def forward(self, x):
            return layer(x)[0].detach()

    x = torch.randn(4, 30, 3)
    found = horizon(Detached(), x)
    assert found.labels["measured"] == "changes"
    assert found.figures["horizon"] == pytest.approx(horizon(layer, x).figures["horizon"], abs=2)


def test_channels_first():
    model = nn.Sequential(nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(2, 5, 3))
    found = examine(model, torch.randn(4, 2, 30), scopes=MEMORY)
    assert found.about["inputs"].startswith("4 sequences of 30 steps")
    assert found["horizon"].figures["receptive_field"] == 3


def test_channels_first_with_one_target_per_sequence():
    model = nn.Sequential(nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(2, 5, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    labels = torch.randint(0, 5, (4,))
    found = examine(model, torch.randn(4, 2, 30), labels, F.cross_entropy, scopes=MEMORY)
    assert found.about["layout"] == "(batch, features, time)"
    assert found["horizon"].figures["horizon"] == 29


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: nn.Sequential(nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(2, 5, 3)), torch.randn(6, 2, 30)),
        (lambda: nn.LSTM(3, 4), torch.randn(30, 3)),
        (lambda: nn.LSTM(3, 4), torch.randn(30, 6, 3).tolist()),
    ],
)
def test_a_watch_reads_what_examine_reads(make, inputs):
    model = make()
    look = Watch(model, inputs, every=1, sequences=6)()
    wanted = examine(model, inputs, scopes=["horizon"])["horizon"].figures["horizon"]
    assert look["horizon"] == pytest.approx(wanted, abs=1)


class TCN(nn.Module):
    """Residual blocks of causal convolutions, dilated: 1 + 3 (1 + 2 + 6) = 28 inputs."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv1d(6, 6, 4, dilation=d) for d in (1, 2, 6))

    def forward(self, x):
        x = x.transpose(1, 2)
        for convolution in self.convolutions:
            x = x + torch.tanh(convolution(F.pad(x, (3 * convolution.dilation[0], 0))))
        return x.transpose(1, 2)


def test_the_receptive_field_is_said():
    found = examine(TCN(), torch.randn(4, 60, 6), scopes=MEMORY)
    assert found["horizon"].figures["receptive_field"] == 28
    assert "depends on the last 28 steps and on nothing earlier" in found.verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_memory_that_underflows_has_no_receptive_field(dtype):
    layer = nn.RNN(3, 8)
    layer.weight_hh_l0.data *= 0.2
    found = horizon(layer.to(dtype), torch.randn(300, 2, 3, dtype=dtype))
    assert found.series["input_gradient"][-1] == 0
    assert found.figures["receptive_field"] == np.inf


def test_a_detached_state_has_no_receptive_field():
    class Truncated(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(3, 8, batch_first=True)

        def forward(self, x):
            state, outputs = None, []
            for piece in x.split(10, 1):
                output, state = self.layer(piece, state)
                state = state.detach()
                outputs.append(output)
            return torch.cat(outputs, 1)

    found = horizon(Truncated(), torch.randn(4, 30, 3), ends=1)
    assert found.figures["horizon"] < 10
    assert found.figures["receptive_field"] == np.inf


class FixedLength(nn.Module):
    def __init__(self):
        super().__init__()
        self.position, self.layer = nn.Parameter(torch.randn(20, 3)), nn.GRU(3, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x + self.position)[0]


@pytest.mark.parametrize("make", [FixedLength, lambda: Convolution(width=11), lambda: lambda x: x.cumsum(1)])
def test_no_scope_fails(make):
    """Sequences of one length only, or none so short; no parameters."""
    found = examine(make(), torch.randn(4, 20, 3), torch.zeros(1), lambda y, _: y.square().mean())
    assert not [finding.why for finding in found if finding.status == "failed"]


class LayerStep(nn.Module):
    """A step that calls torch's fused layer, which forward-mode differentiation cannot follow."""

    input_size = 3

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 6)

    def initial_state(self, batch):
        return torch.zeros(1, batch, 6), torch.zeros(1, batch, 6)

    def step(self, x, state):
        y, state = self.layer(x[None], state)
        return y[0], state


def test_a_step_that_calls_a_fused_layer():
    model, x = LayerStep(), torch.randn(20, 4, 3)
    found = examine(model, x, torch.zeros(20, 4, 6), F.mse_loss)
    assert not [finding.why for finding in found if finding.status == "failed"]
    assert "forward" not in vars(model.layer)
    wanted = examine(model.layer, x, scopes=["lyapunov", "stability"])
    exponents = found["lyapunov"].figures["largest"], wanted["lyapunov"].figures["largest"]
    assert exponents[0] == pytest.approx(exponents[1], rel=1e-4)


def test_an_attribute_that_holds_the_state_is_left_as_it_was():
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.h = nn.GRU(3, 8, batch_first=True), None

        def forward(self, x):
            y, self.h = self.layer(x)
            return y

    model = Stateful()
    examine(model, torch.randn(4, 12, 3), scopes=MEMORY)
    assert model.h is None
    model(torch.randn(2, 5, 3))
    before = model.h
    examine(model, torch.randn(4, 12, 3), scopes=MEMORY)
    assert model.h is before


def test_recurrence_says_reads_all():
    assert "up to the last one" in recurrence(Forecaster(), torch.randn(4, 12, 3)).sentence


class PackedClassifier(nn.Module):
    """Reads padded sequences of given lengths."""

    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.gru(packed)[1][-1])


def test_padding_does_not_count_as_memory():
    model, x = PackedClassifier(), torch.randn(4, 30, 3)
    whole = examine(model, x, kwargs={"lengths": torch.tensor([30] * 4)}, scopes=["horizon"])
    filled_in = examine(model, x, scopes=["horizon"])
    assert whole["horizon"].figures == filled_in["horizon"].figures
    for lengths, ends in (([15] * 4, "15"), ([30, 20, 12, 30], "12 to 30")):
        for given in (lengths, torch.tensor(lengths)):
            with pytest.raises(MnemoscopeError, match=f"lengths says that sequences end after {ends} of 30 steps, and"):
                examine(model, x, kwargs={"lengths": given}, scopes=["horizon"])
