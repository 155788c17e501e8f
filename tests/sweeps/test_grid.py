"""Grids: what is understood, what is refused, and the names of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.sweeps import field_value, parse_grid, run_job_of
from mnemoscope.sweeps._grid import grid_points, with_changes
from mnemoscope.sweeps._sweep import _described
from mnemoscope.tasks import Characters, Copy, Gaussian
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

BASE = RunConfig(Copy(T=5), NetworkConfig("RelRNN", 8), FitConfig(updates=10))


def test_values_are_numbers_ranges_words_and_text() -> None:
    words = [
        "fit.seed=0:3",
        "task.T=10:30:10,50",
        "fit.lr=1e-3,0.1",
        "network.model=LSTM,RelLSTM",
        "fit.stable=none,.9",
    ]
    assert parse_grid([*words, "network.tied=true,False", "network.hidden-size=8"]) == {
        "fit.seed": [0, 1, 2],
        "task.T": [10, 20, 50],
        "fit.lr": [1e-3, 0.1],
        "network.model": ["LSTM", "RelLSTM"],
        "fit.stable": [None, ".9"],
        "network.tied": [True, False],
        "network.hidden_size": [8],
    }


def test_points_are_all_combinations_with_the_last_axis_fastest() -> None:
    grid = {"network.buffer": [2, 5], "fit.seed": np.arange(2)}
    points = list(grid_points({**grid, "fit.seed": list(grid["fit.seed"])}))
    assert [tuple(point.values()) for point in points] == [(2, 0), (2, 1), (5, 0), (5, 1)]
    assert type(points[0]["fit.seed"]) is int


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the grid is empty"),
        (["buffer"], "is not an axis; write it as"),
        (["buffer=2,5"], "fields begin with task., network. or fit."),
        (["optimizer.lr=1"], "fields begin with task., network. or fit."),
        (["network.bufer=2,5"], "RelRNN has no option 'bufer'; did you mean buffer?"),
        (["fit.sed=1"], "fit has no field 'sed'"),
        (["task.length=4"], "task has no field 'length'"),
        (["task.name=adding"], "task.name cannot vary"),
        (["fit.seed=one"], "grid: fit.seed = 'one' is not allowed; it must be a whole number"),
        (["fit.seed=0.5"], "it must be a whole number"),
        (["network.hidden_size=0"], "hidden-size = 0 is not allowed"),
        (["network.model=LSTM,Banana"], "'Banana' is not a layer"),
        (["network.model=LSTM", "network.buffer=2"], "LSTM has no option 'buffer'"),
        (["fit.seed="], "fit.seed has no values"),
        (["fit.seed=5:5"], "fit.seed has no values"),
        (["fit.seed=0:4:0"], "has a step of 0"),
        (["fit.seed=0:2,1"], "fit.seed has 1 twice"),
        (["fit.seed=0", "fit.seed=1"], "fit.seed is given twice"),
        (["fit.lr=1,1.0"], "two runs are the same: lr=1 and lr=1.0"),
        (["fit.seed=0:2000000"], "is too long"),
        (["fit.seed=0:2000", "task.seed=0:2000"], "the grid makes 4,000,000 runs"),
    ],
)
def test_bad_grids_are_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(MnemoscopeError) as caught:
        _described(BASE, parse_grid(words), None)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_is_named_by_what_it_is() -> None:
    def name(**changes: object) -> str:
        return run_job_of(with_changes(BASE.to_dict(), changes)).name

    assert name().startswith("copy-RelRNN-")
    default = run_job_of(BASE).config["network"].get("buffer", 10)
    assert name(**{"network.buffer": default}) == name() == name(**{"fit.threads": 1})  # as written or left out
    others = [name(**{field: 3}) for field in ("network.buffer", "fit.seed", "task.seed", "task.T", "fit.threads")]
    assert len({name(), *others}) == 6


def test_a_list_is_checked_like_a_grid() -> None:
    with pytest.raises(MnemoscopeError, match="two runs are the same"):
        _described(None, [BASE, BASE], None)
    for base, runs in ((BASE, [BASE]), (None, []), (None, {"fit.seed": [1]})):
        with pytest.raises(MnemoscopeError):
            _described(base, runs, None)


def test_the_path_of_a_text_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("abcd" * 100)
    monkeypatch.chdir(tmp_path)
    job = run_job_of(RunConfig(Characters(data="text.txt")))
    assert job.config["task"]["data"] == str(tmp_path / "text.txt")
    assert job.name == run_job_of(RunConfig(Characters(data=str(tmp_path / "text.txt")))).name
    assert run_job_of(RunConfig(Characters())).config["task"]["data"] == "ptb"


def test_names_of_runs_are_those_of_the_first_version() -> None:
    """Fields that were added since do not count at their defaults, or sweeps of before would begin again."""
    jobs = [run_job_of(BASE)]
    jobs += [run_job_of(RunConfig(Characters(), NetworkConfig("LSTM", 8), FitConfig(stable=0.5)))]
    jobs += [run_job_of(RunConfig(Gaussian(), NetworkConfig("RNN", 8), FitConfig(stable=0.5)))]
    names = ["copy-RelRNN-98bf067e8876", "characters-LSTM-1a0e5ecd7947", "gaussian-RNN-84124961a2b7"]
    assert [job.name for job in jobs] == names


def test_value_of_a_field_that_is_not_written_is_its_default() -> None:
    content = BASE.to_dict()
    assert "scale_clip" not in content["fit"]
    assert field_value(content, "fit.scale_clip") is False
    assert field_value(content, "network.buffer") == 10
    assert field_value(content, "task.seed") == 0
    assert field_value(content, "fit.none") is None
    assert field_value(content, "none.none") is None


def test_a_sweep_takes_configurations() -> None:
    for base, grid in ((None, [3]), (BASE.to_dict(), {"fit.seed": [0]})):
        with pytest.raises(MnemoscopeError, match="a run is described by a RunConfig"):
            _described(base, grid, None)
