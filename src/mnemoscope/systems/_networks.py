"""Networks of which something is known: the chaotic LSTM, random tanh networks, random arithmetic circuits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mnemoscope.errors import check_count
from mnemoscope.layers import LSTM, RAC, RNN
from mnemoscope.recurrence import State
from mnemoscope.systems._system import Known, check_positive
from mnemoscope.theory.separation import shallow_rank
from mnemoscope.theory.smoothness import chaotic_lstm, stability_limit

CHAOTIC_EXPONENT = 0.1687  # at s = 1; three runs of 100,000 steps gave 0.1691, 0.1670 and 0.1699


class ChaoticLSTM(LSTM):
    """The LSTM of two units of Ribeiro et al. 2019 (section 3.1), with s times its weights; chaotic at s = 1.

    It starts at h = c = 0.5, without bias, and ignores its one input.
    """

    steps = 2000

    def __init__(self, s: float = 1.0) -> None:
        super().__init__(1, 2, bias=False, dtype=torch.float64)
        self.s = float(s)
        weights = chaotic_lstm(self.s)
        with torch.no_grad():
            self.weights(0).weight_ih.copy_(weights.weight_ih)
            self.weights(0).weight_hh.copy_(weights.weight_hh)

    def initial_state(self, batch: int) -> State:
        half = self.weights(0).weight_hh.detach().new_full((1, batch, 2), 0.5)
        return half, half.clone()

    def inputs(self, steps: int | None = None, batch: int = 1, seed: int = 0) -> Tensor:
        """Return zeros (steps, batch, 1): it ignores them."""
        return torch.zeros(steps or self.steps, batch, 1, dtype=torch.float64)

    def known(self) -> tuple[Known, ...]:
        """Return the answers that are known for this s."""
        if self.s == 1:
            source = "growth of a tangent vector over 300,000 steps, in an independent program"
            return (Known("lyapunov", "largest", CHAOTIC_EXPONENT, 0.03, source, uncertainty=0.002),)
        if 0 < self.s < 0.7:  # nearer to the limit of 0.784 another attractor is beside the origin
            radius = _origin_radius(self.s)
            source = f"the origin is stable up to s = {stability_limit():.3f}"
            return (
                Known("lyapunov", "largest", math.log(radius), 0.01, f"{source}: ln |1/2 + s mu / 4|"),
                Known("attractors", "attractors", 1.0, 0.0, source),
                Known("attractors", "stable_fixed_points", 1.0, 0.0, source),
            )
        return ()


def _origin_radius(s: float) -> float:
    """|1/2 + s mu / 4| for the eigenvalues mu = -5 +- i sqrt 20 of W_hg: the spectral radius at the origin."""
    return abs(complex(0.5 - 1.25 * s, s * math.sqrt(20) / 4))


class RandomTanhNetwork(RNN):
    """h' = tanh(V h + U x), V of independent normal numbers with variance gain^2 / units (Sompolinsky et al. 1988).

    Without input, the origin is stable where V's spectral radius is below 1, and the only attractor where ||V|| is;
    large networks of a gain above 1 are chaotic.
    """

    steps = 1000

    def __init__(self, units: int = 64, gain: float = 0.9, seed: int = 0) -> None:
        check_count("units", units)
        check_positive("gain", gain)
        super().__init__(1, units, bias=False, dtype=torch.float64)
        self.gain = float(gain)
        generator = torch.Generator().manual_seed(seed)
        normal = torch.randn(units, units, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            self.weights(0).weight_hh.copy_(self.gain / math.sqrt(units) * normal)

    def inputs(self, steps: int | None = None, batch: int = 1, seed: int = 0) -> Tensor:
        """Return zeros (steps, batch, 1)."""
        return torch.zeros(steps or self.steps, batch, 1, dtype=torch.float64)

    def known(self) -> tuple[Known, ...]:
        """Return the answers that are known for these weights."""
        V = self.weights(0).weight_hh.detach()
        radius = float(torch.linalg.eigvals(V).abs().max())
        norm = float(torch.linalg.matrix_norm(V, ord=2))
        known = [Known("stability", "bound", norm, 1e-9, "||V||, the slope of tanh being at most 1")]
        if radius >= 1:
            return tuple(known)
        volume = float(torch.linalg.slogdet(V).logabsdet)
        known += [Known("lyapunov", "largest", math.log(radius), 0.02, "ln of V's spectral radius, at the origin")]
        known += [Known("entropy", "change", volume, 1e-6, "ln|det V|, at the origin")]
        known += [Known("attractors", "stable_fixed_points", 1.0, 0.0, "the origin")]
        if radius < 0.99:
            known += [Known("attractors", "attractors", 1.0, 0.0, "20,000 steps from 200 starts end at the origin")]
        return tuple(known)


class RandomCircuit(RAC):
    """A recurrent arithmetic circuit with random weights, read at its state (Levine et al. 2018, eqs 4 and 5)."""

    steps = 8

    def __init__(self, values: int = 3, channels: int = 4, depth: int = 1, seed: int = 0) -> None:
        check_count("values", values)
        check_count("channels", channels)
        check_count("depth", depth)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(values, channels, depth, dtype=torch.float64)

    def inputs(self, steps: int | None = None, batch: int = 16, seed: int = 0) -> Tensor:
        """Return random one-hot sequences (steps, batch, values)."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(self.input_size, (steps or self.steps, batch), generator=generator)
        ids[0, : self.input_size] = torch.arange(self.input_size)[: ids.shape[1]]  # every value occurs
        return torch.nn.functional.one_hot(ids, self.input_size).double()

    def known(self) -> tuple[Known, ...]:
        """Return the separation rank that theorem 1 gives almost every circuit of depth 1."""
        rank = shallow_rank(self.hidden_size, self.input_size, self.steps)
        if self.num_layers > 1 or self.input_size == 1 or self.input_size > 4:  # `separation` joins up to four inputs
            return ()
        options = {"limit": rank} if rank > 64 else {}  # a rank is at most the number of sequences a side
        return (Known("separation", "exact_rank", float(rank), 0.0, "min{R, M^(T/2)} (theorem 1.1)", options),)
