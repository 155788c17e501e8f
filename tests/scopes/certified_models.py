"""Layers, inputs and attacks for the tests of certificates."""

import copy

import torch
from torch import nn

from mnemoscope import LSTM
from mnemoscope.recurrence import leaves, rebuild
from mnemoscope.scopes._measures.state_vectors import advance, flatten
from mnemoscope.theory.stability import gate_bounds


def starting_at(kind, value, how="constant"):
    """A subclass whose states begin elsewhere than at zero."""

    class Started(kind):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            if how == "learned":
                self.start = nn.Parameter(torch.full((self.hidden_size,), float(value)))

        def initial_state(self, batch):
            zeros = super().initial_state(batch)
            tensors = []
            for tensor in leaves(zeros):
                shift = torch.full_like(tensor, value)
                if how == "learned":
                    shift = self.start.to(tensor).expand_as(tensor)
                elif how == "random":
                    shift = value * torch.randn_like(tensor)
                tensors.append(tensor + shift)
            return rebuild(zeros, tensors)

    return Started


def with_spectral_norms(layer, norm):
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if "weight_hh" in name:
                weight.mul_(norm / torch.linalg.matrix_norm(weight, ord=2))
    return layer


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reachable_box(layer, x):
    """Bounds (D,) of a flat state of an LSTM: its certificate holds inside. None for an RNN: it holds everywhere."""
    if not isinstance(layer, LSTM):
        return None
    h_0, c_0 = (t.detach().abs().amax(1).double() for t in layer.initial_state(x.shape[1]))
    bound = float(x.abs().max())
    h, c = [], []
    for index in range(layer.num_layers):
        at = gate_bounds(*vars(layer.weights(index)).values(), input_bound=bound, start=(c_0[index], h_0[index]))
        h.append(at.h)
        c.append(at.c)
        bound = float(at.h.max())
    return torch.cat([*h, *c]).detach()


def attack_pairs(layer, norm, x, rounds=60, pairs=24, steps=1):
    """The largest ratio N(after) / N(before) that gradient ascent finds over pairs of states and inputs."""
    layer = copy.deepcopy(layer).double().requires_grad_(False)
    size = float(x.abs().max())
    like = layer.initial_state(pairs)
    dim = flatten(like).shape[1]
    box = reachable_box(layer, x)
    a, b = noise(pairs, dim, seed=1), noise(pairs, dim, seed=2)
    b = a + b * 10 ** torch.linspace(-3, 0.5, pairs, dtype=torch.float64)[:, None]
    u = noise(pairs, layer.input_size, seed=3)
    variables = [t.clone().requires_grad_() for t in (a, b, u)]
    optimizer = torch.optim.Adam(variables, lr=0.1)
    best = 0.0
    for _ in range(rounds):
        a, b, u = variables
        one, other = (a, b) if box is None else (box * a.tanh(), box * b.tanh())
        inputs = size * u.tanh()
        before = norm.of(one - other)
        for _ in range(steps):
            one, other = (advance(layer, inputs, state, like) for state in (one, other))
        ratio = norm.of(one - other) / before.clamp(min=1e-6)
        best = max(best, float(ratio.detach().max()))
        optimizer.zero_grad()
        ratio.clamp(min=1e-12).log().sum().neg().backward()
        optimizer.step()
    return best
