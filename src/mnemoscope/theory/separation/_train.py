"""The weights tensor of a shallow circuit: a tensor train, or matrix product state (eqs 6 and 7, fig. 4c)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.separation._circuit import Circuit, grid_matrix, identity, random_circuit, random_templates
from mnemoscope.theory.separation._grid import start_end
from mnemoscope.theory.separation._modular import PRIMES, apply, exact_rank, times

Array = np.ndarray


def tensor_train(circuit: Circuit, length: int) -> list[Array]:
    """The T cores of the weights tensor, (k_{t-1}, d_t, k_t), with A_{d_1..d_T} = G_1[d_1] G_2[d_2] ... G_T[d_T].

    The core of B.3.1 is M_{k' d k} = W_I[k, d] W_H[k, k']; the first meets W_H h_0 in place of a bond, the last W_O.
    So W_H enters T - 1 times. Equation 7 starts from phi^{2,b} = sum_a a^{H,b}_a a^{I,a} x a^{I,a}, which holds one
    W_H too few: phi^{1,b} must be sum_a a^{H,b}_a a^{I,a}, and from there its recursion is right.
    """
    if circuit.depth != 1:
        raise MnemoscopeError(f"only depth 1 has a weights tensor (section 3.2), got depth {circuit.depth}")
    by_input = circuit.input_weights[0].T
    hidden = circuit.hidden_weights[0]
    prime = circuit.prime
    core = times(hidden.T[:, None, :], by_input[None], prime)  # (k', d, k)
    first = times(circuit.initial[:, None, :], by_input[None], prime)  # (1, d, k)
    cores = [first] + [core] * (length - 1)
    return [*cores[:-1], apply(circuit.output_weights[None], cores[-1], prime)]


def weights_tensor(circuit: Circuit, length: int) -> Array:
    """A_{d_1..d_T} of eqs 6 and 7, an array of shape (M,) * T: the contracted tensor train."""
    cores = tensor_train(circuit, length)

    def join(left: Array, core: Array) -> Array:  # (M^t, k'), (k', M, k) -> (M^(t+1), k)
        return apply(core.reshape(len(core), -1).T, left, circuit.prime).reshape(-1, core.shape[-1])

    return reduce(join, cores, identity(1, circuit.prime)).reshape((circuit.inputs,) * length)


def change_templates(tensor: Array, templates: Array, prime: int | None = None) -> Array:
    """(F x ... x F)(A): the grid tensor on template vectors F_id = f_d(x^(i)), from the weights tensor (B.1)."""
    for _ in range(tensor.ndim):
        tensor = np.moveaxis(apply(templates, np.moveaxis(tensor, 0, -1), prime), -1, tensor.ndim - 1)
    return tensor


@statement(
    "levine-equation-7",
    paper=PAPERS["separation"],
    where="eqs 6 and 7, B.3.1",
    status="corrected",
    claim="the output of a shallow circuit is its tensor train contracted with the inputs",
    correction="phi^1 is W_H W_I; eq. 7 as printed starts one W_H short and is not the network's tensor from T = 2 on",
)
def equation_7() -> Iterator[Row]:
    for channels, inputs, length in [(2, 2, 2), (3, 2, 8), (2, 3, 6), (5, 4, 4)]:
        circuit = random_circuit(1, channels, inputs, np.random.default_rng(length), PRIMES[0], free_start=True)
        equal = start_end(weights_tensor(circuit, length)) == grid_matrix(circuit, length)
        yield Row(f"equal entries, R={channels} M={inputs} T={length}", equal.size, int(equal.sum()), "==")


@statement(
    "levine-claim-1",
    paper=PAPERS["separation"],
    where="claim 1, eq. 8, B.1",
    status="holds",
    claim="with M independent template vectors, grid tensor and weights tensor have the same Start-End rank",
)
def claim_1() -> Iterator[Row]:
    for channels, inputs, length in [(3, 2, 6), (5, 2, 6), (2, 3, 4), (7, 3, 4)]:
        rng = np.random.default_rng(channels)
        circuit = random_circuit(1, channels, inputs, rng, PRIMES[0])
        templates = random_templates(inputs, inputs, rng, PRIMES[0])
        grid = exact_rank(grid_matrix(circuit, length, templates))
        case = f"rank of the grid tensor, R={channels} M={inputs} T={length}"
        yield Row(case, exact_rank(start_end(weights_tensor(circuit, length))), grid, "==")
