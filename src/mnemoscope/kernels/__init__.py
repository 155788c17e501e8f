"""The same mathematics fused over time, for the CPU and for CUDA. Layers choose by themselves; `backend` overrides."""

from mnemoscope.kernels.fused import Attended, Attention, Bank, attentive, final, goru, lstm, rac, rnn
from mnemoscope.kernels.selection import backend, supported

__all__ = [
    "Attended",
    "Attention",
    "Bank",
    "attentive",
    "backend",
    "final",
    "goru",
    "lstm",
    "rac",
    "rnn",
    "supported",
]
