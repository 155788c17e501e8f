"""The fused recurrences on CUDA: kernels in CUDA C++, compiled at their first use by the runtime compiler in torch.

`supports` says what they cover. For anything else an attentive layer takes the portable operators (`_portable.py`), and
any other layer runs its eager loop.
"""

from mnemoscope.kernels._cuda import attentive, cells, sab, weight_gradients
from mnemoscope.kernels._cuda.support import supports

__all__ = ["attentive", "cells", "sab", "supports", "weight_gradients"]
