"""Systems whose answers are known: what the scopes are calibrated with, and examples to look at.

Each is an ordinary recurrence with `inputs()`, the sequences to examine it on, and `known()`, the figures whose true
values are known. On the command line they are ``mnemoscope examine system:henon``.
"""

from collections.abc import Callable

from mnemoscope.systems._maps import CatMap, HenonMap, LogisticMap, Lorenz
from mnemoscope.systems._memories import DelayLine, LeakySum
from mnemoscope.systems._networks import ChaoticLSTM, RandomCircuit, RandomTanhNetwork
from mnemoscope.systems._system import Known, KnownSystem, System

SYSTEMS: dict[str, Callable[..., KnownSystem]] = {
    "chaotic-lstm": ChaoticLSTM,
    "henon": HenonMap,
    "logistic": LogisticMap,
    "cat-map": CatMap,
    "lorenz": Lorenz,
    "delay-line": DelayLine,
    "leaky-sum": LeakySum,
    "random-tanh": RandomTanhNetwork,
    "circuit": RandomCircuit,
}
"""Every system by the name it has on the command line."""

__all__ = [
    "SYSTEMS",
    "CatMap",
    "ChaoticLSTM",
    "DelayLine",
    "HenonMap",
    "Known",
    "KnownSystem",
    "LeakySum",
    "LogisticMap",
    "Lorenz",
    "RandomCircuit",
    "RandomTanhNetwork",
    "System",
]
