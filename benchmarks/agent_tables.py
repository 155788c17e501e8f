"""The tables of docs/agents.md, written from the studies' records: python benchmarks/agent_tables.py.

Each stands between the lines `<!-- STUDY -->` and `<!-- end -->`; the records are cells.csv and study.json
of studies/STUDY.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "agents.md"
AGENTS = ("random", "memoryless", "LSTM", "GRU", "MemLSTM", "RelLSTM")
SEEDS = 5
MORE = {"reproduced": "more", "contradicted": "less", "open": "–"}  # what a claim about memory says
_MARKED = re.compile(r"(<!-- (kerg/\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Record:
    """What is recorded of a study at full size."""

    def __init__(self, study: str) -> None:
        folder = ROOT / "studies" / study
        self.cells: dict[tuple[str, str], list[str]] = {}
        with (folder / "cells.csv").open() as file:
            for line in csv.DictReader(file):
                if line["scale"] == "full":
                    key = line["row"], line["column"]
                    self.cells.setdefault(key, []).append(line["note"] if line["ours"] == "infinity" else line["ours"])
        content = json.loads((folder / "study.json").read_text())
        self.published = {(row, column): number for row, column, number in content["published"]}
        self.rows: list[str] = content["rows"]
        self.claims = {claim["text"]: claim["verdict"]["word"] for claim in content["full"]["claims"]}

    def numbers(self, row: str, column: str) -> list[float]:
        return [float(value) for value in self.cells.get((row, column), [])]


def table4() -> list[list[str]]:
    """Mean returns and their spread over seeds, the paper's beside, and whether memory made a difference."""
    record = Record("kerg/table4")
    agents = [agent for agent in AGENTS if any(column == agent for _, column in record.cells)]
    lines = [["", *agents, "paper: MemLSTM", "paper: RelLSTM", "RelLSTM against memoryless"]]
    for row in record.rows[:12]:
        cells = [_mean(record.numbers(row, agent)) for agent in agents]
        paper = [f"{record.published[row, agent]:.2f}" for agent in AGENTS[-2:]]
        word = next(word for text, word in record.claims.items() if text.startswith(f"{row}: RelLSTM gets more than"))
        lines.append([row, *cells, *paper, MORE[word]])
    return lines


def table4_memory() -> list[list[str]]:
    """Successes, and the frames that were needed, one number for each seed."""
    record = Record("kerg/table4-memory")
    lines = [["world", "agent", "successes", "thousands of frames"]]
    for env in ("MemoryS11", "MemoryS13", "MemoryS13Random", "MemoryS17Random"):
        for agent in AGENTS[1:]:
            found = record.numbers(env, agent)
            if found:
                frames = _frames(record.cells[f"{env}, frames", agent])
                lines.append([env, agent, ", ".join(f"{share:.3f}" for share in found), frames])
    return lines


def tmaze() -> list[list[str]]:
    """Frames that were needed for each length of the maze, and successes of the agents that cannot solve it."""
    record = Record("kerg/tmaze")
    rows = [row for row in record.rows if "frames" not in row]
    lines = [["", *rows]]
    for agent in reversed(AGENTS[2:]):
        lines.append([agent, *(_frames(record.cells.get((f"{row}, frames", agent), [])) for row in rows)])
    shares = [", ".join(f"{share:.2f}" for share in record.numbers(row, "memoryless")) for row in rows]
    return [*lines, ["memoryless: successes", *shares]]


def _mean(values: Sequence[float]) -> str:
    """The mean and the standard deviation; with fewer than five seeds, how many there are."""
    if not values:
        return ""
    few = f" ({len(values)})" if len(values) < SEEDS else ""
    return f"{fmean(values):.3f}{f' ± {stdev(values):.3f}' if len(values) > 1 else ''}{few}"


def _frames(values: Iterable[str]) -> str:
    """Thousands of frames, one number for each seed; those in a row that did not get there are counted."""
    words = []
    for failed, group in groupby(values, lambda value: value.startswith("not")):
        if failed:
            notes = list(group)
            spent = int(re.sub(r"\D", "", notes[0])) / 1000
            words.append(f"not in {spent:,.0f}{f' ({len(notes)} seeds)' if len(notes) > 1 else ''}")
        else:
            words += [f"{float(value) / 1000:,.0f}" for value in group]
    return ", ".join(words)


TABLES = {"kerg/table4": table4, "kerg/table4-memory": table4_memory, "kerg/tmaze": tmaze}


def fill(text: str) -> str:
    """Return the text with every marked table replaced by what is recorded."""

    def replacement(match: re.Match[str]) -> str:
        start, study, end = match.groups()
        head, *rows = TABLES[study]()
        lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
        return start + "\n" + "\n".join(lines) + "\n\n" + end

    return _MARKED.sub(replacement, text)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
