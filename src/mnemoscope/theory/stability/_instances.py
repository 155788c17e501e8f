"""Small systems with known constants, run and trained in float64, for the checks of the stability statements."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mnemoscope.equations import lstm_cell

PHI = {"tanh": torch.tanh, "identity": lambda z: z, "sigmoid": torch.sigmoid}


def random_rnn(n: int, d: int, lam: float, seed: int, bias: bool = True) -> tuple[Tensor, ...]:
    """weight_ih, weight_hh and (where asked) two biases of a random RNN whose V contracts every direction by lam."""
    generator = torch.Generator().manual_seed(seed)
    U = torch.randn(n, d, generator=generator, dtype=torch.float64) / math.sqrt(n)
    rotation, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    if not bias:
        return U, lam * rotation
    b_ih = torch.randn(n, generator=generator, dtype=torch.float64) / (4 * math.sqrt(n))
    b_hh = torch.randn(n, generator=generator, dtype=torch.float64) / (4 * math.sqrt(n))
    return U, lam * rotation, b_ih, b_hh


def bounded_inputs(steps: int, d: int, bound: float, seed: int) -> Tensor:
    """Random inputs (steps, d), each of Euclidean norm `bound`."""
    x = torch.randn(steps, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return bound * x / torch.linalg.vector_norm(x, dim=1, keepdim=True)


def rnn_states(x: Tensor, weights: tuple[Tensor, ...], nonlinearity: str = "tanh") -> Tensor:
    """The states h_0 = 0, h_1, ..., h_T (T + 1, n) of an RNN over x (T, d)."""
    U, V, *biases = weights
    states = [x.new_zeros(len(V))]
    for u in (x @ U.T + sum(biases, x.new_zeros(len(V)))).unbind(0):
        states.append(PHI[nonlinearity](V @ states[-1] + u))
    return torch.stack(states)


def loss_gradient(
    x: Tensor, weights: tuple[Tensor, ...], readout: Tensor, target: Tensor, k: int | None, nonlinearity: str
) -> Tensor:
    """The gradient of 1/2 ||C h_T - y||^2 in all weights, flat; through the last k inputs, or through all of x."""
    leaves = tuple(w.detach().requires_grad_() for w in weights)
    h = rnn_states(x if k is None else x[-k:], leaves, nonlinearity)[-1]
    return flatten(torch.autograd.grad(0.5 * (readout @ h - target).square().sum(), leaves))


def flatten(tensors: tuple[Tensor, ...]) -> Tensor:
    """All entries of all tensors as one vector."""
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def project(w: Tensor, radius: float) -> Tensor:
    """The nearest matrix of spectral norm (vector of Euclidean norm) at most `radius`."""
    if w.dim() == 1:
        return w * min(1.0, radius / max(float(w.norm()), 1e-300))
    left, values, right = torch.linalg.svd(w, full_matrices=False)
    return (left * values.clamp(max=radius)) @ right


def norms(weights: tuple[Tensor, ...]) -> list[float]:
    """The radii of the balls on whose boundary the weights lie: together they are the paper's convex set Omega."""
    return [float(torch.linalg.norm(w, ord=2)) for w in weights]


def perturbed(weights: tuple[Tensor, ...], scale: float, seed: int = 0) -> tuple[Tensor, ...]:
    """Other weights of the same Omega: moved at random and projected back."""
    generator = torch.Generator().manual_seed(seed)
    moved = [w + scale * torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in weights]
    return tuple(map(project, moved, norms(weights)))


def descend(
    x: Tensor,
    weights: tuple[Tensor, ...],
    readout: Tensor,
    target: Tensor,
    k: int | None,
    alpha: float,
    steps: int,
    nonlinearity: str = "tanh",
) -> tuple[Tensor, ...]:
    """N steps of gradient descent of size alpha/i, each projected onto Omega, through k inputs or through all."""
    radii = norms(weights)
    for i in range(1, steps + 1):
        move = loss_gradient(x, weights, readout, target, k, nonlinearity).split([w.numel() for w in weights])
        stepped = [w - alpha / i * g.view_as(w) for w, g in zip(weights, move, strict=True)]
        weights = tuple(map(project, stepped, radii))
    return weights


def random_lstm(n: int, d: int, scale: float, seed: int) -> tuple[Tensor, ...]:
    """weight_ih (4n, d), weight_hh (4n, n) and two biases (4n,) of a random LSTM; `scale` times torch's own spread."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((4 * n, d), (4 * n, n), (4 * n,), (4 * n,))
    uniform = [2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1 for shape in shapes]
    return tuple(scale * u / math.sqrt(n) for u in uniform)


def shrunk_lstm(weights: tuple[Tensor, ...], factor: float) -> tuple[Tensor, ...]:
    """Weights of the set on which `lstm_constants` hold: all times `factor`, but no bias of a sigmoid raised."""
    U, W, *biases = (factor * w for w in weights)
    n = W.shape[1]
    is_candidate = torch.arange(4 * n) // n == 2  # the tanh gate g, whose bias may have either sign
    return U, W, *(torch.where(is_candidate, b, torch.minimum(b, b / factor)) for b in biases)


def lstm_step(x: Tensor, c: Tensor, h: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """(c_t, h_t) from x_t, c_{t-1} and h_{t-1}, with the gates in torch's order i, f, g, o."""
    U, W, *biases = weights
    h, c = lstm_cell(x @ U.T + h @ W.T + sum(biases, torch.zeros_like(W[:, 0])), c)
    return c, h


def lstm_states(x: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The states c_0 = h_0 = 0, ..., c_T, h_T, each (T + 1, n), of an LSTM over x (T, d)."""
    c = h = x.new_zeros(weights[1].shape[1])
    states = [(c, h)]
    for x_t in x.unbind(0):
        c, h = lstm_step(x_t, c, h, weights)
        states.append((c, h))
    return torch.stack([c for c, _ in states]), torch.stack([h for _, h in states])
