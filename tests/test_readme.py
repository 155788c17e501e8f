"""The README's examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import mnemoscope
from mnemoscope.scopes import SCOPES

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert "the task needs 80" in capsys.readouterr().out
    assert (tmp_path / "examined" / "findings.json").exists()
    assert names["out"].shape == (500, 32, 128)


@pytest.mark.parametrize("page", ["examine", "scopes"])
def test_the_pages_on_examining_run(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (README.parent / "docs" / f"{page}.md").read_text().replace("needs=120", 'needs=120, scopes=["horizon"]')
    code = "\n".join(line for line in text.splitlines() if not line.startswith("Trainer("))  # which is not ours
    inputs, targets = torch.randn(9, 2, 3), torch.randn(9, 2, 4)
    for block in re.findall(r"```python\n(.*?)```", code, re.DOTALL):
        model = torch.nn.LSTM(3, 4)
        names = {"mnemoscope": mnemoscope, "model": model, "inputs": inputs, "targets": targets, "loss": F.mse_loss}
        exec(block, names | {"other": mnemoscope.examine(model, inputs, scopes=["horizon"])})
    SCOPES.pop("size", None)  # the page's own


def test_what_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README.read_text())
    assert links
    for link in links:
        assert (README.parent / link).exists(), link
