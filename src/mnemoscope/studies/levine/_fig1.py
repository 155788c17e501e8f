"""Figure 1: a shallow and a deep recurrent network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mnemoscope.layers import RAC
from mnemoscope.report import Chart
from mnemoscope.studies import Claim, Done, Scale, Study, graph_chart, measure, settings, study, table
from mnemoscope.sweeps import Job

DEPTHS = (1, 2, 3)
STEPS = 5


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {depth: measure(dependencies, seconds=1, depth=depth, seed=seed) for depth in DEPTHS}


def dependencies(*, depth: int, seed: int) -> Mapping[str, Any]:
    """Which inputs each output of a circuit depends on, by autograd: (steps, steps), 1 where it does."""
    torch.manual_seed(seed)
    layer = RAC(3, 4, depth).double()
    x = torch.randn(STEPS, 1, 3, dtype=torch.float64, requires_grad=True)
    outputs, _ = layer(x)
    reach = torch.zeros(STEPS, STEPS)
    for t in range(STEPS):
        (gradient,) = torch.autograd.grad(outputs[t].sum(), x, retain_graph=True)
        reach[t] = (gradient[:, 0].abs().amax(1) > 0).float()
    return {"reach": reach}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    triangle = torch.ones(STEPS, STEPS).tril().numpy()
    return {
        (f"depth {depth}", "outputs that depend on the inputs so far"): _share(done[depth]["reach"], triangle)
        for depth in DEPTHS
    }


def _share(reach: Any, triangle: Any) -> float:
    return float((reach == triangle).all(1).mean())


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    return [_drawing(depth) for depth in (1, 3)]


def _drawing(depth: int) -> Chart:
    """The network over three steps: inputs below, layers above them, the output on top."""
    steps = range(1, 4)
    nodes = {f"x{t}": (2.0 * t, 0.0) for t in steps}
    nodes |= {f"h{t}({layer})": (2.0 * t, float(layer)) for layer in range(1, depth + 1) for t in steps}
    nodes |= {f"y{t}": (2.0 * t, depth + 1.0) for t in steps}
    upward = [(f"x{t}", f"h{t}(1)") for t in steps]
    upward += [(f"h{t}({layer})", f"h{t}({layer + 1})") for layer in range(1, depth) for t in steps]
    outward = [(f"h{t}({depth})", f"y{t}") for t in steps]
    onward = [(f"h{t}({layer})", f"h{t + 1}({layer})") for layer in range(1, depth + 1) for t in (1, 2)]
    edges = {"W^I": upward, "W^H": onward, "W^O": outward}
    groups = {
        "input": [f"x{t}" for t in steps],
        "state": [f"h{t}({layer})" for layer in range(1, depth + 1) for t in steps],
        "output": [f"y{t}" for t in steps],
    }
    title = "A shallow recurrent network" if depth == 1 else f"A recurrent network of depth {depth}"
    return graph_chart(f"depth-{depth}", title, nodes, edges, groups=groups)


study(
    Study(
        "levine/fig1",
        "Figure 1",
        "shallow and deep recurrent networks (a drawing)",
        jobs,
        cells,
        charts,
        claims=(Claim("each output depends on the inputs so far, and on no others", at_least=1.0, headline=False),),
        published=table(
            [f"depth {depth}" for depth in DEPTHS],
            ("outputs that depend on the inputs so far",),
            percent=True,
            note="a drawing",
        ),
        settings=settings(model=("RAC", "paper"), steps=(STEPS, "ours")),
        words="A drawing of a recurrent network of depth one and of depth L.",
        drawing=True,
    )
)
