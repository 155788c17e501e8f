"""Huge pages are asked for where they fit, and only there."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemoscope
from mnemoscope.kernels._cpu import huge_pages
from mnemoscope.kernels._cpu.library import available


@settings(deadline=None)
@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30))
def test_huge_pages_lie_within_the_tensor(start, size):
    first, length = huge_pages.whole_pages(start, size)
    assert first % huge_pages.PAGE == length % huge_pages.PAGE == 0
    if length:
        assert start <= first < start + huge_pages.PAGE
        assert start + size - huge_pages.PAGE < first + length <= start + size
    else:
        assert first + huge_pages.PAGE > start + size


def flags(address: int) -> set[str]:
    """What the kernel says of the mapping in which an address lies."""
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            low, high = (int(end, 16) for end in line.split()[0].split("-"))
            within = low <= address < high
        elif within and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError("no mapping holds this address")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without large pages")
@pytest.mark.skipif(not available(torch.float32), reason="no compiled kernels")
def test_a_long_run_gets_huge_pages():
    with torch.no_grad():
        y, _ = mnemoscope.RNN(2, 64)(torch.zeros(1024, 64, 2))
    assert "hg" in flags(huge_pages.whole_pages(y.data_ptr(), y.nbytes)[0])


def test_huge_pages_leave_the_tensor_unchanged():
    x = torch.arange(3 * huge_pages.PAGE // 8)
    huge_pages.advise(x)
    assert torch.equal(x, torch.arange(len(x)))


def test_no_huge_pages_for_small_tensors_or_other_systems(monkeypatch):
    monkeypatch.setattr(huge_pages, "_madvise", lambda: pytest.fail("asked"))
    huge_pages.advise(torch.zeros(0))
    huge_pages.advise(torch.zeros(10))
    monkeypatch.setattr(huge_pages, "_HUGEPAGE", None)  # as anywhere but on Linux
    huge_pages.advise(torch.zeros(2 * huge_pages.PAGE))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has this advice")
def test_refused_huge_pages_are_no_error(monkeypatch):
    monkeypatch.setattr(huge_pages, "_HUGEPAGE", 12345)  # advice that no system knows
    huge_pages.advise(torch.zeros(huge_pages.PAGE))
