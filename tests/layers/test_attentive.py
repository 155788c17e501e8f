"""MemRNN's Jacobians are those of Kerg et al. 2020, appendix A.2: a test for each equation from 56 to 65 and 92 to 97.

The layer runs t - 1 steps; the t-th is then written out from its parts, so that every partial derivative of the
appendix is one call of autograd on the layer's own step.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.autograd.functional import jacobian
from torch.func import jacrev

import mnemoscope
from mnemoscope.layers import AttentiveState, Memory
from mnemoscope.layers._attentive import attend

n, t = 4, 6


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.fixture(params=["sum", "mean"])
def run(request) -> SimpleNamespace:
    """A trained-looking MemRNN after t steps: h_1..h_t, s_{t-1}, alpha_{.,t} and f's partial derivatives."""
    torch.manual_seed(0)
    layer = mnemoscope.MemRNN(3, n, mix=request.param, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(2)
    trace = mnemoscope.trace(layer, torch.randn(t, 1, 3, dtype=torch.float64))
    share = 1.0 if request.param == "sum" else 0.5
    return SimpleNamespace(
        w=layer.weights(0),
        h=trace.states[-1].memory.values[0, 0],  # (t, n), row i is h_{i+1}
        before=trace.states[-2].s[0, 0],  # s_{t-1}
        s=trace.states[-1].s[0, 0],
        alpha=trace.attention[-1][0][0],  # (t,)
        f=lambda h, c: share * (h + c),
        d1=share * torch.eye(n, dtype=torch.float64),  # partial derivative of f by h
        d2=share * torch.eye(n, dtype=torch.float64),  # and by c
    )


def score(run, s: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """e = v^T tanh(W_a s + U_a h), eq. 95."""
    return run.w.weight_score @ torch.tanh(run.w.weight_query @ s + run.w.weight_key @ h)


def macro(run, s: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """s_t by the layer's own attention, of s_{t-1} and of the rows of h."""
    keys = h @ run.w.weight_key.mT
    memory = Memory(h[None], keys[None], torch.arange(t)[None], torch.zeros(1, t), torch.tensor([t]))
    c, _ = attend(run.w, s[None], memory)
    return run.f(h[-1], c[0])


def score_by_state(run) -> torch.Tensor:
    """de_{j,t}/ds_{t-1}, one row a state: (t, n)."""
    return torch.stack([jacrev(lambda s, h=h: score(run, s, h))(run.before) for h in run.h])


def Y(run) -> torch.Tensor:
    """Y_{i,t} of eq. 57, (t, n, n)."""
    by_state = score_by_state(run)
    return torch.stack([torch.outer(h, row - run.alpha @ by_state) for h, row in zip(run.h, by_state, strict=True)])


def X(run, j: int) -> torch.Tensor:
    """X_{j,t} of eq. 65."""
    by_h = jacrev(lambda h: score(run, run.before, h))(run.h[j])
    return torch.outer(run.h[j] - run.alpha @ run.h, by_h)


def test_the_parts_make_the_layers_own_step(run) -> None:
    close(macro(run, run.before, run.h), run.s)


def test_eq_56_and_63_the_macro_state_by_the_one_before(run) -> None:
    expected = run.d2 @ torch.einsum("i,iab->ab", run.alpha, Y(run))
    close(jacrev(lambda s: macro(run, s, run.h))(run.before), expected)


def test_eq_57_the_terms_of_y_sum_to_the_derivative_of_the_context(run) -> None:
    context = jacrev(lambda s: torch.softmax(torch.stack([score(run, s, h) for h in run.h]), 0) @ run.h)(run.before)
    close(torch.einsum("i,iab->ab", run.alpha, Y(run)), context)


def test_eq_58_and_59_only_the_context_depends_on_the_state_before(run) -> None:
    by_alpha = jacrev(lambda s: torch.softmax(torch.stack([score(run, s, h) for h in run.h]), 0))(run.before)  # (t, n)
    close(jacrev(lambda s: macro(run, s, run.h))(run.before), run.d2 @ (run.h.mT @ by_alpha))


def test_eq_60_and_61_the_softmax(run) -> None:
    by_score = jacrev(lambda e: torch.softmax(e, 0))(torch.stack([score(run, run.before, h) for h in run.h]))
    close(by_score, torch.diag(run.alpha) - torch.outer(run.alpha, run.alpha))
    close(jacrev(lambda s: macro(run, s, run.h))(run.before), run.d2 @ run.h.mT @ by_score @ score_by_state(run))


def test_eq_62_written_out(run) -> None:
    by_state = score_by_state(run)
    mean = run.alpha @ by_state
    expected = sum(a * torch.outer(h, row - mean) for a, h, row in zip(run.alpha, run.h, by_state, strict=True))
    close(jacrev(lambda s: macro(run, s, run.h))(run.before), run.d2 @ expected)


def test_eq_64_and_65_the_macro_state_by_each_hidden_state(run) -> None:
    by_h = jacrev(lambda h: macro(run, run.before, h))(run.h)  # (n, t, n)
    eye = torch.eye(n, dtype=torch.float64)
    for j in range(t):
        close(by_h[:, j], (j == t - 1) * run.d1 + run.alpha[j] * run.d2 @ (eye + X(run, j)))


def sequence(layer: mnemoscope.MemRNN, x: torch.Tensor) -> list[AttentiveState]:
    return list(mnemoscope.trace(layer, x).states)


def test_eq_92_and_93_the_blocks_e_and_f_of_the_layer() -> None:
    """E_k = ds_{t+k}/dh_t, others held; F_{k+1,j} = ds_{t+k+1}/dh_{t+j+1} J_{t+j} + [k=j] ds_{t+k+1}/ds_{t+k}."""
    torch.manual_seed(1)
    layer = mnemoscope.MemRNN(3, n, dtype=torch.float64)
    x = torch.randn(7, 1, 3, dtype=torch.float64)
    states, w = sequence(layer, x), layer.weights(0)
    h = states[-1].memory.values[0, 0]
    s = [state.s[0, 0] for state in states]
    eye = torch.eye(n, dtype=torch.float64)

    def parts(k: int) -> SimpleNamespace:  # what step k (counted from 1) saw
        alpha = torch.softmax(torch.stack([score(SimpleNamespace(w=w), s[k - 1], row) for row in h[:k]]), 0)
        return SimpleNamespace(w=w, h=h[:k], before=s[k - 1], alpha=alpha)

    def J(k: int) -> torch.Tensor:  # dh_{k+1}/ds_k
        return jacrev(lambda s_k: torch.tanh(layer.project(w, x[k, 0]) + w.weight_hh @ s_k))(s[k])

    def attention_step(k: int, previous: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        memory = Memory(
            rows[None], (rows @ w.weight_key.mT)[None], torch.arange(k)[None], torch.zeros(1, k), torch.tensor([k])
        )
        return rows[-1] + attend(w, previous[None], memory)[0][0]

    start = 3
    for k in range(4):
        seen = parts(start + k)
        by_h = jacobian(lambda rows, k=k: attention_step(start + k, s[start + k - 1], rows), h[: start + k])
        E = (k == 0) * eye + seen.alpha[start - 1] * (eye + X(seen, start - 1))  # eq. 92
        close(by_h[:, start - 1], E)
    for k in range(3):
        later = parts(start + k + 1)
        by_h = jacobian(lambda rows, k=k: attention_step(start + k + 1, s[start + k], rows), h[: start + k + 1])
        by_s = jacobian(lambda previous, k=k: attention_step(start + k + 1, previous, h[: start + k + 1]), s[start + k])
        for j in range(k + 1):
            wanted = by_h[:, start + j] @ J(start + j) + (j == k) * by_s
            alpha, reach = later.alpha[start + j], J(start + j)
            F = alpha * (eye + X(later, start + j)) @ reach  # eq. 93
            if j == k:
                F = F + reach + torch.einsum("i,iab->ab", later.alpha, Y(later))
            close(wanted, F)


def test_eq_94_the_layers_macro_state_is_the_sum_of_its_parts() -> None:
    """f = h + c, so both partial derivatives are the identity: s_t - h_t - c_t vanishes for every h and c."""
    torch.manual_seed(1)
    layer = mnemoscope.MemRNN(3, n, dtype=torch.float64)
    run = mnemoscope.trace(layer, torch.randn(t, 2, 3, dtype=torch.float64))
    for state, alpha in zip(run.states[1:], run.attention, strict=True):
        c = torch.einsum("bi,bia->ba", alpha[0], state.memory.values[0])
        close(state.s[0], state.h[0] + c)


def test_eq_95_the_layers_scores_are_additive(run) -> None:
    scores = torch.stack([score(run, run.before, h) for h in run.h])
    close(torch.softmax(scores, 0), run.alpha)


def test_eq_96_the_score_by_the_attended_state(run) -> None:
    for h in run.h:
        slope = 1 - torch.tanh(run.w.weight_query @ run.before + run.w.weight_key @ h) ** 2
        expected = run.w.weight_score @ torch.diag(slope) @ run.w.weight_key
        close(jacrev(lambda h: score(run, run.before, h))(h), expected)


def test_eq_97_the_score_by_the_state_that_asks(run) -> None:
    for h, row in zip(run.h, score_by_state(run), strict=True):
        slope = 1 - torch.tanh(run.w.weight_query @ run.before + run.w.weight_key @ h) ** 2
        close(row, run.w.weight_score @ torch.diag(slope) @ run.w.weight_query)


def test_eqs_9_and_10_written_out_from_the_paper() -> None:
    """h_t = phi(V s_{t-1} + U x_t + b), s_t = h_t + sum_i alpha_i h_i with s_0 = 0, in plain loops."""
    torch.manual_seed(2)
    layer = mnemoscope.MemRNN(3, n, output="s", dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)
    V, U, b = layer.weight_hh_l0, layer.weight_ih_l0, layer.bias_ih_l0 + layer.bias_hh_l0
    s, past, outputs = torch.zeros(n, dtype=torch.float64), [], []
    for x_t in x:
        past.append(torch.tanh(V @ s + U @ x_t + b))
        e = torch.stack(
            [layer.weight_score_l0 @ torch.tanh(layer.weight_query_l0 @ s + layer.weight_key_l0 @ h) for h in past]
        )
        s = past[-1] + sum(a * h for a, h in zip(torch.softmax(e, 0), past, strict=True))
        outputs.append(s)
    close(layer(x)[0], torch.stack(outputs))


def test_memlstm_by_hand() -> None:
    torch.manual_seed(3)
    layer = mnemoscope.MemLSTM(3, n, dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)
    cell = torch.nn.LSTMCell(3, n, dtype=torch.float64)
    own = dict(cell.named_parameters())
    cell.load_state_dict({name[:-3]: value for name, value in layer.state_dict().items() if name[:-3] in own})
    s, c, past = torch.zeros(1, n, dtype=torch.float64), torch.zeros(1, n, dtype=torch.float64), []
    for t_, x_t in enumerate(x):
        h, c = cell(x_t[None], (s, c))  # the gates read s; the cell state is an ordinary one
        past.append(h[0])
        e = torch.stack(
            [
                layer.weight_score_l0 @ torch.tanh(layer.weight_query_l0 @ s[0] + layer.weight_key_l0 @ h_i)
                for h_i in past
            ]
        )
        s = h + torch.softmax(e, 0) @ torch.stack(past)
        close(layer(x[: t_ + 1])[0][-1], h[0])
    output, (h_T, c_T) = layer(x)
    close(h_T[0], output[-1])
    close(c_T, c)


@pytest.mark.parametrize(
    "kind", [mnemoscope.MemRNN, mnemoscope.MemLSTM, mnemoscope.RelRNN, mnemoscope.RelLSTM, mnemoscope.SAB]
)
def test_bare_state_starts_with_an_empty_memory(kind) -> None:
    torch.manual_seed(0)
    layer, x = kind(3, n), torch.randn(4, 2, 3)
    _, state = layer(x)
    bare = state.visible
    with pytest.warns(UserWarning, match="without its memory.* Hand back the state as the layer gave it"):
        output, after = layer(x, bare)
    assert not torch.allclose(output, layer(x, state)[0])
    assert after.memory.origin.max() < 4
    zeros = tuple(torch.zeros_like(t) for t in bare)
    torch.testing.assert_close(layer(x, zeros)[0], layer(x)[0])
    if len(bare) == 1:
        torch.testing.assert_close(layer(x, bare[0])[0], output)


@pytest.mark.parametrize(
    ("maker", "reader"),
    [
        (mnemoscope.MemLSTM(3, 4), mnemoscope.SAB(3, 4)),
        (mnemoscope.SAB(3, 4), mnemoscope.MemLSTM(3, 4)),
        (mnemoscope.MemLSTM(3, 4), mnemoscope.RelLSTM(3, 4, buffer=3, relevant=2)),
        (mnemoscope.RelLSTM(3, 4), mnemoscope.MemLSTM(3, 4)),
        (mnemoscope.RelRNN(3, 4, buffer=2, relevant=3), mnemoscope.RelRNN(3, 4, buffer=3, relevant=2)),
    ],
)
def test_memory_of_another_layout_error(maker, reader) -> None:
    """Five steps, so that all shapes fit."""
    _, state = maker(torch.randn(5, 2, 3))
    for kept in (state, maker.step(torch.randn(2, 3), maker.initial_state(2))[1], mnemoscope.detach(state)):
        with pytest.raises(mnemoscope.MnemoscopeError, match="made by another layer"):
            reader(torch.randn(1, 2, 3), kept)
        maker(torch.randn(1, 2, 3), kept)


def test_a_training_script_for_nn_lstm_runs_unchanged() -> None:
    def script(layer: torch.nn.Module) -> torch.Size:
        layer.flatten_parameters()
        for name, parameter in layer.named_parameters():
            if "weight_hh" in name:
                torch.nn.init.orthogonal_(parameter)
        layer.bias_hh_l0.data[128:256].fill_(1)  # the forget gate
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        out, (h, c) = layer(torch.randn(7, 5, 10))
        h, c = h.detach(), c.detach()
        out, (h, c) = layer(torch.randn(7, 5, 10), (h, c))
        out[-1].square().mean().backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        assert h.shape == c.shape == (1, 5, 128)
        return out.shape

    assert script(torch.nn.LSTM(10, 128)) == script(mnemoscope.RelLSTM(10, 128))


@pytest.mark.parametrize("kind", [mnemoscope.MemRNN, mnemoscope.RelRNN])
@pytest.mark.parametrize("recurrent_init", ["henaff", "cayley", "orthogonal"])
def test_a_start_that_must_explode_is_warned_of(kind: type, recurrent_init: str) -> None:
    torch.manual_seed(0)
    with pytest.warns(
        UserWarning, match=rf"{kind.__name__} with recurrent_init='{recurrent_init}'.*mix='mean'"
    ) as said:
        layer = kind(3, 128, nonlinearity="modrelu", recurrent_init=recurrent_init)
    assert said[0].filename == __file__
    with torch.no_grad():
        x = torch.randn(200, 2, 3)
        assert not layer(x)[0][-1].norm() < 1e6
        for options in (dict(mix="mean", nonlinearity="modrelu"), dict(nonlinearity="tanh")):  # without a warning
            assert kind(3, 128, recurrent_init=recurrent_init, **options)(x)[0][-1].norm() < 1e3
