"""Configurations: what is allowed, what is refused in one line, and the way through JSON."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope import MnemoscopeError
from mnemoscope.tasks import TASKS, Copy
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, config_type, layer_options, models

FIT = st.fixed_dictionaries(
    {
        "lr": st.floats(1e-8, 1e8),
        "clip": st.floats(0, 1e9),
        "updates": st.integers(1, 2**40),
        "schedule": st.sampled_from(["constant", "inverse", "inverse-sqrt", "step", "plateau"]),
        "stable": st.none() | st.floats(0.01, 1),
        "scale_clip": st.booleans(),
        "skip_nonfinite": st.integers(0, 5),
        "evaluate_batches": st.none() | st.integers(1, 9),
        "seed": st.integers(0, 2**63 - 1),
        "tensorboard": st.booleans(),
    }
)


@pytest.mark.parametrize("name", TASKS)
@settings(max_examples=20, deadline=None)
@given(values=FIT)
def test_json_round_trip(name: str, values: dict[str, Any]) -> None:
    task = TASKS[name]()
    known = {field.name for field in fields(config_type(task))}  # those of agents differ
    fit = config_type(task)(**{name: value for name, value in values.items() if name in known})
    config = RunConfig(task, NetworkConfig("RelLSTM", 7, options={"buffer": 3, "refresh": True}), fit)
    text = json.dumps(config.to_dict(), allow_nan=False)
    assert RunConfig.from_dict(json.loads(text)) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": 0.0}, r"lr = 0.0 is not allowed; it must be above 0"),
        ({"lr": float("nan")}, r"lr = nan is not allowed; it must be a finite number"),
        ({"updates": 0}, r"updates = 0 is not allowed; it must be at least 1"),
        ({"seed": 10**20}, r"seed = 100000000000000000000 is not allowed; it must be between -2\^63 and 2\^63"),
        ({"updates": 2.5}, r"updates = 2.5 is not allowed; it must be a whole number"),
        ({"updates": True}, r"updates = True is not allowed"),
        ({"batch_size": "big"}, r"batch-size = 'big' is not allowed; it must be a whole number"),
        ({"optimizer": "adagrad"}, r"optimizer = 'adagrad' is not allowed; it must be one of 'adam', 'rmsprop', 'sgd'"),
        ({"momentum": 0.9}, r"momentum = 0.9 is not allowed; it must be 0 with adam"),
        ({"stable": 1.5}, r"stable = 1.5 is not allowed; it must be above 0 and at most 1"),
        ({"stable": 0.0}, r"stable = 0.0 is not allowed; it must be above 0 and at most 1"),
        (
            {"milestones": (5, 5), "schedule": "milestones"},
            r"milestones = \(5, 5\) is not allowed; it must be in ascending",
        ),
        (
            {"milestones": (0, 5), "schedule": "milestones"},
            r"milestones = \(0, 5\) is not allowed; it must be in ascending",
        ),
        ({"milestones": (2.5,), "schedule": "milestones"}, r"milestones\[0\] = 2.5 is not allowed; it must be a whole"),
        ({"milestones": (5,)}, r"schedule = 'constant' with milestones = \[5\] is not allowed"),
        ({"schedule": "milestones"}, r"schedule = 'milestones' with milestones = \[\] is not allowed"),
        ({"threads": 10**6}, r"threads = 1000000 is not allowed"),
        ({"seed": -1}, r"seed = -1 is not allowed"),
    ],
)
def test_wrong_values_are_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(MnemoscopeError, match=message) as error:
        FitConfig(**values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["fit"].update(lrr=1), "fit has no field 'lrr'; its fields are updates"),
        (lambda c: c["fit"].update(lr="1"), "fit.lr = '1' is not allowed; it must be a finite number"),
        (lambda c: c["fit"].update(stable=[]), "must be a finite number or null"),
        (lambda c: c["network"].update(dropout=1), "dropout = 1.0 is not allowed"),
        (lambda c: c["network"].update(buffer="5"), "network.buffer = '5' is not allowed; it must be a whole number"),
        (lambda c: c["network"].update(bufer=5), "RelRNN has no option 'bufer'; did you mean buffer?"),
        (lambda c: c["network"].update(hidden=5), "RelRNN has no option 'hidden'; did you mean hidden_size?"),
        (lambda c: c["network"].update(options={"buffer": 5}), "RelRNN has no option 'options'; "),
        (lambda c: c["task"].update(name="x"), "task.name = 'x' is not a task; tasks are copy"),
        (lambda c: c["task"].update(T="5"), "task.T = '5' is not allowed; it must be a whole number"),
        (lambda c: c["task"].update(T=0), "T = 0 is not allowed"),
        (lambda c: c.update(network=3), "network = 3 is not allowed"),
        (lambda c: c.pop("fit"), "must have task, network and fit"),
    ],
)
def test_wrong_files_are_refused_in_one_line(change: Any, message: str) -> None:
    config = RunConfig(Copy()).to_dict()
    change(config)
    with pytest.raises(MnemoscopeError, match=re.escape(message)):
        RunConfig.from_dict(config)


@pytest.mark.parametrize("kind", [FitConfig, NetworkConfig])
def test_missing_fields_take_their_defaults(kind: type) -> None:
    part = "fit" if kind is FitConfig else "network"
    config = {"task": {"name": "copy"}, "network": {}, "fit": {}}
    found = getattr(RunConfig.from_dict(config), part)
    assert found == kind()
    assert all(field.default is not None or "None" in str(field.type) for field in fields(kind))


def test_layer_options_lie_beside_the_other_fields_in_config_json() -> None:
    network = NetworkConfig("RelRNN", 8, options={"buffer": 3, "relevant": None})
    data = RunConfig(Copy(), network).to_dict()["network"]
    common = {field.name for field in fields(NetworkConfig) if not field.metadata.get("added_later")} - {"options"}
    assert set(data) == common | {"buffer"}
    assert NetworkConfig.from_dict(data) == network


def test_milestones_go_through_json() -> None:
    fit = FitConfig(schedule="milestones", milestones=[3, 7], factor=0.1)  # type: ignore[arg-type]
    assert fit.milestones == (3, 7)
    content = json.loads(json.dumps(RunConfig(Copy(), fit=fit).to_dict()))
    assert content["fit"]["milestones"] == [3, 7]
    assert RunConfig.from_dict(content).fit == fit


def test_fields_added_later_are_written_only_if_set() -> None:
    """The hash of a configuration names runs in sweeps and is in checkpoints: it must not change."""
    assert not {"ranks", "scale_clip"} & set(FitConfig().to_dict())
    assert FitConfig(scale_clip=True).to_dict()["scale_clip"] is True


def test_layer_options_do_not_share_a_name_with_a_field() -> None:
    names = {field.name for field in fields(NetworkConfig)}
    for model in models():
        assert not names & set(layer_options(model))


def test_old_config_json_with_null_options_is_read() -> None:
    """The first run folders list the options of all layers, those that are not set as null."""
    common = NetworkConfig("RelLSTM", 8).to_dict()
    unset = dict.fromkeys(
        [
            "nonlinearity",
            "relevant",
            "mix",
            "output",
            "decay",
            "store_every",
            "top",
            "truncation",
            "recurrent_init",
            "trivialization",
            "layout",
            "rotations",
            "checkpoint",
            "preactivation",
        ]
    )
    old = {**common, **unset, "buffer": 3, "refresh": True}
    assert NetworkConfig.from_dict(old) == NetworkConfig("RelLSTM", 8, options={"buffer": 3, "refresh": True})
