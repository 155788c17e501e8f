"""Whether a model is recurrent at all: the first thing to look at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError, is_number
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import CANNOT_REPEAT, Subject
from mnemoscope.scopes._measures.rounding import is_quantized, least_response, rounding
from mnemoscope.wording import counted

UNREPEATED = {
    "keeps state between calls": "start every call from a fresh state, or take the state as an argument and return it",
    "is random": "switch dropout and noise off in eval mode, as F.dropout(x, p, self.training) does",
    "changes between calls": "keep state in attributes of the module, and draw from torch's generators or its own",
}
"""Why a model gives other outputs for the same inputs, and how to fix it."""

KINDS = {
    "recurrent": ("The output of {name} depends on earlier inputs{nothing_else}", ""),
    "memoryless": (
        "The output of {name} at a step depends on no earlier input: it remembers nothing",
        "carry the state from step to step; if time is the other dimension of the inputs, say so: batch_first=True or "
        "False, --batch-first or --time-first",
    ),
    "detached": (
        "The outputs of {name} depend on earlier inputs, but no gradient reaches them",
        "the state is detached between steps, so that what to remember cannot be learned: detach it less often",
    ),
    "bidirectional": (
        "The output of {name} at a step depends on later inputs too: it reads sequences in both directions",
        "bidirectional=True reads the future; do not use it where the future is to be predicted",
    ),
    "reads the future": (
        "The output of {name} at a step depends on later inputs: it reads the future",
        "where the future is to be predicted, mask attention, and pad convolutions on the left only",
    ),
    "reads all": (
        "{name} has another number of outputs than of inputs, and each depends on the inputs up to the last one",
        "",
    ),
    "without gradient": (
        "No gradient leads from the outputs of {name} to its inputs, but they change with earlier ones",
        "what to remember cannot be learned by gradients: if its units are saturated, scale weights and inputs down; "
        "if it was quantized or detached, examine it before",
    ),
    "runs over the batch": (
        "{name} runs over the batch, not over time: each sequence reads the ones before it, and no earlier step",
        "the layer takes its first dimension for time: make it with batch_first=True, or transpose its input; if the "
        "first dimension of these inputs is time, say so: batch_first=False, or --time-first",
    ),
    "mixes sequences": (
        "{name} mixes the sequences of a batch: an output of one depends on the inputs of another",
        "check batch_first, reshapes between (batch, time) and (time, batch), and normalization over the batch",
    ),
}
"""What a model can turn out to be: the sentence, and how to fix it."""


@dataclass(frozen=True)
class Response:
    """How strongly outputs or inputs (T, B) respond to a probe at one step of one sequence, relative to the strongest.

    Attributes:
        strength: (T, B).
        step, sequence: of the probe.
    """

    strength: Tensor
    step: int
    sequence: int

    @property
    def before(self) -> float:
        """The strongest response at earlier steps of the same sequence."""
        return _largest(self.strength[: self.step, self.sequence])

    @property
    def after(self) -> float:
        """The strongest response at later steps of the same sequence."""
        return _largest(self.strength[self.step + 1 :, self.sequence])

    @property
    def others(self) -> Tensor:
        """(B,): the strongest response of each other sequence; 0 for the probed one."""
        probed = torch.tensor(self.sequence, device=self.strength.device)
        return self.strength.amax(0).index_fill(0, probed, 0)


HELP = """
One output is differentiated by every input. Bars left of the marked step mean memory; anything
right of it means that the model reads the future.

In the second chart there may be only one bar, that of the output's own sequence. If there are
others, the model mixes sequences; most often batch_first was forgotten and the layer runs over the
batch instead of time.
"""


NO_RESPONSE = (
    "The output of {name} depends on no input at all",
    "if the read-out still has the zeros that it began with, examine the model after some updates, or the layer before "
    "it; else look for inputs that never reach the outputs, or units that are all off",
)
"""What is said of a memoryless model that does not even read the present input."""


@scope(
    "Does the output depend on earlier inputs, on later ones, on other sequences?",
    title="Is it recurrent at all?",
    help=HELP,
    needs=(),
    cost=6,
)
def recurrence(subject: Subject, *, tolerance: float | None = None) -> Finding:
    """Test if the output at t depends on earlier inputs, on later ones (a leak), or on other sequences of the batch.

    Before, the model has run twice on the same inputs: one that keeps state between calls or is random would seem to
    read the future or to mix sequences. If it does not repeat its outputs, that is its kind; it is then reset before
    each run, or given the same random numbers, if that is possible. Two tests follow: one output is differentiated by
    all inputs, and one input is changed and all outputs compared. If only the second finds a dependence, the state is
    carried on but detached from the graph. The first output shows if later inputs are read where that in the middle
    does not. Where the middle of the sequence shows no memory, other steps are probed: a model may forget there, as one
    that attends within blocks, or remember over more than half of the sequence.

    Series, each relative to its largest: `gradient_by_step` (T,), that of the output at `figures["step"]` by the
    input at each step of its sequence; `change_by_step` (T, or 1), how much each output changes with the input at
    `figures["changed_step"]`; `gradient_by_sequence` and `change_by_sequence` (B,), the largest in each sequence; the
    probed sequence is `figures["sequence"]`. `figures["repeat_error"]`: how much outputs change from run to run. The
    largest responses are figures too: `gradient_by_earlier` and `gradient_by_later` inputs and `gradient_by_others`,
    other sequences'; `change_of_earlier` and `change_of_later` outputs and `change_of_others`; `tolerance`.
    Labels: `kind`, one of `KINDS` or `UNREPEATED`; in the latter case `kind_when_repeated`, one of `KINDS`.

    Args:
        tolerance: size, relative to the largest, under which a response counts as zero; by default a thousand times
            the rounding error, of float32 at most, or a quarter for a quantized model; for gradients by earlier and
            later inputs, which are exactly zero where an output does not read them, 32 times the rounding error.
    """
    subject.check_steps(2)
    if tolerance is not None and not (is_number(tolerance) and 0 <= tolerance < 1):
        raise MnemoscopeError(f"tolerance must be at least 0 and less than 1; got {tolerance!r}")
    limit = least_response(subject.model, subject.dtype) if tolerance is None else tolerance
    unrepeated = subject.repetition.kind
    if subject.missing("outputs"):
        return _cannot_repeat(subject)
    subject.check_finite_outputs()
    weakest = _weakest_gradient(subject) if tolerance is None else tolerance
    gradient = _respond_to_gradient(subject, limit, weakest)
    change = _respond_to_change(subject, (subject.steps - 1) // 2)
    kind = _kind(subject, gradient, change, limit, weakest)
    if kind in ("memoryless", "detached", "without gradient"):
        gradient, change = _look_elsewhere(subject, gradient, change)
        kind = _kind(subject, gradient, change, limit, weakest)
    if subject.batch > 1:
        subject.kind = kind
    responds = bool(gradient.strength.any() or change.strength.any())
    description, fix = KINDS[kind] if responds else NO_RESPONSE
    labels: dict[str, str | list[str]] = {"kind": kind}
    warnings = (fix,) if fix else ()
    seen = description.format(name=subject.name, nothing_else=_nothing_else(subject, change))
    if unrepeated:
        labels = {"kind": unrepeated, "kind_when_repeated": kind}
        warnings = (UNREPEATED[unrepeated], *warnings)
        seen = f"{_first_said(subject)}; {PREPARED[unrepeated]} it is of the kind '{kind}'"
    return Finding(
        "recurrence",
        f"{seen} ({counted(subject.batch, 'sequence')} of {counted(subject.steps, 'step')}).",
        "estimated",
        labels=labels,
        warnings=warnings,
        figures={
            "repeat_error": subject.repetition.difference,
            "gradient_by_earlier": gradient.before,
            "gradient_by_later": gradient.after,
            "gradient_by_others": float(gradient.others.max()),
            "change_of_later": change.after,
            "change_of_earlier": change.before,
            "change_of_others": float(change.others.max()),
            "step": gradient.step,
            "changed_step": change.step,
            "sequence": gradient.sequence,
            "tolerance": limit,
        },
        series=arrays(
            gradient_by_step=gradient.strength[:, gradient.sequence],
            change_by_step=change.strength[:, change.sequence],
            gradient_by_sequence=gradient.strength.amax(0),
            change_by_sequence=change.strength.amax(0),
        ),
        assumptions=("what holds for the probed steps and sequence holds for the others",),
        method="two equal runs, one output differentiated by all inputs, one input changed for all outputs",
    )


def _nothing_else(subject: Subject, change: Response) -> str:
    """Say what the output of a recurrent model does not depend on, of what there was to look at."""
    no_later = len(change.strength) == subject.steps  # else no input comes after an output's own
    no_other = subject.batch > 1
    if no_later and no_other:
        return ", on no later ones and on no other sequence"
    if no_later:
        return " and on no later ones"
    return " and on no other sequence" if no_other else ""


PREPARED = {
    "keeps state between calls": "with its state reset before each run",
    "is random": "with the same random numbers in each run",
}


def _first_said(subject: Subject) -> str:
    difference = subject.repetition.difference
    by = f" by {100 * difference:.3g} % of the largest" if difference < torch.inf else ""
    return f"{subject.name} {subject.repetition.kind}: run again on the same inputs, its outputs change{by}"


def _cannot_repeat(subject: Subject) -> Finding:
    """Return the finding of a model that can neither be reset nor be given the same random numbers."""
    kind = subject.repetition.kind
    return Finding(
        "recurrence",
        f"{_first_said(subject)}; {CANNOT_REPEAT}.",
        "estimated",
        labels={"kind": kind},
        warnings=(UNREPEATED[kind],),
        figures={"repeat_error": subject.repetition.difference},
        method="two runs on the same inputs",
    )


def _kind(subject: Subject, gradient: Response, change: Response, limit: float, weakest: float) -> str:
    """Decide which of `KINDS` the model is; whatever breaks the other answers comes first."""
    # With one output per sequence, every changed input but the last is an earlier one; with another number of outputs
    # than of inputs, "later" has no meaning: lags are counted from the last input that an output reads.
    outputs = len(change.strength)
    resampled = outputs != subject.steps
    carried = (change.strength[:, change.sequence].max() if resampled else change.after) > limit
    has_gradient = gradient.before > weakest
    no_gradient = not bool(gradient.strength.any()) and bool(change.strength.any())

    # Sequences that the probed output reads, and sequences whose outputs the changed input reaches.
    reads = gradient.others > limit
    reached = change.others > limit
    if bool(reads.any() or reached.any()) and not is_quantized(subject.model):
        reads_later = reads[gradient.sequence :].any()
        reaches_earlier = reached[: change.sequence].any()
        in_order = not bool(reads_later or reaches_earlier)  # each sequence reads only the ones before it
        return "runs over the batch" if in_order and not (has_gradient or carried) else "mixes sequences"

    if resampled and outputs > 1 and not no_gradient:
        if _reads_last_input(subject, limit):
            return "reads all"
    elif gradient.after > weakest or (change.before > limit and not resampled):
        return "bidirectional" if _is_bidirectional(subject.model) else "reads the future"
    if has_gradient:
        return "recurrent"
    if no_gradient and carried:
        return "without gradient"
    return "detached" if carried else "memoryless"


def _weakest_gradient(subject: Subject) -> float:
    """Return the relative size under which a gradient by earlier or later inputs counts as zero.

    Where an output does not read them it is zero to the last bit, unless it is computed in a roundabout way, as by a
    Fourier transform. A block that starts out as the identity may weigh the past by 1e-5 of the present.
    """
    return 0.25 if is_quantized(subject.model) else 32 * rounding(subject.dtype)


def _respond_to_gradient(subject: Subject, limit: float, weakest: float) -> Response:
    """Differentiate the output at a middle step (or the only one) of one sequence by every input.

    Its step is that of the input in the same place; with another number of outputs than of inputs, that of the last
    input which it reads. In place of the middle output the first one, if that alone reads later inputs.
    """
    sequence = subject.batch // 2
    with torch.no_grad():
        outputs = len(subject.run(subject.features))
    place = subject.steps // 2 if outputs == subject.steps else outputs // 2
    sizes = _gradient_sizes(subject, place)
    strength = _relative(sizes)
    if outputs == 1:
        return Response(strength, subject.steps - 1, sequence)
    if outputs != subject.steps:
        return Response(strength, max(_last_read(strength[:, sequence], limit), 0), sequence)
    middle = Response(strength, place, sequence)
    if middle.after > weakest:
        return middle

    # In the middle, sequences that were turned around seem to be one step late. The first output may read nothing but
    # by rounding, as of a Fourier transform: it is measured against the gradient of the middle one.
    first = Response(_relative(torch.stack([_gradient_sizes(subject, 0), sizes]))[0], 0, sequence)
    return first if first.after > weakest else middle


def _look_elsewhere(subject: Subject, gradient: Response, change: Response) -> tuple[Response, Response]:
    """Return the responses with the most memory in them, of other probed steps too.

    The last output may read what the middle one cannot; between blocks, or after a token that resets the state, there
    is no memory to see. The steps lie at odd fractions, so that few of them are where blocks of one length begin.
    """
    last = subject.steps - 1
    with torch.no_grad():
        outputs = len(subject.run(subject.features))
    if outputs != subject.steps:  # then all that an output reads is in one gradient already
        return gradient, change
    fractions = (1.0, 0.87, 0.71, 0.41, 0.17)
    gradients = [Response(_gradient_of(subject, at), at, gradient.sequence) for at in _steps_at(last, fractions)]
    changes = [_respond_to_change(subject, last - at) for at in _steps_at(last, fractions)]
    return max([gradient, *gradients], key=lambda r: r.before), max([change, *changes], key=lambda r: r.after)


def _steps_at(last: int, fractions: tuple[float, ...]) -> list[int]:
    return list(dict.fromkeys(round(fraction * last) for fraction in fractions))


def _gradient_of(subject: Subject, place: int) -> Tensor:
    """Return the size of the gradient of one output by every input (T, B), relative to the largest."""
    return _relative(_gradient_sizes(subject, place))


def _gradient_sizes(subject: Subject, place: int) -> Tensor:
    """Return the size of the gradient of one output by every input (T, B)."""
    x = subject.features.clone().requires_grad_()
    y = subject.run(x)  # (S, B, m)
    weights = torch.randn(y.shape[-1], generator=subject.generator()).to(y)
    output = (y[place, subject.batch // 2] * weights).sum()
    if not output.requires_grad:
        return torch.zeros(x.shape[:2], dtype=torch.float64, device=x.device)
    (gradient,) = torch.autograd.grad(output, x, allow_unused=True, materialize_grads=True)
    return gradient.flatten(2).double().norm(dim=-1)


def _last_read(strength: Tensor, limit: float) -> int:
    """Return the last input that has a strength; -1 if none has, as of an output that reads padding alone."""
    read = (strength > limit).nonzero()
    return int(read[-1]) if len(read) else -1


def _reads_last_input(subject: Subject, limit: float) -> bool:
    """True if already the first output reads as far as the last one does: to the end of the inputs."""
    with torch.no_grad():
        outputs = len(subject.run(subject.features))
    sequence = subject.batch // 2
    first = _last_read(_gradient_of(subject, 0)[:, sequence], limit)
    return first >= _last_read(_gradient_of(subject, outputs - 1)[:, sequence], limit)


@torch.no_grad()
def _respond_to_change(subject: Subject, step: int) -> Response:
    """Change one input of one sequence, and measure how much every output changes."""
    x = subject.features
    sequence = subject.batch // 2
    size = float(x.double().std()) if x.numel() > 1 and bool(x.double().std() > 0) else 1.0
    changed = x.clone()
    if subject.batch > 1 and is_quantized(subject.model):  # the range of the inputs, and so their scale, must stay
        changed[step, sequence] = x[step, sequence - 1]
    else:
        changed[step, sequence] += size * torch.randn(x.shape[2:], generator=subject.generator()).to(x)
    difference = (subject.run(changed).double() - subject.run(x)).norm(dim=-1)  # (T, B)
    return Response(_relative(difference), step, sequence)


def _is_bidirectional(model: object) -> bool:
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return any(getattr(module, "bidirectional", False) is True for module in modules)


def _relative(strength: Tensor) -> Tensor:
    largest = strength.max()
    return strength / largest if bool(largest > 0) else strength


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
