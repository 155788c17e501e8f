"""A study for tests: two runs of five updates and a measurement of each, in files that any process can import."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, Line
from mnemoscope.studies import Claim, Result, Study, measure, settings, table, train  # noqa: F401
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

MODELS = ("RNN", "LSTM")


def config(model: str, seed: int = 0, updates: int = 5) -> RunConfig:
    fit = FitConfig(updates=updates, batch_size=4, seed=seed, evaluate_every=2, evaluate_batches=1, checkpoint_every=2)
    return RunConfig(Copy(T=3), NetworkConfig(model, 8), fit)


def weight_norm(run: Result, *, order: float) -> Mapping[str, Any]:
    weights = [w.detach() for w in run.run.model("last").parameters()]
    return {"norm": float(sum(w.norm(order) for w in weights)), "first": weights[0]}


def number(*, value: float) -> Mapping[str, Any]:
    array = np.array([value])
    return {"value": value, "nothing": float("nan"), "word": "yes", "list": [1.0, float("inf")], "array": array}


def values_chart(scale, done):
    """A chart of those numbers that there are."""
    y = np.array([result["value"] for one in done for result in one.values()])
    return [Chart("values", "Values", Axis("job"), Axis("value"), (Line("value", np.arange(float(len(y))), y),))]


def breaks(*, value: float) -> Mapping[str, Any]:
    raise KeyError(value)


def endless() -> Mapping[str, Any]:
    while True:
        time.sleep(0.001)


def endless_in_spite_of_errors() -> Mapping[str, Any]:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.001)


def trained(updates: int = 5) -> Study:
    """A study of two runs, shared by its two sizes, and their norms."""

    def jobs(scale, seed):
        runs = {model: train(config(model, seed, updates)) for model in MODELS}
        return {**runs, **{(model, "norm"): measure(weight_norm, needs=runs[model], order=2.0) for model in MODELS}}

    def cells(scale, done):
        norms = {(model, "norm"): done[model, "norm"]["norm"] for model in MODELS if (model, "norm") in done}
        return norms | {(model, "loss"): done[model].best for model in MODELS if model in done}

    def charts(scale, done):
        line = Line("norm", np.arange(2.0), np.array([done[0][model, "norm"]["norm"] for model in MODELS]))
        return [Chart("norms", "Norms", Axis("model"), Axis("norm"), (line,))]

    claims = (Claim("there are norms", column="norm", at_least=0.0), Claim("none above", column="norm", at_most=1e9))
    return Study("miller/test", "Test", "two runs", jobs, cells, charts, claims, table(MODELS, ("norm", "loss")))


def numbers(values: Mapping[int, Mapping[tuple[str, str], float]], **words: Any) -> Study:
    """A study whose cells are `values` of its seed."""

    def jobs(scale, seed):
        return {key: measure(number, value=value) for key, value in values[seed].items()}

    def cells(scale, done):
        return {key: result["value"] for key, result in done.items()}

    return Study("miller/numbers", "Test", "numbers", jobs, cells, **words)
