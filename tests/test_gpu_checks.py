"""The parts of `make test-cuda` hold every test and every layer that needs a GPU, and end as their commands do."""

from __future__ import annotations

import re
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

import pytest

import conftest
import gpu_checks

ROOT = gpu_checks.ROOT


class Item:
    def get_closest_marker(self, name: str) -> None:
        return None


def test_every_test_that_needs_a_gpu_is_in_a_part() -> None:
    marked = [
        path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"^[^\"']*mark\.cuda", path.read_text(), re.M)
    ]
    tested = [ROOT / name for name in gpu_checks.TESTED]
    assert marked
    assert [path for path in marked if not any(path.is_relative_to(root) for root in tested)] == []


def test_every_layer_of_the_benchmark_is_in_a_part() -> None:
    run = set(re.findall(r"\(ms\.(\w+)\(3, ", (ROOT / "benchmarks" / "every_kernel.py").read_text()))
    assert {"RNN", "SAB"} < run == set(chain(*gpu_checks.LAYERS))


@pytest.mark.parametrize(
    ("command", "seconds", "ended"),
    [
        (["true"], 600, "passed"),
        (["false"], 600, "failed with exit code 1"),
        (["sleep", "600"], 0.1, "not done after 0.1 s"),
        (["no-such-tool"], 600, "no-such-tool is not on the PATH"),
    ],
)
def test_a_part_ends_as_its_command_does(
    command: list[str], seconds: float, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_checks, "SECONDS", seconds)
    assert gpu_checks.run(command) == ended


RACE = "========= {}: Race reported between {} access at {}+0x24c0\n=========     and Read access at {}+0x2540\n"


def test_races_that_racecheck_cannot_judge_are_set_aside() -> None:
    assert {"cells_forward", "screened_tensor_backward", "full_attention_backward"} < gpu_checks.EXCHANGING
    assert not gpu_checks.EXCHANGING & {"sab_forward", "sab_backward", "weight_gradients"}
    known = RACE.format("Warning", "Write", "cells_forward", "cells_forward")
    real = RACE.format("Error", "Read", "sab_forward", "sab_forward")
    assert gpu_checks.judge_races(2 * known).startswith("passed; 2 reports")
    assert gpu_checks.judge_races(known + real) == "races in sab_forward"
    assert gpu_checks.judge_races("Internal error").startswith("failed")
    racecheck = gpu_checks.parts()["racecheck-RNN"]
    assert (
        racecheck[racecheck.index("--print-limit") + 1] == "0"
    )  # else a real one may be behind a hundred of the known


def test_the_report_of_racecheck_is_judged(tmp_path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    tool = tmp_path / "racecheck"  # a word of the command: what such a run prints is read
    tool.write_text(f"echo '{RACE.format('Error', 'Write', 'sab_forward', 'sab_forward')}'; exit $1")
    assert gpu_checks.run(["sh", str(tool), str(gpu_checks.FOUND)]) == f"failed with exit code {gpu_checks.FOUND}"
    monkeypatch.chdir(tmp_path)
    assert gpu_checks.run(["sh", "-c", f"sh {tool} {gpu_checks.FOUND}", "racecheck"]) == "races in sab_forward"
    assert gpu_checks.run(["sh", "-c", f"sh {tool} 3", "racecheck"]) == "failed with exit code 3"
    assert "sab_forward+0x24c0" in capfd.readouterr().out


def test_the_parts_of_the_tests_are_all_of_them_once() -> None:
    tests = [Item() for _ in range(8)]

    def part(number: int) -> list[Item]:
        options = {"--quick": False, "--part": f"{number}/3"}
        hook = SimpleNamespace(pytest_deselected=lambda items: None)
        kept: list[Any] = list(tests)
        conftest.pytest_collection_modifyitems(cast(Any, SimpleNamespace(getoption=options.get, hook=hook)), kept)
        return kept

    parts = [part(number) for number in (1, 2, 3)]
    assert sorted(map(len, parts)) == [2, 3, 3]
    assert set(chain(*parts)) == set(tests)
