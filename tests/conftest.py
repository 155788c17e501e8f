"""Every test draws the same random numbers, wherever and in whatever order it runs; and the option --quick."""

import random
import sys
from zlib import crc32

import pytest
import torch


def pytest_runtest_setup() -> None:
    random.seed(0)
    torch.manual_seed(0)


def pytest_runtest_teardown() -> None:
    # torch.compile gives up on code that it has compiled for many classes, which all layers' forward is.
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "use every value of each parameter of a test at least once, instead of all combinations"
    parser.addoption("--quick", action="store_true", help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    chosen = each_choice(items)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def each_choice(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return tests such that every value of every parameter is used, and all tests without parameters.

    The cases are tried in the order of a hash of their names: always the same, and each value meets various others.
    """
    chosen = set()
    used = set()
    for item in sorted(items, key=lambda item: crc32(item.nodeid.encode())):
        test = item.nodeid.partition("[")[0]
        parameters = item.callspec.params if hasattr(item, "callspec") else {"": None}
        choices = {(test, name, id(value)) for name, value in parameters.items()}
        if not choices <= used:
            chosen.add(item)
            used |= choices
    return chosen
