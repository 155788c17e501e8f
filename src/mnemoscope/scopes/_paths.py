"""The paths by which a gradient comes back through attention: how many hops, over how many states."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError, check_count, is_number, is_whole
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import not_applicable, scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.theory.attention import (
    AttentionBlocks,
    OtherAttention,
    attention_blocks,
    attention_pattern,
    dependency_depth,
    effective_sparsity,
    gradient_by_hops,
    state_gradients,
)
from mnemoscope.wording import counted

CHECKED_LAGS = 64  # at which the sum over all hops is compared with the total derivative

HELP = """
A gradient comes back step by step through the recurrence, or in a hop over attention. The map shows
the share of each number of hops: bright rows near the top mean short paths, along which little is
lost.
"""


@scope(
    "By how many hops of attention does a gradient come back?",
    title="Paths of the gradient",
    help=HELP,
    needs="attention",
    cost=100,
)
def paths(
    subject: Subject, *, hops: int = 8, sequences: int = 2, steps: int = 100, threshold: float = 0.05, layer: int = -1
) -> Finding:
    """Split d s_T / d h_{T-k} of a run by the number of hops of its terms (Kerg et al. 2020, Proposition 1).

    A term of s hops passes s times from one state to a later one, by the recurrence or by attention. The gradient of
    s_T in a random direction is followed back through the blocks E and F (Proposition 2), all lags at once.

    Series: `share` (hops + 2, lags), the fraction of each number of hops in the sum of the terms' norms, the last row
    for all more; `gradient` (lags,), the norm of the whole; `depth` (lags,), the fewest hops from h_{T-k} to s_T over
    weights above `threshold`; `attended` (T,), the effective number of states that each step attends.
    Figures: `kappa`, the mean of `attended`; `depth`, the fewest hops to the first state; `hops`, the mean number of
    hops at the largest lag; `far_gradient`, the gradient there relative to lag 0; `agreement`, the largest error of
    the decomposition's sum against the total derivative, relative to it.

    Args:
        hops: the largest number of hops that has a row of its own.
        sequences: how many of the batch are decomposed.
        steps: how many steps of each sequence are used, from its start; the blocks of long ones are large.
        threshold: of attention, above which a step counts as attending a state.
        layer: of a stack, the last by default.
    """
    check_count("hops", hops)
    check_count("sequences", sequences)
    check_count("steps", steps, 2)
    if not (is_number(threshold) and 0 <= threshold < 1):
        raise MnemoscopeError(f"threshold must be at least 0 and less than 1; got {threshold!r}")
    layers = subject.layer.num_layers
    if not (is_whole(layer) and -layers <= layer < layers):
        raise MnemoscopeError(f"layer must lie between {-layers} and {layers - 1}; got {layer!r}")
    count = min(sequences, subject.batch)
    runs = []
    for row in range(count):
        try:
            runs.append(_decompose(subject, row, steps, hops, threshold, layer))
        except OtherAttention as error:
            return not_applicable("paths", str(error))
        subject.report((row + 1) / count, f"sequence {row + 1} of {count}")
    return _finding(runs, hops, threshold)


def _decompose(
    subject: Subject, row: int, steps: int, hops: int, threshold: float, layer: int
) -> dict[str, np.ndarray]:
    """Return the series of one sequence."""
    # A random direction at the last step, followed back.
    blocks = _blocks(subject, row, steps, layer)
    T, n = blocks.hidden.shape
    seed = blocks.hidden.new_zeros(T, n)
    direction = torch.randn(n, generator=subject.generator(), dtype=torch.float64)
    seed[-1] = (direction / direction.norm()).to(seed)
    terms = gradient_by_hops(blocks, seed, hops=hops)  # (hops + 1, T, n)
    total, _ = state_gradients(blocks, seed)  # (T, n)
    rest = total - terms.sum(0)
    norms = torch.cat([terms, rest[None]]).norm(dim=-1)  # (hops + 2, T)

    # The fewest hops over attention above the threshold; searched entry by entry, so on the CPU.
    pattern = attention_pattern(blocks.attention, threshold).cpu()
    depth = torch.stack([dependency_depth(pattern, t)[-1] for t in range(T)])
    return arrays(
        share=(norms / norms.sum(0).clamp(min=1e-300)).flip(1),
        gradient=total.norm(dim=-1).flip(0),
        depth=depth.flip(0),
        attended=effective_sparsity(blocks.attention),
        agreement=_agreement(blocks, seed, total),
    )


def _blocks(subject: Subject, row: int, steps: int, layer: int) -> AttentionBlocks:
    """Return the blocks of one sequence's run through one layer; a read-out has no part in it."""
    attentive = subject.layer
    x = subject.recurrence_inputs[:steps, row : row + 1]
    if attentive.batch_first:
        x = x.transpose(0, 1)
    return attention_blocks(attentive, x, layer=layer % attentive.num_layers)


def _agreement(blocks: AttentionBlocks, seed: Tensor, total: Tensor) -> Tensor:
    """Return how far the sum over all numbers of hops is from the total derivative, at short lags."""
    near = slice(-min(CHECKED_LAGS, blocks.steps), None)
    whole = gradient_by_hops(blocks, seed, hops=min(CHECKED_LAGS, blocks.steps) - 1).sum(0)[near]
    return (whole - total[near]).norm() / total[near].norm().clamp(min=1e-300)


def _finding(runs: list[dict[str, np.ndarray]], hops: int, threshold: float) -> Finding:
    mean = {name: np.mean([run[name] for run in runs], 0) for name in runs[0]}
    far = mean["share"][:, -1]
    figures = {
        "kappa": float(mean["attended"].mean()),
        "depth": float(mean["depth"][-1]),
        "hops": float((far * np.arange(hops + 2)).sum()),
        "far_gradient": float(mean["gradient"][-1] / max(mean["gradient"][0], 1e-300)),
        "agreement": float(mean.pop("agreement")),
    }
    lag = mean["share"].shape[1] - 1
    at_least = "at least " if far[-1] > 0.01 else ""
    sentence = (
        f"From {counted(lag, 'step')} back a gradient comes by {at_least}{figures['hops']:.1f} hops on average, the "
        f"shortest path over attention above {threshold:g} takes {figures['depth']:.0f}, and each step attends about "
        f"{figures['kappa']:.1f} states."
    )
    return Finding(
        "paths",
        sentence,
        "estimated",
        figures=figures,
        series=mean,
        spread={name: np.std([run[name] for run in runs], 0) for name in ("gradient", "attended")},
        labels={"share": [*map(str, range(hops + 1)), f"more than {hops}"]},
        assumptions=("these sequences are typical of the data",),
        method="E and F of Proposition 2 in closed form along each run, one backward pass for all lags and hops",
    )
