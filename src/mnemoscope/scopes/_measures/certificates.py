"""What can be proved about a layer's contraction from its weights, and the constants that follow.

The scopes' knowledge of particular layers is here: a proof needs their equations.

A stack is one system: its state is that of all layers. Let two states read the same input, let d_l be the distance of
layer l's parts before the step and d_l' after it. Layer l reads what layer l - 1 gives *after* the step, so

    d_l' <= lam_l d_l + mu_l d_{l-1}',   d_0' = 0,

with lam_l the factor of the layer's own recurrence and mu_l that of its input weights. Written out, d' <= M d with a
lower triangular M >= 0: row l is lam_l e_l + mu_l (row l - 1). In any monotone norm of d the stack's factor is at most
the norm of M. The plain one is the spectral norm for Euclidean distances. For a positive vector w it is
max_l (M w)_l / w_l in the norm max_l d_l / w_l, and w = (I - M/r)^-1 1 gives less than r for any r above the largest
lam_l: M w = r (w - 1) < r w. For an LSTM the same holds entry by entry, with the comparison matrices of its layers
in place of lam_l and mu_l.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import LSTM, RNN, Layer, Weights, project_
from mnemoscope.recurrence import Recurrence, leaves
from mnemoscope.scopes._measures.state_vectors import spectral_norms
from mnemoscope.theory.stability import (
    NONLINEARITIES,
    Nonlinearity,
    SystemConstants,
    comparison_matrix,
    comparison_weights,
    gate_bounds,
    input_comparison,
    lstm_constants,
    rnn_constants,
    spectral_norm,
)
from mnemoscope.torch_internals import has_forward_hooks

NORM_ROUNDING = 1e-12  # of the norm of a few thousand units in float64: an orthogonal matrix may seem to contract


@dataclass(frozen=True)
class StateNorm:
    """A norm of flat states (see `flatten`): the largest ||s_b|| / w_b over equal, consecutive blocks b of the state.

    One block gives the Euclidean norm, a block for each layer the largest layer's, a block for each number the
    infinity norm.

    Attributes:
        name: of the norm, as a sentence says it.
        weights: (blocks,) float64, positive: w.
    """

    name: str
    weights: Tensor

    def of(self, states: Tensor) -> Tensor:
        """Return the norms (...,) of flat states (..., D)."""
        blocks = states.double().unflatten(-1, (len(self.weights), -1))
        return (torch.linalg.vector_norm(blocks, dim=-1) / self.weights.to(states.device)).amax(-1)

    def stretch(self, jacobians: Tensor) -> Tensor:
        """Return by how much Jacobians (B, D, D) stretch a direction of the state, (B,).

        The induced norm for one block and for blocks of one number; between them a lower bound of it, from one
        direction for each block.
        """
        count = len(self.weights)
        J = jacobians.double()
        if count == 1:
            return spectral_norms(J)
        w = self.weights.to(J.device).repeat_interleave(J.shape[-1] // count)
        scaled = J * w / w[:, None]
        if count == len(w):
            return scaled.abs().sum(-1).amax(-1)
        rows = scaled.unflatten(1, (count, -1))  # (B, blocks, D / blocks, D)
        directions = torch.linalg.svd(rows, full_matrices=False).Vh[..., 0, :]  # (B, blocks, D)
        parts = directions.unflatten(-1, (count, -1))
        directions = torch.nn.functional.normalize(parts, dim=-1).flatten(-2)
        moved = torch.einsum("bij,bkj->bki", scaled, directions).unflatten(-1, (count, -1))
        return torch.linalg.vector_norm(moved, dim=-1).amax((-1, -2))

    @property
    def euclidean(self) -> float:
        """kappa of ||s||_2 <= a N(s) <= kappa ||s||_2: t steps leave at most kappa lambda^t of a Euclidean distance."""
        return float(self.weights.norm() / self.weights.min())


EUCLIDEAN = StateNorm("Euclidean norm", torch.ones(1, dtype=torch.float64))


@dataclass(frozen=True)
class Certificate:
    """A bound on the factor by which one step of a whole stack changes the distance of two states.

    It holds for every two states that inputs as large as the given ones lead to from the model's own start; for an RNN
    for any two states and inputs.

    Attributes:
        lam: the factor in `norm`; see `stable`.
        norm: in which `lam` holds, the plain one if `lam` is below 1 there, or if it is below 1 in none.
        plain: the norm without weights.
        bound: the factor in `plain`; at least `lam`.
        factors: each layer's own factor, which says nothing of the stack.
        condition: what was checked, in words.
        constants: those of the lemmas, if they cover the model.
    """

    lam: float
    norm: StateNorm
    plain: StateNorm
    bound: float
    factors: tuple[float, ...]
    condition: str
    constants: SystemConstants | None

    @property
    def stable(self) -> bool:
        """True if `lam` is below 1 by more than it may be off itself."""
        return self.lam < 1 - NORM_ROUNDING


_EQUATIONS = ("forward", "observe", "observe_cell", "project", "step", "weights")


@torch.no_grad()
def certify(recurrence: Recurrence, inputs: Tensor, starts_itself: bool = True) -> Certificate | None:
    """Return the certificate of a plain RNN or LSTM on inputs as large as these (T, B, d); None for other models.

    None also in half precision, where rounding outweighs the bounds, with projections (`proj_size`), and for an LSTM
    that begins in states which are not known: its bounds hold on the states that it can reach.
    """
    if not isinstance(recurrence, Layer) or recurrence.proj_size or inputs.dtype.itemsize < 4:
        return None
    if has_forward_hooks(recurrence):
        recurrence(inputs[:1])  # a hook may compute the weights, as torch.nn.utils.spectral_norm does
    certificate = None
    if isinstance(recurrence, RNN) and _is_unchanged(recurrence, RNN, "advance", "cell", "phi", "run_kernel"):
        certificate = _certify_rnn(recurrence, inputs)
    elif isinstance(recurrence, LSTM) and _is_unchanged(recurrence, LSTM, "advance", "cell", "run_kernel"):
        certificate = _certify_lstm(recurrence, inputs) if starts_itself else None
    return None if certificate is None or math.isnan(certificate.bound) else certificate


def _is_unchanged(layer: Layer, owner: type, *methods: str) -> bool:
    """True if the equations are still the owner's: nothing is proved about those that a subclass changed."""
    if not layer.unchanged_from(Layer, *_EQUATIONS) or not layer.unchanged_from(owner, *methods):
        return False
    return not any(name in vars(layer) for name in (*_EQUATIONS, *methods))


def start_sizes(recurrence: Recurrence, batch: int) -> list[Tensor] | None:
    """Return the largest moduli (layers, n) of the model's own start states over the batch; None if they are random."""
    one = leaves(recurrence.initial_state(batch))
    other = leaves(recurrence.initial_state(batch))
    if not all(torch.equal(a, b) for a, b in zip(one, other, strict=True)):
        return None
    return [tensor.detach().abs().amax(1).double().cpu() for tensor in one]


def _start_norm(recurrence: Recurrence, batch: int) -> float:
    """Return the largest Euclidean norm of a start state over the batch; NaN if it is random."""
    one = recurrence.initial_state(batch)
    if not torch.equal(one, recurrence.initial_state(batch)):
        return math.nan
    return float(torch.linalg.vector_norm(one.double(), dim=-1).max())


def _certify_rnn(layer: RNN, inputs: Tensor) -> Certificate | None:
    # The factors of each layer's recurrence and of its input weights.
    own = []
    between = []
    for index in range(layer.num_layers):
        w = layer.weights(index)
        phi = _nonlinearity(layer, w)
        if phi is None:
            return None
        own.append(phi.lipschitz * spectral_norm(w.weight_hh))
        gain = 1.0 if layer.preactivation else phi.lipschitz  # V phi(h) + U x is what the next layer reads
        between.append(gain * spectral_norm(w.weight_ih))

    # One norm for the whole stack.
    matrix = _stack_matrix(own, between)
    bound = spectral_norm(matrix)
    if bound < 1 or max(own) >= 1:
        lam, norm = bound, EUCLIDEAN
    else:
        lam, norm = _weighted_layers(matrix, (1 + max(own)) / 2)
    return Certificate(
        lam=lam,
        norm=norm,
        plain=EUCLIDEAN,
        bound=bound,
        factors=tuple(own),
        condition=_rnn_condition(own, between, lam),
        constants=_rnn_constants(layer, inputs) if layer.num_layers == 1 and not layer.preactivation else None,
    )


def _stack_matrix(own: list[float], between: list[float]) -> Tensor:
    """Return M (L, L) of d' <= M d: row l is lam_l e_l + mu_l (row l - 1)."""
    matrix = torch.diag(torch.tensor(own, dtype=torch.float64))
    for layer in range(1, len(own)):
        matrix[layer] += between[layer] * matrix[layer - 1]
    return matrix


def _weighted_layers(matrix: Tensor, rate: float) -> tuple[float, StateNorm]:
    """Return a factor of at most `rate`, which is above every layer's own, and the norm in which it holds."""
    one = torch.ones(len(matrix), dtype=torch.float64)
    w = torch.linalg.solve_triangular(torch.eye(len(matrix)).double() - matrix / rate, one[:, None], upper=False)[:, 0]
    w = w / w[0]
    shown = ", ".join(f"{float(weight):.3g}" for weight in w)
    lam = float((matrix @ w / w).max())
    return lam, StateNorm(f"norm max over layers of ||h_l|| / w_l with w = ({shown})", w)


def _rnn_condition(own: list[float], between: list[float], lam: float) -> str:
    if len(own) == 1:
        return f"||V|| L_phi = {own[0]:.4g} for every input (Miller & Hardt 2018, section 6.2)"
    each = ", ".join(f"{factor:.4g}" for factor in own)
    inputs = ", ".join(f"{factor:.4g}" for factor in between[1:])
    return (
        f"||V_l|| L_phi = {each} of the layers, ||U_l|| L_phi = {inputs} between them: together {lam:.4g} for every "
        "input (Miller & Hardt 2018, section 6.2, for the stack as one system)"
    )


def _rnn_constants(layer: RNN, inputs: Tensor) -> SystemConstants | None:
    start = _start_norm(layer, inputs.shape[1])
    w = layer.weights(0)
    phi = _nonlinearity(layer, w)
    if phi is None or math.isnan(start):
        return None
    size = float(torch.linalg.vector_norm(inputs.double(), dim=-1).max())
    return rnn_constants(*_tensors(w), input_bound=size, nonlinearity=phi, start=start)


def _nonlinearity(layer: RNN, w: Weights) -> Nonlinearity | None:
    """Return the layer's non-linearity if its Lipschitz constant is known."""
    if layer.modrelu:
        continuous = float(w.bias_modrelu.max()) <= 0  # with a positive bias, modReLU jumps at the origin
        return Nonlinearity(1.0, math.inf, math.inf) if continuous else None
    if not isinstance(layer.nonlinearity, str) or layer.nonlinearity not in NONLINEARITIES:
        return None
    # The name could have been changed after the layer was made: the function is what counts.
    z = torch.linspace(-4, 4, 33, dtype=torch.float64)
    known = {"tanh": z.tanh(), "relu": z.relu(), "sigmoid": z.sigmoid(), "identity": z}
    return NONLINEARITIES[layer.nonlinearity] if torch.equal(layer.phi(w, z), known[layer.nonlinearity]) else None


def _certify_lstm(layer: LSTM, inputs: Tensor) -> Certificate | None:
    start = start_sizes(layer, inputs.shape[1])
    if start is None:
        return None
    largest = float(inputs.abs().max())
    matrix, factors = _lstm_comparison(layer, start, largest)

    # One norm for the whole stack: plain if that is enough, else weighted.
    plain = StateNorm("infinity norm", torch.ones(len(matrix), dtype=torch.float64))
    lam = total = float(matrix.sum(1).max())
    norm = plain
    if not total < 1 and _contracts_in_some_norm(matrix):
        w = comparison_weights(matrix)
        weighted = math.inf if w is None else float((matrix @ w / w).max())
        if w is not None and weighted < 1:
            lam = weighted
            weights = _flat_order(w / w.min(), layer.num_layers, layer.hidden_size)
            norm = StateNorm("weighted infinity norm max |s_i| / w_i", weights)
    return Certificate(
        lam=lam,
        norm=norm,
        plain=plain,
        bound=total,
        factors=tuple(factors),
        condition=(
            f"the comparison matrix of the whole state has row sums of {total:.4g}, in the norm used {lam:.4g}, for "
            f"inputs |x| <= {largest:.4g} (Miller & Hardt 2018, Proposition 5)"
        ),
        constants=_lstm_constants(layer, start, largest) if layer.num_layers == 1 else None,
    )


def _contracts_in_some_norm(matrix: Tensor) -> bool:
    """True if the spectral radius of M >= 0 is below 1: exactly then v = (I - M)^-1 1 is positive, with M v < v.

    To solve for v takes a small part of the time that the eigenvalues of a large M take.
    """
    if not bool(matrix.isfinite().all()):
        return False
    v = torch.linalg.solve_ex(torch.eye(len(matrix)).double() - matrix, matrix.new_ones(len(matrix))).result
    return bool((v > 0).all())


def _lstm_comparison(layer: LSTM, start: list[Tensor], bound: float) -> tuple[Tensor, list[float]]:
    """Return the stack's comparison matrix (2 n L, 2 n L), by layer (c_l, h_l), and each layer's own factor.

    Each on the box of states that the layer can reach from its own start under inputs |x| <= bound.
    """
    n = layer.hidden_size
    size = 2 * n * layer.num_layers
    matrix = torch.zeros(size, size, dtype=torch.float64)
    factors = []
    for index in range(layer.num_layers):
        weights = _tensors(layer.weights(index))
        begin = (start[1][index], start[0][index])  # |c_0|, |h_0|
        rows = slice(2 * n * index, 2 * n * (index + 1))
        own = comparison_matrix(*weights, input_bound=bound, start=begin)
        matrix[rows, rows] = own
        if index:
            below = matrix[2 * n * index - n : 2 * n * index]  # how h of the layer below moves
            matrix[rows] += input_comparison(*weights, input_bound=bound, start=begin) @ below
        factors.append(float(own.sum(1).max()))
        at = gate_bounds(*weights, input_bound=bound, start=begin)
        bound = float(at.h.max())  # what the next layer reads
    return matrix, factors


def _flat_order(weights: Tensor, layers: int, n: int) -> Tensor:
    """Return weights given by layer as (c_l, h_l) in the order of a flat state: h of all layers, then c."""
    by_layer = weights.view(layers, 2, n)
    return torch.cat([by_layer[:, 1].flatten(), by_layer[:, 0].flatten()])


def _lstm_constants(layer: LSTM, start: list[Tensor], input_bound: float) -> SystemConstants:
    weights = _tensors(layer.weights(0))
    return lstm_constants(*weights, input_bound=input_bound, start=(start[1][0], start[0][0]))


def _tensors(w: Weights) -> list[Tensor]:
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(w, name) for name in names if hasattr(w, name)]


@torch.no_grad()
def rounding(recurrence: Recurrence, x: Tensor, states: Tensor) -> float:
    """Return how large the rounding error of a step on inputs x and flat states can be, generously."""
    size = max(1.0, float(x.abs().max()), float(states.abs().max()))
    weights = [p.detach().abs().double() for p in recurrence.parameters() if p.numel()]
    reach = sum(float(w.flatten(1).sum(1).max() if w.dim() > 1 else w.max()) for w in weights)
    return 64 * torch.finfo(states.dtype).eps * size * max(1.0, reach)


@torch.no_grad()
def nearest_stable(layer: Recurrence, lam: float, inputs: Tensor) -> Recurrence | None:
    """Return a copy of the layer moved to the nearest `lam`-contractive weights; None if no such set is known.

    None also if a weight is no parameter but what a hook computes from others: those would have to be moved.
    """
    if not isinstance(layer, Layer) or layer.proj_size:
        return None
    weights = [weight for index in range(layer.num_layers) for weight in vars(layer.weights(index)).values()]
    if not all(isinstance(weight, nn.Parameter) for weight in weights):
        return None
    moved = copy.deepcopy(layer)
    try:
        return project_(moved, lam, input_bound=max(float(inputs.abs().max()), 1e-6))
    except (MnemoscopeError, TypeError):
        return None
