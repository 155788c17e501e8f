"""The mathematics that every recurrent network rests on (Nabli 2019, six questions), one file for each question.

Initialization that keeps variances (1), dropout as ridge regression (2), momentum as a running average (3), weight
normalization (4), recurrences whose gradients vanish (5), bidirectional gradients (6).
"""

from mnemoscope.theory.foundations._bidirectional import Direction, bidirectional_gradients, computational_graph
from mnemoscope.theory.foundations._dropout import column_norms, dropout_minimizer, expected_loss, ridge_minimizer
from mnemoscope.theory.foundations._initialization import (
    preactivation_variance,
    variances_through_layers,
    weight_scale,
)
from mnemoscope.theory.foundations._momentum import (
    as_running_average,
    bias_corrected,
    momentum_updates,
    running_average,
    running_average_updates,
)
from mnemoscope.theory.foundations._normalization import (
    batch_normalized,
    norm_after_step,
    normalized_gradient,
    normalized_weight,
)
from mnemoscope.theory.foundations._vanishing import (
    activation_states,
    common_spectrum,
    gradient_bound,
    may_explode,
    preactivation_states,
)

__all__ = [
    "Direction",
    "activation_states",
    "as_running_average",
    "batch_normalized",
    "bias_corrected",
    "bidirectional_gradients",
    "column_norms",
    "common_spectrum",
    "computational_graph",
    "dropout_minimizer",
    "expected_loss",
    "gradient_bound",
    "may_explode",
    "momentum_updates",
    "norm_after_step",
    "normalized_gradient",
    "normalized_weight",
    "preactivation_states",
    "preactivation_variance",
    "ridge_minimizer",
    "running_average",
    "running_average_updates",
    "variances_through_layers",
    "weight_scale",
]
