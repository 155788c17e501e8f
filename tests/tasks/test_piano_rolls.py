"""Piano rolls from a file made here: what is not a roll of 0s and 1s is refused, and nothing else is ever loaded."""

import hashlib
import io

import numpy as np
import pytest
import torch

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import Chorales, _chorales
from mnemoscope.tasks._registry import FILES, DataFile

NAME = "polyphonic/JSB_Chorales.mat"
ROLLS = [np.random.default_rng(n).integers(0, 2, (3 + n, 88)).astype(float) for n in range(4)]


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Make `rolls` the chorales of every split, and forget them afterwards."""
    io_ = pytest.importorskip("scipy.io")

    def write(rolls):
        cells = np.empty((1, len(rolls)), dtype=object)
        cells[0, :] = rolls
        buffer = io.BytesIO()
        io_.savemat(buffer, {f"{split}data": cells for split in ("train", "valid", "test")})
        data = buffer.getvalue()
        monkeypatch.setitem(FILES, NAME, DataFile(NAME, len(data), hashlib.sha256(data).hexdigest(), ()))
        (tmp_path / "polyphonic").mkdir()
        (tmp_path / NAME).write_bytes(data)

    monkeypatch.setenv("MNEMOSCOPE_DATA", str(tmp_path))
    caches = (_chorales._decode, _chorales._pieces)
    for cache in caches:
        cache.cache_clear()
    yield write
    for cache in caches:
        cache.cache_clear()


def test_pieces_are_padded_at_their_end_and_predicted_from_silence(publish):
    publish(ROLLS)
    task = Chorales()
    inputs, targets = task.batch(0, 4, "valid")
    assert (task.length, targets.shape) == (6, (6, 4, 88))
    for column, roll in enumerate(torch.tensor(np.array(r)).float() for r in ROLLS):
        assert torch.equal(targets[: len(roll), column], roll)
        assert (targets[len(roll) :, column] == -1).all()
        assert torch.equal(inputs[1 : len(roll), column], roll[:-1])
    assert (inputs[0] == 0).all()
    assert inputs.min() == 0


def test_chorales_loss_and_metrics(publish):
    """Certain and right costs nothing; undecided costs ln 2 a note."""
    publish(ROLLS)
    task = Chorales()
    targets = task.batch(0, 4, "test").targets
    undecided = task.metrics(torch.zeros_like(targets), targets)
    right = task.metrics(targets * 200 - 100, targets)
    assert undecided["nll"] == pytest.approx(88 * np.log(2), rel=1e-5)
    assert (right["nll"], right["accuracy"]) == (pytest.approx(0, abs=1e-6), 1)
    every_note = task.metrics(torch.full_like(targets, 9.0), targets)["accuracy"]
    assert every_note == pytest.approx(np.concatenate(ROLLS).mean())


WRONG = {
    "87 notes": np.zeros((4, 87)),
    "halves": np.full((4, 88), 0.5),
    "nan": np.full((4, 88), np.nan),
    "words": np.array(["a" * 88]),
    "cells": np.zeros((4, 88), object),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_wrong_piano_rolls_are_refused(publish, what):
    publish([*ROLLS, WRONG[what]])
    with pytest.raises(MnemoscopeError, match=r"JSB_Chorales\.mat holds something other than piano rolls"):
        Chorales().batch(0, 1)


def test_without_scipy_the_error_names_it(publish, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy.io", None)
    with pytest.raises(MnemoscopeError, match="need scipy"):
        Chorales().batch(0, 1)
