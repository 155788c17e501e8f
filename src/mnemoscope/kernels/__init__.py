"""The same mathematics fused over time, for the CPU and for CUDA. Layers choose by themselves; `backend` overrides."""

from mnemoscope.kernels._again import AsNow
from mnemoscope.kernels._dispatch import backend, followed, portably, supported
from mnemoscope.kernels._fused import (
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
from mnemoscope.kernels._input_projection import join, joins
from mnemoscope.kernels._scan import linear
from mnemoscope.kernels._state_gradients import Walk, note, noted, noting

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
