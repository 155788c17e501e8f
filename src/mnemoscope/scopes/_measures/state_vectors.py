"""A state as one vector a sequence, so that a step is a map of vectors and has a Jacobian."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.recurrence import Recurrence, State, leaves, rebuild


def flatten(state: State) -> Tensor:
    """The moving part of a state, (B, D): all its real tensors; of an attentive state h, c and s, not the memory."""
    parts = [leaves(state)[i] for i in _moving(state)]
    return torch.cat([part.movedim(1, 0).reshape(part.shape[1], -1) for part in parts], 1)


def unflatten(vector: Tensor, like: State) -> State:
    """The state with the structure, and what does not move, of `like`, and the vector (B, D) in it."""
    tensors = list(leaves(like))
    start = 0
    for i in _moving(like):
        layers, batch, *rest = tensors[i].shape
        size = tensors[i].numel() // batch
        part = vector[:, start : start + size].reshape(batch, layers, *rest)
        tensors[i] = part.movedim(0, 1)
        start += size
    return rebuild(like, tensors)


def carries_memory(state: State) -> bool:
    """Whether a state holds past states beside the present one, which are then held fixed in its Jacobian."""
    return hasattr(state, "memory")


def _moving(state: State) -> list[int]:
    if carries_memory(state):
        return list(range(len(state) + 1))  # h (and c), then s
    return [i for i, tensor in enumerate(leaves(state)) if tensor.is_floating_point()]


def advance(recurrence: Recurrence, x: Tensor, vector: Tensor, like: State) -> Tensor:
    """One step as a map of vectors: (B, D) -> (B, D)."""
    return flatten(recurrence.step(x, unflatten(vector, like))[1])


def jacobians(recurrence: Recurrence, x: Tensor, state: State, rows: int = 8192) -> Tensor:
    """d flatten(next state) / d flatten(state), (B, D, D), by reverse mode on copies: any step that autograd knows."""
    vector = flatten(state).detach()
    batch, size = vector.shape
    together = max(1, rows // size)
    found = [_jacobians(recurrence, x[part], vector[part], _rows(state, part)) for part in _parts(batch, together)]
    return torch.cat(found)


def _parts(batch: int, together: int) -> Iterator[slice]:
    for start in range(0, batch, together):
        yield slice(start, min(start + together, batch))


def _rows(state: State, part: slice) -> State:
    return rebuild(state, [tensor[:, part] for tensor in leaves(state)])


def _jacobians(recurrence: Recurrence, x: Tensor, vector: Tensor, state: State) -> Tensor:
    batch, size = vector.shape
    copies = rebuild(state, [tensor.repeat_interleave(size, 1) for tensor in leaves(state)])
    point = vector.repeat_interleave(size, 0).requires_grad_()  # (B D, D): one copy for each output
    after = advance(recurrence, x.repeat_interleave(size, 0), point, copies)
    outputs = torch.eye(size, dtype=after.dtype, device=after.device).repeat(batch, 1)
    rows = torch.zeros_like(point)
    if after.requires_grad:
        (rows,) = torch.autograd.grad(after, point, outputs, allow_unused=True, materialize_grads=True)
    if not bool(rows.any()):
        return differences(recurrence, x, state, outputs.view(batch, size, size).transpose(0, 1)).permute(1, 2, 0)
    return rows.view(batch, size, size)


@torch.no_grad()
def differences(recurrence: Recurrence, x: Tensor, state: State, directions: Tensor) -> Tensor:
    """Unit directions (k, B, D) carried through a step by central differences of the states themselves.

    For a step that lets no gradient through: it may be cut from the graph, and yet carry its state on.
    """
    copies, batch, size = directions.shape
    like = rebuild(state, [torch.cat([tensor] * copies, 1) for tensor in leaves(state)])
    point, inputs = flatten(like), torch.cat([x] * copies)
    reach = torch.finfo(point.dtype).eps ** (1 / 3) * point.abs().amax(1, keepdim=True).clamp(min=1)
    shift = reach * directions.reshape(copies * batch, size)
    ahead, behind = (advance(recurrence, inputs, point + sign * shift, like) for sign in (1, -1))
    return ((ahead - behind) / (2 * reach)).view(copies, batch, size)


def spectral_norms(matrices: Tensor, exact: int = 64, rounds: int = 24, block: int = 8) -> Tensor:
    """The largest singular values (B,) of matrices (B, D, D): by SVD up to size `exact`, above it by block iteration.

    The iteration errs to the low side, by less than a thousandth even for a matrix of noise, whose singular values lie
    close together; the SVDs would cost more than all the rest of a scope.
    """
    if matrices.shape[-1] <= exact:
        return torch.linalg.matrix_norm(matrices, ord=2)
    start = torch.randn(matrices.shape[-1], block, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = start.to(matrices).expand(len(matrices), -1, -1)
    for _ in range(rounds):
        basis = torch.linalg.qr(matrices.mT @ (matrices @ basis)).Q  # (B, D, block)
    image = matrices @ basis
    return torch.linalg.eigvalsh(image.mT @ image)[:, -1].clamp(min=0).sqrt()
