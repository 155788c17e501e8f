"""How strong the gradient by earlier states is, and what it takes in memory (of the authors' plotting code)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mnemoscope.report import Axis, Chart
from mnemoscope.studies import (
    Cells,
    CellValue,
    Claim,
    Done,
    Note,
    Result,
    Scale,
    Study,
    band,
    measure,
    settings,
    study,
    table,
    train,
)
from mnemoscope.studies.kerg._gradients import log_gradient_norms
from mnemoscope.studies.kerg._published import PAPER_BATCH, N
from mnemoscope.studies.kerg._recall import denoise_run
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Denoise
from mnemoscope.training import NetworkConfig, SequenceModel

MODELS = ("RNN", "LSTM", "MemRNN", "SAB", "RelLSTM")
LENGTHS = (400, 600, 800)
QUICK_LENGTHS = (100, 200, 400)
TRAINED = ("LSTM", "MemRNN", "SAB", "RelLSTM")


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    found: dict[Any, Job] = {}
    lengths = list(QUICK_LENGTHS if scale == "quick" else LENGTHS)
    for model in MODELS:
        if scale == "full" and model in TRAINED:
            found["run", model] = train(denoise_run(model, 100, seed))
            needs = found["run", model]
            found[model] = measure(trained_trade, needs=needs, seconds=10, lengths=lengths)
            found[_untrained(model)] = measure(untrained_trade, seconds=4, model=model, lengths=lengths, seed=seed)
        else:
            found[model] = measure(untrained_trade, seconds=4, model=model, lengths=lengths, seed=seed)
    return found


def _untrained(model: str) -> str:
    return f"{model}, untrained"


def trained_trade(run: Result, *, lengths: Sequence[int]) -> Mapping[str, Any]:
    """The same of a run's best weights."""
    task = run.run.config.task
    assert isinstance(task, Denoise)
    return _trade(run.run.model("best"), task, lengths)


def untrained_trade(*, model: str, lengths: Sequence[int], seed: int) -> Mapping[str, Any]:
    """Mean log ||dL/dh_t|| over t, and megabytes kept for the backward pass, of a new network at each length."""
    torch.manual_seed(seed)
    task = Denoise(seed=seed)
    return _trade(SequenceModel.for_task(task, NetworkConfig(model, N)), task, lengths)


def _trade(model: SequenceModel, task: Denoise, lengths: Sequence[int]) -> Mapping[str, Any]:
    gradients, megabytes = [], []
    for T in lengths:
        longer = task.with_length(T)
        gradients.append(float(log_gradient_norms(model, longer, PAPER_BATCH).mean()))
        megabytes.append(_kept_bytes(model, longer) / 2**20)
    return {"lengths": list(lengths), "gradient": gradients, "megabytes": megabytes}


def _kept_bytes(model: SequenceModel, task: Denoise) -> int:
    """Bytes of all tensors that the forward pass keeps for the backward pass, each storage once, without weights."""
    device = model.readout.weight.device
    inputs, targets = (tensor.to(device) for tensor in task.batch(0, PAPER_BATCH))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    held = []  # so that no storage is used again for another tensor

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs, _ = model(inputs)
        task.loss(outputs, targets)
    return sum(kept.values())


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    for model in MODELS:
        if model not in done:
            continue
        result = done[model]
        if result.diverged_at_once:
            lengths = QUICK_LENGTHS if scale == "quick" else LENGTHS
            found |= {(model, f"{what}, T = {T}"): Note("diverged") for T in lengths for what in ("MB", "log gradient")}
        else:
            for T, gradient, size in zip(result["lengths"], result["gradient"], result["megabytes"], strict=True):
                found[model, f"MB, T = {T}"] = size
                found[model, f"log gradient, T = {T}"] = gradient

    # What training changes is the gradient: memory is as much as before.
    for model in map(_untrained, TRAINED):
        if model in done:
            pairs = zip(done[model]["lengths"], done[model]["gradient"], strict=True)
            found |= {(model, f"log gradient, T = {T}"): gradient for T, gradient in pairs}
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    lines = []
    for number, model in enumerate(MODELS):
        measured = {one.seed: one[model] for one in done if model in one and not one[model].diverged_at_once}
        if measured:
            curves = {seed: (found["megabytes"], found["gradient"]) for seed, found in measured.items()}
            lines.append(band(model, curves, number))
    x, y = Axis("megabytes kept for the backward pass", log=True), Axis("mean log of the gradient's norm")
    return [Chart("trade", "Denoise: gradient against memory, a point for each length", x, y, tuple(lines))]


def _growth(found: Any, model: str, scale: Scale) -> float:
    """How many times as much a model keeps at the last length as at the first, over how many times as long it is."""
    first, *_, last = QUICK_LENGTHS if scale == "quick" else LENGTHS
    grown = found[model, f"MB, T = {last}"] / found[model, f"MB, T = {first}"]
    return float(grown / ((last + 20) / (first + 20)))


PEAKS = {  # MB of the authors' GPU at T = 400, 600, 800
    "RNN": (498.0, 506.0, 514.0),
    "LSTM": (506.0, 516.0, 526.0),
    "MemRNN": (2320.0, 4400.0, 7356.0),
    "SAB": (1316.0, 2482.0, 4035.0),
    "RelLSTM": (702.0, 804.0, 908.0),
}


def _is_stronger(row: str, other: str, column: str) -> Callable[[Cells], bool]:
    return lambda found: found[row, column] > found[other, column]


def _claims(scale: Scale) -> tuple[Claim, ...]:
    last = (QUICK_LENGTHS if scale == "quick" else LENGTHS)[-1]
    networks = [("", "RelLSTM", "LSTM")]
    if scale == "full":
        networks = [(", trained", "RelLSTM", "LSTM"), (", untrained", _untrained("RelLSTM"), _untrained("LSTM"))]
    return (
        Claim(
            "MemRNN's memory grows faster than the sequence, by half more or worse",
            check=lambda found: _growth(found, "MemRNN", scale) >= 1.5,
            scale=scale,
            form="printed",
        ),
        Claim(
            "MemRNN's memory grows with the sequence, as RelLSTM's does: within 20 %",
            check=lambda found: max(_growth(found, model, scale) for model in ("MemRNN", "RelLSTM")) <= 1.2,
            scale=scale,
            form="corrected",
        ),
        *(
            Claim(
                f"RelLSTM's gradient is stronger than LSTM's at T = {last}{words}",
                check=_is_stronger(rel_lstm, lstm, f"log gradient, T = {last}"),
                scale=scale,
            )
            for words, rel_lstm, lstm in networks
        ),
    )


def _surprise(quick: Cells, full: Cells) -> str:
    memory = (
        "With fused kernels the memory of full attention grows with the length, not with its square: the trade in "
        "memory disappears, the one in time stays."
    )
    column = f"log gradient, T = {LENGTHS[-1]}"
    rows = ("LSTM", "RelLSTM", _untrained("LSTM"), _untrained("RelLSTM"))
    if any((row, column) not in full for row in rows):
        return memory
    lstm, rel_lstm, lstm_before, rel_lstm_before = (f"{full[row, column]:.1f}" for row in rows)
    return (
        f"{memory} The mean log gradient at T = {LENGTHS[-1]} is {rel_lstm_before} in RelLSTM and {lstm_before} in "
        f"LSTM before training, and {rel_lstm} and {lstm} after it."
    )


study(
    Study(
        "kerg/gradient-vs-memory",
        "main text, by the authors' code (plotter.py)",
        "the gradient by earlier states against the memory that it takes, Denoise",
        jobs,
        cells,
        charts,
        claims=(*_claims("quick"), *_claims("full")),
        published=table(
            MODELS,
            [f"MB, T = {T}" for T in LENGTHS],
            list(PEAKS.values()),
            row_title="model",
            note="peaks of the authors' GPU, framework and weights included; ours are what the backward pass needs",
        ),
        settings=settings(
            n=(N, "code"),
            batch_size=(PAPER_BATCH, "code"),
            networks=(
                "trained on Denoise at T = 100, the runs of Figures 4 and 5, and untrained; RNN untrained alone",
                "ours",
                "not said",
            ),
            memory=("bytes of all tensors kept for the backward pass", "ours", "the code has the GPU's peak"),
            gradient=("mean over t of log ||dL/dh_t||, L of the last ten steps", "code", "0 counts as the least float"),
        ),
        quick=settings(T=("100, 200, 400", "ours"), networks=("all untrained", "ours")),
        words="Not in our copy of the paper; the plotting code has the peaks beside the gradients.",
        errata=(
            "That full attention takes memory that grows with the square of the length is a property of the authors' "
            "loop. Its time does grow so.",
        ),
        would_change="The authors' peaks beside the framework's own memory; whether their networks were trained, and "
        "how well: the size of a gradient is also that of the errors that are left.",
        surprise=_surprise,
    )
)
