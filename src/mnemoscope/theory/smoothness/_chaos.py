"""The chaotic LSTM of Ribeiro et al. 2019 (section 3.1 and appendix A.1): two units, no input, no bias."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacfwd

from mnemoscope.equations import lstm_cell
from mnemoscope.theory._statement import PAPERS, Row, statement


class ChaoticLSTM(NamedTuple):
    """An LSTM's weights in torch's layout (gates i, f, g, o) with one input that it ignores, and its initial state."""

    weight_ih: Tensor  # (8, 1), zero
    weight_hh: Tensor  # (8, 2)
    h: Tensor  # (2,)
    c: Tensor  # (2,)


def chaotic_lstm(s: float = 1.0, *, printed: bool = False, dtype: torch.dtype = torch.float64) -> ChaoticLSTM:
    """The LSTM with the weights theta(s) = s theta_true; at s = 1 it is chaotic.

    Two signs of the printed matrices are wrong: W_hi[0, 1] is -4 and W_ho[1, 1] is -7. With ``printed=True`` they are
    as in the text, and s = 1 is a cycle of six states. Compute in float64: float32 leaves the orbit within 80 steps.

    Examples:
        >>> from mnemoscope.theory import chaotic_lstm
        >>> chaotic_lstm(s=1.0).weight_hh.shape
        torch.Size([8, 2])
    """
    sign = 1.0 if printed else -1.0
    W_i = [[-1.0, sign * 4.0], [-3.0, -2.0]]
    W_f = [[-2.0, 6.0], [0.0, -6.0]]
    W_g = [[-1.0, -6.0], [6.0, -9.0]]
    W_o = [[4.0, 1.0], [-9.0, sign * 7.0]]
    weight_hh = s * torch.tensor(W_i + W_f + W_g + W_o, dtype=torch.float64)
    start = torch.full((2,), 0.5, dtype=dtype)
    return ChaoticLSTM(torch.zeros(8, 1, dtype=dtype), weight_hh.to(dtype), start, start.clone())


def step(state: Tensor, weight_hh: Tensor) -> Tensor:
    """One step of (h, c) (..., 4) without input (eqs 10-11)."""
    h, c = state.chunk(2, -1)
    return torch.cat(lstm_cell(h @ weight_hh.T, c), -1)


def orbit(lstm: ChaoticLSTM, steps: int) -> Tensor:
    """(h_t, c_t) for t = 0 .. steps: (steps + 1, 4)."""
    states = [torch.cat([lstm.h, lstm.c])]
    for _ in range(steps):
        states.append(step(states[-1], lstm.weight_hh))
    return torch.stack(states)


def largest_exponent(lstm: ChaoticLSTM, steps: int = 1000, discard: int = 200) -> float:
    """The largest Lyapunov exponent along the orbit: the mean growth of log||v|| of a tangent vector."""
    states = orbit(lstm, discard + steps)[discard:-1]
    jacobians = torch.vmap(jacfwd(step), (0, None))(states, lstm.weight_hh)
    v = torch.ones(4, dtype=states.dtype) / 2
    total = 0.0
    for J in jacobians.unbind(0):
        v = J @ v
        size = float(v.norm())
        total = total + math.log(size)
        v = v / size
    return total / steps


def stability_limit() -> float:
    """s* at which the origin loses stability: |1/2 + s/4 mu| = 1 for the eigenvalues mu = -5 +- i sqrt(20) of W_hg.

    At the origin all gates are 1/2 and h = c/2 after one step, so c -> (1/2 + s/4 W_hg) c.
    """
    return (1.25 + math.sqrt(10)) / 5.625


@statement(
    "ribeiro-chaotic-lstm",
    paper=PAPERS["smoothness"],
    where="section 3.1, A.1, eqs 10-11, fig. 1",
    status="corrected",
    claim="an LSTM with two units is chaotic at s = 1, and its origin is stable up to s = 0.784",
    correction="Two signs are misprinted: W_hi[0, 1] = -4 and W_ho[1, 1] = -7. With the printed ones the orbit at "
    "s = 1 is a cycle of six states.",
)
def chaos() -> Iterator[Row]:
    yield Row("s=1: largest Lyapunov exponent is positive", 0.05, largest_exponent(chaotic_lstm(1.0)), ">=")
    printed = orbit(chaotic_lstm(1.0, printed=True), 6000)[-60:]
    yield Row("s=1, printed signs: distance after six steps", 1e-5, float((printed[6:] - printed[:-6]).abs().max()))
    half = largest_exponent(chaotic_lstm(0.5), steps=300, discard=100)
    yield Row("s=0.5: exponent, ln(21/64)/2", math.log(21 / 64) / 2, half, "==", tolerance=0.02)
    limit = stability_limit()
    near = torch.full((2,), 1e-4, dtype=torch.float64)
    below, above = (orbit(chaotic_lstm(limit + d)._replace(h=near, c=near), 400)[-1] for d in (-0.02, 0.02))
    yield Row(f"s={limit - 0.02:.3f}: ||(h, c)|| after 400 steps from 1e-4", 1e-8, float(below.norm()))
    yield Row(f"s={limit + 0.02:.3f}: ||(h, c)|| after 400 steps from 1e-4", 1e-2, float(above.norm()), ">=")
