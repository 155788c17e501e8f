"""Question 6: the gradients of a bidirectional recurrent network, and its computational graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mnemoscope.report import Chart
from mnemoscope.studies import Claim, Done, Scale, Study, graph_chart, measure, settings, study, table
from mnemoscope.sweeps import Job
from mnemoscope.theory.foundations import Direction, bidirectional_gradients, computational_graph

STEPS = 9
NAMES = ("forward", "backward")


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"gradients": measure(gradient_gaps, seconds=1, seed=seed)}


def gradient_gaps(*, seed: int) -> Mapping[str, Any]:
    """How far the recursion is from autograd, with the direct term and, as printed, without it."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(STEPS, size, generator=generator).double() for size in (3, 2))
    shapes = ((4, 3), (4, 4), (2, 4))
    forward, backward = (Direction(*(torch.randn(s, generator=generator).double() for s in shapes)) for _ in NAMES)
    states = {"forward": _states(x, forward), "backward": _states(x.flip(0), backward)[::-1]}
    o = torch.stack(states["forward"]) @ forward.V.T + torch.stack(states["backward"]) @ backward.V.T
    slope = (o - y).detach()
    loss = 0.5 * (o - y).square().sum()
    found = {}
    for name, weights in zip(NAMES, (forward, backward), strict=True):
        exact = torch.stack(torch.autograd.grad(loss, states[name], retain_graph=True))
        h = torch.stack(states[name]).detach()
        reverse = name == "backward"
        last = torch.zeros_like(slope)
        last[0 if reverse else -1] = slope[0 if reverse else -1]
        for form, given in (("with", slope), ("without", last)):
            gradient = bidirectional_gradients(h, weights, given, reverse=reverse)
            found[f"{name} {form}"] = float((gradient - exact).norm() / exact.norm())
    return found


def _states(x: Tensor, weights: Direction) -> list[Tensor]:
    """h_1 .. h_T of one direction, each of which a gradient can be asked of."""
    h = x.new_zeros(len(weights.U), requires_grad=True)
    states = []
    for x_t in x.unbind(0):
        h = torch.sigmoid(weights.W @ x_t + weights.U @ h)
        states.append(h)
    return states


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    words = {"with": "with the direct term", "without": "as printed"}
    return {(name, words[form]): done["gradients"][f"{name} {form}"] for name in NAMES for form in words}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    steps = 4
    height = {"x": 0.0, "f": 1.0, "b": 2.0, "o": 3.0}
    shift = {"x": 0.0, "f": -0.25, "b": 0.25, "o": 0.0}
    names = [f"{kind}{t}" for kind in height for t in range(1, steps + 1)]
    nodes = {name: (1.6 * int(name[1:]) + shift[name[0]], height[name[0]]) for name in names}
    edges = computational_graph(steps)
    kinds = {
        "forward in time": [edge for edge in edges if edge[0][0] == edge[1][0] == "f"],
        "backward in time": [edge for edge in edges if edge[0][0] == edge[1][0] == "b"],
        "at one step": [edge for edge in edges if edge[0][0] != edge[1][0]],
    }
    groups = {
        kind: [name for name in names if name[0] == letter]
        for letter, kind in {"x": "input", "f": "forward state", "b": "backward state", "o": "output"}.items()
    }
    return [graph_chart("graph", "Computational graph of a bidirectional network", nodes, kinds, groups=groups)]


study(
    Study(
        "nabli/q6",
        "Question 6",
        "gradients of a bidirectional recurrent network, and its computational graph",
        jobs,
        cells,
        charts,
        claims=(
            Claim("eqs 31 and 32 give the gradients", column="as printed", at_most=1e-6, form="printed"),
            Claim("with the direct term they do", column="with the direct term", at_most=1e-10, form="corrected"),
        ),
        published=table(NAMES, ("as printed", "with the direct term"), note="relative difference from autograd"),
        settings=settings(steps=(STEPS, "ours"), sizes=("3 inputs, 4 units, 2 outputs", "ours")),
        words="The gradient of each state follows from that of the next one by U^T diag(h (1 - h)).",
        errata=("Eqs 31 and 32 lack V^T grad_{o_t} L, through which the loss enters at all.",),
        would_change="A loss that reads the last output alone, for which the printed equations are right.",
        surprise="The printed recursion for a bidirectional network loses most of the gradient, because "
        "the direct term of each step's loss is missing. With it the recursion agrees with autograd to rounding.",
    )
)
