"""The same mathematics fused over time, for the CPU and for CUDA. Layers choose by themselves; `backend` overrides."""

from mnemoscope.kernels.again import AsNow
from mnemoscope.kernels.fused import (
    Attended,
    Attention,
    Backtracking,
    Bank,
    attentive,
    final,
    goru,
    lstm,
    rac,
    rnn,
    sab,
)
from mnemoscope.kernels.joined import join, joins
from mnemoscope.kernels.scan import linear
from mnemoscope.kernels.selection import backend, followed, portably, supported
from mnemoscope.kernels.walks import Walk, note, noted, noting

__all__ = [
    "AsNow",
    "Attended",
    "Attention",
    "Backtracking",
    "Bank",
    "Walk",
    "attentive",
    "backend",
    "final",
    "followed",
    "goru",
    "join",
    "joins",
    "linear",
    "lstm",
    "note",
    "noted",
    "noting",
    "portably",
    "rac",
    "rnn",
    "sab",
    "supported",
]
