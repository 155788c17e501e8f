"""The driver's calls, on a driver that only records them."""

from __future__ import annotations

import ctypes
import struct
import threading

import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels._cuda import driver


class RecordingDriver:
    """Stands for libcuda: counts attributes and reads back the packed arguments of each launch."""

    def __init__(self) -> None:
        self.attributes: list[tuple[int, int]] = []
        self.launches: list[tuple[tuple[int, ...], bytes]] = []
        self.code = 0

    def cuModuleLoadData(self, module, binary):
        return self.code

    def cuModuleGetFunction(self, function, module, name):
        return self.code

    def cuFuncSetAttribute(self, function, attribute, value):
        self.attributes.append((attribute, value))
        return self.code

    def cuGetErrorString(self, code, text):
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"out of order"
        return 0

    def cuLaunchKernel(self, function, *rest):
        *sizes, stream, params, extra = rest
        assert params is None
        assert (extra[0], extra[2], extra[4]) == (1, 2, None)  # buffer pointer, buffer size, end
        size = ctypes.cast(extra[3], ctypes.POINTER(ctypes.c_size_t))[0]
        self.launches.append(((*sizes, stream), ctypes.string_at(extra[1], size)))
        return self.code


@pytest.fixture
def recording(monkeypatch):
    recording = RecordingDriver()
    monkeypatch.setattr(driver, "_library", lambda: recording)
    return recording


def function(formats: str = "PPid", shared_bytes: int = 1024, large_clusters: bool = False) -> driver.Function:
    return driver.Function(
        b"binary", "kernel", formats, threads=256, shared_bytes=shared_bytes, large_clusters=large_clusters
    )


def test_arguments_are_aligned_as_in_c(recording):
    function("PiPid").launch(12, 77, [1 << 40, -3, 0, 5, 0.5])
    ((sizes, packed),) = recording.launches
    assert sizes == (12, 1, 1, 256, 1, 1, 1024, 77)
    # A pointer and a double start at multiples of eight bytes.
    assert packed == struct.pack("<qi4xqi4xd", 1 << 40, -3, 0, 5, 0.5)


def test_one_argument_varies_from_launch_to_launch(recording):
    run = function("Piid").varying(2, 12, 77, [1 << 40, -3, 0, 0.5])
    run(5)
    run(-1)
    assert recording.launches == [
        ((12, 1, 1, 256, 1, 1, 1024, 77), struct.pack("<qiid", 1 << 40, -3, t, 0.5)) for t in (5, -1)
    ]
    recording.code = 719
    with pytest.raises(MnemoscopeError, match="could not launch kernel: out of order"):
        run(6)


def test_threads_do_not_share_their_arguments(recording):
    kernel = function("i")
    kernel.launch(1, 0, [1])
    first = kernel._packed.buffer
    others = []
    thread = threading.Thread(target=lambda: others.append(kernel._packed.buffer))
    thread.start()
    thread.join()
    assert others[0] is not first


def test_large_shared_memory_and_clusters_are_asked_for(recording):
    function(shared_bytes=48 * 1024)
    assert recording.attributes == []
    function(shared_bytes=48 * 1024 + 4, large_clusters=True)
    assert recording.attributes == [(8, 48 * 1024 + 4), (14, 1)]


def test_an_error_of_the_driver_is_one_line(recording):
    kernel = function("i")
    recording.code = 719
    with pytest.raises(MnemoscopeError, match="could not launch kernel: out of order"):
        kernel.launch(1, 0, [1])
    with pytest.raises(MnemoscopeError, match="could not load the kernel"):
        function("i")
