"""What appendix A says of tensor networks, checked on networks that are built and contracted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.separation._bounds import basic_units, input_degree, multiset_coefficient, shallow_rank
from mnemoscope.theory.separation._circuit import circuit_outputs, random_circuit
from mnemoscope.theory.separation._grid import matricize
from mnemoscope.theory.separation._network import (
    basis_cloner,
    circuit_network,
    circuit_tensors,
    cloned,
    contract,
    joining_bonds,
    min_cut,
)


@statement(
    "levine-tensor-network",
    paper=PAPERS["separation"],
    where="A.2 and A.3, eqs 10, 11 and 13",
    status="holds",
    claim="the network with duplicated inputs contracts to the circuit's output",
)
def network_output() -> Iterator[Row]:
    sizes = [(1, 8, 3, 2), (2, 2, 3, 4), (2, 6, 3, 2), (3, 3, 2, 3), (3, 5, 2, 2), (4, 3, 2, 2)]
    for depth, length, channels, inputs in sizes:
        rng = np.random.default_rng(length)
        circuit = random_circuit(depth, channels, inputs, rng, free_start=True)
        x = rng.standard_normal((length, inputs))
        network = circuit_network(depth, length, channels, inputs)
        output = circuit_outputs(circuit, x[None])[0]
        value = contract(network, circuit_tensors(circuit, x))
        yield Row(f"L={depth} T={length} R={channels} M={inputs}", float(output), float(value), "==")


@statement(
    "levine-input-copies",
    paper=PAPERS["separation"],
    where="A.3",
    status="holds",
    claim="a network of depth L holds x_t ((T - t + 1, L - 1)) times, ((T, L)) inputs in all",
)
def input_copies() -> Iterator[Row]:
    for depth, length in product((1, 2, 3, 4), (1, 3, 6)):
        copies = circuit_network(depth, length, 2, 2).of_kind("input")
        yield Row(f"all, L={depth} T={length}", multiset_coefficient(length, depth), len(copies), "==")
        first = sum(node.time == 1 for node in copies)
        yield Row(f"of x_1, L={depth} T={length}", input_degree(depth, length, 1), first, "==")


@statement(
    "levine-claim-3",
    paper=PAPERS["separation"],
    where="claim 3, eq. 12",
    status="holds",
    claim="no tensor network duplicates vectors: the only candidate fails on the vector 2",
)
def claim_3() -> Iterator[Row]:
    # The paper's witness is the vector 1, where delta errs in P^2 - P entries: none if P = 1, but then 2 still tells.
    for size in (1, 2, 3, 8):
        phi = basis_cloner(size)
        ones = np.ones(size)
        error = np.abs(cloned(phi, ones) - np.outer(ones, ones)).sum()
        yield Row(f"error on 1, P={size}", size**2 - size, float(error), "==")
        error = np.abs(cloned(phi, 2 * ones) - np.outer(2 * ones, 2 * ones)).sum()
        yield Row(f"error on 2, P={size}", 1, float(error), ">=")


@statement(
    "levine-claim-4",
    paper=PAPERS["separation"],
    where="claim 4, A.4",
    status="holds",
    claim="layer 1 joins Start to End in exactly ((T/2, L - 1)) basic units",
    remark="the proof's last summand is 1, not t_2: with t_2 it counts 15 for T = 6, L = 2, where the claim says 3",
)
def claim_4() -> Iterator[Row]:
    for depth, length in [*product((1, 2, 3, 4), (2, 4, 6)), (5, 4), (3, 10)]:
        network = circuit_network(depth, length, 2, 2)
        for layer in range(1, depth + 1):
            found = len(joining_bonds(network, layer))
            yield Row(f"L={depth} T={length}, layer {layer}", basic_units(depth, length, layer), found, "==")


@statement(
    "levine-min-cut-shallow",
    paper=PAPERS["separation"],
    where="B.3.1, fig. 4",
    status="holds",
    claim="the Start-End minimal cut of the shallow network is min{R, M^(T/2)}",
)
def shallow_cut() -> Iterator[Row]:
    for channels, inputs, length in product((2, 3, 5, 9), (2, 3), (2, 4, 6)):
        cut = min_cut(circuit_network(1, length, channels, inputs))
        yield Row(f"R={channels} M={inputs} T={length}", shallow_rank(channels, inputs, length), cut.rank, "==")


@statement(
    "levine-min-cut",
    paper=PAPERS["separation"],
    where="section 4.1 and B.3.1, after Levine et al. 2017",
    status="holds",
    claim="a cut bounds the rank of the network's tensor, each copy of an input having a mode of its own",
)
def cut_bounds_rank() -> Iterator[Row]:
    sizes = [(1, 6, 3, 2), (1, 4, 5, 2), (2, 2, 2, 3), (2, 4, 2, 2), (2, 4, 3, 2), (3, 2, 3, 2)]
    for depth, length, channels, inputs in sizes:
        network = circuit_network(depth, length, channels, inputs)
        circuit = random_circuit(depth, channels, inputs, np.random.default_rng(depth))
        weights = network.without("input")
        tensor = contract(weights, circuit_tensors(circuit))
        start = [mode for mode, leg in enumerate(weights.open_legs) if 2 * leg[2][0] <= length]
        rank = int(np.linalg.matrix_rank(matricize(tensor, start)))
        yield Row(f"L={depth} T={length} R={channels} M={inputs}", min_cut(network).rank, rank)
