"""The index of runs: its columns and cells."""

import pytest

from mnemoscope.report._index import COLUMNS, table_cell


@pytest.mark.parametrize(
    ("value", "text", "sort_key"),
    [
        (None, "–", ""),
        (1234567, "1,234,567", "1234567"),
        (0.123456, "0.1235", "0.123456"),
        (1e-7, "1e-7", "1e-07"),
        ("solved", "solved", "solved"),
    ],
)
def test_cells_of_the_index_are_rounded_and_sorted_by_what_they_were(value, text, sort_key):
    cell = table_cell(value)
    assert (cell.text, cell.sort_key, cell.is_number) == (text, sort_key, not isinstance(value, str))


def test_columns_of_the_index_are_in_order():
    assert list(COLUMNS)[:5] == ["task_and_length", "model", "outcome", "parameters", "updates"]
    assert list(COLUMNS)[5:] == ["metric", "best", "best_update", "baseline", "updates_per_second"]
