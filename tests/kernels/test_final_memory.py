"""What a run leaves in memory, against the states it made, and its gradients against autograd's and the loop's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemoscope
from mnemoscope import kernels
from mnemoscope.kernels._final_memory import final_memory, final_memory_backward


def random_run(seed: int, T: int, B: int, m: int, full: bool) -> tuple[torch.Tensor, ...]:
    """States, U_a, a carried memory, and slots that hold carried states, new ones and none, each state at most once."""
    random = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_()

    held = torch.stack([torch.randperm(m + T, generator=random)[:m] for _ in range(B)])
    empty = torch.rand(B, m, generator=random) < 0.3
    empty &= ~(held[..., None] == torch.arange(m)).any(1)  # a slot whose state has moved on is not an empty one
    return some(T, B, 3), some(3, 3), some(B, m, 3), some(B, m, 3), None if full else held.masked_fill(empty, -1)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 4), st.booleans())
def test_every_slot_holds_the_state_it_names(seed, T, B, m, full):
    h, U_a, values0, keys0, slots = random_run(seed, T, B, m, full)
    values, keys = final_memory(h, U_a, values0, keys0, slots)
    for b in range(B):
        for j in range(m + T if full else m):
            index = j if full else int(slots[b, j])
            index = j if index < 0 else index
            new = index >= m
            assert torch.equal(values[b, j], h[index - m, b] if new else values0[b, index])
            key = U_a @ h[index - m, b] if new else keys0[b, index]
            torch.testing.assert_close(keys[b, j], key, rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 4), st.booleans())
def test_backward_is_autograds(seed, T, B, m, full):
    *tensors, slots = random_run(seed, T, B, m, full)
    both = final_memory(*tensors, slots)
    outer = [torch.randn_like(t) for t in both]
    wanted = torch.autograd.grad(both, tensors, outer, True, materialize_grads=True, allow_unused=True)
    for found, right in zip(final_memory_backward(*outer, *tensors[:3], slots, None), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)
    by_keys = torch.autograd.grad(both[1], tensors, outer[1], materialize_grads=True, allow_unused=True)
    for found, right in zip(final_memory_backward(None, outer[1], *tensors[:3], slots, None), by_keys, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


LAYERS = {
    "RelRNN": {"buffer": 3, "relevant": 2},
    "RelLSTM": {"buffer": 2, "relevant": 3},
    "MemRNN": {},
    "MemLSTM": {},
}


@pytest.mark.parametrize("backend", ["auto", "portable"])
@pytest.mark.parametrize("lengths", [None, (9, 4, 1)], ids=["whole", "padded"])
@pytest.mark.parametrize("steps", [2, 9])  # slots still hold what was carried in, and they do not
@pytest.mark.parametrize("name", LAYERS)
def test_a_loss_on_the_memory_alone_has_the_loops_gradients(name, steps, lengths, backend):
    """Twice differentiated, too: the second loss is of the first one's gradient."""
    torch.manual_seed(0)
    layer = getattr(mnemoscope, name)(2, 4, dtype=torch.float64, **LAYERS[name])
    with torch.no_grad():
        _, begun = layer(torch.randn(3, 3, 2, dtype=torch.float64))
    x = torch.randn(steps, 3, 2, dtype=torch.float64)
    if lengths is not None:
        x = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths).clamp(max=steps))
    weights = list(layer.parameters())

    def gradients() -> list[torch.Tensor]:
        memory = layer(x, begun)[1].memory
        filled = (memory.origin >= 0)[..., None]  # an empty slot may hold anything
        loss = (memory.values.sin() * filled).sum() + ((memory.keys * filled) ** 2).sum()
        first = torch.autograd.grad(loss, weights, create_graph=True, materialize_grads=True, allow_unused=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), weights, allow_unused=True)
        plain = torch.autograd.grad(
            (layer(x, begun)[1].memory.keys * filled).square().sum(), weights, materialize_grads=True, allow_unused=True
        )
        pairs = zip(weights * 3, (*first, *second, *plain), strict=True)
        return [torch.zeros_like(weight) if gradient is None else gradient for weight, gradient in pairs]

    with kernels.backend("eager"):
        wanted = gradients()
    with kernels.backend(backend):
        found = gradients()
    assert any(bool(g.any()) for g in wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_the_memory_for_several_vectors_at_once(name):
    layer = getattr(mnemoscope, name)(2, 4, dtype=torch.float64, **LAYERS[name])
    x = torch.randn(6, 3, 2, dtype=torch.float64, requires_grad=True)
    for made in layer(x)[1].memory[:2]:
        vectors = torch.randn(3, *made.shape, dtype=torch.float64)
        (found,) = torch.autograd.grad(made, x, vectors, True, is_grads_batched=True)
        wanted = torch.stack([torch.autograd.grad(made, x, vector, True)[0] for vector in vectors])
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["MemRNN", "MemLSTM"])
def test_no_nan_gradient_past_a_rows_length(name):
    """The norm of a key that is zero has no gradient, and zero times that is NaN."""
    layer = getattr(mnemoscope, name)(2, 4, dtype=torch.float64)
    x = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(6, 2, 2, dtype=torch.float64), torch.tensor([6, 3]))
    layer(x)[1].memory.keys.square().sum(-1).sqrt().sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in layer.parameters() if weight.grad is not None)
