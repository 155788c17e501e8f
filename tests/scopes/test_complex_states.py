"""A complex state is looked at as real and imaginary parts; what cannot be looked at is refused in plain words."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mnemoscope
from mnemoscope import MnemoscopeError, Recurrence
from mnemoscope.adapters import as_recurrence
from mnemoscope.scopes import SCOPES, entropy, horizon, lyapunov, stability

MODULUS = torch.tensor([0.9, 0.6], dtype=torch.float64)


class Diagonal(nn.Module):
    """h = lambda h + B x with complex lambda and B, y = Re(C h): a diagonal state-space model."""

    is_complex = True

    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(2, 3, 2, generator=random, dtype=torch.float64))
        self.c = nn.Parameter(torch.randn(2, 2, 2, generator=random, dtype=torch.float64))
        if self.is_complex:
            self.weight = nn.Parameter(torch.view_as_complex(self.weight.detach()))
            self.c = nn.Parameter(torch.view_as_complex(self.c.detach()))

    def initial_state(self, batch):
        state = torch.zeros(batch, 2, dtype=torch.complex128)
        return state if self.is_complex else torch.view_as_real(state)

    def step(self, x, h):
        b, c, h = (t if t.is_complex() else torch.view_as_complex(t.contiguous()) for t in (self.weight, self.c, h))
        h = torch.polar(MODULUS, torch.tensor([1.0, 2.0], dtype=torch.float64)) * h + x.to(b) @ b.mT
        return (h @ c.mT).real, h if self.is_complex else torch.view_as_real(h)


class RealDiagonal(Diagonal):
    """The same in real numbers: pairs as a state and as parameters."""

    is_complex = False


class DiagonalRecurrence(Recurrence):
    """The same as a Recurrence, whose state is (layers, batch, n)."""

    def __init__(self):
        super().__init__()
        self.input_size, self.hidden_size = 3, 2
        self.inner = Diagonal()

    def initial_state(self, batch):
        return self.inner.initial_state(batch)[None]

    def step(self, x, state):
        y, h = self.inner.step(x, state[0])
        return y, h[None]


def sequences():
    return torch.randn(16, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_exponents_and_volume_are_those_of_the_eigenvalues():
    exponents = lyapunov(Diagonal(), sequences(), steps=200).series["exponents"]
    wanted = MODULUS.log().repeat_interleave(2).numpy()
    assert exponents == pytest.approx(wanted, abs=0.02)
    assert entropy(Diagonal(), sequences()).figures["change"] == pytest.approx(wanted.sum())
    assert stability(Diagonal(), sequences()).figures["lambda"] == pytest.approx(0.9)
    assert horizon(Diagonal(), sequences()).figures["rate"] == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("model", [Diagonal, DiagonalRecurrence])
def test_every_scope_sees_what_it_sees_in_the_same_system_of_real_numbers(model):
    x, y = sequences(), torch.ones(16, 3, 2, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Casting complex")
        found = mnemoscope.examine(model(), x, y, F.mse_loss)
    real = mnemoscope.examine(RealDiagonal(), x, y, F.mse_loss)
    for name in set(SCOPES) & set(found.findings) - {"landscape"}:  # along random directions, which differ
        assert found[name].status == real[name].status, found[name].why
        assert dict(found[name].figures) == pytest.approx(dict(real[name].figures), nan_ok=True), name
    assert found["landscape"].figures["cost"] == pytest.approx(real["landscape"].figures["cost"])


class Conjugate(nn.Module):
    """h = conj(0.9 h + conj(W) x): torch conjugates both the state and the gradient of W lazily, by a mark on them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 2, dtype=torch.complex128))

    def initial_state(self, batch):
        return torch.zeros(batch, 2, dtype=torch.complex128)

    def step(self, x, h):
        h = (0.9 * h + x.to(torch.complex128) @ self.weight.conj()).conj()
        return h.real, h


def test_conjugated_states_and_gradients():
    found = mnemoscope.examine(Conjugate(), sequences(), torch.ones(16, 3, 2).double(), F.mse_loss)
    assert not [finding.why for finding in found.findings.values() if finding.status == "failed"]
    assert found["lyapunov"].series["exponents"] == pytest.approx([math.log(0.9)] * 4)


def test_a_state_of_one_number_per_sequence():
    class Leak:
        def initial_state(self, batch):
            return torch.zeros(batch)

        def step(self, x, h):
            h = 0.5 * h + x.sum(-1)
            return h[:, None], h

    assert as_recurrence(Leak(), 3).hidden_size == 1


def test_a_complex_state_of_several_tensors_keeps_its_sizes():
    recurrence = as_recurrence(Diagonal(), 3)
    assert recurrence.hidden_size == 2
    outputs, (state,) = recurrence(sequences())
    assert (state.shape, state.dtype) == ((1, 3, 2, 2), torch.float64)
    assert outputs.shape == (16, 3, 2)


class TurnsComplex(Diagonal):
    def initial_state(self, batch):
        return torch.zeros(batch, 2, dtype=torch.float64)

    def step(self, x, h):
        return super().step(x, h.to(torch.complex128))


class ComplexOutput(Diagonal):
    def step(self, x, h):
        return h, super().step(x, h)[1]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (TurnsComplex(), "TurnsComplex.step made a real state complex: give it from initial_state as step does"),
        (ComplexOutput(), "ComplexOutput.step gave complex outputs: return their real part, or both parts as"),
        (lambda x: x.cumsum(1) * 1j, "the model's output is of complex128, where real numbers are needed"),
        (lambda x: (x.cumsum(1) > 0).long(), "the model's output is of int64, where real numbers are needed"),
    ],
)
def test_what_is_complex_or_whole_where_real_numbers_are_needed(model, said):
    with pytest.raises(MnemoscopeError, match=said):
        mnemoscope.examine(model, sequences())


def test_both_parts_of_a_complex_output_can_be_named():
    parts = horizon(lambda x: x.cumsum(1) * 1j, sequences(), output=lambda y: torch.view_as_real(y).flatten(-2))
    assert parts.figures["horizon"] == 2  # batch first: 3 steps


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (torch.ones(4, 2, 3, dtype=torch.complex64), "inputs are complex numbers: give real and imaginary parts"),
        (torch.ones(4, 2, 3).to_sparse(), "inputs are sparse: give inputs.to_dense"),
    ],
)
def test_inputs_must_be_real_and_dense(inputs, said):
    with pytest.raises(MnemoscopeError, match=said):
        horizon(nn.LSTM(3, 2), inputs)


class Cached(nn.Module):
    """Attention of one head with a cache of keys and values: it grows, or is allocated at its full size."""

    def __init__(self, allocated):
        super().__init__()
        self.allocated = allocated
        self.parts = nn.Linear(3, 9).double()

    def initial_state(self, batch):
        shape = (batch, 16 if self.allocated else 0, 3)
        return {"keys": torch.zeros(shape).double(), "values": torch.zeros(shape).double(), "length": 0}

    def step(self, x, cache):
        query, key, value = self.parts(x)[:, None].chunk(3, -1)
        length = cache["length"] + 1
        keys, values = (
            torch.cat([t[:, : length - 1], new], 1) for t, new in ((cache["keys"], key), (cache["values"], value))
        )
        y = F.softmax(query @ keys.mT, -1) @ values
        if self.allocated:
            keys, values = (F.pad(t, (0, 0, 0, 16 - length)) for t in (keys, values))
        return y[:, 0], {"keys": keys, "values": values, "length": length}


def test_a_growing_cache_is_measured_by_its_outputs_alone():
    x = sequences()
    found = mnemoscope.examine(Cached(allocated=False), x)
    assert not [finding.why for finding in found.findings.values() if finding.status == "failed"]
    assert found["horizon"].figures["horizon"] == 15
    why = "a step of Cached turns a state [3, 0, 3] into [3, 1, 3], as a cache that grows"
    for name in ("signal", "stability", "lyapunov", "smoothness", "entropy", "attractors"):
        assert found[name].status == "not applicable", name
        assert why in found[name].why
    assert math.isfinite(stability(Cached(allocated=True), x).figures["lambda"])


class Remembers(Recurrence):
    """y is the sum of all inputs, each of which it keeps: as one more tensor, or as one more row of one."""

    def __init__(self, rows):
        super().__init__()
        self.input_size = self.hidden_size = 3
        self.rows = rows

    def initial_state(self, batch):
        return (torch.zeros(1, batch, 3, dtype=torch.float64),)

    def step(self, x, state):
        state = (torch.cat([*state, x[None]]),) if self.rows else (*state, x[None])
        return torch.cat(state).sum(0), state


@pytest.mark.parametrize(
    ("rows", "change"), [(True, "a state [1, 3, 3] into [2, 3, 3]"), (False, "a state of 1 tensor into one of 2")]
)
def test_a_state_that_grows_by_rows_or_by_tensors(rows, change):
    found = mnemoscope.examine(Remembers(rows), sequences(), scopes=["horizon", "separation", "lyapunov"])
    assert found["horizon"].figures["horizon"] == 15
    assert found["separation"].figures["numerical_rank"] == 2
    assert change in found["lyapunov"].why
