"""Where results go: two processes never write into one folder by themselves, and a wrong one is found at once."""

import os
from pathlib import Path

import pytest

from mnemoscope.cli import main
from mnemoscope.cli._names import chosen_folder

pytest.importorskip("tyro")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


LISTING = """
from pathlib import Path
from torch import nn

class Net(nn.GRU):
    def __init__(self, input_size):
        super().__init__(input_size, 4)

    def forward(self, *inputs):
        Path("seen").write_text(" ".join(path.name for path in Path("examinations").iterdir()))
        return super().forward(*inputs)
"""


def test_a_folder_of_its_own_is_taken_before_anything_is_measured(tmp_path):
    """Else two processes that begin together write into one, and what the first has found is lost."""
    Path("listing.py").write_text(LISTING)
    command = ["examine", "listing.py:Net", "--scopes", "recurrence", "--steps", "5", "--quiet"]
    for name in ("Net", "Net-2"):
        assert main(command) == 0
        assert name in Path("seen").read_text().split()
        assert (tmp_path / "examinations" / name / "report.html").is_file()


def test_a_folder_of_its_own_is_deleted_if_it_stays_empty(tmp_path):
    assert main(["examine", "GRU", "--inputs", "nowhere.npy"]) == 2
    assert not Path("examinations").exists()
    with chosen_folder(None, "examinations", "a") as first, chosen_folder(None, "examinations", "a") as second:
        assert [first, second] == [Path("examinations/a"), Path("examinations/a-2")]
        (second / "kept").touch()
    assert list(Path("examinations").iterdir()) == [second]


def test_a_read_only_folder_is_refused_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert main(["examine", "GRU", "--out", "deep/er"]) == 2
    error = f"mnemoscope: cannot write to {tmp_path}: it is read-only for you; --out takes another folder\n"
    assert capsys.readouterr().err == error


def test_two_trainings_that_begin_together(tmp_path):
    command = ["train", "copy", "--task.T", "3", "--hidden-size", "4", "--updates", "1", "--quiet"]
    with chosen_folder(None, "runs", "copy-RelRNN"):  # as another process has taken it, and written nothing yet
        assert main(command) == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["copy-RelRNN-2"]
