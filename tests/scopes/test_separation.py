"""Start-End separation rank: exact for circuits, measured for any model."""

from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import mnemoscope
from mnemoscope.scopes._separation import residues, separation
from mnemoscope.theory.separation import PRIMES, all_sequences, exact_rank
from mnemoscope.training import NetworkConfig, SequenceModel

pytest.importorskip("flint", reason="exact ranks need python-flint: pip install mnemoscope[theory]")


def symbols(M: int, T: int = 8) -> torch.Tensor:
    return torch.eye(M, dtype=torch.float64)[torch.arange(T * 4).view(T, 4) % M]


@pytest.mark.parametrize(("R", "M", "T"), [(1, 2, 4), (2, 2, 4), (3, 2, 6), (5, 3, 4), (12, 2, 6), (4, 4, 4)])
def test_rank_of_a_shallow_circuit_is_theorem_1(R: int, M: int, T: int) -> None:
    torch.manual_seed(R)
    found = separation(mnemoscope.RAC(M, R, dtype=torch.float64), symbols(M), templates=torch.eye(M), length=T)
    assert found.status == "certified"
    assert found.figures["exact_rank"] == found.figures["theorem_1"] == min(R, M ** (T // 2))


def test_not_certified_if_a_subclass_changes_the_equations() -> None:
    class Doubled(mnemoscope.RAC):
        def project(self, w, x):
            return super().project(w, x) ** 2

    found = separation(Doubled(2, 2, dtype=torch.float64), symbols(2), templates=torch.eye(2))
    assert found.status == "estimated"


def test_a_rank_of_zero_is_not_certified() -> None:
    """Zeros modulo a prime would also come from weights that are multiples of it."""
    circuit = mnemoscope.RAC(2, 3, dtype=torch.float64)
    with torch.no_grad():
        circuit.weights(0).weight_ih.zero_()
    found = separation(circuit, symbols(2), templates=torch.eye(2))
    assert (found.status, found.certified) == ("estimated", ())
    assert "exact_rank" not in found.figures
    assert found.sentence == "The output is zero on every sequence of 8 steps that was tried."
    assert "length= gives more steps" in found.warnings[0]


def test_rank_of_a_deep_circuit_exceeds_theorem_1() -> None:
    torch.manual_seed(0)
    shallow, deep = (mnemoscope.RAC(2, 2, num_layers=L, dtype=torch.float64) for L in (1, 2))
    one, two = (separation(layer, symbols(2), templates=torch.eye(2), length=8).figures for layer in (shallow, deep))
    assert one["exact_rank"] == 2
    assert two["theorem_1"] <= two["exact_rank"] <= two["ceiling"]
    assert two["exact_rank"] > one["exact_rank"]


def test_dependent_weights_lower_the_rank() -> None:
    """Exact means of these very weights: a circuit whose second state copies its first has rank one."""
    layer = mnemoscope.RAC(2, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0[1] = layer.weight_ih_l0[0]
        layer.weight_hh_l0.copy_(torch.tensor([[1.0, 0.5], [1.0, 0.5]]))
    assert separation(layer, symbols(2), templates=torch.eye(2), length=4).figures["exact_rank"] == 1


def test_sum_and_product_of_halves() -> None:
    class Summed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(0)

    templates = torch.tensor([[1.0, 0.3], [0.2, 1.0]])
    found = separation(Summed(), symbols(2), templates=templates, length=6, batch_first=False)
    assert found.figures["numerical_rank"] == 2  # f(start) + g(end) has rank two
    assert found.status == "estimated"
    assert "numerical rank 2" in found.sentence
    assert "ways" not in found.sentence


def test_inputs_of_several_dimensions() -> None:
    """(batch, time, channels, height, width), as of a film: the sum over time has rank two."""
    frames = torch.randn(3, 6, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = separation(lambda x: x.mean((3, 4)).cumsum(1), frames, length=4)
    assert found.figures["numerical_rank"] == 2
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"at least 2 inputs, \(M, 2, 4, 4\); got \[3, 5\]"):
        separation(lambda x: x.mean((3, 4)).cumsum(1), frames, templates=torch.zeros(3, 5))
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"at least 2 inputs, \(M, 2, 4, 4\); got \[\]"):
        separation(lambda x: x.mean((3, 4)).cumsum(1), frames, templates=torch.tensor(1.0))


def test_memoryless_model_has_rank_one() -> None:
    found = separation(torch.nn.Linear(2, 3).double(), symbols(2), templates=torch.eye(2), length=4)
    assert found.figures["effective_rank"] == pytest.approx(1)
    assert "does not depend on the first half" in found.sentence


def test_product_of_halves_is_separate() -> None:
    templates = torch.tensor([[1.0, 0.3], [0.2, 1.0]])
    found = separation(Runs(lambda x: x.cumprod(0)), symbols(2), templates=templates, length=4, batch_first=False)
    assert "separately" in found.sentence


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e6, 1e6, allow_nan=False), st.sampled_from([101, 2_147_483_629]))
def test_residues_are_exact(value: float, prime: int) -> None:
    exact = Fraction(value)
    (residue,) = residues(torch.tensor([value], dtype=torch.float64), prime)
    assert (int(residue) * exact.denominator - exact.numerator) % prime == 0


def test_sampled_rank_is_a_lower_bound_and_the_ceiling_is_not_cut_to_the_sample() -> None:
    """RAC(3, 4, 2 layers) over four inputs has rank 136 of 136; 64 sequences a side can show 64 of them."""
    torch.manual_seed(0)
    layer = mnemoscope.RAC(3, 4, 2, dtype=torch.float64)
    templates = torch.randn(4, 3, dtype=torch.float64)
    found = separation(layer, templates[None].expand(8, -1, -1), templates=templates)
    assert found.figures["exact_rank"] == found.figures["ceiling"] == 136
    assert "exactly 136 independent ways" in found.sentence
    sampled = separation(layer, templates[None].expand(8, -1, -1), templates=templates, length=16, limit=16)
    assert sampled.figures["ceiling"] > sampled.figures["exact_rank"]
    assert "at least" in sampled.sentence
    assert "seen on" in sampled.sentence
    assert "exactly" not in sampled.sentence


@pytest.mark.parametrize("seed", range(12))
def test_no_certified_rank_is_above_the_true_one(seed: int) -> None:
    """Against the rank of the whole grid modulo other primes, of the layer's own equations in whole numbers."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    M, R, L, T = int(rng.integers(2, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.choice([2, 4]))
    model = SequenceModel(M, 2, NetworkConfig(model="RAC", hidden_size=R, num_layers=L)).double()
    templates = torch.randn(M, M, dtype=torch.float64)
    found = separation(model, symbols(M), templates=templates, length=T, limit=4)
    halves = all_sequences(M, T // 2)
    ranks = []
    for prime in PRIMES[1:3]:
        for row, c in zip(residues(model.readout.weight, prime), residues(model.readout.bias, prime), strict=True):
            x = residues(templates, prime).astype(object)
            y = [[_output(model.layer, row, int(c), x[[*s, *e]], prime) for e in halves] for s in halves]
            ranks.append(exact_rank(np.array(y, dtype=np.uint64), prime))
    assert found.figures["exact_rank"] <= max(ranks) <= found.figures["ceiling"]
    if "exactly" in found.sentence:
        assert found.figures["exact_rank"] == max(ranks)


def _output(layer: mnemoscope.RAC, row: np.ndarray, c: int, x: np.ndarray, prime: int) -> int:
    """C h_T + c by the equations of the layer, step by step in whole numbers modulo a prime."""
    states = [residues(h, prime).astype(object) for h in layer.initial_state(1)[:, 0]]
    for u in x:
        for index in range(layer.num_layers):
            w = layer.weights(index)
            V, U = (residues(matrix, prime).astype(object) for matrix in (w.weight_hh, w.weight_ih))
            u = (V @ states[index]) * (U @ u) % prime
            states[index] = u
    return int((row.astype(object) @ states[-1] + c) % prime)


def with_readout(**changes: torch.Tensor) -> SequenceModel:
    torch.manual_seed(0)
    model = SequenceModel(2, 3, NetworkConfig(model="RAC", hidden_size=3, num_layers=2)).double()
    with torch.no_grad():
        for name, value in changes.items():
            getattr(model.readout, name).copy_(value)
    return model


def test_own_readout_is_used() -> None:
    """A zero read-out joins nothing, whatever the circuit before it does; a constant has rank one."""
    zero = torch.zeros(3, 3)
    found = separation(with_readout(weight=zero, bias=torch.zeros(3)), symbols(2))
    assert found.figures["numerical_rank"] == 0
    assert "is zero" in found.sentence
    assert separation(with_readout(weight=zero, bias=torch.ones(3)), symbols(2)).figures["exact_rank"] == 1
    whole = separation(with_readout(), symbols(2))
    assert whole.status == "certified"
    assert whole.figures["exact_rank"] > 1
    assert str(whole.labels["output"]).startswith("output ")


def test_readout_inside_a_forward_is_not_replaced_by_a_random_one() -> None:
    class Silent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = mnemoscope.RAC(2, 4, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0 * self.layer(x)[0]

    found = separation(Silent(), symbols(2), batch_first=False)
    assert found.status == "estimated"
    assert "exact_rank" not in found.figures


def test_start_of_a_singular_circuit_is_its_own() -> None:
    """W_H = 0 has no h_0 that it turns into ones: its outputs are zero."""
    layer = mnemoscope.RAC(2, 3, dtype=torch.float64)
    torch.nn.init.zeros_(layer.weight_hh_l0)
    found = separation(layer, symbols(2), templates=torch.eye(2), length=4)
    assert found.figures["numerical_rank"] == 0
    assert "exact_rank" not in found.figures


def test_long_sequences_can_be_sampled() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RAC(2, 2, 2, dtype=torch.float64)
    found = separation(layer, symbols(2), templates=torch.eye(2), length=400, limit=16)
    assert found.status == "certified"
    assert 16 <= found.figures["exact_rank"] <= found.figures["ceiling"]


def test_overflow_of_floats_does_not_stop_the_exact_rank() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RAC(3, 8, 3)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(4)
    found = separation(layer, torch.randn(8, 4, 3), length=12, limit=16)
    assert found.status == "certified"
    assert "effective_rank" not in found.figures
    assert found.figures["exact_rank"] >= 16


def test_refuses_bad_templates() -> None:
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"at least 2 inputs, \(M, 2\); got \[1, 2\]"):
        separation(torch.nn.LSTM(2, 3), symbols(2).float(), templates=torch.ones(1, 2))


def test_singular_values_are_relative_to_the_largest() -> None:
    values = separation(torch.nn.GRU(2, 3), symbols(2).float()).series["singular_values"]
    assert values[0] == 1
    assert (np.diff(values) <= 0).all()


def test_equal_inputs_at_every_step_have_no_starts_to_tell_apart():
    found = separation(nn.RNN(2, 3), torch.ones(20, 4, 2))
    assert found.status == "not applicable"
    assert "the same input at every step" in found.why


class Runs(torch.nn.Module):
    def __init__(self, run) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


@pytest.mark.parametrize(
    ("run", "half"),
    [
        (torch.tanh, "first"),
        (lambda x: x[:1].expand_as(x), "second"),
        (torch.ones_like, "first or second"),
    ],
    ids=["no memory", "the first input", "constant"],
)
def test_a_half_that_changes_nothing_is_said_so(run, half) -> None:
    """Not that the output is a function of the start times one of the end, which is true, too."""
    found = separation(Runs(run), symbols(2), templates=torch.eye(2), length=4, batch_first=False)
    assert f"does not depend on the {half} half" in found.sentence
