"""What a study has done: training runs and measurements, as jobs, and what each of them found."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import locked, read_bytes, read_json, to_json, write_atomic
from mnemoscope.studies._cells import Note
from mnemoscope.studies._cost import training_seconds
from mnemoscope.sweeps import Job, StopRequest, run_job_of
from mnemoscope.training import NetworkConfig, Run, RunConfig, Stop, device_name

MEASUREMENT = "mnemoscope.studies:run_measurement"
ARRAYS = "arrays.safetensors"
LOCK_SECONDS = 60.0  # in which the process of a driver that was killed notices that, and ends
STOP_SECONDS = 0.2  # between two questions whether a measurement is to stop
DIVERGED = "diverged"


def train(config: RunConfig, *, seconds: float | None = None) -> Job:
    """Return the job that trains a configuration; equal ones are one run, whichever studies ask for it.

    Leave the device "auto": a run is the same wherever it was trained. Only what differs from the defaults makes the
    name of its folder, so that a new option does not give old runs new names.

    Args:
        config: the run. Seeds go into ``FitConfig(seed=...)``, or an agent's `PPOConfig`, and into the task's own seed.
        seconds: about how long it takes on one CPU; by default estimated from its sizes.
    """
    job = run_job_of(config)
    task, network, fit = job.config["task"], job.config["network"], job.config["fit"]
    content = {
        "task": {"name": task["name"], **_changed(task, type(config.task))},
        "network": {"model": network["model"], **_changed(network, NetworkConfig, others=True)},
        "fit": _changed(fit, type(config.fit)),
    }
    if seconds is None:
        seconds = training_seconds(config, on_gpu=torch.cuda.is_available())
    return Job(job.call, content, job.label, seconds=seconds)


def _changed(content: Mapping[str, Any], kind: type, others: bool = False) -> dict[str, Any]:
    """The fields of a dataclass's JSON that are not at their defaults; with `others`, what is no field of it too."""
    defaults = {known.name: known.default for known in fields(kind)}
    kept = {name: value for name, value in content.items() if name in defaults and value != defaults[name]}
    return kept | {name: value for name, value in content.items() if others and name not in defaults}


def measure(
    function: Callable[..., Mapping[str, Any]],
    *,
    needs: Job | Sequence[Job] = (),
    seconds: float = 1.0,
    version: int = 1,
    **arguments: Any,
) -> Job:
    """Return the job that calls ``function(*results_of_needs, **arguments)`` and keeps what it returns.

    Args:
        function: of a module, found by its name. It returns figures by name: numbers, words, lists of them, or arrays
            and tensors. The same arguments must give the same figures; it runs with one thread.
        needs: jobs that it looks at, as a trained run: it gets the `Result` of each, first. They must be among the
            study's jobs too.
        seconds: about how long it takes on one CPU.
        version: count it up when the function changes what it returns: old results are then made again.
        arguments: plain values, for JSON; they make the name of its folder.
    """
    needed = (needs,) if isinstance(needs, Job) else tuple(needs)
    names = [job.name for job in needed]
    call = f"{function.__module__}:{function.__qualname__}"
    config = {"function": call, "arguments": arguments, "needs": names, "version": version}
    return Job(MEASUREMENT, config, function.__name__.strip("_"), needs=tuple(names), seconds=seconds)


def run_measurement(config: Mapping[str, Any], folder: Path, should_stop: StopRequest) -> str:
    """Do a measurement in its folder: config.json, arrays.safetensors and, last, summary.json."""
    module, _, name = config["function"].partition(":")
    function = getattr(import_module(module), name)
    with locked(folder, wait=LOCK_SECONDS):
        write_atomic(folder / "config.json", to_json({"measurement": config}))
        needed = [Result(folder.parent / need) for need in config["needs"]]
        nothing = [result for result in needed if result.diverged_at_once]
        if nothing:  # it has no weights to measure
            empty = {"figures": {}, "diverged_at_once": True, "seconds": 0.0, "device": device_name()}
            write_atomic(folder / "summary.json", to_json(empty))
            return f"nothing to measure: {nothing[0].folder.name} diverged at once"
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        started = time.perf_counter()
        try:
            found = until_stopped(should_stop, lambda: function(*needed, **config["arguments"]))
        finally:
            torch.set_num_threads(threads)
        seconds = time.perf_counter() - started

        arrays = {key: _array(value) for key, value in found.items() if isinstance(value, torch.Tensor | np.ndarray)}
        figures = {key: _plain(value) for key, value in found.items() if key not in arrays}
        if arrays:
            write_atomic(folder / ARRAYS, save_arrays(arrays))
        write_atomic(
            folder / "summary.json", to_json({"figures": figures, "seconds": seconds, "device": device_name()})
        )
    return f"measured in {seconds:.1f} s"


class _Stopped(BaseException):
    """Raised in the midst of a measurement; no `except Exception` takes it for an error."""


def until_stopped(should_stop: StopRequest, call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what `call` does, or raise `Stop` soon after `should_stop()` is True: a measurement has nothing to save.

    Another thread asks, and Python raises the exception between two instructions of this one, at the latest when the
    other has been joined. It must not be taken back by `raise_in(this_thread, None)`: Python 3.11 would look for it at
    every call from then on, and a profiler or debugger in this process would never get past its first function.
    """
    ended = threading.Event()
    this_thread = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def ask() -> None:
        while not ended.wait(STOP_SECONDS):
            if should_stop():
                raise_in(this_thread, ctypes.py_object(_Stopped))
                return

    asking = threading.Thread(target=ask, daemon=True)
    try:
        asking.start()
        try:
            return call()
        finally:
            ended.set()
            asking.join()
    except _Stopped:
        raise Stop("stopped while it measured") from None


def _array(value: torch.Tensor | np.ndarray) -> np.ndarray:
    given = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    return np.array(given, order="C")


def _plain(value: Any) -> Any:
    """A figure for JSON, which has no NaN: None stands for it."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def _with_nan(value: Any) -> Any:
    """A figure from JSON, in which None stands for NaN."""
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_nan(item) for key, item in value.items()}
    return math.nan if value is None else value


class NotMeasured(KeyError):
    """Asked for what was to be measured of a run that diverged at once."""


class Result:
    """What a job has found: of a measurement its figures, of a training run its curves and its network."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        path = self.folder / "summary.json"
        try:
            content = read_json(path)
        except MnemoscopeError as error:
            raise MnemoscopeError(f"{error}; delete {self.folder}") from error
        if not isinstance(content, dict):
            raise MnemoscopeError(f"{path} is not the summary of a job; delete {self.folder}")
        return content

    @property
    def diverged(self) -> str:
        """Why a training run was given up; empty for one that ended."""
        is_diverged = self.summary.get("outcome") == "diverged"
        return str(self.summary.get("message") or "diverged") if is_diverged else ""

    @property
    def diverged_at_once(self) -> bool:
        """Whether a training run diverged before it was evaluated: it reached nothing. So it is of what measures it."""
        return bool(self.summary.get("diverged_at_once")) or (bool(self.diverged) and math.isnan(self.best))

    @property
    def seconds(self) -> float:
        """How long it took."""
        return float(self.summary.get("seconds") or 0.0)

    @property
    def device(self) -> str:
        """What it ran on; old results do not say."""
        return str(self.summary.get("device") or "a machine that was not recorded")

    def __getitem__(self, name: str) -> Any:
        """Return a figure or an array that a measurement returned; a number that was NaN is NaN again.

        Of a run that diverged at once nothing was measured: NotMeasured is raised.
        """
        figures = self.summary.get("figures")
        if not isinstance(figures, dict):
            raise MnemoscopeError(f"{self.folder} is not the folder of a measurement")
        if self.diverged_at_once:
            raise NotMeasured(f"{self.folder.name}: the run diverged at once")
        if name in figures:
            return _with_nan(figures[name])
        if name not in self.arrays:
            raise MnemoscopeError(f"{self.folder} lacks {name!r}, which was measured; delete {self.folder}")
        return self.arrays[name]

    def figure(self, name: str, counts_as: float | Literal["infinity"] | None = None) -> float | Note:
        """Return a number that a measurement returned; a note with what it counts as of a run that diverged at once."""
        return Note(DIVERGED, counts_as) if self.diverged_at_once else float(self[name])

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that a measurement returned."""
        path = self.folder / ARRAYS
        try:
            return load_arrays(read_bytes(path)) if path.exists() else {}
        except SafetensorError as error:
            raise MnemoscopeError(f"{path} is damaged: {error}; delete {self.folder}") from error

    @cached_property
    def run(self) -> Run:
        """A training run: ``run.model("best")``, ``run.config``, ``run.metrics()``."""
        return Run(self.folder)

    @property
    def best(self) -> float:
        """The best held-out value of the task's headline metric; NaN if the run was never evaluated."""
        best = self.summary.get("best")
        return math.nan if best is None else float(best)

    def reached(self, counts_as: float | Literal["infinity"]) -> float | Note:
        """Return `best`; a note with what it counts as, a guess or infinity, of a run that diverged at once."""
        return Note(DIVERGED, counts_as) if self.diverged_at_once else self.best

    def curve(self, metric: str, split: str | None = "valid") -> tuple[np.ndarray, np.ndarray]:
        """Return the updates at which a metric was recorded, and its values: both (N,).

        With ``split=None`` it is that of the training batches, as it was logged.
        """
        records = [record for record in self.run.metrics() if record.get("split") == split and metric in record]
        values = [math.nan if record[metric] is None else record[metric] for record in records]
        return np.array([record["update"] for record in records], dtype=float), np.array(values, dtype=float)


class Done(dict[Any, Result]):
    """The results of one seed by the keys of the study's jobs; jobs that have not ended are missing."""

    def __init__(
        self, seed: int, results: Iterable[tuple[Any, Result]] = (), failures: Mapping[Any, str] | None = None
    ) -> None:
        super().__init__(results)
        self.seed = seed
        self.failures = dict(failures or {})
        """Why jobs failed that did not diverge, by key."""


def check_is_of(job: Job, folder: Path) -> None:
    """Refuse a folder with a config.json that is not this job's."""
    path = folder / "config.json"
    if not path.is_file():
        return
    if job.call == MEASUREMENT:
        content = read_json(path)
        same = isinstance(content, dict) and content.get("measurement") == job.config
    else:
        same = Run(folder).config == RunConfig.from_dict(job.config)
    if not same:
        raise MnemoscopeError(f"{folder} holds something else than its name says; move it away")
