"""pytest --quick uses every value of every parameter, and not every combination."""

from itertools import product
from types import SimpleNamespace

from conftest import each_choice


class Item:
    def __init__(self, name, **parameters):
        self.nodeid = f"test.py::{name}[{parameters}]" if parameters else f"test.py::{name}"
        self.parameters = parameters
        if parameters:
            self.callspec = SimpleNamespace(params=parameters)


def test_quick_keeps_every_value_and_fewer_cases():
    layers, sizes = ["RNN", "LSTM", "GRU", "SAB"], [1, 2, 3]
    items = [Item("pairs", layer=layer, size=size) for layer, size in product(layers, sizes)]
    alone = Item("alone")
    chosen = each_choice([*items, alone])
    assert alone in chosen
    kept = [item.parameters for item in chosen if item is not alone]
    assert {case["layer"] for case in kept} == set(layers)
    assert {case["size"] for case in kept} == set(sizes)
    assert 4 <= len(kept) <= 6  # of 12
    assert each_choice(items[::-1]) == each_choice(items)


def test_quick_keeps_all_cases_of_a_single_parameter():
    items = [Item("one", row=row) for row in range(30)]
    assert each_choice(items) == set(items)
