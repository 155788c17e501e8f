"""The few calls of the CUDA driver that run a compiled kernel.

torch can launch a kernel, too, but it opens the driver's library and converts every argument anew at each launch, which
takes longer than a short sequence.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache

from mnemoscope.errors import MnemoscopeError

# CUfunction_attribute
_MAX_DYNAMIC_SHARED_BYTES = 8
_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
# The keys of cuLaunchKernel's argument `extra`
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    library.cuModuleLoadData.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    library.cuModuleGetFunction.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    library.cuFuncSetAttribute.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    library.cuLaunchKernel.argtypes = (ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
    return library


def _check(code: int, action: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else f"error {code}"
        raise MnemoscopeError(f"the CUDA driver could not {action}: {reason}")


def version() -> int:
    """Return the driver's version, 12040 for 12.4."""
    found = ctypes.c_int()
    _check(_library().cuDriverGetVersion(ctypes.byref(found)), "tell its version")
    return found.value


class Function:
    """A kernel on the current device.

    Args:
        binary: the compiled kernel.
        name: its name in the binary.
        formats: the C type of each argument, as `struct` writes it: "P" for a pointer, "i", "d".
        threads: of a block.
        shared_bytes: dynamic shared memory of a block.
        large_clusters: allow clusters of more than eight blocks, which must be asked for.
    """

    def __init__(
        self, binary: bytes, name: str, formats: str, *, threads: int, shared_bytes: int, large_clusters: bool
    ) -> None:
        library = _library()
        module = ctypes.c_void_p()
        function = ctypes.c_void_p()
        _check(library.cuModuleLoadData(ctypes.byref(module), binary), f"load the kernel {name}")
        _check(library.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"find the kernel {name}")
        if shared_bytes > 48 * 1024:
            code = library.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
            _check(code, f"give {name} {shared_bytes} bytes of shared memory")
        if large_clusters:
            code = library.cuFuncSetAttribute(function, _NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
            _check(code, f"run {name} on clusters of 16 blocks (use the eager path)")
        self._name = name
        self._function = function
        self._launch = library.cuLaunchKernel
        self._threads = threads
        self._shared_bytes = shared_bytes
        self._formats = formats
        self._layout = struct.Struct(f"@{formats}")  # "@": aligned as in C
        self._packed = _Packed(self._layout.size)

    def launch(self, blocks: int, stream: int, values: Sequence[int | float]) -> None:
        """Run the kernel on a stream; `values` are its arguments, tensors as addresses."""
        packed = self._packed
        self._layout.pack_into(packed.buffer, 0, *values)
        code = self._launch(
            self._function, blocks, 1, 1, self._threads, 1, 1, self._shared_bytes, stream, None, packed.extra
        )
        if code:
            _check(code, f"launch {self._name}")

    def varying(self, position: int, blocks: int, stream: int, values: Sequence[int | float]) -> Callable[[int], None]:
        """Return a function that runs the kernel on a stream with another integer at `position` of its arguments.

        Until the last of these runs, nothing else may launch this kernel in this thread.
        """
        packed = self._packed
        self._layout.pack_into(packed.buffer, 0, *values)
        integer = struct.calcsize("@i")
        offset = struct.calcsize(f"@{self._formats[: position + 1]}") - integer
        varied = ctypes.c_int.from_buffer(packed.buffer, offset)
        launch = self._launch
        arguments = self._function, blocks, 1, 1, self._threads, 1, 1, self._shared_bytes, stream, None, packed.extra

        def run(value: int) -> None:
            varied.value = value
            code = launch(*arguments)
            if code:
                _check(code, f"launch {self._name}")

        return run


class _Packed(threading.local):
    """The arguments of a launch, one buffer for each thread: the backward pass runs in a thread of its own."""

    def __init__(self, size: int) -> None:
        self.buffer = ctypes.create_string_buffer(size)
        self._size = ctypes.c_size_t(size)
        self.extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(self.buffer), _BUFFER_SIZE, ctypes.addressof(self._size), _END
        )
