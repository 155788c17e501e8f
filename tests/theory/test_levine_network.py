"""Tensor networks of circuits: contraction, copies, cuts, claims 3 and 4, and the figures."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mnemoscope
from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation import (
    Circuit,
    basic_units,
    basis_cloner,
    circuit_network,
    circuit_outputs,
    circuit_tensors,
    cloned,
    contract,
    figures,
    input_degree,
    joining_bonds,
    matricize,
    min_cut,
    multiset_coefficient,
    random_circuit,
    shallow_rank,
    weights_tensor,
)

pytest.importorskip("opt_einsum")

sizes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))  # L, T, R, M


@given(sizes, st.booleans(), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_network_contracts_to_the_output(size, free_start, seed):
    depth, length, channels, inputs = size
    rng = np.random.default_rng(seed)
    circuit = random_circuit(depth, channels, inputs, rng, free_start=free_start)
    x = rng.standard_normal((length, inputs))
    value = contract(circuit_network(*size), circuit_tensors(circuit, x))
    np.testing.assert_allclose(value, circuit_outputs(circuit, x[None])[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("depth", "length"), [(1, 5), (2, 4), (3, 4)])
def test_the_network_contracts_to_the_torch_layers_state(depth, length):
    torch.manual_seed(depth)
    layer = mnemoscope.RAC(2, 3, num_layers=depth, dtype=torch.float64)
    weights = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    circuit = Circuit(
        tuple(weights[f"weight_ih_l{l}"] for l in range(depth)),
        tuple(weights[f"weight_hh_l{l}"] for l in range(depth)),
        np.ones(3),
        np.ones((depth, 3)),
    )
    x = torch.randn(length, 1, 2, dtype=torch.float64)
    state = contract(circuit_network(depth, length, 3, 2, output=False), circuit_tensors(circuit, x[:, 0].numpy()))
    np.testing.assert_allclose(state, layer(x)[0][-1, 0].detach().numpy(), rtol=1e-9)


@given(st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_inputs_are_copied_as_often_as_they_enter(depth, length):
    copies = circuit_network(depth, length, 2, 2).of_kind("input")
    assert len(copies) == multiset_coefficient(length, depth)
    for time in range(1, length + 1):
        assert sum(node.time == time for node in copies) == input_degree(depth, length, time)


@given(st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=16, deadline=None)
def test_a_deep_network_holds_one_network_a_time_step_of_the_depth_below(depth, length):
    """A.3: T copies of depth L - 1 networks, of lengths 1 to T, under a chain of T cells."""
    deep = circuit_network(depth + 1, length, 2, 2, output=False)
    below = [circuit_network(depth, t, 2, 2, output=False) for t in range(1, length + 1)]
    chain = 3 * length  # W_H (or the start), W_I and delta at each step
    assert len(deep.nodes) == chain + sum(len(network.nodes) for network in below)


@given(st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=16, deadline=None)
def test_claim_4_counts_the_basic_units(depth, half):
    network = circuit_network(depth, 2 * half, 2, 2)
    for layer in range(1, depth + 1):
        assert len(joining_bonds(network, layer)) == basic_units(depth, 2 * half, layer)


def test_the_shallow_network_without_inputs_is_the_weights_tensor():
    circuit = random_circuit(1, 3, 2, np.random.default_rng(0))
    network = circuit_network(1, 4, 3, 2).without("input")
    assert [leg[2] for leg in network.open_legs] == [(1,), (2,), (3,), (4,)]
    np.testing.assert_allclose(contract(network, circuit_tensors(circuit)), weights_tensor(circuit, 4))


def test_a_network_with_inputs_needs_them():
    with pytest.raises(MnemoscopeError, match="give x"):
        contract(circuit_network(1, 2, 2, 2), circuit_tensors(random_circuit(1, 2, 2, np.random.default_rng(0))))


def test_rank_one_input_weights_split_the_network():
    rng = np.random.default_rng(5)
    free = random_circuit(3, 2, 2, rng)
    weights = (free.input_weights[0], np.outer(rng.standard_normal(2), rng.standard_normal(2)), free.input_weights[2])
    circuit = Circuit(weights, free.hidden_weights, free.output_weights, free.initial)
    x = rng.standard_normal((4, 2))
    network = circuit_network(3, 4, 2, 2)
    split = contract(network.split(2), circuit_tensors(circuit, x))
    np.testing.assert_allclose(split, circuit_outputs(circuit, x[None])[0], rtol=1e-9)
    with pytest.raises(MnemoscopeError, match="rank one"):
        contract(network.split(2), circuit_tensors(free, x))


def cheapest_cut(network):
    """Over all ways to give each node but the inputs to one side or the other, all at once."""
    free = [node for node in network.nodes if node.kind != "input"]
    side = {node: np.arange(2 ** len(free)) >> bit & 1 for bit, node in enumerate(free)}
    side |= {node: np.full(2 ** len(free), 2 * node.time <= network.length) for node in network.of_kind("input")}
    legs = {}
    for node in network.nodes:
        for leg in node.legs:
            legs.setdefault(leg, []).append(side[node])
    costs = [np.where(ends[0] == ends[1], 1, network.bond(leg)) for leg, ends in legs.items()]
    return np.prod(costs, axis=0).min()


@pytest.mark.parametrize("size", [(1, 2, 5, 2), (1, 4, 3, 2), (1, 4, 5, 2), (2, 2, 2, 3), (2, 2, 3, 2)])
def test_the_minimal_cut_is_the_cheapest_of_all(size):
    network = circuit_network(*size)
    assert min_cut(network).rank == cheapest_cut(network)


@example(channels=7, inputs=2, half=4)  # where flows of floating-point logarithms once left the minimal cut
@example(channels=7, inputs=2, half=3)  # 7 < 2 x 2 x 2, though 7 > 2 + 2 + 2
@given(channels=st.integers(2, 9), inputs=st.integers(2, 4), half=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_the_shallow_cut_is_theorem_1s_rank(channels, inputs, half):
    cut = min_cut(circuit_network(1, 2 * half, channels, inputs))
    assert cut.rank == shallow_rank(channels, inputs, 2 * half)


@given(st.integers(1, 3), st.integers(2, 3), st.integers(2, 3), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_the_minimal_cut_is_no_dearer_than_the_bonds_or_ends_inputs(depth, channels, inputs, half):
    cut = min_cut(circuit_network(depth, 2 * half, channels, inputs))
    bonds = sum(basic_units(depth, 2 * half, layer) for layer in range(1, depth + 1))
    assert cut.rank <= min(channels**bonds, inputs ** multiset_coefficient(half, depth))


def test_removing_the_cut_parts_start_from_end():
    network = circuit_network(3, 4, 3, 2)
    cut = set(min_cut(network).legs)
    reached = {node for node in network.of_kind("input") if node.time <= 2}
    while True:
        legs = {leg for node in reached for leg in node.legs} - cut
        more = {node for node in network.nodes if legs.intersection(node.legs)} - reached
        if not more:
            break
        reached |= more
    assert not any(node.kind == "input" and node.time > 2 for node in reached)


@pytest.mark.parametrize("size", [(1, 4, 3, 2), (2, 2, 2, 2), (2, 4, 2, 2), (3, 2, 2, 2)])
def test_a_cut_bounds_the_rank_with_any_tensors_at_the_nodes(size):
    network = circuit_network(*size)
    weights = network.without("input")
    rng = np.random.default_rng(0)
    tensor = contract(weights, lambda node: rng.standard_normal([weights.bond(leg) for leg in node.legs]))
    start = [mode for mode, leg in enumerate(weights.open_legs) if 2 * leg[2][0] <= network.length]
    assert np.linalg.matrix_rank(matricize(tensor, start)) <= min_cut(network).rank


@pytest.mark.parametrize("size", [1, 2, 5])
def test_claim_3_no_tensor_clones_every_vector(size):
    """Linear equations for phi: one a vector and entry. Basis vectors fix it; more vectors leave no solution."""
    basis = np.eye(size)
    solution, *_ = np.linalg.lstsq(basis, np.stack([np.outer(v, v).ravel() for v in basis]), rcond=None)
    np.testing.assert_allclose(solution.reshape((size,) * 3), basis_cloner(size), atol=1e-12)
    vectors = np.concatenate([basis, 2 * np.ones((1, size))])
    wanted = np.stack([np.outer(v, v).ravel() for v in vectors])
    solution, *_ = np.linalg.lstsq(vectors, wanted, rcond=None)
    assert np.abs(vectors @ solution - wanted).max() > 0.1


def test_claim_3s_witness_of_ones_says_nothing_for_p_1():
    assert cloned(basis_cloner(1), np.ones(1)) == 1
    assert cloned(basis_cloner(1), 2 * np.ones(1)) == 2  # and not 4
    assert (cloned(basis_cloner(3), np.ones(3)) == np.eye(3)).all()


def test_figures_show_every_node_and_the_basic_units():
    figure = figures.figure_2()
    lines = figure.axes[0].lines
    markers = [line for line in lines if line.get_marker() not in ("None", None, "")]
    network = circuit_network(3, 6, 2, 2)
    assert len(markers) == len(network.nodes)
    assert sum(line.get_mec() == figures.JOIN for line in markers) == basic_units(3, 6) == 6
    assert "6 times" in figure.axes[0].get_title()


def test_no_two_nodes_of_a_figure_coincide():
    network = circuit_network(3, 6, 2, 2)
    places = figures.positions(network)
    assert len(set(places.values())) == len(network.nodes)


@pytest.mark.parametrize("make_figure", [figures.figure_2, figures.figure_4, figures.figure_5, figures.figure_6])
def test_figures_can_be_saved(make_figure, tmp_path):
    make_figure().savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_figure_6_keeps_the_chains_that_reach_end():
    lower = figures.figure_6().axes[1]
    times = [int(text.get_text()) for text in lower.texts]
    # chains (1..t_2) for t_2 = 4; 4, 5; 4, 5, 6 below t_3 = 4, 5, 6
    assert sorted(times) == sorted([*range(1, 5)] * 3 + [*range(1, 6)] * 2 + [*range(1, 7)])
    with pytest.raises(MnemoscopeError, match="depth must be >= 2"):
        figures.figure_6(depth=1)
