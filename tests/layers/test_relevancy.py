"""Relevancy screening: small cases by hand, and every case against a plain reading of the rules."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import mnemoscope
from mnemoscope.layers._memory import empty_memory


class Screen:
    """The memory of one layer alone: states are marked by their number, attention is given by hand."""

    def __init__(self, **options) -> None:
        self.layer = mnemoscope.RelRNN(1, 1, **options)
        self.w = self.layer.weights(0)
        self.memory = empty_memory(torch.zeros(1, 1), 1, self.layer.slots)

    def step(self, **attention: float) -> list[int]:
        """One more state; attention by origin, as ``_3=0.5``. Returns the origins held, slot by slot."""
        h = torch.full((1, 1), float(self.memory.clock[0]))
        self.memory = self.layer.remember(self.w, h, self.memory)
        origins = self.memory.origin[0].tolist()
        alpha = torch.tensor([[attention.get(f"_{origin}", 0.0) for origin in origins]])
        self.memory = self.layer.accumulate_relevance(self.memory, alpha)
        held = self.memory.values[0, :, 0]
        assert all(held[slot] == origin for slot, origin in enumerate(origins) if origin >= 0)
        return origins


def test_the_buffer_is_a_ring_and_what_leaves_it_enters_while_there_is_room() -> None:
    screen = Screen(buffer=2, relevant=2)
    assert screen.step() == [0, -1, -1, -1]
    assert screen.step() == [0, 1, -1, -1]
    assert screen.step() == [2, 1, 0, -1]
    assert screen.step() == [2, 3, 0, 1]


def test_a_full_set_gives_way_only_to_the_strictly_more_relevant() -> None:
    screen = Screen(buffer=1, relevant=2)
    screen.step(_0=0.5)
    screen.step(_1=0.3)  # 0 leaves and enters
    screen.step(_2=0.3)  # 1 leaves and enters
    assert screen.step(_3=0.4) == [3, 0, 1]  # 2 leaves with 0.3: a tie with 1, which stays
    assert screen.step(_4=0.1) == [4, 0, 3]  # 3 leaves with 0.4: more than 1's 0.3
    assert screen.step() == [5, 0, 3]  # 4 leaves with 0.1 and is forgotten
    torch.testing.assert_close(screen.memory.relevance[0], torch.tensor([0.0, 0.5, 0.4]))


def test_among_equally_irrelevant_members_the_first_slot_gives_way() -> None:
    screen = Screen(buffer=1, relevant=3)
    for origin in range(4):
        screen.step(**{f"_{origin}": 0.2})
    assert screen.step(_4=0.9) == [4, 0, 1, 2]  # 3 leaves with 0.2: ties with all, refused
    assert screen.step() == [5, 4, 1, 2]


def test_relevance_is_counted_over_all_steps_in_the_buffer_and_then_frozen() -> None:
    screen = Screen(buffer=3, relevant=1)
    screen.step(_0=0.1)
    screen.step(_0=0.2)
    screen.step(_0=0.3)
    screen.step(_0=0.4)  # 0 is in R now: what it receives is no longer counted
    assert screen.memory.relevance[0, 3] == pytest.approx(0.6)


def test_refreshed_relevance_goes_on_counting() -> None:
    screen = Screen(buffer=1, relevant=1, refresh=True)
    screen.step(_0=0.1)
    screen.step(_0=0.2, _1=0.25)
    assert screen.step() == [2, 0]  # 1 leaves with 0.25 against 0's 0.3
    plain = Screen(buffer=1, relevant=1)
    plain.step(_0=0.1)
    plain.step(_0=0.2, _1=0.25)
    assert plain.step() == [2, 1]


def test_decaying_relevance_lets_the_old_go() -> None:
    for decay, held in ((1.0, 0), (0.5, 3)):
        screen = Screen(buffer=1, relevant=1, decay=decay)
        for relevance in (0.8, 0.1, 0.1, 0.3, 0.0):
            screen.step(**{f"_{int(screen.memory.clock[0])}": relevance})
        # 0.8 has decayed at the entry of states 2, 3 and 4: 0.1 when 3, with 0.3, leaves
        assert screen.memory.origin[0].tolist() == [4, held]


def test_without_a_buffer_the_first_states_stay() -> None:
    screen = Screen(buffer=0, relevant=2)
    assert screen.step(_0=0.1) == [0, -1]
    assert screen.step() == [0, 1]
    assert screen.step() == [0, 1]


def plain_reading(layer, x: torch.Tensor) -> tuple[torch.Tensor, list[set[int]]]:
    """The rules for one sequence with Python's lists: what the layer must give for every sequence of a batch."""
    w, s, S, R, outputs, held = layer.weights(0), torch.zeros(layer.hidden_size, dtype=x.dtype), [], [], [], []
    for now, x_t in enumerate(x):
        h = torch.tanh(w.weight_hh @ s + w.weight_ih @ x_t + w.bias_ih + w.bias_hh)
        R = [(i, h_i, beta * layer.decay) for i, h_i, beta in R]
        leaving = S.pop(0) if len(S) == layer.buffer and layer.buffer else None
        leaving = (now, h, 0.0) if layer.buffer == 0 else leaving
        if leaving is not None and len(R) < layer.relevant:
            R.append(leaving)
        elif leaving is not None and R:
            least = min(range(len(R)), key=lambda k: R[k][2])
            if leaving[2] > R[least][2]:
                R[least] = leaving
        if layer.buffer:
            S.append((now, h, 0.0))
        c, attended = torch.zeros_like(h), S + R
        if attended:
            query = w.weight_query @ s
            e = torch.stack([w.weight_score @ torch.tanh(query + w.weight_key @ h_i) for _, h_i, _ in attended])
            alpha = torch.softmax(e, 0)
            c = sum(a * h_i for a, (_, h_i, _) in zip(alpha, attended, strict=True))
            gains = [a.item() if k < len(S) or layer.refresh else 0.0 for k, a in enumerate(alpha)]
            counted = [(i, h_i, beta + gain) for (i, h_i, beta), gain in zip(attended, gains, strict=True)]
            S, R = counted[: len(S)], counted[len(S) :]
        s = h + c
        outputs.append(h)
        held.append({i for i, _, _ in S + R})
    return torch.stack(outputs), held


@settings(max_examples=40, deadline=None)
@given(
    buffer=st.integers(0, 4),
    relevant=st.integers(0, 3),
    decay=st.sampled_from([1.0, 0.9, 0.5]),
    refresh=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_the_layer_follows_the_rules(buffer: int, relevant: int, decay: float, refresh: bool, seed: int) -> None:
    torch.manual_seed(seed)
    options = dict(buffer=buffer, relevant=relevant, decay=decay, refresh=refresh, dtype=torch.float64)
    layer = mnemoscope.RelRNN(3, 4, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(2)
    x = torch.randn(12, 2, 3, dtype=torch.float64, requires_grad=True)
    run = mnemoscope.trace(layer, x)
    output, _ = layer(x)
    for row in range(2):
        expected, held = plain_reading(layer, x[:, row])
        torch.testing.assert_close(output[:, row], expected)
        for step, wanted in enumerate(held):
            assert {int(i) for i in run.origin[step][0][row] if i >= 0} == wanted
        wanted_gradient = torch.autograd.grad(expected.square().sum(), x, retain_graph=True)[0][:, row]
        gradient = torch.autograd.grad(output[:, row].square().sum(), x, retain_graph=True)[0][:, row]
        torch.testing.assert_close(gradient, wanted_gradient)


@pytest.mark.parametrize(
    ("screened", "full"), [(mnemoscope.RelRNN, mnemoscope.MemRNN), (mnemoscope.RelLSTM, mnemoscope.MemLSTM)]
)
@pytest.mark.parametrize("buffer", [7, 20])
def test_a_buffer_as_long_as_the_sequence_is_full_attention(screened, full, buffer: int) -> None:
    torch.manual_seed(0)
    layer, other = screened(3, 5, buffer=buffer, relevant=3, dtype=torch.float64), full(3, 5, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(layer(x)[0], other(x)[0])
    torch.testing.assert_close(
        torch.autograd.grad(layer(x)[0].square().sum(), [x, *layer.parameters()]),
        torch.autograd.grad(other(x)[0].square().sum(), [x, *other.parameters()]),
    )


def test_an_empty_relevant_set_changes_nothing() -> None:
    torch.manual_seed(0)
    with_room, without = (mnemoscope.RelRNN(3, 5, buffer=4, relevant=rho) for rho in (3, 0))
    without.load_state_dict(with_room.state_dict())
    x = torch.randn(4, 2, 3)  # nothing has left the buffer yet
    assert torch.equal(with_room(x)[0], without(x)[0])
    assert (with_room(x)[1].memory.origin[..., 4:] == -1).all()


def test_nothing_to_attend_is_a_plain_recurrence() -> None:
    torch.manual_seed(0)
    layer, plain = mnemoscope.RelRNN(3, 5, buffer=0, relevant=0), mnemoscope.RNN(3, 5)
    plain.load_state_dict({name: p for name, p in layer.state_dict().items() if name in plain.state_dict()})
    x = torch.randn(6, 2, 3)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


def test_members_of_the_relevant_set_keep_their_gradient_path() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RelRNN(2, 3, buffer=1, relevant=1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()  # the only way from an earlier input to the last state is to be attended
        layer.weight_query_l0.zero_()
    x = torch.randn(6, 1, 2, dtype=torch.float64, requires_grad=True)
    run = mnemoscope.trace(layer, x, grad=True)
    kept = int(run.origin[-1][0][0, 1])
    gradient = torch.autograd.grad(run.states[-1].s.sum(), x)[0]
    assert gradient[kept].abs().max() > 1e-6
    assert all((gradient[i] == 0).all() for i in range(5) if i != kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(buffer=-1), "buffer must be at least 0; got -1"),
        (dict(relevant=1.5), "relevant should be of type int"),
        (dict(decay=0.0), r"decay must lie in \(0, 1\]; got 0.0"),
        (dict(decay="1"), r"decay must lie in \(0, 1\]; got '1'"),
        (dict(decay=True), r"decay must lie in \(0, 1\]; got True"),
        (dict(mix="product"), "mix must be 'sum' or 'mean'; got 'product'"),
        (dict(output="c"), "output must be 'h' or 's'; got 'c'"),
        (dict(refresh=1), "refresh should be of type bool, got: int"),
    ],
)
def test_bad_options_error(options: dict, message: str) -> None:
    with pytest.raises(mnemoscope.MnemoscopeError, match=message):
        mnemoscope.RelRNN(3, 4, **options)
