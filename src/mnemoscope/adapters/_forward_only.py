"""Models of which only ``forward`` is known: examined as they are, and by the recurrent layer inside them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.adapters._adapted import GIVE_A_STEP, Adapted, model_name
from mnemoscope.adapters._call import Forward, is_hugging_face
from mnemoscope.adapters._ids import Vocabulary, track
from mnemoscope.adapters._ids_of_features import IdsOfFeatures
from mnemoscope.adapters._inside import FirstConvolution, LayerCalls, recording_layers
from mnemoscope.adapters._layout import Layout, as_sequence, shows_steps
from mnemoscope.adapters._recurrent import as_recurrence
from mnemoscope.errors import MnemoscopeError


@dataclass(frozen=True)
class FirstRun:
    """What the first run of a model showed.

    Attributes:
        output: as the model gave it.
        layers: the calls of its recurrent layers.
        convolution: what its first convolution read.
        vocabulary: what it looked up with its inputs, if they are ids.
    """

    output: Tensor
    layers: list[LayerCalls]
    convolution: FirstConvolution
    vocabulary: Vocabulary | None


def adapt_forward_only(model: Any, inputs: Tensor, forward: Forward, layout: Layout | None) -> Adapted:
    """Adapt a model with a ``forward``; its recurrent layer is examined too if it uses exactly one.

    The model runs once; a second time if its output could be one per step or one per sequence.
    """
    first = _run_once(forward, inputs)
    if layout is None:
        layout = _guess_layout(model, inputs, first)
    steps, batch = layout.time_first(inputs).shape[:2]
    forward = replace(forward, steps=steps, batch=batch)
    shape = _output_shape(forward, inputs, first.output, layout)
    features, run = _features_and_run(forward, inputs, first.vocabulary, layout, shape)
    adapted = Adapted(
        name=model_name(model),
        features=layout.time_first(features),
        run=run,
        recurrence_is_model=False,
        layout=layout,
        ids=None if inputs.is_floating_point() else layout.time_first(inputs),
        outputs=_outputs(first.output, steps, batch, layout, shape),
        differs_by_sequence=forward.differs_by_sequence(),
    )
    if is_hugging_face(model):
        why = f"{adapted.name} is examined by its inputs and outputs: its states are kept in a cache that is changed"
        return replace(adapted, no_step=f"{why} in place")
    return _with_layer(adapted, forward, inputs, first.layers)


def _run_once(forward: Forward, inputs: Tensor) -> FirstRun:
    """Run the model and note what goes on inside."""
    convolution = FirstConvolution()
    vocabulary = None
    x = inputs
    with torch.no_grad(), ExitStack() as stack:
        layers = stack.enter_context(recording_layers(forward.model))
        if inputs.is_floating_point():
            stack.enter_context(convolution)
        else:
            vocabulary = Vocabulary(inputs.numel())
            x = track(inputs, vocabulary)
        output = forward(x, forward.steps, forward.batch)
    if vocabulary is not None and not vocabulary.lookups:
        vocabulary = None
        if not is_hugging_face(forward.model):
            raise MnemoscopeError(
                f"inputs are ids of {inputs.dtype} and {model_name(forward.model)} looks nothing up with them in an "
                "embedding, a table or one-hot vectors; give real-valued inputs"
            )
    return FirstRun(output, layers, convolution, vocabulary)


def _guess_layout(model: Any, inputs: Tensor, first: FirstRun) -> Layout:
    """Return the layout of the inputs: by what was seen inside and by the output, else as a layer says, else by batch.

    The output goes before what a layer says: if they differ, `batch_first` was forgotten.
    """
    if inputs.dim() == 1 or _reads_one_sequence(inputs, first):
        return Layout.UNBATCHED
    if is_hugging_face(model):
        return Layout.BATCH_FIRST
    if first.convolution.reads_channels_first(inputs):
        return Layout.CHANNELS_FIRST
    rows, columns = inputs.shape[:2]
    shape = tuple(first.output.shape)
    one_per_sequence = len(shape) <= 2 and shape != (rows, columns)
    if one_per_sequence and rows != columns and shape[:1] in ((rows,), (columns,)):
        return Layout.BATCH_FIRST if shape[0] == rows else Layout.TIME_FIRST
    return claimed_layout(model)


def _reads_one_sequence(inputs: Tensor, first: FirstRun) -> bool:
    """True if real inputs (time, features) go as one sequence into a recurrent layer."""
    called = [calls for calls in first.layers if calls.calls]
    if not inputs.is_floating_point() or inputs.dim() != 2 or len(inputs) == 1 or not called:
        return False
    sequence = called[0].sequence()
    return sequence is not None and tuple(sequence.shape[:2]) == (len(inputs), 1)


def claimed_layout(model: Any) -> Layout:
    """Return the layout that the first module with a `batch_first` says; batch first if none does."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    claims = [m.batch_first for m in modules if isinstance(getattr(m, "batch_first", None), bool)]
    return Layout.TIME_FIRST if claims and not claims[0] else Layout.BATCH_FIRST


@dataclass(frozen=True)
class OutputShape:
    """What a shorter sequence showed of an output: whether it is one per sequence, and which axis is time."""

    one_per_sequence: bool = False
    time_axis: int | None = None

    def as_sequence(self, output: Tensor, steps: int, batch: int, layout: Layout) -> Tensor:
        return as_sequence(output, steps, batch, layout, self.one_per_sequence, self.time_axis)


@torch.no_grad()
def _output_shape(forward: Forward, inputs: Tensor, output: Tensor, layout: Layout) -> OutputShape:
    """Find out what the axes of an output are, by a shorter sequence if its shape does not tell."""
    if layout is Layout.UNBATCHED or forward.steps < 2 or shows_steps(output, forward.steps, forward.batch, layout):
        return OutputShape()
    steps = forward.steps - 1 if output.dim() <= 2 else max(1, forward.steps * 3 // 4)  # a stride may skip one step
    axis = layout.time_axis if inputs.dim() > 2 else layout.time_axis % 2
    try:
        shorter = inputs.narrow(axis, forward.steps - steps, steps).contiguous()
        again = forward(shorter, steps, forward.batch, from_end=True)
    except Exception:  # it reads sequences of one length only
        return OutputShape(one_per_sequence=is_hugging_face(forward.model))
    if output.dim() <= 2:
        return OutputShape(one_per_sequence=again.shape == output.shape)
    changed = [axis for axis in range(output.dim()) if again.shape[axis : axis + 1] != output.shape[axis : axis + 1]]
    return OutputShape(time_axis=changed[0] if len(changed) == 1 else None)


def _outputs(output: Tensor, steps: int, batch: int, layout: Layout, shape: OutputShape) -> Tensor | None:
    """Return the output as a sequence; None if its layout is not known, or if the model reads one at a time."""
    if layout is Layout.UNBATCHED:
        return None
    try:
        return shape.as_sequence(output, steps, batch, layout)
    except MnemoscopeError:
        return None


def _features_and_run(
    forward: Forward, inputs: Tensor, vocabulary: Vocabulary | None, layout: Layout, shape: OutputShape
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return real features in the layout of the inputs, and the model as a function of them, time first."""
    features = inputs
    known: IdsOfFeatures | None = None
    is_series = inputs.is_floating_point() and inputs.dim() == 2 and layout is not Layout.UNBATCHED
    if is_series:  # one number a step
        features = inputs[..., None]
    elif vocabulary is not None:
        rows = vocabulary.recorded()
        features = rows.view(*inputs.shape, rows.shape[-1])
        if vocabulary.sees_ids:
            known = IdsOfFeatures(inputs, features)
    elif not inputs.is_floating_point():  # a Hugging Face model that reads ids in a way of its own
        with torch.no_grad():
            features = forward.model.get_input_embeddings()(inputs)

    def call(x: Tensor, steps: int, batch: int) -> Tensor:
        """Run on x in the model's own layout: on ids, on features, or on ids in the place of their features x."""
        from_end = bool(forward.kwargs) and steps < forward.steps and _are_last_steps(x, inputs, features, layout)
        if not x.is_floating_point():
            return forward(x, steps, batch, from_end)
        if is_series:
            return forward(x[..., 0], steps, batch, from_end)
        if vocabulary is None:
            return forward(x, steps, batch, from_end)
        ids = _ids_of_shape(inputs, x.shape[:-1])
        if known is not None:
            ids = known.of(x, ids, _ids_of_shape(inputs, x.shape[:-1], from_end=True))
        tracked = track(ids, replace(vocabulary, positions=ids.numel(), features=x.flatten(0, -2)))
        return forward(tracked, steps, batch, from_end)

    def run(features: Tensor) -> Tensor:
        steps, batch = features.shape[:2]
        if layout is Layout.UNBATCHED:
            sequences = [layout.from_time_first(sequence) for sequence in features.split(1, 1)]
            return torch.cat([as_sequence(call(x, steps, 1), steps, 1, layout) for x in sequences], 1)
        output = call(layout.from_time_first(features), steps, batch)
        return shape.as_sequence(output, steps, batch, layout)

    return features.detach(), run


def _are_last_steps(x: Tensor, inputs: Tensor, features: Tensor, layout: Layout) -> bool:
    """True if x is a window of the last steps: it has more of them than of the first ones."""
    known = layout.time_first(features if x.is_floating_point() else inputs)
    given = layout.time_first(x)
    steps, batch = len(given), min(given.shape[1], known.shape[1])
    as_last, as_first = (int((given[:, :batch] == part[:, :batch]).sum()) for part in (known[-steps:], known[:steps]))
    return as_last > 0 and as_last >= as_first


def _ids_of_shape(ids: Tensor, shape: torch.Size, from_end: bool = False) -> Tensor:
    """Return the ids, repeated or cut to this shape, the first of them or the last."""
    for axis, size in enumerate(shape):
        known = ids.shape[axis]
        if known != size:
            skipped = max(0, known - size) if from_end else 0
            ids = ids.index_select(axis, (skipped + torch.arange(size, device=ids.device)) % known)
    return ids


def _with_layer(adapted: Adapted, forward: Forward, inputs: Tensor, layers: list[LayerCalls]) -> Adapted:
    """Add the recurrent layer that the model called, on what it read inside the model."""
    model = forward.model
    called = [calls for calls in layers if calls.calls]
    if len(called) != 1:
        return replace(adapted, no_step=_no_step(model, [calls.name for calls in called]))
    (calls,) = called
    try:
        recurrence = as_recurrence(calls.layer)
    except MnemoscopeError as error:
        return replace(adapted, no_step=str(error))
    name = f"its {model_name(calls.layer)} `{calls.name}`" if calls.name else "its own step"
    sequence = calls.sequence()
    if sequence is None:
        why = f"{adapted.name} calls {name} more than once and not on one sequence: examine that layer by itself"
        return replace(adapted, no_step=why)
    if _feeds_back(forward, inputs, calls):
        why = f"{adapted.name} feeds what {name} gives back into it, so that this layer alone is not its recurrence"
        return replace(adapted, no_step=f"{why}; {GIVE_A_STEP}")
    return replace(
        adapted,
        name=f"{adapted.name} ({name})",
        recurrence=recurrence,
        recurrence_inputs=sequence,
        starts_itself=calls.starts_itself(),
    )


@torch.no_grad()
def _feeds_back(forward: Forward, inputs: Tensor, calls: LayerCalls) -> bool:
    """True if what a layer reads at later calls depends on what it gave before, by another way than its state.

    Seen by changing what it gives at its first call. False if the layer does not read the same in two equal runs.
    """
    if not calls.is_chained():
        return False
    runs = []
    for disturbed in (False, True):
        with recording_layers(forward.model, disturbed=disturbed) as layers:
            forward(inputs, forward.steps, forward.batch)
        runs += [record for record in layers if record.name == calls.name]
    again, other = runs
    return calls.reads_as(again) and not calls.reads_as(other)


def _no_step(model: Any, layers: list[str]) -> str:
    if layers:
        why = f"it uses {len(layers)} recurrent layers ({', '.join(layers)}): examine one of them on its own inputs"
    else:
        why = f"only its forward is known: {GIVE_A_STEP}"
    return f"{model_name(model)} has no step of its own; {why}"
