"""How far back a network remembers: by its gradients, and by its outputs."""

from __future__ import annotations

import numpy as np
import torch

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures import decay
from mnemoscope.scopes._measures.gradients import JacobianNorms, by_inputs, by_inputs_and_states, of_loss

EXPLOSION = 100.0  # times the size at lag 0

HELP = """
The curve is the size of the derivative of the last output by what came k steps before it, relative
to k = 0. Where it lies under 1 % the network is hardly taught about anything that long ago.

On a logarithmic axis a straight line down means exponential forgetting, the fate of stable
networks; a curve that levels off is a power law or a memory. The band holds the middle half of the
sequences.

If the curve is under 1 % from the line “the task needs” on, training cannot find the dependency by
gradients. A network that looks something up may lie low in between and rise where the thing is. A
curve that climbs past 100 times its start means exploding gradients.

“By states” leaves the input weights out: it shows the recurrence alone.
"""


@scope(
    "How far back do gradients and outputs reach?",
    title="Memory horizon",
    help=HELP,
    needs="outputs",
    cost=6,
)
def horizon(
    subject: Subject, *, fraction: float = 0.01, directions: int = 1, states: bool = True, behavior: bool = True
) -> Finding:
    """Measure the size of d output_T / d input_{T-k} and of d output_T / d h_{T-k} against the lag k, all lags at once.

    Gradients are total: paths through attention count. The output at the last step is differentiated in `directions`
    random orthonormal directions per sequence, which estimates the Frobenius norm of the Jacobian. With as many
    directions as outputs the norms are exact, and the spectral ones are given too.

    Series by lag 0 .. T-1, medians over sequences (spread: quartiles (2, T)): `input_gradient`; `state_gradient`, if
    there is a step: by h of all layers of one of our layers, by the whole state of any other recurrence;
    `input_gradient_spectral` and `state_gradient_spectral`, if exact. By steps after a prefix in which two sequences
    differ: `difference_after_prefix`, relative to the last step of that prefix. By step, if targets and loss are
    given: `loss_gradient`, ||d loss / d input_t||, and `loss_gradient_by_state`, ||d loss / d h_t||.
    `horizon_by_sequence` (B,).

    Figures: `horizon`, the last lag with at least `fraction` of the size at lag 0; `first_below`, the first with less;
    `horizon_beside_present`, relative to lag 1 instead; `horizon_of_states`; `lags`, how many were looked at; `rate`
    per step and `exponent` of the two laws, `fit_quality`; `largest` size relative to lag 0, and `largest_lag`;
    `explodes_at`, where it exceeds 100 times that of lag 0; `agreement`, steps after which outputs of different
    prefixes differ by less than `fraction`. Labels: `law`.

    Args:
        fraction: of the size at lag 0, under which a gradient counts as gone.
        directions: output directions per sequence; each costs one more batch.
        states: measure gradients by states too. For one of our layers this costs one more product, or, with attention,
            one more backward pass; any other recurrence then runs step by step.
        behavior: compare outputs after two prefixes.
    """
    # Gradients of the last output by every input, and by every state.
    by_input, by_state = _gradients(subject, fraction, directions, states)
    subject.report(0.6)
    figures, law = _figures(by_input, fraction, subject.dtype)
    series, spread = _series("input_gradient", by_input)
    series["horizon_by_sequence"] = np.array([decay.last_above(row, fraction) for row in by_input.frobenius.T])
    if by_state is not None:
        state_series, state_spread = _series("state_gradient", by_state)
        series |= state_series
        spread |= state_spread
        figures["horizon_of_states"] = decay.last_above(series["state_gradient"], fraction)

    # The gradient of the loss, by step.
    if not subject.missing("loss"):
        loss_by_input, loss_by_state = of_loss(subject)
        series |= arrays(loss_gradient=loss_by_input)
        if loss_by_state is not None:
            series |= arrays(loss_gradient_by_state=loss_by_state)

    # Behavior: how long outputs differ after different beginnings.
    difference = _difference_after_prefix(subject) if behavior else None
    if difference is not None:
        figures["agreement"] = decay.last_above(difference, fraction) + 1.0
        series["difference_after_prefix"] = difference
    return Finding(
        "horizon",
        _sentence(figures, law, subject, fraction),
        "estimated",
        figures=figures,
        series=series,
        spread=spread,
        labels={"law": law.name},
        warnings=_warnings(figures, subject),
        assumptions=("the last step is typical of the others", "these sequences are typical of the data"),
        method=f"one backward pass from the last output in {directions} random direction(s) per sequence",
    )


def _gradients(
    subject: Subject, fraction: float, directions: int, states: bool
) -> tuple[JacobianNorms, JacobianNorms | None]:
    """Return the norms by inputs of the whole model and, if asked for and there is a step, by states."""
    if subject.steps < 2:
        raise MnemoscopeError("horizon needs sequences of at least 2 steps; got 1")
    if not 0 < fraction < 1:
        raise MnemoscopeError(f"fraction must lie between 0 and 1; got {fraction!r}")
    if not isinstance(directions, int) or directions < 1:
        raise MnemoscopeError(f"directions must be a whole number of at least 1; got {directions!r}")
    if not states or subject.missing("step"):
        return by_inputs(subject, directions), None
    if subject.adapted.recurrence_is_model:
        return by_inputs_and_states(subject, directions)
    return by_inputs(subject, directions), by_inputs_and_states(subject, directions)[1]


def _series(name: str, norms: JacobianNorms) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return medians over sequences, and their quartiles, by series name."""
    series = {name: decay.typical(norms.frobenius)}
    if norms.spectral is not None:
        series[f"{name}_spectral"] = decay.typical(norms.spectral)
    quartiles = np.quantile(norms.frobenius, [0.25, 0.75], axis=-1, method="nearest")
    return series, {name: quartiles}


def _figures(norms: JacobianNorms, fraction: float, dtype: torch.dtype) -> tuple[dict[str, float], decay.Law]:
    profile = decay.typical(norms.frobenius)
    if not np.isfinite(profile[0]):  # NaN at lag 0 is not an explosion on the way back
        raise MnemoscopeError(
            "the last output's gradient by its own input is NaN or infinite: give shorter or smaller inputs, or an "
            "earlier checkpoint"
        )
    law = decay.fit(profile, floor=torch.finfo(dtype).eps ** 2)
    relative = profile / profile[0] if profile[0] > 0 else np.zeros_like(profile)
    exploded = np.nonzero(~(relative <= EXPLOSION))[0]
    figures = {
        "horizon": decay.last_above(profile, fraction),
        "first_below": decay.first_below(profile, fraction),
        "horizon_beside_present": decay.last_above(profile[1:], fraction) + 1,
        "lags": len(profile) - 1,
        "rate": law.rate,
        "exponent": law.exponent,
        "fit_quality": law.quality,
        "largest": relative.max(),
        "largest_lag": relative.argmax(),
        "explodes_at": exploded[0] if len(exploded) else np.inf,
    }
    return {name: float(value) for name, value in figures.items()}, law


@torch.no_grad()
def _difference_after_prefix(subject: Subject) -> np.ndarray | None:
    """Return how much outputs differ after the first quarter if only that quarter of the inputs is different.

    Relative to the last step of that quarter. None for one output per sequence, or if outputs do not differ there.
    """
    x = subject.features
    prefix = max(1, subject.steps // 4)
    other = x.clone()
    if subject.batch > 1:
        other[:prefix] = x[:prefix].roll(1, 1)  # the beginning of another sequence of the batch
    else:
        noise = torch.randn(x[:prefix].shape, generator=subject.generator()).to(x)
        other[:prefix] = x.mean() + x.std() * noise
    y = subject.run(x)
    y_other = subject.run(other)
    if len(y) != subject.steps:
        return None
    difference = (y - y_other)[prefix - 1 :].norm(dim=-1).double().median(1).values.cpu().numpy()
    return difference / difference[0] if difference[0] > 0 else None


def _sentence(figures: dict[str, float], law: decay.Law, subject: Subject, fraction: float) -> str:
    horizon, lags = int(figures["horizon"]), int(figures["lags"])
    beside_present = int(figures["horizon_beside_present"])
    if figures["explodes_at"] < np.inf:
        grown = f"{figures['largest']:.2g} times their size" if np.isfinite(figures["largest"]) else "infinity"
        result = f"Gradients explode: {int(figures['largest_lag'])} steps back they have grown to {grown}"
    elif horizon < 0:
        result = "No gradient reaches back even to the last step's own input"
    elif horizon == 0 and beside_present > 0:
        result = (
            f"The present input outweighs every earlier one more than {1 / fraction:.3g} times; beside it, gradients "
            f"reach {beside_present} steps back"
        )
    elif horizon == lags:
        result = f"Gradients reach back over all {lags} steps that were looked at"
    else:
        result = f"Gradients reach {horizon} steps back, then fall under {100 * fraction:g} % of their size"
    need = f"; the task needs {subject.needs:g}" if subject.needs is not None else ""
    return f"{result}{need}{_law_in_words(law)}."


def _law_in_words(law: decay.Law) -> str:
    if law.name == "none":
        return ""
    if law.name == "power law":
        return f" (a power law of the lag, exponent {law.exponent:.2f})"
    return f" (exponential, times {law.rate:.3g} per step)"


def _warnings(figures: dict[str, float], subject: Subject) -> tuple[str, ...]:
    if figures["explodes_at"] < np.inf:
        return ("gradients explode: clip them, shorten the sequences, or use an orthogonal or stable recurrence",)
    if subject.needs is not None and figures["horizon"] < min(subject.needs, figures["lags"]):
        return ("gradients do not reach as far as the task needs: a layer that reaches further is RelLSTM or ExpRNN",)
    if subject.needs is not None and subject.needs > figures["lags"]:
        return (f"the sequences are shorter than what the task needs: give more than {subject.needs:g} steps",)
    return ()
