"""The operators whose compiled loop needs nothing beside their arguments and results."""

from __future__ import annotations

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cpu.run import Loop

for operator in (
    op.rnn_forward,
    op.rnn_backward,
    op.rnn_backward_with_inputs,
    op.lstm_forward,
    op.lstm_backward,
    op.lstm_backward_with_inputs,
    op.rac_forward,
    op.rac_backward,
    op.goru_forward,
    op.goru_backward,
    op.gru_forward,
    op.gru_backward,
    op.sab_forward,
    op.sab_backward,
):
    operator.implement("cpu")(Loop(operator))
