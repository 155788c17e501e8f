"""The README's examples run."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_what_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README.read_text())
    assert links
    for link in links:
        assert (README.parent / link).exists(), link
