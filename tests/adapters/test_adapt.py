import math

import pytest
import torch
from torch import Tensor, nn

import mnemoscope
from mnemoscope import LSTM, ExpRNN, MnemoscopeError, RelRNN
from mnemoscope.adapters import adapt
from mnemoscope.rl import Policy, TMaze
from mnemoscope.scopes import examine
from mnemoscope.training import NetworkConfig, SequenceModel


class Tagger(nn.Module):
    """The model that everybody writes: an embedding, a recurrent layer, a head."""

    def __init__(self, last=False, batch_first=True, layer=None):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.rnn = layer or nn.LSTM(6, 5, batch_first=batch_first)
        self.head, self.last = nn.Linear(5, 3), last

    def forward(self, ids):
        h, _ = self.rnn(self.embedding(ids))
        return self.head(h[:, -1] if self.last else h)


def test_recurrent_layer_inside_a_model():
    model, ids = Tagger(), torch.randint(0, 11, (4, 9))
    found = adapt(model, ids)
    torch.testing.assert_close(found.recurrence_inputs, model.embedding(ids).transpose(0, 1).detach())
    torch.testing.assert_close(
        found.recurrence(found.recurrence_inputs)[0], model.rnn(model.embedding(ids))[0].transpose(0, 1)
    )
    assert found.name == "Tagger (its LSTM(6, 5) `rnn`)"
    assert not found.recurrence_is_model
    assert found.layout_in_words == "(batch, time)"


def test_gradients_reach_the_embedding_of_ids():
    model, ids = Tagger(), torch.randint(0, 11, (4, 9))
    found = adapt(model, ids)
    x = found.features.clone().requires_grad_()
    y = found.run(x)
    torch.testing.assert_close(y, model(ids).transpose(0, 1))
    (gradient,) = torch.autograd.grad(y[5].sum(), x)
    assert gradient[:6].norm() > 0
    assert gradient[6:].norm() == 0


def test_run_on_other_lengths_and_batch_sizes():
    found = adapt(Tagger(), torch.randint(0, 11, (4, 9)))
    assert list(found.run(torch.randn(3, 8, 6)).shape) == [3, 8, 3]


def test_one_output_per_sequence():
    model, ids = Tagger(last=True), torch.randint(0, 11, (4, 9))
    found = adapt(model, ids)
    torch.testing.assert_close(found.run(found.features), model(ids)[None])


@pytest.mark.parametrize("steps", [4, 5, 6])
def test_one_output_per_sequence_with_as_many_features_as_steps(steps):
    read_out = nn.Linear(3, 5)
    found = adapt(lambda x: read_out(x.mean(1)), torch.randn(2, steps, 3))
    assert found.run(found.features).shape == (1, 2, 5)
    assert found.run(found.features[:5]).shape == (1, 2, 5)
    by_step = adapt(lambda x: x.sum(-1), torch.randn(2, steps, 3))
    assert by_step.run(by_step.features).shape == (steps, 2, 1)


def test_layout_is_guessed_from_one_output_per_sequence():
    """A layer that takes the batch for time does not deceive: 4 outputs for inputs (4, 9) are 4 sequences."""
    found = adapt(Tagger(last=True, batch_first=False), torch.randint(0, 11, (4, 9)))
    assert found.batch_first
    assert list(found.features.shape) == [9, 4, 6]


@pytest.mark.parametrize("kind", [LSTM, RelRNN, ExpRNN])
def test_mnemoscope_layer_inside_a_model(kind):
    layer = kind(6, 5, batch_first=True)
    model, ids = Tagger(layer=layer), torch.randint(0, 11, (4, 9))
    found = adapt(model, ids)
    torch.testing.assert_close(
        found.recurrence(found.recurrence_inputs)[0].transpose(0, 1), layer(model.embedding(ids))[0]
    )


def test_cell_inside_a_model_that_is_called_by_keywords_in_another_order():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            h = x.new_zeros(len(x), 4)
            states = []
            for x_t in x.unbind(1):
                h = self.cell(hx=h, input=x_t)
                states.append(h)
            return torch.stack(states, 1)

    x = torch.randn(2, 6, 3)
    found = adapt(Loop(), x)
    assert torch.equal(found.recurrence_inputs, x.transpose(0, 1))
    assert found.starts_itself


def test_two_recurrent_layers_inside_a_model():
    model = nn.ModuleDict({"encoder": nn.GRU(3, 3), "decoder": nn.GRU(3, 3)})
    model.forward = lambda x: model["decoder"](model["encoder"](x)[0])[0]
    found = adapt(model, torch.randn(5, 2, 3))
    assert found.recurrence is None
    assert "uses 2 recurrent layers (encoder, decoder)" in found.no_step


def test_layer_that_is_never_called():
    model = Tagger()
    model.forward = lambda x: x
    found = adapt(model, torch.randn(5, 2, 3))
    assert found.recurrence is None
    assert "only its forward is known" in found.no_step


class Counted(nn.Module):
    """A model that counts its forward passes."""

    def __init__(self, body):
        super().__init__()
        self.calls, self.body = 0, body

    def forward(self, x):
        self.calls += 1
        y = self.body(x)
        return y[0] if isinstance(y, tuple) else y


FORWARD_ONLY = [
    ("linear", lambda: Counted(nn.Linear(3, 4)), torch.randn(2, 7, 3), 1),
    ("layer inside", lambda: Counted(nn.GRU(3, 4, batch_first=True)), torch.randn(2, 7, 3), 1),
    ("ids", lambda: Counted(Tagger()), torch.randint(0, 11, (2, 7)), 1),
    ("one output per sequence", lambda: Counted(Tagger(last=True)), torch.randint(0, 11, (2, 7)), 2),
    ("one number per step", lambda: Counted(nn.Sequential(nn.Linear(3, 1), nn.Flatten(1))), torch.randn(2, 7, 3), 2),
]


@pytest.mark.parametrize(
    ("make", "inputs", "passes"), [case[1:] for case in FORWARD_ONLY], ids=[c[0] for c in FORWARD_ONLY]
)
def test_forward_passes_of_adapt(make, inputs, passes):
    model = make()
    assert adapt(model, inputs).outputs is not None
    assert model.calls == passes


def test_an_output_of_unknown_layout_does_not_count_as_run():
    assert adapt(lambda x: x[:1, :1, :1].expand(5, 1, 1), torch.randn(2, 7, 3)).outputs is None


class Packing(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, [x.shape[1]] * len(x), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def test_a_layer_that_reads_packed_sequences():
    model, x = Packing(), torch.randn(2, 7, 3)
    found = adapt(model, x)
    assert torch.equal(found.recurrence_inputs, x.transpose(0, 1))
    torch.testing.assert_close(found.run(found.features), found.recurrence(found.recurrence_inputs)[0])


class ByKeyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)

    def forward(self, x):
        return self.rnn(input=x)[0]


def test_a_layer_that_is_called_by_keyword():
    x = torch.randn(2, 7, 3)
    assert torch.equal(adapt(ByKeyword(), x).recurrence_inputs, x.transpose(0, 1))


def test_a_function_is_a_model():
    found = adapt(lambda x: x.cumsum(1), torch.randn(2, 7, 3))
    assert list(found.features.shape) == [7, 2, 3]
    assert "only its forward is known" in found.no_step


def test_factory_and_its_error():
    assert adapt(lambda: nn.RNN(3, 4), torch.randn(5, 2, 3)).name == "RNN(3, 4)"

    def broken():
        raise KeyError("weights")

    with pytest.raises(MnemoscopeError, match="factory broken raised KeyError: 'weights'"):
        adapt(broken, torch.randn(5, 2, 3))


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_unwrap_data_parallel_and_compile(wrap):
    assert adapt(wrap(nn.LSTM(3, 4)), torch.randn(5, 2, 3)).name == "LSTM(3, 4)"


def test_unwrap_fabric():
    from lightning_fabric import Fabric

    model = Fabric(accelerator="cpu", devices=1).setup(nn.LSTM(3, 4))
    assert adapt(model, torch.randn(5, 2, 3)).name == "LSTM(3, 4)"


@pytest.mark.parametrize("kind", ["RNN", "RelLSTM", "torch.GRU"])
@pytest.mark.parametrize("tokens", [True, False])
def test_sequence_model_of_training(kind, tokens):
    config = NetworkConfig(model=kind, hidden_size=6, embedding=5 if tokens else 0)
    model = SequenceModel(4, 3, config, token_input=tokens).eval()
    inputs = torch.randint(0, 4, (8, 2)) if tokens else torch.randn(8, 2, 4)
    found = adapt(model, inputs)
    wanted = model(inputs)[0]
    torch.testing.assert_close(found.run(found.features), wanted)
    state = found.recurrence.initial_state(2)
    for x, y in zip(found.recurrence_inputs, wanted, strict=True):
        output, state = found.recurrence.step(x, state)
        torch.testing.assert_close(output, y)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("text", "must be a tensor"),
        ([[1.0, 2.0], 3.0], "different numbers of dimensions"),
        (torch.randn(3), "time and a batch dimension"),
        (torch.randn(0, 2, 3), "no empty one"),
        (torch.full((4, 2, 3), torch.nan), "24 values that are NaN"),
        ({"input_ids": torch.zeros(5, 2)}, "got a dict: pass its main tensor, and the rest as kwargs="),
    ],
)
def test_refuses_invalid_inputs(inputs, said):
    with pytest.raises(MnemoscopeError, match=said):
        adapt(nn.LSTM(3, 4), inputs)


def test_refuses_infinite_weights():
    model = nn.LSTM(3, 4)
    model.weight_hh_l0.data[0, :2] = torch.inf
    with pytest.raises(MnemoscopeError, match="weight_hh_l0 holds 2 of 64 values"):
        adapt(model, torch.randn(5, 2, 3))


@pytest.mark.parametrize("lazy", [nn.LazyLinear(2), lambda: nn.LazyLinear(2)])
def test_refuses_parameters_that_a_lazy_layer_has_not_made(lazy):
    with pytest.raises(MnemoscopeError, match=r"^the model's weight belongs to a lazy layer and has no values"):
        examine(lazy, torch.randn(5, 2, 3))


def test_refuses_inputs_on_another_device():
    with pytest.raises(MnemoscopeError, match="is on meta, the inputs are on cpu"):
        adapt(nn.LSTM(3, 4, device="meta"), torch.randn(5, 2, 3))


def test_refuses_outputs_of_unknown_layout():
    found = adapt(nn.Flatten(), torch.randn(2, 7, 3))
    with pytest.raises(MnemoscopeError, match=r"gave output \[5, 1, 1\] for 7 steps of 2 sequences"):
        adapt(lambda x: x[:1, :1, :1].expand(5, 1, 1), torch.randn(2, 7, 3)).run(found.features)


def test_refuses_what_is_not_a_model():
    with pytest.raises(MnemoscopeError, match="neither a step nor a forward"):
        adapt("LSTM", torch.randn(5, 2, 3))


class Joined(nn.Module):
    """An embedding, a layer and a read-out, joined past the layer too; or one after the other."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.layer = nn.LSTM(3, 3)

    def embed(self, x: Tensor) -> Tensor:
        return x

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)[0]
        return h.roll(1, 0) + x if self.residual else h


def test_parts_that_are_joined_in_another_way_are_not_taken_for_the_model():
    """The outputs that are examined are those of the model's own forward, also if it has an embed, layer and read."""
    x = torch.randn(12, 2, 3)
    for residual in (False, True):
        model = Joined(residual)
        adapted = adapt(model, x, False)
        torch.testing.assert_close(adapted.run(adapted.features), model(x))
        assert adapted.name.endswith("with a read-out") is not residual


def test_a_memoryless_policy_is_examined_without_its_memory():
    policy = Policy(TMaze(4).spec, NetworkConfig("LSTM", 8), memoryless=True)
    found = mnemoscope.examine(policy, torch.randn(9, 3, 4), scopes=["recurrence", "horizon", "lyapunov"])
    assert found["recurrence"].labels["kind"] == "memoryless"
    assert found["horizon"].figures["horizon"] == 0
    assert found["lyapunov"].figures["largest"] == -math.inf
