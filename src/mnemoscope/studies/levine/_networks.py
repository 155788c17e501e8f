"""What the figures of tensor networks share: the drawing of one, from the network that `circuit_network` builds."""

from __future__ import annotations

from collections.abc import Iterable

from mnemoscope.report import Chart
from mnemoscope.studies import graph_chart
from mnemoscope.theory.separation import Node, TensorNetwork, joining_bonds
from mnemoscope.theory.separation.figures import positions

KINDS = {
    "delta": "product of two states",
    "W_I": "input weights",
    "W_H": "hidden weights",
    "W_O": "output weights",
    "start": "initial state",
    "column": "column of split weights",
    "row": "row of split weights",
}


def network_chart(key: str, title: str, network: TensorNetwork, marked: Iterable[Node] | None = None) -> Chart:
    """Return the drawing of a network. Legs of `marked` nodes, or else bonds of Start to End, have their own color."""
    at = {_name(node): (3.0 * x, 2.0 * y) for node, (x, y) in positions(network).items()}
    special = {_name(node) for node in (joining_bonds(network, 1) if marked is None else marked)}
    ends: dict[object, list[str]] = {}
    for node in network.nodes:
        for leg in node.legs:
            ends.setdefault(leg, []).append(_name(node))
    pairs = [(names[0], names[1]) for names in ends.values() if len(names) == 2]
    bonds = {
        "bond": [pair for pair in pairs if not special.intersection(pair)],
        "Start meets End" if marked is None else "copies of the first state": [
            pair for pair in pairs if special.intersection(pair)
        ],
    }
    inputs = network.of_kind("input")
    groups = {
        "Start input": [_name(node) for node in inputs if 2 * node.time <= network.length],
        "End input": [_name(node) for node in inputs if 2 * node.time > network.length],
    }
    for kind, words in KINDS.items():
        found = [_name(node) for node in network.nodes if node.kind == kind]
        if found:
            groups[words] = found
    labels = {_name(node): str(node.time) for node in inputs} if len(inputs) <= 24 else {}
    return graph_chart(key, title, at, bonds, groups=groups, labels=labels, directed=False, equal_axes=False)


def _name(node: Node) -> str:
    return f"{node.kind} {node.layer} {node.times}"
