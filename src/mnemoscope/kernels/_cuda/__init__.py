"""Fused recurrences for CUDA: kernels in CUDA C++, compiled when first used by the runtime compiler in torch.

`supports` says what they cover; anything else takes the eager path.
"""

from mnemoscope.kernels._cuda import attentive, plain, sab
from mnemoscope.kernels._cuda.support import supports

__all__ = ["attentive", "plain", "sab", "supports"]
