"""The cases of PyTorch's own tests of nn.RNN, nn.LSTM and nn.GRU, with our layers in their place.

They are those of test_nn.py (arguments, hidden states, projections, dropout, nonlinearity, variable lengths) and of
module_db in torch.testing (unbatched and packed input in every configuration, and errors).
"""

from __future__ import annotations

import copy
import itertools
import pickle
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import mnemoscope

TORCH = {mnemoscope.RNN: nn.RNN, mnemoscope.LSTM: nn.LSTM, mnemoscope.GRU: nn.GRU}
ATTENTIVE = [mnemoscope.RelRNN, mnemoscope.MemRNN, mnemoscope.RelLSTM, mnemoscope.MemLSTM]
LSTMS = [mnemoscope.LSTM, mnemoscope.RelLSTM, mnemoscope.MemLSTM, mnemoscope.SAB]
every_layer = pytest.mark.parametrize("kind", [*TORCH, *ATTENTIVE])
every_lstm = pytest.mark.parametrize("kind", LSTMS)


def is_lstm(kind: type) -> bool:
    return issubclass(kind, mnemoscope.LSTM)


def hidden(kind: type, h: tuple[int, ...], c: tuple[int, ...] | None = None) -> Any:
    return (torch.randn(h), torch.randn(c or h)) if is_lstm(kind) else torch.randn(h)


# test_rnn_args_check, test_projections_lstm_args_check

WRONG_ARGUMENTS = {
    "input feature": dict(input=(6, 3, 4)),
    "input dimensions": dict(input=(6, 3, 5, 1)),
    "hidden feature": dict(hidden=(4, 3, 8)),
    "hidden layers": dict(hidden=(2, 3, 7)),
    "hidden batch": dict(hidden=(4, 2, 7)),
    "hidden dimensions": dict(hidden=(4, 3, 7, 1)),
    "unbatched hidden": dict(hidden=(4, 7)),
    "batched hidden of unbatched input": dict(input=(6, 5), hidden=(4, 3, 7)),
}


@pytest.mark.filterwarnings("ignore:.*without its memory")
@every_layer
@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_wrong_arguments_of_a_call(kind: type, case: str) -> None:
    shapes = dict(input=(6, 3, 5), hidden=(4, 3, 7)) | WRONG_ARGUMENTS[case]
    layer = kind(5, 7, 2, bidirectional=True)
    with pytest.raises(RuntimeError) as caught:
        layer(torch.randn(shapes["input"]), hidden(kind, shapes["hidden"]))
    assert isinstance(caught.value, ValueError)


@every_lstm
@pytest.mark.filterwarnings("ignore:.*without its memory")
def test_wrong_states_of_a_projection(kind: type) -> None:
    layer, x = kind(5, 7, 2, proj_size=3), torch.randn(6, 2, 5)
    layer(x, hidden(kind, (2, 2, 3), (2, 2, 7)))
    for h, c in [((2, 2, 7), (2, 2, 7)), ((2, 2, 3), (2, 2, 3)), ((2, 2, 7), (2, 2, 3)), ((1, 2, 3), (1, 2, 7))]:
        with pytest.raises(RuntimeError, match=r"Expected hidden size .*\[2, 2, 3\] and \[2, 2, 7\], got"):
            layer(x, hidden(kind, h, c))


# test_projections_errors_on_gru_and_rnn


@pytest.mark.parametrize("kind", [mnemoscope.RNN, mnemoscope.GRU, mnemoscope.RelRNN, mnemoscope.MemRNN])
def test_projection_of_another_layer_than_an_lstm(kind: type) -> None:
    with pytest.raises(ValueError, match="proj_size argument is only supported for LSTM, not RNN or GRU"):
        kind(4, 5, proj_size=3)


# test_rnn_initial_hidden_state, test_projections_lstm_initial_hidden_state


@every_layer
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("proj_size", [0, 3])
def test_zeros_are_the_initial_state(kind: type, bidirectional: bool, proj_size: int) -> None:
    if proj_size and not is_lstm(kind):
        return
    layer = kind(5, 7, 2, bidirectional=bidirectional, proj_size=proj_size)
    x, count = torch.randn(4, 3, 5), 4 if bidirectional else 2
    h = torch.zeros(count, 3, proj_size or 7)
    zeros = (h, torch.zeros(count, 3, 7)) if is_lstm(kind) else h
    output, _ = layer(x, zeros)
    torch.testing.assert_close(output, layer(x)[0])
    assert output.shape == (4, 3, (proj_size or 7) * layer.num_directions)


# Projections: numbers, states, gradients, packed sequences.


@pytest.mark.parametrize(("bias", "batch_first", "bidirectional"), list(itertools.product([False, True], repeat=3)))
def test_projection_is_torchs(bias: bool, batch_first: bool, bidirectional: bool) -> None:
    arguments = dict(bias=bias, batch_first=batch_first, bidirectional=bidirectional, proj_size=2, dtype=torch.float64)
    theirs, ours = nn.LSTM(2, 3, 2, **arguments), mnemoscope.LSTM(2, 3, 2, **arguments)
    ours.load_state_dict(theirs.state_dict())
    count = 4 if bidirectional else 2
    state = (torch.randn(count, 5, 2, dtype=torch.float64), torch.randn(count, 5, 3, dtype=torch.float64))
    x = torch.randn(5, 5, 2, dtype=torch.float64)
    for given in (None, state):
        torch.testing.assert_close(ours(x, given), theirs(x, given))
    lengths = torch.tensor([2, 5, 1, 4, 4])
    packed = pack_padded_sequence(x, lengths, batch_first=batch_first, enforce_sorted=False)
    found, expected = ours(packed, state), theirs(packed, state)
    torch.testing.assert_close(found[0].data, expected[0].data)
    torch.testing.assert_close(found[1], expected[1])
    for layer in (ours, theirs):
        layer(x, state)[0].sin().sum().backward()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs.get_parameter(name).grad)


@every_lstm
def test_projection_in_pieces(kind: type) -> None:
    layer, x = kind(5, 7, 2, proj_size=3).double(), torch.randn(9, 2, 5, dtype=torch.float64)
    whole, final = layer(x)
    first, state = layer(x[:4])
    second, last = layer(x[4:], tuple(t.clone() for t in state))
    torch.testing.assert_close(torch.cat([first, second]), whole)
    assert [t.shape[-1] for t in last] == [3, 7]
    torch.testing.assert_close(mnemoscope.recurrence.leaves(last), mnemoscope.recurrence.leaves(final))
    stepped = mnemoscope.trace(layer, x).output
    torch.testing.assert_close(stepped, whole)


@every_lstm
def test_projection_gradcheck(kind: type) -> None:
    options = dict(buffer=2, relevant=1) if kind is mnemoscope.RelLSTM else {}
    layer = kind(2, 3, proj_size=2, **options).double()
    x = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: layer(x)[0], (x,))


# test_RNN_dropout, test_RNN_change_dropout, test_RNN_dropout_state, and the warning for a single layer


@every_layer
@pytest.mark.parametrize("p", [0, 0.5, 1])
@pytest.mark.parametrize("train", [True, False])
def test_dropout_between_layers(kind: type, p: float, train: bool) -> None:
    layer = kind(10, 10, 2, bias=False, dropout=p)
    layer.train(train)
    x = torch.randn(4, 3, 10)
    one, again = layer(x)[0], layer(x)[0]
    assert torch.equal(one, again) == (p in (0, 1) or not train)
    layer.dropout = 0.0
    assert torch.equal(layer(x)[0], layer(x)[0])
    if p == 1 and train:
        assert (one == 0).all()  # without a bias, zeros come from zeros


@every_layer
def test_dropout_follows_the_seed(kind: type) -> None:
    layer, x = kind(5, 6, 2, dropout=0.5), torch.randn(4, 3, 5)
    torch.manual_seed(1)
    one = layer(x)[0]
    torch.manual_seed(1)
    assert torch.equal(layer(x)[0], one)


@every_layer
def test_dropout_of_a_single_layer_is_warned_of(kind: type) -> None:
    with pytest.warns(
        UserWarning, match="non-zero dropout expects num_layers greater than 1, but got dropout=0.5"
    ) as seen:
        kind(3, 4, dropout=0.5)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(3, 4, 2, dropout=0.5)


# test_RNN_nonlinearity, test_RNN_nonlinearity_passed_as_arg


@pytest.mark.parametrize("kind", [mnemoscope.RNN, mnemoscope.RelRNN, mnemoscope.MemRNN, mnemoscope.OrthRNN])
def test_nonlinearity_by_position_and_by_keyword(kind: type) -> None:
    assert kind(2, 3, 1, "relu").nonlinearity == kind(2, 3, 1, nonlinearity="relu").nonlinearity == "relu"
    layer = kind(2, 3, 1, "tanh", False, True)  # nn.RNN's order: bias and batch_first come after
    assert (layer.nonlinearity, layer.bias, layer.batch_first) == ("tanh", False, True)
    assert kind(2, 3, 1, False, True).batch_first  # nn.LSTM's order
    with pytest.raises(ValueError, match="Unknown nonlinearity"):
        kind(1, 10, nonlinearity="garbage")
    with pytest.raises(TypeError):
        kind(2, 3, 1, "relu", nonlinearity="tanh")


# What scripts ask of a layer: RNNBase's attributes and methods.


@every_layer
@pytest.mark.parametrize("bidirectional", [False, True])
def test_attributes_of_rnn_base(kind: type, bidirectional: bool) -> None:
    layer = kind(3, 4, 2, bidirectional=bidirectional)
    assert isinstance(layer, nn.RNNBase)
    assert not isinstance(layer, nn.LSTM | nn.GRU | nn.RNN)  # of which there are kernels that would be used instead
    modes = {mnemoscope.GRU: "GRU", mnemoscope.RNN: "RNN_TANH", mnemoscope.RelRNN: "RNN_TANH"}
    assert layer.mode == modes.get(kind, "LSTM" if is_lstm(kind) else "RNN_TANH")
    names = [name for name, _ in layer.named_parameters()]
    assert layer._flat_weights_names == [name for group in layer._all_weights for name in group] == names
    assert len(layer.all_weights) == len(layer._all_weights) == 2 * layer.num_directions
    for group, group_names in zip(layer.all_weights, layer._all_weights, strict=True):
        assert [id(w) for w in group] == [id(layer.get_parameter(name)) for name in group_names]
    assert [id(w) for w in layer._flat_weights] == [id(p) for p in layer.parameters()]
    x = torch.randn(5, 2, 3)
    assert layer.get_expected_hidden_size(x, None) == (2 * layer.num_directions, 2, 4)
    layer.flatten_parameters()
    layer.check_input(x, None)
    assert not hasattr(layer, "reset")  # fastai calls a module's reset(), without arguments


@pytest.mark.parametrize("kind", TORCH)
def test_flat_weights_are_torchs(kind: type) -> None:
    layer, theirs = kind(3, 4, 2, bidirectional=True), TORCH[kind](3, 4, 2, bidirectional=True)
    assert (layer.mode, layer._all_weights, layer.proj_size) == (theirs.mode, theirs._all_weights, theirs.proj_size)
    assert [w.shape for w in layer._flat_weights] == [w.shape for w in theirs._flat_weights]


def test_weights_stay_the_parameters_after_a_move() -> None:
    for kind in TORCH:
        layer = kind(3, 4).double()
        assert all(w.dtype == torch.float64 for w in layer._flat_weights)
        layer.weight_hh_l0 = nn.Parameter(torch.zeros_like(layer.weight_hh_l0))
        assert layer.all_weights[0][1] is layer.weight_hh_l0
        assert layer(torch.randn(2, 1, 3).double())[0].dtype == torch.float64
        restored = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
        assert torch.equal(restored.all_weights[0][0], layer.weight_ih_l0)


@every_layer
def test_keywords_of_a_call(kind: type) -> None:
    layer, x = kind(3, 4), torch.randn(5, 2, 3)
    state = layer(x)[1]
    torch.testing.assert_close(layer(input=x, hx=state)[0], layer(x, state)[0])
    torch.testing.assert_close(layer(x, hx=None)[0], layer(input=x)[0])


# test_variable_sequence: each sequence as if it were alone


@every_layer
@pytest.mark.parametrize(("bidirectional", "batch_first", "sorted_"), list(itertools.product([False, True], repeat=3)))
def test_variable_sequence(kind: type, bidirectional: bool, batch_first: bool, sorted_: bool) -> None:
    lengths = [7, 4, 4, 2] if sorted_ else [4, 2, 7, 4]
    layer = kind(3, 4, 2, bidirectional=bidirectional, batch_first=batch_first).double()
    sequences = [torch.randn(length, 3, dtype=torch.float64) for length in lengths]
    output, final = layer(pack_sequence(sequences, enforce_sorted=sorted_))
    padded, found = pad_packed_sequence(output)
    assert found.tolist() == lengths
    for k, sequence in enumerate(sequences):
        alone, last = layer(sequence)
        torch.testing.assert_close(padded[: lengths[k], k], alone)
        ours, theirs = (s if isinstance(s, tuple) else (s,) for s in (final, last))
        for batched, single in zip(ours, theirs, strict=True):
            assert torch.allclose(batched[:, k], single)


# module_db: unbatched input, with and without a state, in every configuration, against the same in a batch of one


@every_layer
@pytest.mark.filterwarnings("ignore:.*without its memory")
@pytest.mark.parametrize(("bias", "batch_first", "bidirectional"), list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("proj_size", [0, 2])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_unbatched_input(
    kind: type, bias: bool, batch_first: bool, bidirectional: bool, proj_size: int, nonlinearity: str
) -> None:
    if (proj_size and not is_lstm(kind)) or (nonlinearity == "relu" and not issubclass(kind, mnemoscope.RNN)):
        return
    options: dict[str, Any] = dict(nonlinearity=nonlinearity) if issubclass(kind, mnemoscope.RNN) else {}
    layer = kind(2, 3, 2, bias, batch_first, bidirectional=bidirectional, proj_size=proj_size, **options)
    count = 4 if bidirectional else 2
    x = torch.randn(3, 2, requires_grad=True)
    time = 0 if batch_first else 1
    for state in (None, hidden(kind, (count, proj_size or 3), (count, 3))):
        batched = None
        if state is not None:
            batched = tuple(t.unsqueeze(1) for t in state) if is_lstm(kind) else state.unsqueeze(1)
        output, final = layer(x, state)
        expected, last = layer(x.unsqueeze(time), batched)
        torch.testing.assert_close(output, expected.squeeze(time))
        for one, other in zip(*[s if isinstance(s, tuple) else (s,) for s in (final, last)], strict=True):
            assert torch.equal(one, other.squeeze(1))
        output.sum().backward()


# module_db: errors, with torch's types and torch's words

ERRORS: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((10, 0, 1), {}, ValueError, "hidden_size must be greater than zero"),
    ((10, 10, 0), {}, ValueError, "num_layers must be greater than zero"),
    ((0, 5), {}, ValueError, "input_size must be greater than zero"),
    ((-1, 5), {}, ValueError, "input_size must be greater than zero"),
    ((3, 5), dict(bias=0), TypeError, "bias should be of type bool, got: int"),
    ((3, 5), dict(bias="True"), TypeError, "bias should be of type bool, got: str"),
    ((3, 5), dict(batch_first=1), TypeError, "batch_first should be of type bool, got: int"),
    ((3, 5), dict(batch_first="False"), TypeError, "batch_first should be of type bool, got: str"),
    ((3.0, 5), {}, TypeError, "input_size should be of type int, got: float"),
    (("10", 5), {}, TypeError, "input_size should be of type int, got: str"),
    ((3, 5.0), {}, TypeError, "hidden_size should be of type int, got: float"),
    ((3, 5), dict(dropout=1.5), ValueError, "dropout should be a number in range [0, 1]"),
    ((3, 5), dict(dropout=True), ValueError, "dropout should be a number in range [0, 1]"),
    ((3, 5), dict(proj_size=-1), ValueError, "proj_size must be at least 0"),
]


@every_layer
@pytest.mark.parametrize(("args", "kwargs", "error", "said"), ERRORS, ids=lambda value: str(value))
def test_constructor_errors(kind: type, args: tuple, kwargs: dict, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        kind(*args, **kwargs)


@every_layer
def test_dtype_error(kind: type) -> None:
    said = r"RNN input dtype .* does not match weight dtype .*Convert input: input\.to\(.*\), or convert model"
    with pytest.raises(ValueError, match=said):
        kind(3, 5)(torch.randn(2, 4, 3, dtype=torch.float64))


# test_rnn_retain_variables, and gradients of gradients (test_LSTM_grad_and_gradgrad, test_GRU_grad_and_gradgrad)


@every_layer
def test_backward_twice_through_a_retained_graph(kind: type) -> None:
    layer, x = kind(3, 4, 2), torch.randn(5, 2, 3, requires_grad=True)
    output = layer(x)[0].sum()
    output.backward(retain_graph=True)
    first = x.grad.clone()
    x.grad = None
    output.backward(retain_graph=True)
    torch.testing.assert_close(x.grad, first)


@every_layer
def test_gradients_of_gradients(kind: type) -> None:
    layer = kind(2, 3).double()
    x = torch.randn(3, 1, 2, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        return layer(x)[0]

    assert torch.autograd.gradcheck(run, (x,))
    assert torch.autograd.gradgradcheck(run, (x,))
