"""mnemoscope examine TARGET...: look at models through every scope, and write the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from mnemoscope.adapters import find_vocabulary
from mnemoscope.cli._conditions import Condition, failures, read_conditions
from mnemoscope.cli._console import parse, pop_option, say, show, show_json, terminal
from mnemoscope.cli._examination_files import examination_folder, save_examinations, write_report
from mnemoscope.cli._examine_options import ABOUT, Examine
from mnemoscope.cli._factories import exits_are_errors
from mnemoscope.cli._measure import ScopeProgress, measure, num_threads, stoppable
from mnemoscope.cli._names import chosen_folder, folder_option, require_writable, unused_name
from mnemoscope.cli._scope_options import options_for, read_scope_options
from mnemoscope.cli._sequences import (
    Sequences,
    file_sequences,
    fit_to_model,
    random_ids,
    random_sequences,
    system_sequences,
    task_sequences,
    with_loss,
)
from mnemoscope.cli._targets import Target, is_run, load_target, read_options
from mnemoscope.errors import MnemoscopeError, did_you_mean
from mnemoscope.files import LOCK_SECONDS, locked, safe_name
from mnemoscope.finding import Examination
from mnemoscope.report import headlines, mixed_layouts
from mnemoscope.scopes import SCOPES, untouched
from mnemoscope.tasks import TASKS, Split, Task
from mnemoscope.training import Run

CONDITION_HOLDS = 4  # exit code
DEFAULT_STEPS = 100
DEFAULT_BATCH = 8
DEFAULT_FEATURES = 8
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def main(arguments: list[str]) -> int:
    options, task = _options(arguments)
    conditions = read_conditions(options.fail_if)
    with exits_are_errors():
        return _run(options, task, conditions)


def _run(options: Examine[Any], task: Task | None, conditions: Sequence[Condition]) -> int:
    """Make the targets, choose where their page goes, and measure them."""
    device = _device(options.device)
    targets = _targets(options, task, device)
    out = folder_option(options.out)
    if out is None and len(targets) == 1 and targets[0].run is not None:
        out = examination_folder(targets[0].run.path)
    if out is not None:
        require_writable(out)
    with chosen_folder(out, "examinations", safe_name("-".join(target.name for target in targets))[:80]) as folder:
        return _run_into(folder, options, task, targets, device, conditions)


def _run_into(
    folder: Path,
    options: Examine[Any],
    task: Task | None,
    targets: Sequence[Target],
    device: torch.device,
    conditions: Sequence[Condition],
) -> int:
    """Measure the targets, write their page into a folder, and return the exit code."""
    with stoppable() as signal_codes, num_threads(options.threads):
        examinations, stopped = _measure_all(options, task, targets, device)
    stop_code = signal_codes[0] if signal_codes else 130
    if not examinations:
        terminal().print("mnemoscope: stopped before anything was found", highlight=False)
        return stop_code

    with locked(folder, wait=LOCK_SECONDS):
        save_examinations(examinations, folder)
        page = write_report(examinations, folder, options.figures)
    _check_set_scopes(options, examinations)
    failed = [] if stopped else failures(conditions, examinations)
    _show_result(options, examinations, page, failed, stopped)
    if stopped:
        return stop_code
    return CONDITION_HOLDS if failed else 0


def _check_set_scopes(options: Examine[Any], examinations: Mapping[str, Examination]) -> None:
    """Raise if a scope whose options were set has failed: its options may be what is wrong."""
    chosen = {word.partition(".")[0] for word in options.scope_options}
    for name, examination in examinations.items():
        for scope in chosen:
            finding = examination.findings.get(scope)
            if finding is not None and finding.status == "failed":
                raise MnemoscopeError(f"{name}: {scope} failed: {finding.why}")


def _options(arguments: list[str]) -> tuple[Examine[Any], Task | None]:
    """The options, and the task for all targets if --task names one or --task.OPTION changes a run's own."""
    name, rest = pop_option(arguments, "--task")
    if name is not None and name not in TASKS:
        hint = did_you_mean(name, TASKS)
        raise MnemoscopeError(f"task = {name!r} is not a task; tasks are {', '.join(TASKS)}{hint}")
    task: Task | None = None
    first_run = next((word for word in rest if not word.startswith("-") and is_run(word)), None)
    if name is not None:
        task = TASKS[name]()
    elif first_run is not None and any(word.startswith("--task.") for word in rest):
        task = Run(first_run).task

    kind: Any = Examine[None] if task is None else Examine[type(task)]  # type: ignore[misc]
    default: Examine[Any] = Examine((), task)
    Examine.require_values(rest)
    options: Examine[Any] = parse(kind, rest, "examine", about=ABOUT, default=default)
    if not options.targets:
        raise MnemoscopeError("no target was given; mnemoscope examine TARGET takes a run, a model or module:factory")
    return options, options.task


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise MnemoscopeError("device = 'cuda' is not allowed here: torch finds no CUDA device; use cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _targets(options: Examine[Any], task: Task | None, device: torch.device) -> list[Target]:
    """All targets, made and loaded before anything is measured: a wrong one costs no time."""
    fresh = [spec for spec in options.targets if not is_run(spec)]
    if options.checkpoint and len(options.checkpoint) != len(fresh):
        given = f"{len(options.checkpoint)} for {len(fresh)} targets that are not runs"
        raise MnemoscopeError(f"--checkpoint takes one file for each target that is not a run; got {given}")
    files = iter(options.checkpoint)
    model_options = read_options(options.options)
    features = _features(options, task)
    targets: list[Target] = []
    for spec in options.targets:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(options.seed)
            target = load_target(
                spec,
                task=task,
                features=features,
                vocabulary=options.vocabulary,
                options={} if is_run(spec) else model_options,
                checkpoint=None if is_run(spec) else next(files, None),
                which=options.which,
            )
        if isinstance(target.model, torch.nn.Module):
            _cast(target.model, device, _dtype(options, target))
        targets.append(replace(target, name=unused_name(target.name, [other.name for other in targets])))
    return targets


def _dtype(options: Examine[Any], target: Target) -> torch.dtype:
    default = "float32" if target.system is None else "float64"
    return _DTYPES[options.dtype or default]


def _cast(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model to a device and a number format; ``Module.to`` would drop the imaginary part of complex weights."""
    tensors = [*model.parameters(), *model.buffers()]
    if not any(tensor.is_complex() for tensor in tensors):
        model.to(device, dtype)
        return
    model.to(device)
    for tensor in tensors:
        if tensor.is_complex():
            tensor.data = tensor.data.to(dtype.to_complex())
        elif tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)


def _features(options: Examine[Any], task: Task | None) -> int:
    """How many features a model is made for that asks for its input_size."""
    if task is not None:
        return task.input_size
    if options.inputs is not None:
        return file_sequences(options.inputs).features
    return options.features or DEFAULT_FEATURES


def _read_features(target: Target) -> int:
    """How many features a model says that it reads, itself or by its first layer."""
    modules = target.model.modules() if isinstance(target.model, torch.nn.Module) else ()
    for module in (target.model, *modules):
        for name in ("input_size", "in_features", "in_channels"):
            size = getattr(module, name, None)
            if isinstance(size, int) and size > 0:
                return size
    return DEFAULT_FEATURES


def _sequences(
    options: Examine[Any], task: Task | None, target: Target, device: torch.device, split: Split = "valid"
) -> Sequences:
    """The sequences that a target is examined on, on the device and in the layout that it reads."""
    if task is None and target.run is not None:
        task = target.run.task
    if options.inputs is not None:
        sequences = file_sequences(options.inputs, options.targets_file)
    elif task is not None:
        sequences = task_sequences(task, options.batch or DEFAULT_BATCH, split, target.model)
    elif target.system is not None:
        sequences = system_sequences(target.system, options.steps, options.batch, options.seed)
    else:
        steps = options.steps or DEFAULT_STEPS
        batch = options.batch or DEFAULT_BATCH
        vocabulary = options.vocabulary or _vocabulary(target)
        if vocabulary is None:
            features = options.features or _read_features(target)
            sequences = random_sequences(steps, batch, features, options.seed)
        else:
            sequences = random_ids(steps, batch, vocabulary, options.seed)

    if options.loss is not None:
        sequences = with_loss(sequences, options.loss)
    inputs = sequences.inputs.to(device)
    if inputs.is_floating_point():
        inputs = inputs.to(_dtype(options, target))
    targets = None if sequences.targets is None else sequences.targets.to(device)
    needs = sequences.needs if options.needs is None else options.needs
    return fit_to_model(replace(sequences, inputs=inputs, targets=targets, needs=needs), target.model, options.reading)


def _other_sequences(
    options: Examine[Any], task: Task | None, target: Target, device: torch.device, split: Split
) -> Sequences:
    """Sequences of a split of the task, for a scope that compares."""
    if options.inputs is not None or (task is None and target.run is None):
        raise MnemoscopeError(f"--set landscape.held_out={split} needs a run or a --task, which has splits")
    return _sequences(options, task, target, device, split)


def _vocabulary(target: Target) -> int | None:
    """How many different ids a target reads; None if it reads real numbers."""
    with untouched(target.model):
        return find_vocabulary(target.model)


def _measure_all(
    options: Examine[Any], task: Task | None, targets: Sequence[Target], device: torch.device
) -> tuple[dict[str, Examination], bool]:
    """The examinations by name, and True if Ctrl-C ended them early."""
    scopes = options.scopes or tuple(SCOPES)
    scope_options = read_scope_options(options.scope_options, scopes)
    progress = ScopeProgress(scopes, options.budget, options.output.quiet or options.output.json)
    all_sequences = [_sequences(options, task, target, device) for target in targets]
    all_options = [
        options_for(scope_options, target, partial(_other_sequences, options, task, target, device))
        for target in targets
    ]
    examinations: dict[str, Examination] = {}
    try:
        for target, sequences, own in zip(targets, all_sequences, all_options, strict=True):
            examination = measure(
                target, sequences, scopes, own, options.budget, options.reading, options.seed, progress
            )
            examinations[target.name] = examination
            if examination.partial:
                return examinations, True
    except KeyboardInterrupt:  # outside of a scope: the findings of earlier targets are whole
        return examinations, True
    return examinations, False


def _show_result(
    options: Examine[Any], examinations: Mapping[str, Examination], page: Path, failed: list[str], stopped: bool
) -> None:
    if options.output.json:
        models = {name: _plain(examination) for name, examination in examinations.items()}
        show_json({"report": str(page), "partial": stopped, "failed": failed, "models": models})
    elif not options.output.quiet:
        _show_headlines(examinations)
        say(f"stopped; what was found so far: {page}" if stopped else page)
    for line in failed:
        terminal().print(f"mnemoscope: fail-if {line}", highlight=False, soft_wrap=True)


def _show_headlines(examinations: Mapping[str, Examination]) -> None:
    """The verdicts, and the figures that matter side by side."""
    for name, examination in examinations.items():
        say(f"{name}: {examination.verdict}")
        say(f"{name}: read as {examination.about['layout']}, {examination.about['inputs']}.")
        if "mode" in examination.about:
            say(f"{name}: measured in {examination.about['mode']}.")
    say("--time-first, --batch-first and --channels-first read models otherwise.")
    if turned := mixed_layouts(examinations):
        say(turned)
    table = Table("", *examinations)
    for headline in headlines(examinations):
        cells = [f"{entry.value} ({entry.note})" if entry.note else entry.value for entry in headline.values]
        table.add_row(headline.title, *cells)
    show(table)


def _plain(examination: Examination) -> dict[str, Any]:
    """An examination as JSON has it."""
    findings = {}
    for finding in examination:
        findings[finding.scope] = {
            "status": finding.status,
            "sentence": finding.sentence,
            "why": finding.why,
            "labels": finding.labels,
            "warnings": list(finding.warnings),
            "figures": {key: v if math.isfinite(v) else str(v) for key, v in finding.figures.items()},
            "certified": list(finding.certified),
            "seconds": finding.seconds,
        }
    return {
        "verdict": examination.verdict,
        "about": examination.about,
        "partial": examination.partial,
        "seconds": examination.seconds,
        "findings": findings,
    }
