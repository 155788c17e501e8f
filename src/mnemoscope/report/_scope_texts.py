"""What a reader needs to know to read a scope's charts: its name in words, the question, and how to read the answer."""

from __future__ import annotations

from typing import NamedTuple


class Reading(NamedTuple):
    """A scope's heading, the question that it answers, and the help that is folded under its charts."""

    title: str
    question: str
    help: tuple[str, ...]


READINGS: dict[str, Reading] = {
    "horizon": Reading(
        "Memory horizon", "How far back do gradients and outputs reach?",
        (
            "The curve is the size of the derivative of the last output by what came k steps before it, relative to "
            "k = 0. Where it lies under 1 % the network is hardly taught about anything that long ago.",
            "On a logarithmic axis a straight line down means exponential forgetting, the fate of stable networks; a "
            "curve that levels off is a power law or a memory. The band holds the middle half of the sequences.",
            "If the curve is under 1 % from the line “the task needs” on, training cannot find the dependency by "
            "gradients. A network that looks something up may lie low in between and rise where the thing is. A curve "
            "that climbs past 100 times its start means exploding gradients.",
            "“By states” leaves the input weights out: it shows the recurrence alone.",
        ),
    ),
    "recurrence": Reading(
        "Is it recurrent at all?", "Does the output depend on earlier inputs, on later ones, on other sequences?",
        (
            "One output is differentiated by every input. Bars left of the marked step mean memory; anything right of "
            "it means that the model reads the future.",
            "In the second chart only one bar may stand, that of the output's own sequence. If others do, the model "
            "mixes sequences; most often batch_first was forgotten and the layer runs over the batch instead of time.",
        ),
    ),
    "truncation": Reading(
        "Safe window", "How short may a window be, for predictions and for training?",
        (
            "Each curve compares a run over the last k inputs with the run over all of them. The window is safe from "
            "where its curve stays under the 1 % line.",
            "“Backpropagation cut” is what truncated BPTT does: the state is carried on, the gradient is not. Where "
            "a bound is drawn it holds for every sequence whose inputs are no larger, not only for these.",
        ),
    ),
    "stability": Reading(
        "Stability", "Does every step bring states nearer to each other?",
        (
            "Each point is the largest factor by which one step stretches a small difference of state. Below 1 "
            "everywhere: the network is contractive, and forgets at least that fast. Above 1: differences can grow.",
            "“Certified” means that a theorem's conditions were checked on the weights themselves, so that it holds "
            "for every input of that size; “estimated” speaks of these sequences only.",
        ),
    ),
    "lyapunov": Reading(
        "Lyapunov exponents", "Do neighbouring states meet, stay or part?",
        (
            "An exponent is the mean logarithm, a step, by which a small difference grows in one direction. All "
            "negative: states meet and the past is forgotten. The largest about zero: the edge, where memory is "
            "longest. Positive: chaos, and gradients explode.",
            "The second chart should be level at its right end; if it is not, give longer sequences.",
        ),
    ),
    "attention": Reading(
        "Attention", "Where does it look, and what does it keep?",
        (
            "Row t of the map is the attention that step t gives to the state made at each earlier step. A bright "
            "vertical line is a state that stays useful; a bright diagonal is a look at the recent past only.",
            "For layers with relevancy screening, states that are kept long after they leave the buffer are those "
            "that the network found worth keeping.",
        ),
    ),
    "paths": Reading(
        "Paths of the gradient", "By how many hops of attention does a gradient come back?",
        (
            "A gradient comes back step by step through the recurrence, or in a hop over attention. The map shows the "
            "share of each number of hops: bright rows near the top mean short paths, along which little is lost.",
        ),
    ),
    "signal": Reading(
        "Signal", "Do activations and gradients keep their size over time and depth?",
        (
            "Level curves are what one wants. A variance that falls towards the left of the gradient's chart is "
            "vanishing, one that climbs is exploding.",
            "A weight's gain at the marked line keeps the variance from layer to layer and from step to step.",
        ),
    ),
    "separation": Reading(
        "Start and end", "In how many ways does the output join the start of a sequence to its end?",
        (
            "Outputs on many beginnings and many endings form a matrix. If it has one singular value that matters, "
            "beginning and end are treated apart; the slower the values fall, the more ways there are of joining them.",
        ),
    ),
    "smoothness": Reading(
        "Smoothness", "How steep can the cost become as sequences grow?",
        (
            "The slope of the cost, and of its gradient, by the parameters, for longer and longer sequences. Level: "
            "long sequences are no harder to learn from. A straight climb here, where both axes are logarithmic, is "
            "polynomial; a curve that bends upwards is exponential growth, which no learning rate suits.",
            "What Theorem 1 of Ribeiro et al. allows is a bound on the growth; the measured slopes may stay below it.",
        ),
    ),
    "entropy": Reading(
        "Entropy of the state", "Does a step spread states out or press them together?",
        (
            "Below zero a step presses states together: what set them apart is lost, and no read-out brings it back. "
            "Far below zero a network forgets fast. The bounds lie above the measured change.",
        ),
    ),
    "attractors": Reading(
        "Attractors", "Where does the state end up under a constant input?",
        (
            "Each point is a place that a state comes back to after a long time. One point above a value: a fixed "
            "point. Several: a cycle, or several attractors. A smear: chaos.",
            "Eigenvalues inside the circle belong to directions in which states are drawn to the fixed point.",
        ),
    ),
    "landscape": Reading(
        "Loss landscape", "What does the cost look like around these parameters?",
        (
            "The model is in the middle, at zero. A bowl is easy to descend; ridges and cliffs are where gradients "
            "mislead. Switch to the surface to see its height, and turn it by dragging.",
        ),
    ),
    "learning": Reading(
        "Learning", "How did training go?",
        (
            "Both curves are of held-out data. A loss that stays on the line “without memory” means that the network "
            "has learnt only what needs no memory.",
        ),
    ),
}  # fmt: skip


def reading_of(scope: str) -> Reading:
    """A scope's words; of one that is not known here, its name."""
    return READINGS.get(scope, Reading(scope.replace("_", " ").capitalize(), "", ()))
