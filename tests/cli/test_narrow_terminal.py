"""What a terminal of 80 or 40 columns shows: tables and bars without a cut number, name or bar."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from mnemoscope.cli._fitting import fitting
from mnemoscope.cli._progress import _bar

NAMES = ("runs/copy-LSTM", "runs/copy-RelRNN")
HEADINGS = ("run", "outcome", "parameters", "updates", "updates/s", "held-out at the end", "best", "without memory")


def wide_table(rows: int) -> Table:
    table = Table(*HEADINGS, title="runs compared")
    for i in range(rows):
        figures = ("5,929", "200", "169.5", "loss 0.6356  accuracy 0.09746", "accuracy 0.09746", "0.5199")
        table.add_row(NAMES[i % 2], "budget spent", *figures)
    return table


def drawn(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in fitting(table, console):
        console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [200, 120, 80, 40])
def test_a_table_cuts_no_number_and_no_name(width: int) -> None:
    text = drawn(wide_table(2), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for word in (*NAMES, "parameters", "5,929", "0.09746", "0.5199"):
        assert word in text


def test_a_table_that_fits_stays_as_it_is() -> None:
    assert drawn(wide_table(2), 200).splitlines()[2].split("┃")[1].strip() == "run"


def test_a_table_too_wide_lies_on_its_side_and_its_title_is_printed_once() -> None:
    text = drawn(wide_table(5), 60)
    assert text.count("runs compared") == 1
    assert text.count("parameters") == 3  # two runs side by side, then two, then one
    assert text.count("runs/copy-LSTM") == 3


def test_a_word_longer_than_the_terminal_is_folded_not_cut() -> None:
    table = Table("run", "best")
    table.add_row("x" * 100, "0.12345")
    text = drawn(table, 40)
    assert text.count("x") == 100
    assert "0.12345" in text


@pytest.mark.parametrize("width", [80, 40])
def test_a_runs_bar_leaves_room_for_its_counter_and_time(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    bar = _bar(console)
    figures = "loss 0.9995  accuracy 0.1139  memoryless loss 0.6931  245.2 updates/s"
    bar.add_task("copy · RelRNN", total=150, completed=22, figures=figures)
    console.print(bar)
    first, *below = console.file.getvalue().splitlines()
    assert "━" in first
    assert " 22/150" in first
    assert "-:--:--" in first
    assert " ".join(" ".join(below).split()) == " ".join(figures.split())
