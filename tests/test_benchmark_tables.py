"""The tables in benchmarks/RESULTS.md and docs/agents.md are those that were measured."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def load_tables():
    spec = importlib.util.spec_from_file_location("benchmark_tables", BENCHMARKS / "tables.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


tables = load_tables()


def test_results_are_filled_from_what_was_measured():
    text = (BENCHMARKS / "RESULTS.md").read_text()
    assert "<!-- kernels-h200.json: short -->" in text
    assert tables.fill(text) == text, "run python benchmarks/tables.py"


def test_no_table_of_results_is_typed_and_none_is_left_out():
    text = (BENCHMARKS / "RESULTS.md").read_text()
    marked = re.findall(r"<!-- (\S+): (\S+) -->\n.*?<!-- end -->", text, re.DOTALL)
    typed = re.sub(r"<!-- (\S+): (\S+) -->\n.*?<!-- end -->", "", text, flags=re.DOTALL)
    assert "|---" not in typed
    saved = [(path.name, name) for path in sorted(tables.DATA.glob("*.json")) for name in json.loads(path.read_text())]
    assert sorted(marked) == sorted(saved)


def test_a_table_is_printed_saved_and_filled_in(tmp_path, capsys):
    table = tables.Table("layer", "ms", "asked for")
    table.add("LSTM", 1.23456, None)
    table.add("MemRNN", 1234.5, 6)
    assert "| LSTM | 1.23 |  |" in capsys.readouterr().out
    where = {"machine": "a machine", "torch": "2.13", "cudnn": None, "date": "2026-11-16"}
    tables.save(tmp_path / "kernels.json", where, {"peers": table})
    filled = tables.fill("before\n<!-- kernels.json: peers -->\nold\n<!-- end -->\nafter", tmp_path)
    assert "old" not in filled
    assert "a machine, torch 2.13, 2026-11-16." in filled
    assert "| MemRNN | 1,234 | 6 |" in filled
    assert filled.startswith("before")
    assert filled.endswith("after")


def test_what_is_not_measured_again_is_kept(tmp_path):
    path, where = tmp_path / "kernels.json", {"date": "today"}
    tables.save(path, where, {"peers": tables.Table("a"), "short": tables.Table("b")})
    tables.save(path, {"date": "tomorrow"}, {"short": tables.Table("c")})
    saved = json.loads(path.read_text())
    assert saved["peers"]["date"] == "today"
    assert saved["short"]["headings"] == ["c"]


def test_the_tables_about_agents_are_those_that_are_recorded():
    spec = importlib.util.spec_from_file_location("agent_tables", BENCHMARKS / "agent_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text()
    assert all(f"<!-- {study} -->" in text for study in module.TABLES)
    assert module.fill(text) == text, "run python benchmarks/agent_tables.py"
    assert module._mean([0.5, 0.7]) == "0.600 ± 0.141 (2)"
    assert (
        module._frames(["7040.0", "not within 300,288 frames", "not within 300,288 frames"])
        == "7, not in 300 (2 seeds)"
    )
