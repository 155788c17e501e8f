"""Every test draws the same numbers, wherever and in whatever order it runs."""

import random

import torch


def pytest_runtest_setup() -> None:
    random.seed(0)
    torch.manual_seed(0)
