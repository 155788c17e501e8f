import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from mnemoscope import LSTM, RNN, MnemoscopeError, examine
from mnemoscope.adapters import as_recurrence, from_torch
from mnemoscope.recurrence import leaves


def modules():
    for bias in (True, False):
        yield nn.RNN(3, 5, 2, bias=bias)
        yield nn.RNN(3, 5, nonlinearity="relu", bias=bias)
        yield nn.GRU(3, 5, 2, bias=bias)
        yield nn.LSTM(3, 5, 2, bias=bias)
        yield nn.LSTM(3, 5, 2, proj_size=2, bias=bias)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("module", list(modules()), ids=str)
def test_from_torch_equals_torch(module):
    module.double()
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    wanted, final = module(x)
    layer = from_torch(module)
    state = layer.initial_state(4)
    for t in range(7):
        y, state = layer.step(x[t], state)
        torch.testing.assert_close(y, wanted[t])
    for found, expected in zip(leaves(state), leaves(final), strict=True):
        torch.testing.assert_close(found, expected)


def test_from_torch_shares_parameters():
    module = nn.LSTM(3, 5, 2)
    layer = from_torch(module)
    assert {name: id(p) for name, p in layer.named_parameters()} == {n: id(p) for n, p in module.named_parameters()}


def test_from_torch_draws_no_random_numbers():
    before = torch.get_rng_state()
    from_torch(nn_gru := nn.GRU(3, 5))
    assert not torch.equal(before, torch.get_rng_state())  # making nn.GRU itself draws
    before = torch.get_rng_state()
    from_torch(nn_gru)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("reverse", [False, True])
def test_from_torch_one_direction_of_a_bidirectional_layer(reverse):
    module = nn.GRU(3, 5, bidirectional=True).double()
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    wanted = module(x)[0][..., 5:] if reverse else module(x)[0][..., :5]
    found = from_torch(module, reverse=reverse)(x.flip(0) if reverse else x)[0]
    torch.testing.assert_close(found.flip(0) if reverse else found, wanted)


def test_bidirectional_layer_has_no_step():
    with pytest.raises(MnemoscopeError, match="bidirectional LSTM has no step"):
        as_recurrence(nn.LSTM(3, 5, bidirectional=True))
    with pytest.raises(MnemoscopeError, match="second layer"):
        from_torch(nn.LSTM(3, 5, 2, bidirectional=True))
    for layer in (nn.LSTM(3, 5, 2, bidirectional=True), LSTM(3, 5, bidirectional=True)):  # which it would refuse
        with pytest.raises(MnemoscopeError, match=r"bidirectional=False$"):
            as_recurrence(layer)


class Summed(nn.RNN):
    """A recurrence of torch's whose outputs are added up: no state of it forgets what it has read."""

    def forward(self, x, state=None):
        output, state = super().forward(x, state)
        return output.cumsum(0), state


def test_subclass_with_other_outputs_has_no_step():
    found = examine(Summed(3, 5), torch.randn(30, 2, 3), scopes=["horizon", "stability", "truncation"])
    assert found["horizon"].figures["horizon"] == 29
    assert "changes what nn.RNN gives" in found["stability"].why
    assert found["stability"].status == "not applicable"
    assert found["truncation"].status == "estimated"


def add_up(module, arguments, result):
    return result[0].cumsum(0), result[1]


def add_up_inputs(module, arguments):
    return (arguments[0].cumsum(0),)


def with_own_forward(layer):
    forward = layer.forward
    layer.forward = lambda x: (forward(x)[0].cumsum(0), None)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.register_forward_hook(add_up),
        lambda layer: layer.register_forward_pre_hook(add_up_inputs),
        with_own_forward,
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_layer_whose_hooks_change_its_outputs_has_no_step(change, inside):
    """It was said to reach as far back as its weights do, and its certificate was about the weights alone."""
    layer = nn.RNN(3, 5)
    change(layer)
    model = nn.Sequential(layer) if inside else layer
    found = examine(model, torch.randn(30, 2, 3), scopes=["horizon", "stability"], output=0 if inside else None)
    assert found["horizon"].figures["horizon"] == 29
    assert "changes what nn.RNN gives" in found["stability"].why


def fail(module, arguments, result):
    raise KeyError("log")


class Masked(nn.RNN):
    """Torch's, with an argument that only its owner knows."""

    def forward(self, x, mask):
        return super().forward(x * mask)


@pytest.mark.parametrize(
    ("layer", "error"),
    [(nn.RNN(3, 5), "KeyError: 'log'"), (Masked(3, 5), "TypeError: Masked.forward() missing 1 required positional")],
)
def test_an_error_of_a_hook_or_a_forward_is_what_is_reported(layer, error):
    """It was said to change what nn.RNN gives."""
    if type(layer) is nn.RNN:
        layer.register_forward_hook(fail)
    with pytest.raises(MnemoscopeError, match=re.escape(f"this {type(layer).__name__} raised {error}")) as found:
        from_torch(layer)
    assert "changes" not in str(found.value)


def test_a_layer_that_gives_no_tensor_changes_what_torch_gives():
    layer = nn.RNN(3, 5)
    layer.register_forward_hook(lambda module, arguments, result: "nothing")
    with pytest.raises(MnemoscopeError, match=r"changes what nn.RNN gives"):
        from_torch(layer)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_a_hook_computes_are_those_of_the_next_run():
    """Of torch.nn.utils.weight_norm the weights of the last run were taken, though a checkpoint was loaded since."""
    layer = nn.utils.weight_norm(nn.RNN(3, 5), "weight_hh_l0")
    with torch.no_grad():
        layer.weight_hh_l0_g.mul_(20)
    found = examine(layer, torch.randn(12, 2, 3), scopes=["stability"])["stability"]
    layer(torch.randn(1, 1, 3))
    assert found.figures["bound"] == pytest.approx(float(torch.linalg.matrix_norm(layer.weight_hh_l0, ord=2)))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_hook_of_weight_norm_leaves_its_parameters_to_move():
    """The layer had neither g nor v: scopes of parameters took the weight to be fixed."""
    theirs = nn.utils.weight_norm(nn.GRU(3, 5), "weight_hh_l0")
    ours = from_torch(theirs)
    g, v = theirs.weight_hh_l0_g, theirs.weight_hh_l0_v
    assert {id(g), id(v)} < {id(parameter) for parameter in ours.parameters()}
    x = torch.randn(6, 2, 3)
    given, expected = ours(x)[0], theirs(x)[0]
    torch.testing.assert_close(given, expected)
    torch.testing.assert_close(*(torch.autograd.grad(output.square().sum(), (g, v)) for output in (given, expected)))
    with torch.no_grad():
        g.mul_(2)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])


class Bare(nn.GRU):
    """Torch's, without the state in its result, as nn.Sequential wants it."""

    def forward(self, x):
        return super().forward(x)[0]


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"num_layers": 2, "dropout": 0.5}])
def test_subclass_with_the_same_outputs_has_a_step(options):
    module, x = Bare(3, 5, **options), torch.randn(6, 4, 3)
    assert examine(module, x, scopes=["stability"])["stability"].status == "estimated"
    assert examine(nn.Sequential(module, nn.Linear(5, 2)), x, scopes=["stability"])["stability"].status == "estimated"
    assert module.training


def test_from_torch_reverse_needs_a_bidirectional_layer():
    with pytest.raises(MnemoscopeError, match="bidirectional"):
        from_torch(nn.LSTM(3, 5), reverse=True)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_torch_cells(kind):
    cell = kind(3, 5)
    recurrence = as_recurrence(cell)
    x = torch.randn(4, 2, 3)
    state = None
    for x_t in x:
        state = cell(x_t) if state is None else cell(x_t, state)
    wanted = state[0] if isinstance(state, tuple) else state
    torch.testing.assert_close(recurrence(x)[0][-1], wanted)


def test_batch_first_layer_is_read_time_first():
    from mnemoscope import LSTM

    layer = LSTM(3, 5, batch_first=True)
    x = torch.randn(7, 2, 3)
    torch.testing.assert_close(as_recurrence(layer)(x)[0], layer(x.transpose(0, 1))[0].transpose(0, 1))
    assert layer.batch_first


def test_adapted_layer_sees_weight_updates():
    module = nn.RNN(3, 5)
    layer = from_torch(module)
    x = torch.randn(4, 2, 3)
    with torch.no_grad():
        module.weight_hh_l0.mul_(0.5)
    torch.testing.assert_close(layer(x)[0], module(x)[0])


@pytest.mark.parametrize("kind", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_parametrized_weights_are_computed_from_the_same_parameters(kind):
    """Their values were taken once, so that no scope saw what their parameters do: the cost was flat along them."""
    torch.manual_seed(0)
    theirs, ours = nn.RNN(3, 5, 2).double(), RNN(3, 5, 2).double()
    for layer in (theirs, ours):
        kind(layer, "weight_hh_l0")
        kind(layer, "weight_hh_l1")
    with torch.no_grad():
        for weight in theirs.parametrizations.parameters():
            weight += 0.3 * torch.randn_like(weight)
    ours.load_state_dict(theirs.state_dict())
    adapted = from_torch(theirs)
    assert {name: id(p) for name, p in adapted.named_parameters()} == {n: id(p) for n, p in theirs.named_parameters()}

    x, targets = torch.randn(30, 4, 3, dtype=torch.float64), torch.randn(30, 4, 5, dtype=torch.float64)
    other = {name: 1.5 * value for name, value in theirs.state_dict().items()}
    options = {"landscape": {"to": other, "line": True, "points": 5}}
    scopes = ["landscape", "truncation", "smoothness", "signal", "stability"]
    one, two = (examine(layer, x, targets, F.mse_loss, scopes, options=options) for layer in (theirs, ours))
    for name in scopes:
        assert one[name].status == two[name].status != "failed"
        for figure, value in two[name].figures.items():
            assert one[name].figures[figure] == pytest.approx(value, rel=1e-6, nan_ok=True), (name, figure)
    assert one["landscape"].figures["cost_to"] > 1.01 * one["landscape"].figures["cost"]
    assert one["signal"].labels == two["signal"].labels


def test_one_direction_of_a_parametrized_layer():
    module = nn.GRU(3, 5, bidirectional=True).double()
    parametrizations.orthogonal(module, "weight_ih_l0_reverse")
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    layer = copy.deepcopy(from_torch(module, reverse=True))
    torch.testing.assert_close(layer(x.flip(0))[0].flip(0), module(x)[0][..., 5:])
    assert not hasattr(from_torch(module), "parametrizations")
