"""Every fused layer against its own readable loop in float64: outputs, states and all gradients, on random shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from mnemoscope import kernels, layers
from mnemoscope.kernels._cpu.library import available
from mnemoscope.recurrence import leaves, rebuild

pytestmark = pytest.mark.skipif(not available(torch.float32), reason="no compiled CPU kernels here")

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10}
SLOTS = st.integers(0, 5)


def screening(draw: st.DrawFn) -> dict[str, Any]:
    return dict(
        buffer=draw(SLOTS), relevant=draw(SLOTS), decay=draw(st.sampled_from([1.0, 0.75])), refresh=draw(st.booleans())
    )


def attention(draw: st.DrawFn) -> dict[str, Any]:
    return dict(mix=draw(st.sampled_from(["sum", "mean"])), output=draw(st.sampled_from(["h", "s"])))


def phi(draw: st.DrawFn) -> dict[str, Any]:
    return dict(nonlinearity=draw(st.sampled_from(["tanh", "relu", "identity", "modrelu"])))


def backtracking(draw: st.DrawFn) -> dict[str, Any]:
    sizes = {name: draw(st.integers(1, most)) for name, most in (("store_every", 3), ("top", 4), ("truncation", 6))}
    return dict(**sizes, output=draw(st.sampled_from(["h", "both"])), detach_scores=draw(st.booleans()))


FAMILIES: dict[str, tuple[Callable[[st.DrawFn], dict[str, Any]], ...]] = {
    "RNN": (phi,), "LSTM": (), "GRU": (), "OrthRNN": (), "ExpRNN": (), "LinearSystem": (), "GORU": (), "RAC": (),
    "RelRNN": (screening, attention, phi), "RelLSTM": (screening, attention),
    "MemRNN": (attention, phi), "MemLSTM": (attention,), "SAB": (backtracking,),
}  # fmt: skip
FAMILIES |= {name: () for name in layers.LAYERS if name not in FAMILIES}  # a new layer, with its defaults


@st.composite
def runs(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A layer and a sequence: sizes, options, whether rows differ in length and whether a state is carried in."""
    options: dict[str, Any] = {}
    for part in FAMILIES[name]:
        options.update(part(draw))
    n = draw(st.integers(1, 40))
    n = 2 ** (n % 6 + 1) if name == "GORU" else n
    sizes = dict(steps=draw(st.integers(1, 30)), batch=draw(st.integers(1, 11)), n=n, inputs=draw(st.integers(1, 5)))
    flags = {key: draw(st.booleans()) for key in ("packed", "carried", "both")}
    return dict(options=options, **sizes, **flags, seed=draw(st.integers(0, 10_000)))


def tame(layer: torch.nn.Module) -> None:
    """Weights whose dynamics forget: rounding must not grow, and attention must have something to choose between."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "hh" in name and not isinstance(layer, layers.RAC):
                parameter *= 0.5
            if "score" in name:
                parameter *= 50 if isinstance(layer, layers.SAB) else 4  # SAB's start at a hundredth


def lengths_of(steps: int, batch: int) -> Tensor:
    lengths = torch.randint(1, steps + 1, (batch,))
    lengths[0] = steps
    return lengths


def smooth(state: Any) -> list[Tensor]:
    """The tensors of a state that are differentiated: relevance is counted, never differentiated."""
    counted = state.memory.relevance if hasattr(state, "memory") else None
    return [t for t in leaves(state) if t.is_floating_point() and t is not counted]


def fresh(state: Any, dtype: torch.dtype) -> Any:
    state = rebuild(state, [(t.to(dtype) if t.is_floating_point() else t).detach().clone() for t in leaves(state)])
    for tensor in smooth(state):
        tensor.requires_grad_()
    return state


def outcome(layer: Any, x: Tensor, lengths: Tensor | None, state: Any, dtype: torch.dtype) -> list[Tensor]:
    """Outputs, final states and gradients of a random functional of both, all in float64."""
    layer.zero_grad()
    x = x.detach().clone().to(dtype).requires_grad_()
    state = None if state is None else fresh(state, dtype)
    given = x if lengths is None else pack_padded_sequence(x, lengths, enforce_sorted=False)
    output, final = layer(given, state)
    output = output if lengths is None else output.data
    generator = torch.Generator().manual_seed(1)
    functional = sum(
        (t.double() * torch.randn(t.shape, generator=generator, dtype=torch.float64)).sum()
        for t in [output, *smooth(final)]
    )
    functional.backward()
    roots = [x, *layer.parameters(), *([] if state is None else smooth(state))]
    grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in roots]
    return [t.detach().double() for t in (output, *leaves(final), *grads)]


def assert_close(found: list[Tensor], truth: list[Tensor], eager: list[Tensor], tolerance: float) -> None:
    """Within the tolerance, or within 10 times the rounding error of the eager loop in the same type.

    The second bound is for ill-conditioned runs: RAC multiplies its inputs, and SAB divides by a small difference.
    """
    for ours, theirs, rounded in zip(found, truth, eager, strict=True):
        assert ours.shape == theirs.shape
        scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
        rounding = float((rounded - theirs).abs().max()) if theirs.numel() else 0.0
        bound = max(tolerance * scale, 10 * rounding)
        assert torch.allclose(ours, theirs, rtol=0, atol=bound), f"{(ours - theirs).abs().max():.1e} > {bound:.1e}"


CASES = [(name, dtype) for name in FAMILIES for dtype in TOLERANCE]


@pytest.mark.parametrize(("name", "dtype"), CASES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_fused_is_eager(name: str, dtype: torch.dtype, data: st.DataObject) -> None:
    run = data.draw(runs(name))
    torch.manual_seed(run["seed"])
    sizes = run["inputs"], run["n"]
    layer = getattr(layers, name)(*sizes, bidirectional=run["both"], dtype=torch.float64, **run["options"])
    tame(layer)
    layer.to(dtype)
    x = torch.randn(run["steps"], run["batch"], run["inputs"]).double()
    lengths = lengths_of(run["steps"], run["batch"]) if run["packed"] else None
    state = None
    if run["carried"]:
        with torch.no_grad():
            state = layer(torch.randn(7, run["batch"], run["inputs"]).to(dtype))[1]
    found = outcome(layer, x.to(dtype), lengths, state, dtype)
    with kernels.backend("eager"):
        eager = outcome(layer, x.to(dtype), lengths, state, dtype)
        truth = outcome(layer.double(), x.to(dtype), lengths, state, torch.float64)
    if dtype is torch.float32 and run["options"].get("nonlinearity") in ("relu", "modrelu"):
        states = 1 + len(leaves(layer(x[:, :1])[1]))  # a unit may round to the other side of the kink
        found, truth, eager = found[:states], truth[:states], eager[:states]
    # SAB divides by the little by which a score exceeds the one that is cut off, and so magnifies rounding.
    assert_close(found, truth, eager, TOLERANCE[dtype] * (100 if name == "SAB" else 1))


SIZES = [(2, 257, 33), (600, 2, 48), (12, 3, 1024), (9, 1, 513), (5, 9, 16)]  # steps, batch, units


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["RNN", "LSTM", "RelRNN", "MemLSTM"])
def test_sizes_far_from_the_usual(name: str, size: tuple[int, int, int]) -> None:
    steps, batch, n = size
    torch.manual_seed(0)
    layer = getattr(layers, name)(3, n)
    tame(layer)
    x = torch.randn(steps, batch, 3)
    found = outcome(layer, x, None, None, torch.float32)
    with kernels.backend("eager"):
        truth = outcome(layer.double(), x, None, None, torch.float64)
    assert_close(found, truth, truth, 2e-5)
