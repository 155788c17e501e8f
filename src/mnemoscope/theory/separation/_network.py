"""Circuits as tensor networks (appendix A): every state that is used twice is built twice, from its inputs up (A.3).

The copy of layer l's cell at time t that serves the cells t_{l+1}, ..., t_L above it is named by its chain of times
t <= t_{l+1} <= ... <= t_L <= T. The network is a tree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Literal

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation._circuit import Circuit
from mnemoscope.theory.separation._optional import require_optional

Array = np.ndarray
Kind = Literal["input", "W_I", "W_H", "delta", "start", "W_O", "column", "row"]
Times = tuple[int, ...]
Leg = tuple[str, int, Times]

_LOG_UNIT = 2**40  # capacities are whole numbers: in floating point a full leg may keep a crumb, and the cut miss it


@dataclass(frozen=True)
class Node:
    """A tensor of the network: its kind, the layer and chain of times of its cell, its legs in the tensor's order."""

    kind: Kind
    layer: int
    times: Times
    legs: tuple[Leg, ...]

    @property
    def time(self) -> int:
        """The step at which its cell is."""
        return self.times[0]


@dataclass(frozen=True)
class TensorNetwork:
    """Nodes joined by legs of the same name; a leg that one node alone holds is open."""

    depth: int
    length: int
    channels: int
    inputs: int
    nodes: tuple[Node, ...]

    @property
    def open_legs(self) -> tuple[Leg, ...]:
        """The legs that one node alone holds, in the order of the nodes."""
        counts = Counter(leg for node in self.nodes for leg in node.legs)
        return tuple(leg for leg, count in counts.items() if count == 1)

    def bond(self, leg: Leg) -> int:
        """The dimension of a leg: M where it reads an input, R elsewhere."""
        return self.inputs if leg[0] == "input" else self.channels

    def of_kind(self, kind: Kind, layer: int | None = None) -> tuple[Node, ...]:
        """Return the nodes of a kind, in one layer or in all."""
        return tuple(node for node in self.nodes if node.kind == kind and layer in (None, node.layer))

    def without(self, kind: Kind) -> TensorNetwork:
        """The network less its nodes of one kind: without "input" it is the weights tensor, its input legs open."""
        return self._with(tuple(node for node in self.nodes if node.kind != kind))

    def split(self, layer: int) -> TensorNetwork:
        """W_I^layer of rank one falls into a column and a row, and the network into pieces (A.4, fig. 6)."""
        return self._with(tuple(part for node in self.nodes for part in _split(node, layer)))

    def _with(self, nodes: tuple[Node, ...]) -> TensorNetwork:
        return TensorNetwork(self.depth, self.length, self.channels, self.inputs, nodes)


def _split(node: Node, layer: int) -> tuple[Node, ...]:
    if node.kind != "W_I" or node.layer != layer:
        return (node,)
    above, below = node.legs
    return Node("column", layer, node.times, (above,)), Node("row", layer, node.times, (below,))


def circuit_network(depth: int, length: int, channels: int, inputs: int, output: bool = True) -> TensorNetwork:
    """The tensor network of a circuit of depth L after T steps, its inputs duplicated as A.3 asks (figs 2, 4 and 5).

    It has ((T, L)) copies of inputs. Without `output` it ends in the open leg of h_T^L.
    """
    if min(depth, length, channels, inputs) < 1:
        raise MnemoscopeError(f"all sizes must be at least 1, got {(depth, length, channels, inputs)}")
    nodes = [node for layer in range(1, depth + 1) for node in _layer(layer, depth, length)]
    if output:
        nodes.append(Node("W_O", depth, (length,), (("state", depth, (length,)),)))
    return TensorNetwork(depth, length, channels, inputs, tuple(nodes))


def _layer(layer: int, depth: int, length: int) -> Iterator[Node]:
    for times in combinations_with_replacement(range(1, length + 1), depth - layer + 1):
        below: Leg = ("state", layer - 1, (times[0], *times)) if layer > 1 else ("input", 0, times)
        carry = ("carry", layer, times)
        drive = ("drive", layer, times)
        state = ("state", layer, times)
        if layer == 1:
            yield Node("input", 0, times, (below,))
        if times[0] == 1:  # footnote 4: W_H h_0 is one vector
            yield Node("start", layer, times, (carry,))
        else:
            yield Node("W_H", layer, times, (carry, ("state", layer, (times[0] - 1, *times[1:]))))
        yield Node("W_I", layer, times, (drive, below))
        yield Node("delta", layer, times, (carry, drive, state))


def circuit_tensors(circuit: Circuit, x: Array | None = None) -> Callable[[Node], Array]:
    """The array at each node: the circuit's weights, delta (eq. 10), and the input vectors f(x_t), x (T, M)."""
    size = circuit.channels
    delta = np.zeros((size, size, size))
    delta[(np.arange(size),) * 3] = 1.0

    def tensor(node: Node) -> Array:
        match node.kind:
            case "W_I":
                return circuit.input_weights[node.layer - 1]
            case "W_H":
                return circuit.hidden_weights[node.layer - 1]
            case "delta":
                return delta
            case "start":
                return circuit.initial[node.layer - 1]
            case "W_O":
                return circuit.output_weights
            case "column":
                return _rank_one(circuit.input_weights[node.layer - 1])[0]
            case "row":
                return _rank_one(circuit.input_weights[node.layer - 1])[1]
            case "input" if x is not None:
                return x[node.time - 1]
            case _:
                raise MnemoscopeError("the network reads inputs: give x, or use network.without('input')")

    return tensor


def _rank_one(matrix: Array) -> tuple[Array, Array]:
    i, j = np.unravel_index(np.abs(matrix).argmax(), matrix.shape)
    column = matrix[:, j]
    row = matrix[i] / matrix[i, j]
    if not np.allclose(np.outer(column, row), matrix):
        raise MnemoscopeError(f"only a matrix of rank one splits, got rank {np.linalg.matrix_rank(matrix)}")
    return column, row


def contract(network: TensorNetwork, tensors: Callable[[Node], Array]) -> Array:
    """Sum over all joined legs: an array with the network's open legs, in the order of `open_legs`."""
    operands = [part for node in network.nodes for part in (tensors(node), node.legs)]
    return np.asarray(require_optional("opt_einsum").contract(*operands, network.open_legs, optimize="greedy"))


@dataclass(frozen=True)
class MinCut:
    """The cheapest set of legs that separates Start's inputs from End's."""

    rank: int  # the product of their bonds: an upper bound on the rank of the Start-End matricisation
    legs: tuple[Leg, ...]


def min_cut(network: TensorNetwork) -> MinCut:
    """The Start-End minimal cut of a network with its inputs (B.3.1); a cut bounds the rank by its bonds' product."""
    import networkx  # comes with torch

    graph = networkx.Graph()
    for node in network.of_kind("input"):
        graph.add_edge("Start" if 2 * node.time <= network.length else "End", _name(node))  # no capacity: never cut
    for leg, ends in _edges(network).items():
        graph.add_edge(*ends, capacity=round(_LOG_UNIT * math.log(network.bond(leg))))
    _, (start, _) = networkx.minimum_cut(graph, "Start", "End")
    cut = tuple(leg for leg, (a, b) in _edges(network).items() if (a in start) != (b in start))
    return MinCut(math.prod(network.bond(leg) for leg in cut), cut)


def _name(node: Node) -> str:
    return f"{node.kind} {node.layer} {node.times}"


def _edges(network: TensorNetwork) -> dict[Leg, tuple[str, str]]:
    ends: dict[Leg, list[str]] = {}
    for node in network.nodes:
        for leg in node.legs:
            ends.setdefault(leg, []).append(_name(node))
    return {leg: (names[0], names[1]) for leg, names in ends.items() if len(names) == 2}


def joining_bonds(network: TensorNetwork, layer: int) -> tuple[Node, ...]:
    """The W_H of one layer that carry Start's last state into End's first step; in layer 1, claim 4's basic units."""
    return tuple(node for node in network.of_kind("W_H", layer) if node.time == network.length // 2 + 1)


def cloned(tensor: Array, vector: Array) -> Array:
    """sum_i phi_ijk v_i: what a network phi makes of one vector where two copies are wanted (claim 3, eq. 12)."""
    return np.einsum("ijk,i->jk", tensor, vector)


def basis_cloner(size: int) -> Array:
    """The only phi that clones every basis vector, phi_ijk = delta_ijk: eq. 12 reads off phi_ajk = e_j^(a) e_k^(a)."""
    basis = np.eye(size)
    return np.stack([np.outer(vector, vector) for vector in basis])
