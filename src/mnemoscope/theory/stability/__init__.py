"""When recurrent models don't need to be recurrent (Miller & Hardt 2018).

From the weights and a bound on the inputs: ``system = rnn_constants(U, V, input_bound=1.0)`` (or `linear_constants`,
`lstm_constants`), then ``context_length(system, eps)`` says how many inputs suffice, and `Truncated` is the
feed-forward net that reads no more. `lstm_certificate` tells how strongly an LSTM contracts.
"""

from mnemoscope.theory.stability._constants import (
    NONLINEARITIES,
    Nonlinearity,
    SystemConstants,
    context_length,
    linear_constants,
    prediction_gap,
    rnn_constants,
    spectral_norm,
    state_gap,
)
from mnemoscope.theory.stability._counterexamples import (
    ScalarSystem,
    identity_descent,
    identity_gradient,
    truncation_error,
)
from mnemoscope.theory.stability._descent import (
    LossConstants,
    gradient_gap,
    loss_smoothness,
    squared_loss,
    trained_prediction_gap,
    training_context_length,
    trajectory_gap,
    truncation_gamma,
    weight_gap,
    weight_gap_closed,
)
from mnemoscope.theory.stability._lstm import (
    Certificate,
    GateBounds,
    comparison_matrix,
    comparison_weights,
    euclidean_iterations,
    forget_bound,
    gate_bounds,
    input_comparison,
    lstm_certificate,
    satisfies_proposition_5,
    weighted_rate,
)
from mnemoscope.theory.stability._lstm_smoothness import lstm_constants
from mnemoscope.theory.stability._truncation import Truncated, Window

__all__ = [
    "NONLINEARITIES",
    "Certificate",
    "GateBounds",
    "LossConstants",
    "Nonlinearity",
    "ScalarSystem",
    "SystemConstants",
    "Truncated",
    "Window",
    "comparison_matrix",
    "comparison_weights",
    "context_length",
    "euclidean_iterations",
    "forget_bound",
    "gate_bounds",
    "gradient_gap",
    "identity_descent",
    "identity_gradient",
    "input_comparison",
    "linear_constants",
    "loss_smoothness",
    "lstm_certificate",
    "lstm_constants",
    "prediction_gap",
    "rnn_constants",
    "satisfies_proposition_5",
    "spectral_norm",
    "squared_loss",
    "state_gap",
    "trained_prediction_gap",
    "training_context_length",
    "trajectory_gap",
    "truncation_error",
    "truncation_gamma",
    "weight_gap",
    "weight_gap_closed",
    "weighted_rate",
]
