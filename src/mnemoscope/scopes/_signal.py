"""Whether activations and gradients keep their size over time and depth."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mnemoscope.adapters import Stepped
from mnemoscope.finding import Finding, arrays
from mnemoscope.layers import VARIANCE_GAIN
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.gradients import fill_last_step
from mnemoscope.scopes._measures.run_states import run_with_states
from mnemoscope.scopes._measures.state_vectors import state_not_finite

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
    """Measure mean and variance of the states and of their gradients, by step and layer, and of the weights.

    The gradient is that of the last output in a random direction, by h of each layer; paths through attention count. A
    unit that sums fan_in inputs keeps their variance if its weights have variance 1 / fan_in, or 2 / fan_in if it reads
    ReLU outputs (Nabli 2019, question 1); a recurrent unit reads its input and its state, and sums both.

    Series (layers, T): `activation_mean`, `activation_variance`, `gradient_mean`, `gradient_variance`, over units and
    sequences; `saturated`, the fraction of units with |h| > 0.99 if no |h| exceeds 1, and `silent`, with h = 0; spread:
    the standard deviation over sequences of `activation_variance`. By weight, named in labels["weights"]:
    `weight_gain`, fan_in * variance.

    Figures: `variance_over_time`, the last step's variance relative to that of the first tenth; `variance_over_depth`,
    the top layer's relative to the bottom one's; `gradient_over_time`, the first step's gradient variance relative to
    the last; `preserving_gain`, what `weight_gain` should be; `saturated`, `silent`, means.
    """
    subject.check_steps(2)
    states, gradients = _states_and_gradients(subject)  # (T, layers, B, n) each
    finite = states.isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        bad = int((~finite).nonzero()[0])
        raise state_not_finite(bad + 1)
    subject.report(0.8)
    by_step_and_layer = {
        "activation_mean": states.mean((2, 3)),
        "activation_variance": states.var((2, 3), correction=0),
        "gradient_mean": gradients.mean((2, 3)),
        "gradient_variance": gradients.var((2, 3), correction=0),
        "saturated": _saturated(states).double().mean((2, 3)),
        "silent": (states == 0).double().mean((2, 3)),
    }  # (T, layers) each
    names, gains = _weight_gains(subject.layer)
    if isinstance(subject.layer, Stepped):  # a user's own step, whose weights have their names in it
        names = [name.rpartition("stepper.")[2] for name in names]
    unit = "relu" if getattr(subject.layer, "nonlinearity", "") == "relu" else "linear"
    figures = _figures(by_step_and_layer) | {"preserving_gain": VARIANCE_GAIN[unit]}
    return Finding(
        "signal",
        _sentence(figures, len(states)),
        "estimated",
        figures=figures,
        series=arrays(**{name: values.T for name, values in by_step_and_layer.items()}, weight_gain=gains),
        spread=arrays(activation_variance=states.var(3, correction=0).std(2, correction=0).T),
        labels={"weights": names},
        warnings=_warnings(figures),
        assumptions=("these sequences are typical of the data",),
        method="one run and one backward pass from the last output",
    )


def _states_and_gradients(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return h of every layer at every step, and the last output's gradient by it: (T, layers, B, n) each."""
    x = subject.recurrence_inputs.clone().requires_grad_()
    outputs, states = run_with_states(subject, x)
    y = outputs[-1]
    direction = torch.randn(y.shape, generator=subject.generator()).to(y)
    by_sources = torch.autograd.grad(y, states.sources, direction, allow_unused=True, materialize_grads=True)
    gradient = fill_last_step(states.total_gradient(by_sources))

    def by_layer(tensor: Tensor) -> Tensor:
        layers, units = states.first_shape
        first = tensor.detach().double().cpu()[..., : layers * units]
        return first.unflatten(2, (layers, units)).movedim(2, 1)

    return by_layer(states.values()), by_layer(gradient)


def _saturated(states: Tensor) -> Tensor:
    """Return which units are at the end of their range; none if some |h| > 1, as of a ReLU or a linear unit."""
    size = states.abs()
    return (size > 0.99) & (size <= 1).all()


def _weight_gains(layer: nn.Module) -> tuple[list[str], list[float]]:
    """Return names and fan_in * variance of the weights; weight_ih and weight_hh of a unit share their fan-ins."""
    weights = {name: w for name, w in _weights_in_use(layer) if w.dim() == 2 and "weight" in name}
    gains = []
    for name, weight in weights.items():
        partner = name.replace("_ih_", "_hh_") if "_ih_" in name else name.replace("_hh_", "_ih_")
        fan_in = weight.shape[1]
        if partner != name and partner in weights:
            fan_in += weights[partner].shape[1]
        precise = weight.to(torch.complex128) if weight.is_complex() else weight.double()
        gains.append(fan_in * float(precise.var(correction=0)))
    return list(weights), gains


def _weights_in_use(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters by name; of a parametrized one the value that is computed from it, which is what units read."""
    for path, module in layer.named_modules():
        if "parametrizations" in path.split("."):
            continue
        for name in (*module._parameters, *getattr(module, "parametrizations", ())):
            weight = getattr(module, name)
            if weight is not None:
                yield f"{path}.{name}".lstrip("."), weight.detach()


def _figures(by_step_and_layer: dict[str, Tensor]) -> dict[str, float]:
    variance = by_step_and_layer["activation_variance"]  # (T, layers)
    gradient = by_step_and_layer["gradient_variance"]
    early = variance[: max(1, len(variance) // 10)].mean(0)
    return {
        "variance_over_time": _ratio(variance[-1].mean(), early.mean()),
        "variance_over_depth": _ratio(variance[:, -1].mean(), variance[:, 0].mean()),
        "gradient_over_time": _ratio(gradient[0].mean(), gradient[-1].mean()),
        "saturated": float(by_step_and_layer["saturated"].mean()),
        "silent": float(by_step_and_layer["silent"].mean()),
    }


def _ratio(one: Tensor, other: Tensor) -> float:
    return float(one / other) if bool(other > 0) else math.nan


def _sentence(figures: dict[str, float], steps: int) -> str:
    states = _change(figures["variance_over_time"], "becomes {} times that of the first tenth")
    gradients = _change(figures["gradient_over_time"], "{} times")
    return f"Over {steps} steps the variance of its states {states}; that of its gradients, going back, {gradients}."


def _change(ratio: float, words: str) -> str:
    if math.isnan(ratio):
        return "is zero where it would be compared"
    return words.format(f"{ratio:.3g}") if math.isfinite(ratio) else "overflows"


def _warnings(figures: dict[str, float]) -> tuple[str, ...]:
    warnings = []
    if figures["saturated"] > 0.5:
        warnings.append(
            "most units are saturated, where tanh and sigmoid pass no gradient: start from smaller weights or inputs"
        )
    if figures["silent"] > 0.5:
        warnings.append("most units are silent: use a variance-preserving initialization or a smaller learning rate")
    return tuple(warnings)
