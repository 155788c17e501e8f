"""The network around a recurrent layer."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn

from mnemoscope import MnemoscopeError
from mnemoscope.layers import LAYERS, RNN, RelRNN
from mnemoscope.recurrence import leaves
from mnemoscope.tasks import Copy, Gaussian, Task
from mnemoscope.training import NetworkConfig, SequenceModel, layer_options, models


@pytest.mark.parametrize("name", models())
@torch.no_grad()
def test_sequence_in_pieces_equals_the_whole(name: str) -> None:
    model = SequenceModel.for_task(Copy(T=3), NetworkConfig(name, 8, num_layers=2))
    inputs, _ = Copy(T=3).batch(0, 5)
    whole, last = model(inputs)
    first, state = model(inputs[:9])
    second, state = model(inputs[9:], state)
    assert whole.shape == (23, 5, 9)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    for one, other in zip(leaves(state), leaves(last), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", models())
@torch.no_grad()
def test_step_equals_forward(name: str) -> None:
    model = SequenceModel(4, 3, NetworkConfig(name, 8, skip=True))
    inputs = torch.randn(6, 2, 4)
    state, outputs = model.initial_state(2), []
    for x in inputs:
        output, state = model.step(x, state)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs), model(inputs)[0])


def test_truncated_network_reads_its_last_inputs_alone() -> None:
    torch.manual_seed(0)
    whole = SequenceModel(4, 3, NetworkConfig("LSTM", 8, skip=True))
    torch.manual_seed(0)
    truncated = SequenceModel(4, 3, NetworkConfig("LSTM", 8, skip=True, truncated=3))
    x = torch.randn(7, 2, 4)
    outputs, state = truncated(x)
    torch.testing.assert_close(outputs[:3], whole(x)[0][:3])  # so far nothing is cut
    torch.testing.assert_close(outputs[-1], whole(x[-3:])[0][-1])
    more, _ = truncated(x[:2], state)
    torch.testing.assert_close(more[-1], whole(torch.cat([x[-1:], x[:2]]))[0][-1])
    with pytest.raises(MnemoscopeError, match=r"truncated = 3 needs a layer of mnemoscope's; got torch.RNN"):
        SequenceModel(4, 3, NetworkConfig("torch.RNN", 8, truncated=3))


@pytest.mark.parametrize("name", ["RNN", "LinearSystem", "torch.RNN"])
def test_start_from_the_system_of_a_task(name: str) -> None:
    task = Gaussian(T=9, features=3, hidden=4, seed=5)
    model = SequenceModel.for_task(task, NetworkConfig(name, 4, skip=True, init="system")).double()
    system, x = task.system(), task.batch(0, 2).inputs.double()
    h = x.new_zeros(2, 4)
    for x_t in x:
        h = h @ system.W.T + x_t @ system.U.T
        h = h if name == "LinearSystem" else torch.tanh(h)
    torch.testing.assert_close(model(x)[0][-1], system.predict(h, x[-1]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        (Copy(T=3), NetworkConfig("RNN", 32, skip=True, init="system"), "needs the task gaussian, whose system it is"),
        (
            Gaussian(),
            NetworkConfig("RNN", 32, init="system"),
            "needs one layer of RNN or LinearSystem, skip, and",
        ),
        (Gaussian(), NetworkConfig("RNN", 9, skip=True, init="system"), "skip, and hidden-size = 32"),
        (Gaussian(), NetworkConfig("LSTM", 32, skip=True, init="system"), "needs one layer of RNN or LinearSystem"),
    ],
)
def test_start_from_a_system_that_does_not_fit_is_refused(task: Task, config: NetworkConfig, message: str) -> None:
    with pytest.raises(MnemoscopeError, match=message):
        SequenceModel.for_task(task, config)


def test_uniform_start_is_that_of_the_word_language_model() -> None:
    model = SequenceModel(500, 400, NetworkConfig("torch.LSTM", 64, embedding=32, init="uniform"), token_input=True)
    assert model.embedding is not None
    for weight in (model.embedding.weight, model.readout.weight):
        assert 0.099 < weight.max() <= 0.1
        assert -0.1 <= weight.min() < -0.099
        assert abs(weight.std() - 0.2 / 12**0.5) < 1e-3
    assert not model.readout.bias.any()
    assert 0.124 < model.layer.weight_ih_l0.max() <= 64**-0.5  # torch's own


@pytest.mark.parametrize("name", LAYERS)
def test_layer_options_are_the_constructors_keywords(name: str) -> None:
    signature = inspect.signature(LAYERS[name]).parameters.values()
    keywords = {p.name: p.default for p in signature if p.kind is p.KEYWORD_ONLY}
    for placement in ("device", "dtype"):
        del keywords[placement]
    keywords.pop("feature", None)  # a Python function
    options = layer_options(name)
    assert {option.name: option.default for option in options.values()} == keywords
    assert all(option.help for option in options.values())


def test_layer_options_reach_the_layer() -> None:
    for name in models():
        defaults = {option.name: option.default for option in layer_options(name).values()}
        SequenceModel(4, 3, NetworkConfig(name, 8, options=defaults))
    layer = SequenceModel(4, 3, NetworkConfig("RelRNN", 8, options={"buffer": 3, "decay": 1, "mix": "mean"})).layer
    assert isinstance(layer, RelRNN)
    assert (layer.buffer, layer.relevant, layer.decay, layer.mix) == (3, 10, 1.0, "mean")


def test_a_layer_added_to_the_table_needs_no_change_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Toy(RNN):
        """A toy.

        Args:
            strength: how strong it is.
        """

        def __init__(
            self, input_size: int, hidden_size: int, num_layers: int = 1, *, strength: int = 2, dropout: float = 0.0
        ) -> None:
            super().__init__(input_size, hidden_size, num_layers, dropout=dropout)
            self.strength = strength

    monkeypatch.setitem(LAYERS, "Toy", Toy)
    config = NetworkConfig.from_dict({"model": "Toy", "hidden_size": 8, "strength": 5})
    assert config.to_dict()["strength"] == 5
    assert SequenceModel(4, 3, config).layer.strength == 5
    with pytest.raises(MnemoscopeError, match=r"^Toy has no option 'strenght'; did you mean strength\?$"):
        NetworkConfig("Toy", options={"strenght": 5})
    assert layer_options("Toy")["strength"].help == "how strong it is."


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("LSTM", {"buffer": 3}, "LSTM has no option 'buffer'; its options are: checkpoint"),
        ("torch.LSTM", {"buffer": 3}, "torch.LSTM has no option 'buffer'; its options are: none"),
        ("LSTM", {"num_layers": 2}, "LSTM has no option 'num_layers'; it is a field of NetworkConfig itself"),
        ("RelRNN", {"bufer": 3}, "RelRNN has no option 'bufer'; did you mean buffer?"),
        ("RelRNN", {"hiden_size": 3}, "RelRNN has no option 'hiden_size'; did you mean hidden_size?"),
        ("RelRNN", {"buffer": "3"}, "buffer = '3' is not allowed; it must be a whole number"),
        ("RelRNN", {"buffer": True}, "buffer = True is not allowed; it must be a whole number"),
        ("SAB", {"store_every": 1.5}, "store-every = 1.5 is not allowed; it must be a whole number"),
        ("RelRNN", {"decay": float("nan")}, "decay = nan is not allowed; it must be a finite number"),
        ("RelRNN", {"mix": "max"}, "mix = 'max' is not allowed; it must be one of 'sum', 'mean'"),
        ("torch.RNN", {"nonlinearity": "sine"}, "nonlinearity = 'sine' is not allowed; it must be one of"),
        ("RNN", {"nonlinearity": torch.tanh}, "is not allowed; it must be a string"),
        ("LinearSystem", {"nonlinearity": "tanh"}, "LinearSystem has no option 'nonlinearity'; its options are:"),
        ("Lstm", {}, "model = 'Lstm' is not a layer; layers are LinearSystem"),
    ],
)
def test_wrong_layer_options_are_refused(model: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(MnemoscopeError, match=re.escape(message)) as error:
        NetworkConfig(model, 8, options=options)
    assert "\n" not in str(error.value)


def test_ids_are_embedded_or_one_hot() -> None:
    ids = torch.tensor([[0, 2], [1, 1]])
    embedded = SequenceModel(3, 3, NetworkConfig("LSTM", 8, embedding=3), token_input=True)
    hot = SequenceModel(3, 3, NetworkConfig("LSTM", 8), token_input=True)
    assert embedded.embedding is not None
    nn.init.eye_(embedded.embedding.weight)
    hot.load_state_dict({k: v for k, v in embedded.state_dict().items() if "embedding" not in k})
    torch.testing.assert_close(embedded(ids)[0], hot(ids)[0])
    with pytest.raises(MnemoscopeError, match="embedding = 3 needs a task whose inputs are ids"):
        SequenceModel(3, 3, NetworkConfig("LSTM", 8, embedding=3))


def test_tied_weights_are_one_parameter() -> None:
    model = SequenceModel(7, 7, NetworkConfig("LSTM", 8, embedding=8, tied=True), token_input=True)
    assert model.embedding is not None
    assert model.readout.weight is model.embedding.weight
    with pytest.raises(MnemoscopeError, match="tied = True needs embedding = hidden_size"):
        NetworkConfig("LSTM", 8, embedding=7, tied=True)
    with pytest.raises(MnemoscopeError, match="it must be 1 where the read-out is tied"):
        NetworkConfig("LSTM", 8, embedding=8, tied=True, readout_gain=2.0)
    with pytest.raises(MnemoscopeError, match="tied = True needs as many outputs as ids"):
        SequenceModel(7, 6, NetworkConfig("LSTM", 8, embedding=8, tied=True), token_input=True)


def test_skip_adds_the_inputs_to_the_readout() -> None:
    model = SequenceModel(4, 2, NetworkConfig("LinearSystem", 3, skip=True))
    x = torch.randn(5, 1, 4)
    h, _ = model.layer(x)
    assert model.direct is not None
    expected = h @ model.readout.weight.T + model.readout.bias + x @ model.direct.weight.T  # C h + c + D x
    torch.testing.assert_close(model(x)[0], expected)


def test_dropout_in_train_mode_only() -> None:
    model = SequenceModel(4, 2, NetworkConfig("LSTM", 64, dropout=0.5))
    x = torch.randn(5, 1, 4)
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


@pytest.mark.parametrize("name", ["RNN", "LSTM", "torch.GRU"])
def test_xavier_initialization_of_input_and_readout_weights(name: str) -> None:
    torch.manual_seed(0)
    model = SequenceModel(40, 30, NetworkConfig(name, 200))
    for gate in model.layer.weight_ih_l0.split(200):
        assert gate.std().item() == pytest.approx((2 / 240) ** 0.5, rel=0.05)
    assert model.readout.weight.std().item() == pytest.approx((2 / 230) ** 0.5, rel=0.05)
    loud = SequenceModel(40, 30, NetworkConfig(name, 200, readout_gain=4.0))
    assert loud.readout.weight.std().item() == pytest.approx(4 * (2 / 230) ** 0.5, rel=0.05)
    plain = SequenceModel(40, 30, NetworkConfig(name, 200, init="torch"))
    assert plain.layer.weight_ih_l0.abs().max() <= 200**-0.5


@pytest.mark.parametrize("name", ["LSTM", "MemLSTM", "RelLSTM", "torch.LSTM"])
def test_forget_gates_begin_open(name: str) -> None:
    """Only their biases differ, and a unit keeps more of what it holds."""
    made = []
    for bias in (0.0, 2.0):
        torch.manual_seed(0)
        made.append(SequenceModel(4, 3, NetworkConfig(name, 8, num_layers=2, forget_bias=bias)))
    closed, opened = (dict(model.named_parameters()) for model in made)
    for key, parameter in closed.items():
        added = torch.zeros_like(parameter)
        if "bias_ih" in key:
            added[8:16] = 2.0
        torch.testing.assert_close(opened[key], parameter + added)


@pytest.mark.parametrize("name", ["RNN", "GRU", "torch.GRU"])
def test_layers_without_forget_gates_are_told(name: str) -> None:
    with pytest.raises(MnemoscopeError, match=f"forget_bias = 2 needs forget gates with biases; got {name}"):
        SequenceModel(4, 3, NetworkConfig(name, 8, forget_bias=2.0))


def test_a_head_is_a_relu_layer_before_the_readout() -> None:
    model = SequenceModel(4, 3, NetworkConfig("LSTM", 8, head=5))
    x = torch.randn(6, 2, 4)
    outputs, _ = model(x)
    h, _ = model.layer(x)
    expected = torch.relu(h @ model.head.weight.T + model.head.bias) @ model.readout.weight.T + model.readout.bias
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(model.step(x[0], model.initial_state(2))[0], outputs[0])
    assert model.affine_readout is None
    torch.testing.assert_close(model.head.weight @ model.head.weight.T, 2 * torch.eye(5))
    with pytest.raises(MnemoscopeError, match="head = 5 is not allowed; it must be 0 where the read-out is tied"):
        NetworkConfig("LSTM", 8, embedding=8, tied=True, head=5)


def test_a_gain_scales_the_embedding() -> None:
    made = []
    for gain in (1.0, 3.0):
        torch.manual_seed(0)
        made.append(SequenceModel(6, 6, NetworkConfig("LSTM", 8, embedding=5, embedding_gain=gain), token_input=True))
    torch.testing.assert_close(made[1].embedding.weight, 3 * made[0].embedding.weight)
    torch.testing.assert_close(made[1].readout.weight, made[0].readout.weight)
