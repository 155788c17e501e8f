"""A state as one vector per sequence, so that a step is a map of vectors and has a Jacobian."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import AttentiveState, CarryingTensor
from mnemoscope.recurrence import Recurrence, State, leaves, rebuild
from mnemoscope.wording import counted


def flatten(state: State) -> Tensor:
    """Return the present state as vectors (B, D): all its real tensors; without the memory of an attentive state."""
    tensors = leaves(state)
    present = [tensors[i] for i in _present(state)]
    return torch.cat([tensor.movedim(1, 0).reshape(tensor.shape[1], -1) for tensor in present], 1)


def unflatten(vector: Tensor, like: State) -> State:
    """Return `like` with the vectors (B, D) as its present state; reverses `flatten`."""
    tensors = list(leaves(like))
    start = 0
    for i in _present(like):
        layers, batch, *rest = tensors[i].shape
        size = tensors[i].numel() // batch
        part = vector[:, start : start + size].reshape(batch, layers, *rest)
        tensors[i] = part.movedim(0, 1)
        start += size
    return rebuild(like, tensors)


def part_sizes(state: State) -> list[int]:
    """Return how many numbers of a row of `flatten` each tensor of the present state has, in their order."""
    tensors = leaves(state)
    return [tensors[i].numel() // tensors[i].shape[1] for i in _present(state)]


def carries_memory(state: State) -> bool:
    """Return True if a state holds past states beside the present one; its Jacobian takes them as constant."""
    return isinstance(state, AttentiveState | CarryingTensor)


def _present(state: State) -> list[int]:
    """Return the indices of the leaves that make up the present state."""
    if carries_memory(state):
        return list(range(len(state.visible) + 1))  # h (and c), then s
    return [i for i, tensor in enumerate(leaves(state)) if tensor.is_floating_point()]


def state_not_finite(steps: int) -> MnemoscopeError:
    """Return the error of a state that is NaN or infinite after so many steps."""
    if steps == 0:
        return MnemoscopeError("the model's first state is NaN or infinite: begin with finite numbers")
    after = counted(steps, "step")
    return MnemoscopeError(f"after {after} the state is NaN or infinite: give shorter or smaller inputs, or float64")


def advance(recurrence: Recurrence, x: Tensor, vector: Tensor, like: State) -> Tensor:
    """Make one step as a map of vectors: (B, D) -> (B, D)."""
    return flatten(recurrence.step(x, unflatten(vector, like))[1])


def jacobians(recurrence: Recurrence, x: Tensor, state: State, rows: int = 8192) -> Tensor:
    """Return d flatten(next state) / d flatten(state), (B, D, D), by reverse mode on copies of the batch.

    At most about `rows` rows of Jacobians are computed at a time.
    """
    vector = flatten(state).detach()
    batch, size = vector.shape
    chunk = max(1, rows // size)
    parts = [_jacobians(recurrence, x[part], vector[part], _select_rows(state, part)) for part in _slices(batch, chunk)]
    return torch.cat(parts)


def _slices(batch: int, chunk: int) -> Iterator[slice]:
    for start in range(0, batch, chunk):
        yield slice(start, min(start + chunk, batch))


def _select_rows(state: State, part: slice) -> State:
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
    matrices = rows.view(batch, size, size)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(vector.shape, generator=generator, dtype=torch.float64).to(vector)
    direction = direction / direction.norm(dim=1, keepdim=True)
    carried = (matrices @ direction.unsqueeze(2)).squeeze(2)
    passed = passes_gradient(recurrence, x, state, direction, carried)
    if bool(passed.all()):
        return matrices
    directions = outputs.view(batch, size, size).transpose(0, 1)
    by_differences = differences(recurrence, x, state, directions).permute(1, 2, 0)
    return torch.where(passed[:, None, None], matrices, by_differences)


@torch.no_grad()
def passes_gradient(recurrence: Recurrence, x: Tensor, state: State, direction: Tensor, carried: Tensor) -> Tensor:
    """Return where (B,) autograd carries unit directions (B, D) of the state as the step itself carries them.

    Not where all or part of a state is detached, or has a surrogate gradient. Compared with central differences, if
    those over a quarter of the distance are the same: along a strong curvature a gradient is right unless it is zero.
    """
    far, near = (differences(recurrence, x, state, direction[None], scale)[0] for scale in (1.0, 0.25))
    sizes = flatten(state).abs().amax(1).clamp(min=1) * math.sqrt(direction.shape[1])
    rounding = 16 * torch.finfo(near.dtype).eps ** (2 / 3) * sizes  # in differences; a saturated step has none
    is_known = (far - near).norm(dim=1) <= 0.02 * near.norm(dim=1)
    is_same = (carried - near).norm(dim=1) <= 0.1 * near.norm(dim=1) + rounding
    return torch.where(is_known, is_same, carried.any(1))


@torch.no_grad()
def differences(recurrence: Recurrence, x: Tensor, state: State, directions: Tensor, scale: float = 1.0) -> Tensor:
    """Carry unit directions (k, B, D) through a step by central differences of the states themselves.

    For a step that does not pass its whole gradient: its state may be detached from the graph, and yet be carried on.
    At a kink, as of ReLU units that rest at zero, the mean of both sides is neither: the steeper one is taken, unit by
    unit.
    """
    copies, batch, size = directions.shape
    like = rebuild(state, [torch.cat([tensor] * copies, 1) for tensor in leaves(state)])
    point = flatten(like)
    inputs = torch.cat([x] * copies)
    # The step size that balances rounding against curvature.
    step_size = scale * torch.finfo(point.dtype).eps ** (1 / 3) * point.abs().amax(1, keepdim=True).clamp(min=1)
    shift = step_size * directions.reshape(copies * batch, size)
    behind, here, ahead = (advance(recurrence, inputs, at, like) for at in (point - shift, point, point + shift))
    left, right = (here - behind) / step_size, (ahead - here) / step_size
    steeper = torch.where(left.abs() > right.abs(), left, right)
    is_kink = (right - left).abs() > 8 * step_size  # curvature makes them differ by about the step size
    is_kink |= (left == 0) != (right == 0)  # a small weight of a unit that is off on one side
    return torch.where(is_kink, steeper, (left + right) / 2).view(copies, batch, size)


def spectral_norms(matrices: Tensor, exact: int = 64, rounds: int = 12, block: int = 8) -> Tensor:
    """Return the largest singular values (B,) of matrices (B, D, D).

    By SVD up to size `exact`, else from a block Krylov space, which errs to the low side, by less than a thousandth
    even for a random matrix, whose singular values lie close together. The SVDs would cost more than all the rest of a
    scope. Infinite if an entry is NaN or infinite: LAPACK is not asked, as it would print to standard output.
    """
    finite = matrices.isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        norms = torch.full_like(matrices[:, 0, 0], torch.inf)
        if bool(finite.any()):
            norms[finite] = spectral_norms(matrices[finite], exact, rounds, block)
        return norms
    if matrices.shape[-1] <= exact:
        return torch.linalg.matrix_norm(matrices, ord=2)

    # Vectors are rows: products with the columns of a matrix whose size is a power of two miss the cache.
    start = torch.randn(block, matrices.shape[-1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = start.to(matrices).expand(len(matrices), -1, -1)
    krylov = []
    for _ in range(rounds):
        rows = torch.linalg.qr(((rows @ matrices.mT) @ matrices).mT).Q.mT  # (B, block, D)
        krylov.append(rows)
    basis = torch.linalg.qr(torch.cat(krylov, 1).mT).Q.mT
    image = basis @ matrices.mT
    return torch.linalg.eigvalsh(image @ image.mT)[:, -1].clamp(min=0).sqrt()
