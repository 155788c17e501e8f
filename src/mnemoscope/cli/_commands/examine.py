"""mnemoscope examine TARGET...: look at models through every scope, and write the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import torch
import tyro
from rich.table import Table

from mnemoscope.cli import _sequences as made
from mnemoscope.cli._conditions import failures, read_conditions
from mnemoscope.cli._console import parse, show, show_json, take, terminal
from mnemoscope.cli._examination_files import RUNS_OWN, Format, draw, free, save, slug
from mnemoscope.cli._follow import Reporting
from mnemoscope.cli._measure import Bar, measure, stoppable, threads
from mnemoscope.cli._targets import Target, is_run, load_target, read_options
from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Examination
from mnemoscope.scopes import SCOPES
from mnemoscope.tasks import TASKS, Task
from mnemoscope.training import Run
from mnemoscope.training._run import Which

K = TypeVar("K")
FAILED = 4
_DTYPES = {"float32": torch.float32, "float64": torch.float64}

ABOUT = """Look at models through every scope and write the page. A target is a run's folder, a built-in model's name,
package.module:factory or path/to/file.py:factory; several are compared. --task NAME, with its options as --task.T 200,
gives the sequences; by default a run's own task, else random ones."""


@dataclass(frozen=True)
class Examine(Generic[K]):
    """Options of `mnemoscope examine`."""

    targets: tyro.conf.Positional[tuple[str, ...]]
    """What to examine."""
    task: K
    checkpoint: tuple[Path, ...] = ()
    """Weights for the targets that are no runs, in their order: safetensors, or torch files that hold tensors alone."""
    which: Which = "last"
    """A run's last weights, or those that did best on held-out batches."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(name="with")] = ()
    """Options of a built-in model or arguments of a factory, as name=value: hidden_size=128 bidirectional=True."""
    inputs: Path | None = None
    """Sequences from an .npy, .pt or .safetensors file, (time, batch, features) or as --batch-first says."""
    batch_first: tyro.conf.FlagCreatePairsOff[bool] = False
    """The model is fed (batch, time, features), whatever its layers say: by default it is what they say."""
    time_first: tyro.conf.FlagCreatePairsOff[bool] = False
    """The model is fed (time, batch, features), whatever its layers say."""
    steps: int = 100
    """Steps of random sequences."""
    features: int = 8
    """Features of random sequences."""
    batch: int = 8
    """How many sequences."""
    needs: float | None = None
    """How many steps back must be remembered; by default what the task needs."""
    scopes: tuple[str, ...] = ()
    """Scopes to look through; all by default."""
    budget: float = 45.0
    """Seconds a target may take; scopes for which they do not suffice are skipped."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number format to measure in."""
    threads: int = 1
    """CPU threads; the steps of a recurrence are small, and wait for each other more than they gain."""
    seed: int = 0
    """Seed of fresh weights, random inputs and random directions."""
    out: Path | None = None
    """Where the findings and the page go; by default a run's own folder, or a new one under examinations/."""
    figures: tuple[Format, ...] = ()
    """Write the charts as files too: svg, png or both."""
    fail_if: tuple[str, ...] = ()
    """Conditions on figures, as 'horizon<100': exit code 4 if one holds for any target."""
    reporting: tyro.conf.OmitArgPrefixes[Reporting] = field(default_factory=Reporting)

    def __post_init__(self) -> None:
        for scope in self.scopes:
            if scope not in SCOPES:
                raise MnemoscopeError(f"scopes = {scope!r} is not a scope; scopes are {', '.join(sorted(SCOPES))}")
        if not (math.isfinite(self.budget) and self.budget > 0):
            raise MnemoscopeError(f"budget = {self.budget} is not allowed; it must be a positive number of seconds")
        if self.batch_first and self.time_first:
            raise MnemoscopeError("--batch-first and --time-first contradict each other; give one of them")
        for name in ("batch", "threads"):
            if getattr(self, name) < 1:
                raise MnemoscopeError(f"{name} = {getattr(self, name)} is not allowed; it must be at least 1")

    @property
    def layout(self) -> bool | None:
        """Whether the batch comes first; None leaves it to the model."""
        return self.batch_first if self.batch_first or self.time_first else None


def main(arguments: list[str]) -> int:
    options, task = _options(arguments)
    conditions = read_conditions(options.fail_if)
    device = _device(options.device)
    targets = _targets(options, task, device)
    folder = options.out or _folder(targets)
    with stoppable() as signalled, threads(options.threads):
        found, stopped = _measure_all(options, task, targets, device)
    code = signalled[0] if signalled else 130
    if not found:
        terminal().print("mnemoscope: stopped before anything was found", highlight=False)
        return code
    save(found, folder)
    page = draw(found, folder, options.figures)
    failed = [] if stopped else failures(conditions, found)
    _tell(options, found, page, failed, stopped)
    return code if stopped else FAILED if failed else 0


def _options(arguments: list[str]) -> tuple[Examine[Any], Task | None]:
    """The options, and the task for all targets: the one that is named, or a run's own with changes asked for."""
    name, rest = take(arguments, "--task")
    if name is not None and name not in TASKS:
        raise MnemoscopeError(f"task = {name!r} is not a task; tasks are {', '.join(TASKS)}")
    first = next((word for word in rest if not word.startswith("-") and is_run(word)), None)
    changed = any(word.startswith("--task.") for word in rest)
    task = TASKS[name]() if name is not None else Run(first).task if changed and first is not None else None
    kind: Any = Examine[type(task)] if task is not None else Examine[None]  # type: ignore[misc]
    default: Examine[Any] = Examine((), task)
    options: Examine[Any] = parse(kind, rest, "examine", about=ABOUT, default=default)
    if not options.targets:
        raise MnemoscopeError("no target was given; mnemoscope examine TARGET takes a run, a model or module:factory")
    return options, options.task


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise MnemoscopeError("device = 'cuda' is not allowed here: torch finds no CUDA device; use cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _targets(options: Examine[Any], task: Task | None, device: torch.device) -> list[Target]:
    """Every target made and loaded before anything is measured: a wrong one costs no time."""
    extra = read_options(options.options)
    fresh = [spec for spec in options.targets if not is_run(spec)]
    if options.checkpoint and len(options.checkpoint) != len(fresh):
        given = f"{len(options.checkpoint)} for {len(fresh)} targets that are no runs"
        raise MnemoscopeError(f"--checkpoint takes one file for each target that is no run; got {given}")
    files = iter(options.checkpoint)
    features = _features(options, task)
    found: list[Target] = []
    for spec in options.targets:
        own = not is_run(spec)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(options.seed)
            target = load_target(
                spec, task=task, features=features, options=extra if own else {},
                checkpoint=next(files, None) if own else None, which=options.which,
            )  # fmt: skip
        if isinstance(target.model, torch.nn.Module):
            target.model.to(device, _DTYPES[options.dtype])
        name = free(target.name, [other.name for other in found])
        found.append(Target(name, target.spec, target.model, target.run))
    return found


def _features(options: Examine[Any], task: Task | None) -> int:
    if task is not None:
        return task.input_size
    return made.of_file(options.inputs).features if options.inputs is not None else options.features


def _sequences(options: Examine[Any], task: Task | None, target: Target, device: torch.device) -> made.Sequences:
    own = target.run.task if target.run is not None and task is None else task
    if options.inputs is not None:
        found = made.of_file(options.inputs)
    elif own is not None:
        found = made.of_task(own, options.batch)
    else:
        found = made.random(options.steps, options.batch, options.features, options.seed)
    inputs = found.inputs.to(device)
    inputs = inputs.to(_DTYPES[options.dtype]) if inputs.is_floating_point() else inputs
    targets = None if found.targets is None else found.targets.to(device)
    needs = found.needs if options.needs is None else options.needs
    moved = replace(found, inputs=inputs, targets=targets, needs=needs)
    return made.fitted(moved, target.model, options.layout)


def _measure_all(
    options: Examine[Any], task: Task | None, targets: Sequence[Target], device: torch.device
) -> tuple[dict[str, Examination], bool]:
    """The examinations by name, and whether Ctrl-C ended them early."""
    scopes = options.scopes or tuple(SCOPES)
    bar = Bar(scopes, options.budget, options.reporting.quiet or options.reporting.json)
    fitted = [_sequences(options, task, target, device) for target in targets]
    found: dict[str, Examination] = {}
    try:
        for target, sequences in zip(targets, fitted, strict=True):
            examination = measure(target, sequences, scopes, options.budget, options.layout, options.seed, bar)
            found[target.name] = examination
            if examination.partial:
                return found, True
    except KeyboardInterrupt:  # between two scopes' frames: what was found of earlier targets stands
        return found, True
    return found, False


def _folder(targets: Sequence[Target]) -> Path:
    if len(targets) == 1 and targets[0].run is not None:
        return targets[0].run.path / RUNS_OWN
    name = slug("-".join(target.name for target in targets))[:80]
    candidates = (Path("examinations", name if i == 1 else f"{name}-{i}") for i in count(1))
    return next(path for path in candidates if not path.exists())


def _tell(
    options: Examine[Any], found: Mapping[str, Examination], page: Path, failed: list[str], stopped: bool
) -> None:
    if options.reporting.json:
        models = {name: _plain(examination) for name, examination in found.items()}
        show_json({"report": str(page), "partial": stopped, "failed": failed, "models": models})
    elif not options.reporting.quiet:
        comparison(found)
        print(f"{'stopped; what was found so far: ' if stopped else ''}{page}")
    for said in failed:
        terminal().print(f"mnemoscope: fail-if {said}", highlight=False, soft_wrap=True)


def comparison(found: Mapping[str, Examination]) -> None:
    """The verdicts, and the figures that matter side by side."""
    from mnemoscope.report._headline import headlines

    for name, examination in found.items():
        print(f"{name}: {examination.verdict}")
    table = Table("", *found)
    for headline in headlines(found):
        cells = (f"{r.value}" + (f" ({r.remark})" if r.remark else "") for r in headline.readings)
        table.add_row(headline.title, *cells)
    show(table)


def _plain(examination: Examination) -> dict[str, Any]:
    findings = {
        f.scope: {
            "status": f.status, "sentence": f.sentence, "why": f.why, "labels": f.labels, "warnings": list(f.warnings),
            "figures": {key: v if math.isfinite(v) else str(v) for key, v in f.figures.items()}, "seconds": f.seconds,
        }
        for f in examination
    }  # fmt: skip
    about = {"verdict": examination.verdict, "about": examination.about, "partial": examination.partial}
    return {**about, "seconds": examination.seconds, "findings": findings}
