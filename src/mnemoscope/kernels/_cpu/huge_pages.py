"""Large pages for large tensors.

Fresh memory comes in pages of 4 KB, each at the price of a trap into the system when it is first written, and torch
returns a long walk's tensors to the system after every update. With pages of 2 MB there are 500 times fewer traps; most
systems give them to whoever asks (as numpy does for its arrays).
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

PAGE = 2 << 20  # bytes
_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone has it


@lru_cache(maxsize=1)
def _advise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise


def whole_pages(start: int, size: int) -> tuple[int, int]:
    """Where the whole pages between start and start + size begin, and their size in bytes; 0 where there is none."""
    first, end = -(-start // PAGE) * PAGE, (start + size) // PAGE * PAGE
    return first, max(0, end - first)


def ask_for(tensor: Tensor) -> None:
    """Ask for large pages for a contiguous tensor. A wish: where the system refuses, nothing is lost."""
    first, size = whole_pages(tensor.data_ptr(), tensor.nbytes)
    if size and _HUGEPAGE is not None:
        _advise()(first, size, _HUGEPAGE)
