"""Do activations and gradients keep their size over time and depth?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mnemoscope.finding import Finding, arrays
from mnemoscope.layers import VARIANCE_GAIN
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.gradients import last_filled, run_seen

HELP = """
Level curves are what one wants. A variance that falls towards the left of the gradient's chart is
vanishing, one that climbs is exploding.

A weight's gain at the marked line keeps the variance from layer to layer and from step to step.
"""


@scope(
    "Do activations and gradients keep their size over time and depth?",
    title="Signal",
    help=HELP,
    needs="step",
    cost=6,
)
def signal(subject: Subject) -> Finding:
    """Mean and variance of the states and of their gradients, by step and layer, and of the weights that make them.

    The gradient is that of the last output in a random direction, by what each layer gives, h; paths through attention
    count. A unit that sums fan_in inputs keeps their variance when its weights have variance 1 / fan_in, or 2 / fan_in
    where it reads ReLU outputs (Nabli 2019, question 1); a recurrent unit reads its input and its state, and sums both.

    Series (layers, T): `activation_mean`, `activation_variance`, `gradient_mean`, `gradient_variance`, over units and
    sequences; `saturated`, the share of units with |h| > 0.99 where no |h| exceeds 1, and `silent`, with h = 0; spread:
    the standard deviation over sequences of `activation_variance`. By weight, named in labels["weights"]:
    `weight_gain`, fan_in * variance.

    Figures: `variance_over_time`, the last step's variance relative to that of the first tenth; `variance_over_depth`,
    the top layer's relative to the bottom one's; `gradient_over_time`, the first step's gradient variance relative to
    the last; `preserving_gain`, what `weight_gain` should be; `saturated`, `silent`, means.
    """
    states, gradients = _run(subject)  # (T, layers, B, n) each
    subject.report(0.8)
    names, gains = _gains(subject.layer)
    by_place = {
        "activation_mean": states.mean((2, 3)),
        "activation_variance": states.var((2, 3), correction=0),
        "gradient_mean": gradients.mean((2, 3)),
        "gradient_variance": gradients.var((2, 3), correction=0),
        "saturated": _saturated(states).double().mean((2, 3)),
        "silent": (states == 0).double().mean((2, 3)),
    }  # (T, layers) each
    unit = "relu" if getattr(subject.layer, "nonlinearity", "") == "relu" else "linear"
    figures = _figures(by_place) | {"preserving_gain": VARIANCE_GAIN[unit]}
    return Finding(
        "signal", _sentence(figures, len(states)), "estimated", figures=figures,
        series=arrays(**{name: values.T for name, values in by_place.items()}, weight_gain=gains),
        spread=arrays(activation_variance=states.var(3, correction=0).std(2, correction=0).T),
        labels={"weights": names}, warnings=_warnings(figures),
        assumptions=("these sequences are typical of the data",),
        method="one run and one backward pass from the last output",
    )  # fmt: skip


def _run(subject: Subject) -> tuple[Tensor, Tensor]:
    """What every layer gives at every step, and the last output's gradient by it: (T, layers, B, n) each."""
    x = subject.recurrence_inputs.clone().requires_grad_()
    outputs, seen = run_seen(subject, x)
    y = outputs[-1]
    direction = torch.randn(y.shape, generator=subject.generator()).to(y)
    found = torch.autograd.grad(y, seen.by, direction, allow_unused=True, materialize_grads=True)
    both = (t.detach().double().cpu() for t in (seen.values(), last_filled(seen.total(found))))
    layers, units = seen.first
    values, gradients = (t[..., : layers * units].unflatten(2, seen.first).movedim(2, 1) for t in both)
    return values, gradients


def _saturated(states: Tensor) -> Tensor:
    """Which units are at the end of their range; one that passes 1, as a ReLU or a linear one does, has no end."""
    size = states.abs()
    return (size > 0.99) & (size <= 1).all()


def _gains(layer: nn.Module) -> tuple[list[str], list[float]]:
    """fan_in * variance of each weight; the weights that read a unit's input and its state share their fan-ins."""
    weights = {name: w for name, w in _in_use(layer) if w.dim() == 2 and "weight" in name}
    gains = []
    for name, weight in weights.items():
        other = name.replace("_ih_", "_hh_") if "_ih_" in name else name.replace("_hh_", "_ih_")
        shared = weights[other].shape[1] if other != name and other in weights else 0
        gains.append((weight.shape[1] + shared) * float(weight.double().var(correction=0)))
    return list(weights), gains


def _in_use(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters by name; of a parametrized one what is computed from it, which is what the units read."""
    for path, module in layer.named_modules():
        if "parametrizations" not in path.split("."):
            own = [*module._parameters, *getattr(module, "parametrizations", ())]
            held = ((name, getattr(module, name)) for name in own)
            yield from ((f"{path}.{name}".lstrip("."), w.detach()) for name, w in held if w is not None)


def _figures(by_place: dict[str, Tensor]) -> dict[str, float]:
    variance, gradient = by_place["activation_variance"], by_place["gradient_variance"]  # (T, layers)
    early = variance[: max(1, len(variance) // 10)].mean(0)
    return {
        "variance_over_time": _ratio(variance[-1].mean(), early.mean()),
        "variance_over_depth": _ratio(variance[:, -1].mean(), variance[:, 0].mean()),
        "gradient_over_time": _ratio(gradient[0].mean(), gradient[-1].mean()),
        "saturated": float(by_place["saturated"].mean()), "silent": float(by_place["silent"].mean()),
    }  # fmt: skip


def _ratio(one: Tensor, other: Tensor) -> float:
    return float(one / other) if bool(other > 0) else math.nan


def _sentence(figures: dict[str, float], steps: int) -> str:
    return (
        f"Over {steps} steps the variance of its states becomes {figures['variance_over_time']:.3g} times what it was, "
        f"that of its gradients, going back, {figures['gradient_over_time']:.3g} times."
    )


def _warnings(figures: dict[str, float]) -> tuple[str, ...]:
    said = []
    if figures["saturated"] > 0.5:
        said.append("most units are saturated and pass no gradient: start from smaller weights or inputs")
    if figures["silent"] > 0.5:
        said.append("most units are silent: use a variance-preserving initialisation or a smaller learning rate")
    return tuple(said)
