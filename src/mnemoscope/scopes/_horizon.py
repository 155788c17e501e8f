"""How far back a network remembers: by its gradients, and by its outputs."""

from __future__ import annotations

import math

import numpy as np
import torch

from mnemoscope.errors import MnemoscopeError, check_count, is_number
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures import decay
from mnemoscope.scopes._measures.gradients import (
    ENDS,
    JacobianNorms,
    by_inputs,
    by_inputs_and_states,
    of_loss,
    of_loss_by_lag,
)
from mnemoscope.scopes._measures.horizon_samples import (
    horizon_range,
    horizons,
    median_of_sequences,
    profiles,
    where_it_ends,
)
from mnemoscope.scopes._measures.receptive_field import exact_figures, unread_at_end
from mnemoscope.scopes._measures.windows import range_in_words, widened
from mnemoscope.wording import all_counted, counted, told_from_one

EXPLOSION = 100.0  # times the size at the start of the curve, and it does not come back

HELP = """
The curve is the size of the derivative of an output by what came k steps before it, relative to the
largest of the past (k ≥ 1). Where it lies under 1 % the network is hardly taught about anything
that long ago. The point at k = 0 is the present input: it may lie far above without shortening the
memory beside it.

On a logarithmic axis a straight line down means exponential forgetting, the fate of stable
networks; a curve that levels off is a power law or a memory. The band holds the middle half of the
sequences and output steps.

If the curve is under 1 % at the line “the task needs”, training cannot find the dependency by
gradients. A network that looks something up may lie low in between and rise where the thing is: the
horizon is where it is last above 1 %, and a gap before that is reported. A curve that climbs past 100
times its start and stays there means exploding gradients; one that comes back is transient growth.

“By states” leaves the input weights out: it shows the recurrence alone.
"""


@scope(
    "How far back do gradients and outputs reach?",
    title="Memory horizon",
    help=HELP,
    needs=("outputs", "apart"),
    cost=6,
)
def horizon(
    subject: Subject,
    *,
    fraction: float = 0.01,
    directions: int | None = None,
    ends: int = ENDS,
    states: bool = True,
    behavior: bool = True,
    loss_positions: int | None = None,
) -> Finding:
    """Measure the size of d output_t / d input_{t-k} and of d output_t / d h_{t-k} against the lag k, all lags at once.

    Gradients are total: paths through attention count. Outputs at `ends` steps are differentiated in `directions`
    random orthonormal directions per sequence, which estimates the Frobenius norm of the Jacobian. With as many
    directions as outputs the norms are exact, and the spectral ones are given too.

    Series by lag 0 .. T-1, medians over sequences and end steps, or means where the medians of all lags but 0 are zero
    (spread: quartiles (2, T)): `input_gradient`; `state_gradient`, if there is a step: by h of all layers of one of our
    layers, by the whole state of any other recurrence; `input_gradient_spectral` and `state_gradient_spectral`, if
    exact. By steps after a prefix in which two sequences differ: `difference_after_prefix`, relative to the last step
    of that prefix. By step, if targets and loss are given: `loss_gradient`, ||d loss / d input_t||, and
    `loss_gradient_by_state`, ||d loss / d h_t||, both over the whole batch at once. By lag, if `loss_positions` is
    given: `mean_loss_gradient` and `mean_loss_gradient_by_state`, the mean over output steps t and sequences of the
    norms of d loss_t / d input_{t-k} and d loss_t / d h_{t-k}, where loss_t is what one output step of one sequence
    adds to the loss (Miller & Hardt 2018, fig. 2; spread: quartiles). `horizon_by_sequence` (B,).

    Figures: `horizon`, the last lag with at least `fraction` of the largest size at lags >= 1 (spread: 5 % and 95 %
    quantiles over sequences and end steps; their median, where nearly all reach further than the medians by lag do, as
    when each sees other lags); `first_below`, the first lag with less after one that has it (spread as
    before); `returns_at`, from where on the size is back there if it fell under a tenth of that in between, as in a
    memory that keeps its first states: the lags before it have no gradient to speak of; infinity if there is no gap;
    `gaps`, how many such gaps there are, the median over sequences and end steps;
    `at_need`, the size at the lag that the task needs, or at the last one, relative to the largest; `present`, the size
    at lag 0 relative to that largest one; `strongest_lag`, where it is; `horizon_of_states`; `lags`, how many were
    looked at; `fraction`, as given; `rate` per step and `exponent` of the two laws, `fit_quality`; `growth`, the
    largest size relative to the start of the curve; `explodes_at`, from where on it stays above 100 times its start;
    `receptive_field`, how many of the last inputs an output depends on if it depends on no earlier one, infinity if
    that is not seen; `agreement`, steps after which outputs of different prefixes differ by less than `fraction`.
    Labels: `law`; `measured`, by "gradients", or by "changes" of the inputs where there is no gradient.

    Args:
        fraction: of the largest gradient by an earlier input, under which a gradient counts as gone.
        directions: output directions per sequence and end step; each costs one more batch. By default as many as give
            64 rows, at least one.
        ends: output steps, up to 10, from the last one backwards by a tenth of the sequence; one if the model
            gives one output.
        states: measure gradients by states too. For one of our layers this costs one more product, or, with attention,
            one more backward pass; any other recurrence then runs step by step.
        behavior: compare outputs after two prefixes.
        loss_positions: how many of the last output steps `mean_loss_gradient` is a mean over, 10 in Kerg et al. 2020,
            fig. 3; T for all. Each costs one backward pass.

    Examples:
        >>> from mnemoscope.scopes import horizon
        >>> finding = horizon(nn.RNN(3, 16), torch.randn(20, 4, 3))
        >>> finding.series["input_gradient"].shape  # by lag
        (20,)
    """
    # Gradients of outputs by every earlier input, and by every earlier state.
    by_input, by_state = _gradients(subject, fraction, directions, ends, states)
    subject.report(0.6)
    figures, law = _figures(by_input, fraction, subject)
    if figures["explodes_at"] == math.inf:  # then infinite outputs are not a result of the explosion
        subject.check_finite_outputs()
    figures |= exact_figures(subject, by_input, figures)
    series, spread = _series("input_gradient", by_input)
    single = horizons(by_input, fraction, subject.dtype)
    series["horizon_by_sequence"] = median_of_sequences(single)
    spread["horizon"] = horizon_range(by_input, single, figures["horizon"])
    figures["gaps"] = float(np.median([decay.gaps(profile, fraction) for profile in profiles(by_input)]))
    if figures["gaps"] == 0:  # one in the mean alone lies between samples that each look somewhere else
        figures["returns_at"] = math.inf
    if np.isfinite(figures["returns_at"]):
        falls = [decay.first_below(profile, fraction) for profile in profiles(by_input)]
        known = [fall for fall in falls if fall < math.inf]
        spread["first_below"] = widened(np.array(known or [figures["first_below"]]), figures["first_below"])
    if by_state is not None:
        state_series, state_spread = _series("state_gradient", by_state)
        series |= state_series
        spread |= state_spread
        figures["horizon_of_states"] = decay.horizon(series["state_gradient"], fraction, torch.finfo(subject.dtype).eps)

    # The gradient of the loss, by step.
    if not subject.missing("loss"):
        loss_by_input, loss_by_state = of_loss(subject)
        series |= arrays(loss_gradient=loss_by_input)
        if loss_by_state is not None:
            series |= arrays(loss_gradient_by_state=loss_by_state)
    if loss_positions is not None:
        means, quartiles = _mean_loss_gradients(subject, loss_positions)
        series |= means
        spread |= quartiles

    # Behavior: how long outputs differ after different beginnings.
    difference = _difference_after_prefix(subject) if behavior else None
    if difference is not None:
        figures["agreement"] = decay.last_above(difference, fraction * difference[0]) + 1.0
        series["difference_after_prefix"] = difference
    return Finding(
        "horizon",
        _sentence(figures, law, spread, subject, fraction, by_input),
        "estimated",
        figures=figures,
        series=series,
        spread=spread,
        labels={"law": law.name, "measured": by_input.measured},
        warnings=(
            *filter(None, [subject.loss_problem, _silence(figures, subject, by_input)]),
            *_warnings(figures, subject, fraction, by_input.measured),
        ),
        assumptions=("these output steps are typical of the others", "these sequences are typical of the data"),
        method=_method(by_input, subject.batch),
    )


def _mean_loss_gradients(subject: Subject, positions: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the mean norms of the gradient of the loss by lag, and their quartiles, by series name."""
    if subject.missing("loss"):
        raise MnemoscopeError("loss_positions needs targets= and loss=")
    check_count("loss_positions", positions)
    by_input, by_state = of_loss_by_lag(subject, positions)
    samples = {"mean_loss_gradient": by_input}
    if by_state is not None:
        samples["mean_loss_gradient_by_state"] = by_state
    means, quartiles = {}, {}
    for name, norms in samples.items():
        reached = norms[~np.isnan(norms).all(1)]  # the first lags: the last output step reaches the most
        means[name] = np.nanmean(reached, axis=1)
        quartiles[name] = np.nanquantile(reached, [0.25, 0.75], axis=1, method="nearest")
    return means, quartiles


def _gradients(
    subject: Subject, fraction: float, directions: int | None, ends: int, states: bool
) -> tuple[JacobianNorms, JacobianNorms | None]:
    """Return the norms by inputs of the whole model and, if asked for and there is a step, by states."""
    subject.check_steps(2)
    check_count("ends", ends)
    if directions is not None:
        check_count("directions", directions)
    if not (is_number(fraction) and 0 < fraction < 1):
        raise MnemoscopeError(f"fraction must lie between 0 and 1; got {fraction!r}")
    # A layer that makes another number of steps than the model reads has lags of its own.
    if not states or subject.missing("step") or len(subject.recurrence_inputs) != subject.steps:
        return by_inputs(subject, directions, ends), None
    if subject.adapted.recurrence_is_model:
        return by_inputs_and_states(subject, directions, ends)
    return by_inputs(subject, directions, ends), by_inputs_and_states(subject, directions, ends)[1]


def _series(name: str, norms: JacobianNorms) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return medians over sequences and end steps, and their quartiles, by series name."""
    series = {name: decay.typical(norms.frobenius)}
    if norms.spectral is not None:
        series[f"{name}_spectral"] = decay.typical(norms.spectral)
    quartiles = np.nanquantile(norms.frobenius, [0.25, 0.75], axis=-1, method="nearest")
    return series, {name: quartiles}


def _figures(norms: JacobianNorms, fraction: float, subject: Subject) -> tuple[dict[str, float], decay.Law]:
    dtype = subject.dtype
    profile = decay.typical(norms.frobenius)
    if not np.isfinite(profile[0]):  # NaN at lag 0 is not an explosion in the backward pass
        raise MnemoscopeError(
            "an output's gradient by its own input is NaN or infinite: give shorter or smaller inputs, or an "
            "earlier checkpoint"
        )
    law = decay.fit(profile, dtype)
    strongest = decay.strongest_past(profile)
    positive = profile[profile > 0]
    figures = {
        **where_it_ends(norms, fraction, dtype),
        "present": profile[0] / strongest if strongest > 0 else np.inf,
        "strongest_lag": 1 + profile[1:].argmax(),
        "lags": len(profile) - 1,
        "fraction": fraction,
        "rate": law.rate,
        "exponent": law.exponent,
        "fit_quality": law.quality,
        "growth": profile.max() / positive[0] if len(positive) else np.nan,
        "explodes_at": decay.explodes_at(profile, EXPLOSION),
    }
    if subject.needs is not None and figures["horizon"] > 0:
        figures["at_need"] = profile[min(int(subject.needs), len(profile) - 1)] / strongest
    return {name: float(value) for name, value in figures.items()}, law


def _method(norms: JacobianNorms, batch: int) -> str:
    sequences = counted(batch, "sequence")
    if norms.measured == "changes":
        return f"one input after the other changed in {sequences}, as no gradient leads to them"
    steps = ", ".join(str(end) for end in sorted(set(norms.ends.flat)))
    return f"one backward pass from the outputs of {sequences} at the steps {steps}, in random directions"


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
    difference = (y.double() - y_other)[prefix - 1 :].norm(dim=-1).median(1).values.cpu().numpy()
    comparable = np.isfinite(difference).all() and difference[0] > 0
    return difference / difference[0] if comparable else None


def _sentence(
    figures: dict[str, float],
    law: decay.Law,
    spread: dict[str, np.ndarray],
    subject: Subject,
    fraction: float,
    by_input: JacobianNorms,
) -> str:
    result = _reach_in_words(figures, spread, fraction, by_input.measured) + _law_in_words(law)
    if figures["horizon"] > 0 and np.isfinite(figures["receptive_field"]):
        later = ", on later ones" if by_input.reads_later else ""
        field = counted(figures["receptive_field"], "step")
        result += f"; the output depends on the last {field}{later} and on nothing earlier"
    if figures["horizon"] > 0 and figures["present"] > 1 / fraction:
        result += f"; the present input weighs {figures['present']:.3g} times the strongest earlier one"
    if subject.needs is not None:
        result += f"; the task needs {subject.needs:g}"
        if np.isfinite(figures["returns_at"]) and 1 <= subject.needs <= figures["lags"]:
            result += f", where they are at {100 * figures['at_need']:.3g} % of their largest"
    return f"{result}."


def _reach_in_words(figures: dict[str, float], spread: dict[str, np.ndarray], fraction: float, measured: str) -> str:
    """Say how far back gradients, or changes of inputs, are felt."""
    horizon, lags = int(figures["horizon"]), int(figures["lags"])
    over = range_in_words(spread["horizon"].clip(0), "sequences and output steps")  # -1: not even the present input
    subjects = "Gradients" if measured == "gradients" else "Changes of inputs"
    if figures["explodes_at"] < np.inf:
        grown = f"{figures['growth']:.3g} times their size" if np.isfinite(figures["growth"]) else "infinity"
        return f"{subjects} explode: {counted(figures['strongest_lag'], 'step')} back they have grown to {grown}"
    if horizon < 0:
        return "No gradient reaches any input"
    if horizon == 0:
        return f"{subjects} reach the present input only, none earlier"
    small = f"{100 * fraction:g} % of their largest"
    if np.isfinite(figures["returns_at"]):
        first, again = int(figures["first_below"]) - 1, int(figures["returns_at"])
        until = range_in_words(spread["first_below"] - 1, "sequences and output steps")
        lags_again = f"{again} to {horizon}" if again < horizon else f"{again}"
        if figures["gaps"] > 1:
            lags_again = f"and again, up to {horizon}"
        where = ", where the sequences begin" if horizon == lags else over
        return (
            f"{subjects} reach {counted(first, 'step')} back{until}, then fall under {small}, and rise above it "
            f"again {lags_again} steps back{where}"
        )
    if horizon == lags:
        were = "was" if lags == 1 else "were"
        return f"{subjects} reach back over {all_counted(lags, 'step')} that {were} looked at{over}"
    lost = "" if measured == "gradients" else " or are lost in rounding"
    return f"{subjects} reach {counted(horizon, 'step')} back{over}, then fall under {small}{lost}"


def _law_in_words(law: decay.Law) -> str:
    if law.name == "none":
        return ""
    if law.name == "power law":
        return f" (a power law of the lag, exponent {law.exponent:.2f})"
    return f" (exponential, times {told_from_one(law.rate)} per step)"


def _silence(figures: dict[str, float], subject: Subject, by_input: JacobianNorms) -> str:
    """Say that outputs depend on no input, or not on the last ones, as those of padding; empty if none does so."""
    if figures["horizon"] <= 0 and subject.kind == "recurrent":
        return (
            "the last outputs depend on nothing earlier, but outputs before them do: if the sequences end in padding, "
            "or with a token that resets the state, give them without it"
        )
    unread = unread_at_end(subject, by_input)
    if len(unread):
        return (
            f"{(unread > 0).sum()} of the {len(unread)} outputs do not read the last steps of their sequences: if "
            "they are padding, it was counted as steps back; give sequences of one length"
        )
    silent = by_input.silent
    if not silent.any():
        return ""
    return (
        f"{silent.sum()} of the {silent.size} outputs looked at have no gradient by any input and were left out: if "
        "they are padding, give sequences of one length; if units are saturated, smaller inputs; if they wait for a "
        "delay, longer sequences"
    )


def _warnings(figures: dict[str, float], subject: Subject, fraction: float, measured: str) -> tuple[str, ...]:
    if measured == "changes":
        return (
            "no gradient leads from the outputs to the inputs: examine the model before it was quantized or detached",
        )
    if figures["explodes_at"] < np.inf:
        return ("gradients explode: clip them, shorten the sequences, or use an orthogonal or stable recurrence",)
    if subject.needs is not None and figures["horizon"] < min(subject.needs, figures["lags"]):
        further = "a layer that reaches further is RelLSTM or ExpRNN"
        field = figures.get("receptive_field", math.inf)
        if np.isfinite(field):
            further = f"outputs read the last {counted(field, 'step')} alone, so widen what they read; {further}"
        return (f"gradients do not reach as far as the task needs: {further}",)
    if figures.get("at_need", math.inf) < fraction:
        return (
            f"the gradient is gone {subject.needs:g} steps back, where the task needs it, though there is one further "
            "back: train longer, or give a layer with attention more slots (buffer, relevant)",
        )
    if subject.needs is not None and subject.needs > figures["lags"]:
        return (f"the sequences are shorter than what the task needs: give more than {subject.needs:g} steps",)
    return ()
