"""The Jacobian blocks of a trained layer on a sequence, for Proposition 1 and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import jacrev
from torch.nn.utils.rnn import pad_sequence

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import Recurrence, State, Trace, leaves, rebuild, trace
from mnemoscope.theory.attention._jacobians import AdditiveScores, AttentionBlocks, additive_scores


class OtherAttention(MnemoscopeError):
    """A layer attends in a way that Propositions 1 and 2 do not speak of."""


def attention_blocks(model: Recurrence, x: Tensor, *, layer: int = 0) -> AttentionBlocks:
    """E's, F's and J's of one run of a self-attentive layer, from an empty memory.

    Attention's part is in closed form (Lemmas 5-6, Remark 5). J_t = dH_{t+1}/dS_t is differentiated from the model's
    step, so any non-linearity and an LSTM's gates are covered; with an LSTM, H = (h, cell) and S = (s, cell). Screening
    decides which states are attended, and is not differentiated.

    Args:
        model: a recurrence with additive attention whose state has ``.s`` and ``.memory``; not bidirectional.
        x: one sequence, (T, input_size), or batched with a batch of one in the model's own layout.
        layer: which layer of a stack.

    Returns:
        blocks for `decompose`, `gradient_by_hops` and `path_factors`, in the model's dtype; use float64 for exact work.

    Examples:
        >>> from mnemoscope.theory import attention_blocks, decompose
        >>> layer = mnemoscope.MemRNN(3, 4, dtype=torch.float64)
        >>> blocks = attention_blocks(layer, torch.randn(10, 3, dtype=torch.float64))
        >>> decompose(blocks, t=2, k=5).shape  # ds_7/dh_2, by the number of hops
        torch.Size([6, 4, 4])
    """
    time = 1 if model.batch_first else 0
    x = x.unsqueeze(1 - time) if x.dim() == 2 else x
    if x.dim() != 3 or x.shape[1 - time] != 1:
        raise MnemoscopeError(f"attention_blocks examines one sequence, (T, input_size); got {list(x.shape)}")
    with _frozen(model):
        run = trace(model, x)
        return _blocks(model, x.transpose(0, time), run, layer)


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Without dropout and without a graph; the model is left as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _blocks(model: Recurrence, x: Tensor, run: Trace, layer: int) -> AttentionBlocks:
    if run.attention is None or run.origin is None:
        raise MnemoscopeError(
            f"attention_blocks needs a layer with additive attention; {type(model).__name__} has no attention"
        )

    # What the run recorded, of the first sequence.
    weight = pad_sequence([w[layer][0] for w in run.attention], batch_first=True)  # (T, m)
    origin = pad_sequence([o[layer][0] for o in run.origin], batch_first=True, padding_value=-1)
    hidden = torch.stack([state.h[layer, 0] for state in run.states[1:]])
    macro = torch.stack([state.s[layer, 0] for state in run.states])  # (T + 1, n), from s_{-1}

    # The derivatives of the scores, of the mixture and of the cell.
    parameters = model.additive_parameters(layer)
    if parameters is None:
        raise OtherAttention(
            f"attention_blocks knows scores v^T tanh(W_a s + U_a h); layer {layer} of {type(model).__name__} has none"
        )
    attended = hidden[origin.clamp(min=0)]
    scores = additive_scores(parameters.query, parameters.key, parameters.score, macro[:-1], attended)
    f1, f2 = _mix(parameters.factor, hidden, len(run.states[0].visible))
    blocks = AttentionBlocks(
        hidden=hidden,
        origin=origin,
        weight=weight,
        score_by_hidden=scores.by_hidden,
        score_by_macro=scores.by_macro,
        J=_jacobians(model, x, run, layer),
        f1=f1,
        f2=f2,
    )
    _check(model, blocks, scores, macro[1:])
    return blocks


def _mix(scale: float, hidden: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """f's derivatives for S = (h + c, cell) or, with mix="mean", S = ((h + c)/2, cell)."""
    T, n = hidden.shape
    f1 = torch.eye(parts * n).to(hidden)
    f2 = torch.eye(parts * n, n).to(hidden)
    f1[:n] *= scale
    return f1.expand(T, -1, -1), (scale * f2).expand(T, -1, -1)


def _jacobians(model: Recurrence, x: Tensor, run: Trace, layer: int) -> Tensor:
    """dH_{t+1}/dS_t through the model's own step, its memory fixed: (T - 1, N, N)."""
    blocks = []
    for x_next, state in zip(x[1:], run.states[1:-1], strict=True):
        carried = torch.cat([part[layer, 0] for part in (state.s, *state.visible[1:])])

        def advance(moved: Tensor, x_next: Tensor = x_next, state: State = state) -> Tensor:
            after = model.step(x_next, _replace(state, layer, moved))[1]
            return torch.cat([part[layer, 0] for part in after.visible])

        blocks.append(jacrev(advance)(carried))
    return torch.stack(blocks) if blocks else x.new_zeros(0, *2 * [len(run.states[0].visible) * model.hidden_size])


def _replace(state: State, layer: int, moved: Tensor) -> State:
    """The state with S_t = (s_t, cell_t) of one layer, (N,), in place of its own."""
    parts = dict(zip(map(id, (state.s, *state.visible[1:])), moved.chunk(len(state.visible)), strict=True))
    layers = torch.arange(len(state.s), device=state.s.device)[:, None, None]
    return rebuild(
        state, [torch.where(layers == layer, parts[id(t)], t) if id(t) in parts else t for t in leaves(state)]
    )


def _check(model: Recurrence, blocks: AttentionBlocks, scores: AdditiveScores, macro: Tensor) -> None:
    """The hypotheses: softmax of the additive scores, and s = f(h, c)."""
    alpha = scores.score.masked_fill(blocks.origin < 0, -torch.inf).softmax(1)
    mixed = blocks.f2[0, 0, 0] * (blocks.hidden + blocks.attention @ blocks.hidden)
    near = 1e4 * torch.finfo(macro.dtype).eps
    if not (torch.allclose(alpha, blocks.weight, atol=near) and torch.allclose(mixed, macro, atol=near)):
        raise OtherAttention(
            f"attention_blocks knows s = h + c (or its half) with c = softmax of additive scores times h; "
            f"{type(model).__name__} attends in another way"
        )
