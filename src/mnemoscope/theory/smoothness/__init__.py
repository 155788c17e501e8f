"""The trade-off between long-term memory and smoothness for recurrent networks (Ribeiro et al. 2019).

How steep a cost can be: ``joint_constants(system, L_g)``, then `cost_lipschitz` and `gradient_lipschitz`. What a state
can tell: `entropy_change` and its bound. Derivatives forward in time: `sensitivities`. A chaotic LSTM: `chaotic_lstm`.
"""

from mnemoscope.theory.smoothness import _statements as _statements
from mnemoscope.theory.smoothness._chaos import ChaoticLSTM, chaotic_lstm, stability_limit
from mnemoscope.theory.smoothness._cost import (
    JointConstants,
    P,
    Q,
    Regime,
    amplification,
    contractive_unit,
    cost_lipschitz,
    gradient_lipschitz,
    joint_constants,
    output_bound,
    regime,
)
from mnemoscope.theory.smoothness._entropy import entropy_bound, entropy_change, gaussian_entropy, hadamard_bound
from mnemoscope.theory.smoothness._invariance import invariant_ball, leaves_box, origin_drift
from mnemoscope.theory.smoothness._losses import (
    LossProperties,
    cross_entropy,
    product_lipschitz,
    squared_error,
    sum_lipschitz,
)
from mnemoscope.theory.smoothness._sensitivity import cost_gradient, sensitivities, simulate, unrolled

__all__ = [
    "ChaoticLSTM",
    "JointConstants",
    "LossProperties",
    "P",
    "Q",
    "Regime",
    "amplification",
    "chaotic_lstm",
    "contractive_unit",
    "cost_gradient",
    "cost_lipschitz",
    "cross_entropy",
    "entropy_bound",
    "entropy_change",
    "gaussian_entropy",
    "gradient_lipschitz",
    "hadamard_bound",
    "invariant_ball",
    "joint_constants",
    "leaves_box",
    "origin_drift",
    "output_bound",
    "product_lipschitz",
    "regime",
    "sensitivities",
    "simulate",
    "squared_error",
    "stability_limit",
    "sum_lipschitz",
    "unrolled",
]
