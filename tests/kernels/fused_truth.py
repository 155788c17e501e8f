"""A layer's fused run in float32 against its eager loop in float64: outputs, states and every gradient."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from mnemoscope import SAB, kernels
from mnemoscope.recurrence import leaves, map_state


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def calm(layer: nn.Module) -> nn.Module:
    """Weights small enough that rounding is not amplified from step to step, scores large enough to differ."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "weight_hh" in name and "parametrizations" not in name:
                parameter *= 0.8
            if "weight_score" in name:
                parameter *= 100 if isinstance(layer, SAB) else 8  # SAB's start at a hundredth
    return layer


def opposed(layer: nn.Module) -> nn.Module:
    """Queries and keys far beyond e's range, of opposite signs: attention still turns on their small sums."""
    with torch.no_grad():
        layer.weight_query_l0.copy_(120 * torch.eye(layer.hidden_size))
        layer.weight_key_l0.copy_(-1.9 * layer.weight_query_l0)  # s is about twice h
    return layer


class Packed(nn.Module):
    """A layer that runs its inputs as sequences of these lengths."""

    def __init__(self, layer: nn.Module, lengths: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.lengths = lengths

    def forward(self, x: Tensor, state=None):
        packed = nn.utils.rnn.pack_padded_sequence(x, self.lengths, enforce_sorted=False)
        output, final = self.layer(packed, state)
        return output.data, final


def _run(layer: nn.Module, x: Tensor, state, outer: list[Tensor]) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    state = None if state is None else map_state(lambda t: t.clone().requires_grad_(t.is_floating_point()), state)
    if hasattr(state, "memory"):  # relevance is counted, never differentiated
        state.memory.relevance.requires_grad_(False)
    output, final = layer(x, state)
    seen = [output, *(t for t in leaves(final) if t.is_floating_point() and t.requires_grad)]
    while len(outer) < len(seen):
        outer.append(torch.randn(seen[len(outer)].shape, dtype=torch.float64, device=x.device))
    started = [] if state is None else [t for t in leaves(state) if t.requires_grad]
    wanted = {"x": x, **dict(layer.named_parameters()), **{f"state {i}": t for i, t in enumerate(started)}}
    grads = torch.autograd.grad(
        seen, list(wanted.values()), [g.to(t.dtype) for g, t in zip(outer, seen, strict=False)], allow_unused=True
    )
    found = {f"final {i}": t.detach() for i, t in enumerate(leaves(final))}
    unused = (torch.zeros_like(t) if g is None else g for t, g in zip(wanted.values(), grads, strict=True))
    found.update({f"d {k}": g for k, g in zip(wanted, unused, strict=True)})
    return {"output": output.detach(), **found}


def assert_fused_equals_eager(layer: nn.Module, x: Tensor, state=None, tolerance: float = 2e-5) -> None:
    """Compare the fused float32 run with the eager float64 run: relative errors within the tolerance.

    Where a run is ill-conditioned, within 10 times the rounding error of the eager float32 run. Whole numbers (the
    slots' origins) must agree exactly.
    """
    outer: list[Tensor] = []
    precise = copy.deepcopy(layer).double()
    wide = None if state is None else map_state(lambda t: t.double() if t.is_floating_point() else t, state)
    with kernels.backend("eager"):
        truth = _run(precise, x.double(), wide, outer)
    fused = _run(layer, x, state, outer)

    errors = {}
    for name, value in truth.items():
        if not value.is_floating_point():
            assert torch.equal(value, fused[name]), f"{name}: the slots hold other states"
        elif not value.numel():
            assert not fused[name].numel(), name
        elif value.abs().max() <= 1e-12:
            assert fused[name].abs().max() < 1e-5, name
        else:
            errors[name] = relative(fused[name], value)

    too_large = [name for name, error in errors.items() if not error < tolerance]
    if too_large:
        with kernels.backend("eager"):
            rounded = _run(layer, x, state, outer)
        for name in too_large:
            bound = 10 * relative(rounded[name], truth[name])
            assert errors[name] < bound, f"{name}: {errors[name]:.1e} > {bound:.1e} > {tolerance:.1e}"


class _Rounded(list[Tensor]):
    """Tensors of numbers that bfloat16 holds."""

    def append(self, tensor: Tensor) -> None:
        super().append(tensor.bfloat16().double())


def errors_of(layer: nn.Module, x: Tensor, state=None) -> dict[str, float]:
    """Return the relative errors of a run in bfloat16 against the eager float64 run of the same numbers.

    The gradients that come in are bfloat16 numbers, too. Whole numbers (the slots' origins) must agree exactly.
    """
    outer = _Rounded()
    precise = copy.deepcopy(layer).double()
    wide = None if state is None else map_state(lambda t: t.double() if t.is_floating_point() else t, state)
    with kernels.backend("eager"):
        truth = _run(precise, x.double(), wide, outer)
    found = _run(layer, x, state, outer)
    for name, value in truth.items():
        assert value.is_floating_point() or torch.equal(value, found[name]), f"{name}: the slots hold other states"
    real = {name: value for name, value in truth.items() if value.is_floating_point() and value.numel()}
    return {name: relative(found[name], value) for name, value in real.items() if value.abs().max() > 1e-12}
