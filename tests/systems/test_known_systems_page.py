"""docs/known-systems.md: every known figure has its row, and a new measurement agrees with the row."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.systems import SYSTEMS

DOCS = Path(__file__).parents[2] / "docs"
spec = importlib.util.spec_from_file_location("known_systems", DOCS / "known_systems.py")
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)


def rows() -> dict[tuple[str, str], tuple[float, float]]:
    """(system, figure) to (known, measured), as the page has them."""
    found = {}
    for line in (DOCS / "known-systems.md").read_text().splitlines():
        if line.startswith("| `"):
            system, figure, known, measured = [cell.strip().strip("`") for cell in line.split(" | ")[:4]]
            found[system.removeprefix("| `"), figure] = float(known), float(measured)
    return found


ROWS = rows()
CASES = [
    pytest.param(name, options, marks=[pytest.mark.slow] if slow else [], id=page.title(name, options))
    for name, options, slow in page.CASES
]


def test_every_known_figure_has_a_row_that_agrees() -> None:
    written = set()
    for name, options, _ in page.CASES:
        known = SYSTEMS[name](**options).known()
        assert known, name
        for answer in known:
            key = page.title(name, options), f"{answer.scope}.{answer.figure}"
            written.add(key)
            value, measured = ROWS[key]
            assert value == pytest.approx(answer.value, rel=1e-5, abs=1e-12), key
            assert answer.holds(measured) or measured == pytest.approx(answer.value, rel=1e-5, abs=1e-9), key
    assert written == set(ROWS)


def test_every_system_is_on_the_page() -> None:
    assert {name for name, _, _ in page.CASES} == set(SYSTEMS)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_measuring_again_gives_the_row(name: str, options: dict[str, Any]) -> None:
    for figure in page.measured(name, options):
        key = figure.system, f"{figure.known.scope}.{figure.known.figure}"
        assert figure.known.holds(figure.value), f"{figure.known}; measured {figure.value}"
        assert abs(figure.value - ROWS[key][1]) <= figure.known.tolerance + 1e-5 * abs(figure.value) + 1e-9
