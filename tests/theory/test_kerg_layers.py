"""The decomposition of the real layers, seen from outside: through the derivatives of their outputs alone."""

import pytest
import torch
from torch.autograd.functional import jacobian

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import LSTM, SAB, AttentiveState, MemLSTM, MemRNN, RelLSTM, RelRNN
from mnemoscope.recurrence import trace
from mnemoscope.theory.attention import (
    attention_blocks,
    attention_pattern,
    by_hops,
    chi,
    decompose,
    gradient_by_hops,
    path_factors,
    sparsity,
    state_gradients,
    uniform_chi,
)

N, T = 4, 12
SCREENED = dict(buffer=3, relevant=2)
LAYERS = {
    "MemRNN": (MemRNN, {}),
    "MemRNN relu mean": (MemRNN, dict(nonlinearity="relu", mix="mean")),
    "MemRNN modrelu": (MemRNN, dict(nonlinearity="modrelu")),
    "MemRNN without bias": (MemRNN, dict(bias=False)),
    "MemLSTM": (MemLSTM, {}),
    "RelRNN": (RelRNN, SCREENED),
    "RelRNN fading": (RelRNN, dict(**SCREENED, decay=0.5, refresh=True)),
    "RelLSTM": (RelLSTM, SCREENED),
    "RelLSTM mean": (RelLSTM, dict(**SCREENED, mix="mean")),
}


def build(name, **options):
    torch.manual_seed(0)
    cls, own = LAYERS[name]
    model = cls(N, N, output="s", dtype=torch.float64, **own, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # attention far from uniform
    return model, torch.randn(T, 1, N, dtype=torch.float64)


def entry(model, x, t, layer=0):
    """dH_t/dx_t: how the input of step t moves h_t, and an LSTM's cell."""
    state = trace(model, x).states[t]
    return jacobian(lambda x_t: torch.cat([part[layer, 0] for part in model.step(x_t, state)[1].visible]), x[t])[:, 0]


@pytest.mark.parametrize("name", LAYERS)
def test_paths_add_up_to_the_derivative_of_the_output(name):
    model, x = build(name)
    blocks = attention_blocks(model, x)
    truth = jacobian(lambda x: model(x)[0][:, 0], x)  # (T, N, T, 1, N)
    for t, k in ((0, 0), (0, T - 1), (2, 5), (3, 8)):
        found = decompose(blocks, t, k, direction=entry(model, x, t)).sum(0)
        torch.testing.assert_close(found, truth[t + k, :, t, 0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LAYERS)
def test_factors_agree_with_the_fast_recursion(name):
    model, x = build(name)
    blocks = attention_blocks(model, x)
    terms = by_hops(*path_factors(blocks, 1, 9))[9]
    torch.testing.assert_close(decompose(blocks, 1, 9), terms[:, :N, :N], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["MemRNN", "RelRNN", "RelRNN fading"])
def test_gradients_of_a_loss_on_h(name):
    """dL/dx_t = dL/dh_t dh_t/dx_t, the loss reading every h: what a layer with output="h" trains with."""
    model, x = build(name)
    model.output = "h"
    readout = torch.randn(T, N, dtype=torch.float64)
    x.requires_grad_()
    (truth,) = torch.autograd.grad((model(x)[0][:, 0] * readout).sum(), x)
    x = x.detach()
    blocks = attention_blocks(model, x)
    dh, _ = state_gradients(blocks, torch.zeros_like(readout), readout)
    hops = gradient_by_hops(blocks, torch.zeros_like(readout), readout)
    torch.testing.assert_close(hops.sum(0), dh, rtol=1e-10, atol=1e-10)
    for t in range(T):
        torch.testing.assert_close(dh[t] @ entry(model, x, t), truth[t, 0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["MemRNN", "RelLSTM"])
def test_a_layer_of_a_stack(name):
    model, x = build(name, num_layers=2, dropout=0.5)
    blocks = attention_blocks(model, x, layer=1)
    below = torch.stack([state.s[0] for state in trace(model.eval(), x).states[1:]])  # what the second layer reads
    alone = type(model)(N, N, output="s", dtype=torch.float64, **LAYERS[name][1])
    alone.load_state_dict({k.replace("_l1", "_l0"): w for k, w in model.state_dict().items() if "_l1" in k})
    expected = attention_blocks(alone, below)
    torch.testing.assert_close(decompose(blocks, 1, 8), decompose(expected, 1, 8), rtol=1e-10, atol=1e-10)


def test_uniform_linear_memory_is_the_paper_s_polynomial():
    """v = 0 makes attention uniform and X = Y = 0: ds_{t+k}/dh_t = sum_s V^s chi(s), term by term."""
    torch.manual_seed(0)
    model = MemRNN(N, N, nonlinearity="identity", dtype=torch.float64)
    torch.nn.init.zeros_(model.weight_score_l0)
    blocks = attention_blocks(model, torch.randn(T, N, dtype=torch.float64))
    V = model.weight_hh_l0.detach()
    for t, k in ((0, 11), (4, 6)):
        expected = torch.stack([c * torch.linalg.matrix_power(V, s) for s, c in enumerate(uniform_chi(t + 1, k)[k])])
        torch.testing.assert_close(decompose(blocks, t, k), expected, rtol=1e-10, atol=1e-12)


def test_uniform_linear_screening_is_the_sparse_polynomial():
    torch.manual_seed(0)
    model = RelRNN(N, N, nonlinearity="identity", **SCREENED, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight_score_l0)
    blocks = attention_blocks(model, torch.randn(T, N, dtype=torch.float64))
    assert sparsity(attention_pattern(blocks.attention)) == 5
    coefficients = chi(blocks.attention, 2)[9]
    V = model.weight_hh_l0.detach()
    expected = torch.stack([c * torch.linalg.matrix_power(V, s) for s, c in enumerate(coefficients)])
    torch.testing.assert_close(decompose(blocks, 2, 9), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["MemRNN", "RelLSTM"])
def test_the_attention_map_is_the_trace_s(name):
    model, x = build(name)
    blocks = attention_blocks(model, x)
    torch.testing.assert_close(blocks.attention, trace(model, x).attention_by_origin()[0])
    torch.testing.assert_close(blocks.attention.sum(1), torch.ones(T, dtype=torch.float64))


def test_one_sequence_in_any_layout():
    model, x = build("RelRNN", batch_first=True)
    alone = decompose(attention_blocks(model, x[:, 0]), 0, 5)
    torch.testing.assert_close(decompose(attention_blocks(model, x.transpose(0, 1)), 0, 5), alone)
    model.batch_first = False
    torch.testing.assert_close(decompose(attention_blocks(model, x), 0, 5), alone)


def test_a_single_step_has_a_path_of_no_hops():
    model, x = build("MemLSTM")
    blocks = attention_blocks(model, x[:1])
    torch.testing.assert_close(decompose(blocks, 0, 0)[0], 2 * torch.eye(N, dtype=torch.float64))  # s = h + h


def test_single_precision_models_are_examined_too():
    model, x = build("RelLSTM")
    double = decompose(attention_blocks(model, x), 1, 6)
    single = decompose(attention_blocks(model.float(), x.float()), 1, 6)
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-5)


def test_the_model_is_left_as_it_was():
    model, x = build("MemRNN", num_layers=2, dropout=0.5)
    model.train()
    before = {name: w.clone() for name, w in model.state_dict().items()}
    random = torch.get_rng_state()
    attention_blocks(model, x)
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(w.grad is None and w.requires_grad for w in model.parameters())
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "x", "said"),
    [
        (LSTM(2, 3), torch.zeros(4, 2), "LSTM has no attention"),
        (SAB(2, 3), torch.zeros(4, 2), "SAB"),
        (MemRNN(2, 3), torch.zeros(4, 5, 2), r"one sequence, \(T, input_size\); got \[4, 5, 2\]"),
    ],
)
def test_what_cannot_be_examined_says_why(model, x, said):
    with pytest.raises(MnemoscopeError, match=said):
        attention_blocks(model, x)


def test_an_attention_of_another_kind_is_refused():
    class Sharper(MemRNN):
        def observe_cell(self, w, u, state):
            output, after, alpha = super().observe_cell(w, u, state)
            return output, AttentiveState(after, 3 * after.s, after.memory), alpha

    with pytest.raises(MnemoscopeError, match="attends in another way"):
        attention_blocks(Sharper(2, 3), torch.randn(4, 2))
