"""Tables of a benchmark: printed row by row as they are measured, saved as JSON, and written into RESULTS.md.

    python benchmarks/tables.py     fills RESULTS.md from benchmarks/results/*.json

In RESULTS.md every table stands between the lines `<!-- FILE: TABLE -->` and `<!-- end -->`, below a line that says
where and when it was measured. What a benchmark prints that writes no JSON is copied into a file of results.
"""

from __future__ import annotations

import json
import platform
import re
import time
from pathlib import Path
from typing import Any

import torch

Cell = str | float | None
RESULTS = Path(__file__).parent / "RESULTS.md"
DATA = Path(__file__).parent / "results"
_MARKED = re.compile(r"(<!-- (\S+): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Table:
    """Rows below headings. Each row is printed as soon as it is there: some take minutes."""

    def __init__(self, *headings: str) -> None:
        self.headings = headings
        self.rows: list[tuple[Cell, ...]] = []
        print("\n" + _line(headings) + "\n" + "|---" * len(headings) + "|", flush=True)

    def add(self, *cells: Cell) -> None:
        assert len(cells) == len(self.headings), f"{len(cells)} cells below {len(self.headings)} headings"
        self.rows.append(cells)
        print(_line(cells), flush=True)


def machine(device: str, threads: int) -> dict[str, Any]:
    """Return where and when the benchmark runs."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{_processor()}, {threads} threads"
    return {
        "machine": name,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version() if device == "cuda" else None,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    """Return the processor's name as Linux knows it, elsewhere its kind."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.machine()


def save(path: Path, where: dict[str, Any], tables: dict[str, Table]) -> None:
    """Write the tables as JSON; those of an earlier run that were not measured again stay, with their own date."""
    earlier = json.loads(path.read_text()) if path.exists() else {}
    new = {name: {**where, "headings": table.headings, "rows": table.rows} for name, table in tables.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(earlier | new, indent=1) + "\n")


def fill(text: str, folder: Path = DATA) -> str:
    """Return the text with every marked table replaced by what was measured last."""

    def replacement(match: re.Match[str]) -> str:
        start, file, name, end = match.groups()
        return start + "\n" + markdown(json.loads((folder / file).read_text())[name]) + "\n" + end

    return _MARKED.sub(replacement, text)


def markdown(table: dict[str, Any]) -> str:
    """Return a saved table with a line above it that says where and when it was measured."""
    versions = [f"{name} {table[key]}" for key, name in (("torch", "torch"), ("cudnn", "cuDNN")) if table.get(key)]
    software = [table["software"]] if "software" in table else []
    where = ", ".join([table["machine"], *versions, *software, table["date"]]) + "."
    rows = [_line(row) for row in table["rows"]]
    return "\n".join([where, "", _line(table["headings"]), "|---" * len(table["headings"]) + "|", *rows]) + "\n"


def _line(cells: tuple[Cell, ...] | list[Cell]) -> str:
    return "| " + " | ".join(_text(cell) for cell in cells) + " |"


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.3g}" if abs(cell) < 100 else f"{cell:,.0f}"


if __name__ == "__main__":
    RESULTS.write_text(fill(RESULTS.read_text()))
