"""Every test draws the same random numbers, wherever and in whatever order it runs; and the option --quick."""

import importlib.util
import os
import random
import signal
import sys
from zlib import crc32

import pytest
import torch

if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings
    from hypothesis.internal.conjecture import providers

    # The same examples in every run, and no limit of time for them: a busy machine is no failure. Other examples, and
    # other ones each time, are tried on purpose: --hypothesis-profile=random.
    patiently = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("random", print_blob=True, **patiently)
    settings.register_profile("fixed", derandomize=True, **patiently)
    settings.load_profile("fixed")
    # Hypothesis also tries numbers that it finds in our modules: in those that the tests before have imported.
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants  # there are none yet


def pytest_configure() -> None:
    # A shell starts what runs in the background with Ctrl-C ignored, and all processes below inherit that. Tests of
    # Ctrl-C need it.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
    parser.addoption("--part", metavar="K/N", help="run the K-th of N parts of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = {}
    if not os.environ.get("MNEMOSCOPE_DATA"):
        missing["data"] = "MNEMOSCOPE_DATA names no folder of data sets"
    if not torch.cuda.is_available():
        missing["cuda"] = "needs a CUDA device; torch sees none here"
    for mark, why in missing.items():
        for item in items:
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=why))
    chosen = each_choice(items) if config.getoption("--quick") else set(items)
    if config.getoption("--part"):
        number, count = map(int, config.getoption("--part").split("/"))
        chosen &= set(items[number - 1 :: count])
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
