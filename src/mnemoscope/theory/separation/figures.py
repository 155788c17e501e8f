"""The tensor networks of figures 2, 4, 5 and 6, drawn from the networks that `circuit_network` builds.

python -m mnemoscope.theory.separation.figures docs/images
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation._network import Leg, Node, TensorNetwork, circuit_network, joining_bonds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Point = tuple[float, float]

START, END, JOIN, PLAIN = "#2a6f97", "#e07a1f", "#c1121f", "#5c677d"
_MARKS = {"delta": "^", "W_I": "o", "W_H": "o", "W_O": "D", "input": "s", "start": ".", "column": ">", "row": "<"}
_FILL = {"delta": "white", "W_I": "#dfe7ef", "W_H": "#f3e3c3", "W_O": "#cfe3cf", "start": PLAIN}
_LOWERED = {"input": 0.75, "W_I": 0.4, "column": 0.3, "row": 0.5}  # how far below its cell a node is drawn


def positions(network: TensorNetwork) -> dict[Node, Point]:
    """Layer 1's cells are side by side, chain after chain; a cell above is over the last cell of its chain."""
    cells = sorted((node.times for node in network.of_kind("delta", 1)), key=lambda times: times[::-1])
    column = {times: float(index) for index, times in enumerate(cells)}
    return {node: _place(node, column) for node in network.nodes}


def _place(node: Node, column: dict[tuple[int, ...], float]) -> Point:
    layer = max(node.layer, 1)
    x = column[(node.time,) * (layer - 1) + node.times]
    if node.kind in ("W_H", "start"):
        return x - 0.5, float(layer)
    if node.kind == "W_O":
        return x + 0.6, float(layer)
    return x, layer - _LOWERED.get(node.kind, 0.0)


def draw(
    network: TensorNetwork, axes: Axes, *, nodes: Iterable[Node] | None = None, marked: Iterable[Node] | None = None
) -> None:
    """Draw a network, or some of its `nodes`: Start's inputs blue, End's orange, each with its time.

    The `marked` nodes and their legs are red; by default they are the bonds of layer 1 between Start and End.
    """
    shown = tuple(network.nodes if nodes is None else nodes)
    red = set(joining_bonds(network, 1) if marked is None else marked)
    point = positions(network)
    for pair in _joined(shown).values():
        color, width = (JOIN, 2.2) if red.intersection(pair) else (PLAIN, 1.0)
        axes.plot(*zip(*(point[node] for node in pair), strict=True), color=color, lw=width, zorder=1)
    for node in shown:
        _draw_node(node, point[node], network, JOIN if node in red else "black", axes)
    axes.set_axis_off()


def _joined(nodes: tuple[Node, ...]) -> dict[Leg, list[Node]]:
    """The two nodes of every leg that joins two of `nodes`."""
    ends: dict[Leg, list[Node]] = {}
    for node in nodes:
        for leg in node.legs:
            ends.setdefault(leg, []).append(node)
    return {leg: pair for leg, pair in ends.items() if len(pair) == 2}


def _draw_node(node: Node, point: Point, network: TensorNetwork, edge: str, axes: Axes) -> None:
    fill = _FILL.get(node.kind, "white")
    if node.kind == "input":
        fill = START if 2 * node.time <= network.length else END
        axes.annotate(str(node.time), point, (0, -6), textcoords="offset points", ha="center", va="top", fontsize=7)
    axes.plot(*point, marker=_MARKS[node.kind], ms=5, mfc=fill, mec=edge, mew=0.8, ls="none", zorder=2)


def figure_2(depth: int = 3, length: int = 6) -> Figure:
    """Figure 2: a circuit of depth 3 after 6 steps, with claim 4's basic units in red."""
    network = circuit_network(depth, length, 2, 2)
    figure, axes = _canvas(1, 1, (15, 3.6))
    draw(network, axes[0])
    count = len(joining_bonds(network, 1))
    axes[0].set_title(f"L = {depth}, T = {length}: Start and End meet {count} times in layer 1 (red)", fontsize=10)
    return figure


def figure_4(length: int = 6) -> Figure:
    """Figure 4: the shallow circuit's network, its unit cell, and the matrix product state of its weights tensor."""
    network = circuit_network(1, length, 2, 2)
    figure, axes = _canvas(1, 3, (13, 2.6), width_ratios=[3, 1, 3])
    draw(network, axes[0])
    axes[0].set_title("a) shallow circuit", fontsize=10)
    _draw_cell(network, axes[1])
    _draw_train(length, axes[2])
    return figure


def _draw_cell(network: TensorNetwork, axes: Axes) -> None:
    """Figure 4b: one step of the recursion, eq. 11."""
    cell = [node for node in network.nodes if node.time == 2 and node.kind != "W_O"]
    draw(network, axes, nodes=cell)
    x, y = positions(network)[network.of_kind("delta", 1)[1]]
    for start, name in ((x - 0.5, "$h_{t-1}$"), (x, "$h_t$")):
        shift = -0.35 if start < x else 0.35
        axes.plot([start, start + shift], [y, y], color=PLAIN, lw=1, zorder=1)
        axes.text(start + 1.25 * shift, y, name, ha="right" if shift < 0 else "left", va="center", fontsize=9)
    axes.set_xlim(x - 1.4, x + 0.8)
    axes.set_title("b) unit cell", fontsize=10)


def _draw_train(length: int, axes: Axes) -> None:
    """Figure 4c: the tensor train, bonds of dimension R between cores with one open leg of dimension M each."""
    axes.plot([1, length], [1, 1], color=PLAIN, lw=1, zorder=1)
    middle = (length + 1) / 2
    axes.plot([middle - 0.5, middle + 0.5], [1, 1], color=JOIN, lw=2.2, zorder=1)
    for t in range(1, length + 1):
        axes.plot([t, t], [1, 0.5], color=START if 2 * t <= length else END, lw=1.5, zorder=1)
        axes.plot(t, 1, marker="o", ms=9, mfc="#dfe7ef", mec="black", ls="none", zorder=2)
        axes.text(t, 0.44, f"$d_{{{t}}}$", ha="center", va="top", fontsize=9)
    axes.text(middle, 1.08, "R", ha="center", va="bottom", color=JOIN, fontsize=9)
    axes.set_ylim(0.2, 1.4)
    axes.set_axis_off()
    axes.set_title("c) matrix product state", fontsize=10)


def figure_5() -> Figure:
    """Figure 5: depth 2 after 4 steps; the state h^{2,2} of eq. 13; depth 3 after 3 steps. Copies of h^{1,1} in red."""
    networks = (circuit_network(2, 4, 2, 2), circuit_network(2, 2, 2, 2, output=False), circuit_network(3, 3, 2, 2))
    titles = ("a) L = 2, T = 4", "b) $h^{2,2}$, two copies of $h^{1,1}$ (red)", "c) L = 3, T = 3")
    figure, axes = _canvas(1, 3, (14, 3.2), width_ratios=[4, 2, 4])
    for network, panel, title in zip(networks, axes, titles, strict=True):
        draw(network, panel, marked=[node for node in network.nodes if node.layer <= 1 and node.time == 1])
        panel.set_title(title, fontsize=10)
    return figure


def figure_6(depth: int = 3, length: int = 6) -> Figure:
    """Figure 6: W_I^2 of rank one splits the network into chains; those that reach End decide the Start-End rank."""
    if depth < 2:
        raise MnemoscopeError(f"figure 6 splits the second layer's input weights, so depth must be >= 2, got {depth}")
    network = circuit_network(depth, length, 2, 2).split(2)
    figure, axes = _canvas(2, 1, (15, 5), height_ratios=[3, 1.4])
    draw(network, axes[0])
    axes[0].set_title(f"L = {depth}, T = {length}, $W^{{I,2}}$ of rank one", fontsize=10)
    draw(network, axes[1], nodes=_reaching_end(network))
    count = len(joining_bonds(network, 1))
    axes[1].set_title(f"what is left of the Start-End matrix: the basic unit (red) {count} times", fontsize=10)
    return figure


def _reaching_end(network: TensorNetwork) -> list[Node]:
    """The chains of layer 1 that go on past the middle, with the rows of W_I^2 that close them."""
    chains = [node for node in network.nodes if node.layer <= 1 and 2 * node.times[1] > network.length]
    return chains + [node for node in network.of_kind("row") if 2 * node.time > network.length]


def _canvas(rows: int, columns: int, size: tuple[float, float], **ratios: list[float]) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)  # a figure of its own: pyplot's state stays as the user left it
    figure.legend(handles=_legend(), loc="outside lower center", ncols=7, fontsize=8, frameon=False)
    grid = figure.add_gridspec(rows, columns, **ratios)
    return figure, [figure.add_subplot(grid[i, j]) for i in range(rows) for j in range(columns)]


def _legend() -> list[Line2D]:
    from matplotlib.lines import Line2D

    names = {"delta": "$\\delta$", "W_I": "$W^I$", "W_H": "$W^H$", "W_O": "$W^O$", "start": "$W^H h_0$"}
    entries = [(name, _MARKS[kind], _FILL[kind]) for kind, name in names.items()]
    entries += [("Start input", "s", START), ("End input", "s", END)]
    return [Line2D([], [], label=name, marker=mark, mfc=fill, mec="black", ls="none") for name, mark, fill in entries]


def main(folder: str) -> None:
    for number, figure in {2: figure_2(), 4: figure_4(), 5: figure_5(), 6: figure_6()}.items():
        figure.savefig(f"{folder}/levine-figure-{number}.png", dpi=100)


if __name__ == "__main__":
    main(*sys.argv[1:])
