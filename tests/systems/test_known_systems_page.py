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
    for each in page.measured(name, options):
        assert each.holds, each
        row = ROWS[each.system, each.figure][1]
        assert each.value == row or abs(each.value - row) <= each.known.tolerance + 1e-5 * abs(each.value) + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("seed", page.SEEDS)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_five_seeds(name: str, options: dict[str, Any], seed: int) -> None:
    for each in page.measured(name, options, seed):
        assert each.holds, each


def test_seeds_differ() -> None:
    """In the start of a map, the weights of a random network, and the inputs of a memory."""
    one, other = (page.varied("henon", {}, seed).initial_state(1) for seed in (0, 1))
    assert 0 < (one - other).abs().max() < 0.1
    one, other = (page.varied("random-tanh", {}, seed).weight_hh_l0 for seed in (0, 1))
    assert not one.equal(other)
    line = page.varied("delay-line", {}, 1)
    assert not line.inputs(seed=0).equal(line.inputs(seed=1))
    assert not line.initial_state(1).any()
