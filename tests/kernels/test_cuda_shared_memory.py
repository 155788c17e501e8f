"""The shared memory that Python allocates is the one that the CUDA kernels divide: checked by their static_asserts."""

from __future__ import annotations

import shutil
import subprocess

import emulator
import pytest
import torch

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, full_attention, layout, plain, sab, screened

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the kernels are compiled by g++")

HOPPER = layout.Limits(clusters=(1, 2, 4, 8, 16), multiprocessors=132, shared_floats=227 * 256)


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """Launches on a device that is not there: the last one's kernel, defines, threads and shared memory."""
    recorded = []

    def launch(name, defines, *, blocks, threads, shared_floats, args):
        compiler.order_arguments(name, args)
        recorded.append((name, {**defines, "THREADS": threads, "SHARED_FLOATS": shared_floats}))

    monkeypatch.setattr(compiler, "launch", launch)
    monkeypatch.setattr(layout, "limits", lambda device: HOPPER)
    return recorded


def run_cells(cell: plain.Cell, n: int) -> None:
    T, B = 3, 2
    h = torch.zeros(T, B, n)
    xp = torch.zeros(T, B, cell.rows * n)
    V = torch.zeros(cell.rows * n, n)
    plain._forward(cell, xp, V, h[0], c0=h[0], b=h[0, 0], lengths=None, save=True)
    plain._backward(cell, h, V, xp=xp if cell.rows == 1 else None, h0=h[0], c0=h[0], h=h, cells=h, lengths=None)


def run_screened(cell: str, n: int, buffer: int, relevant: int, with_ds: bool) -> None:
    T, B, gates, m0 = 3, 2, 4 if cell == "lstm" else 1, buffer + relevant
    h, square, v = torch.zeros(T, B, n), torch.zeros(n, n), torch.zeros(n)
    xp, V = torch.zeros(T, B, gates * n), torch.zeros(gates * n, n)
    memory = torch.zeros(B, m0, n)
    origin, clock = torch.zeros(B, m0, dtype=torch.int64), torch.zeros(B, dtype=torch.int64)
    c0 = h[0] if cell == "lstm" else None
    screened.forward(
        xp, V, square, square, v, None, h[0], c0, memory, memory, origin, torch.zeros(B, m0), clock, cell, "tanh",
        buffer, relevant, "sum", 1.0, False, None, True,
    )  # fmt: skip
    slots, attention = torch.zeros(T, B, m0, dtype=torch.int32), torch.zeros(T, B, m0)
    activations = torch.zeros(T, B, 5 * n if cell == "lstm" else 0)
    screened.backward(
        h, h if with_ds else None, None, V, square, square, v, h[0], c0, memory, memory, h, h, activations, origin,
        slots, attention, cell, "tanh", buffer, relevant, "sum", None,
    )  # fmt: skip


def run_full(cell: str, n: int, B: int) -> None:
    T, m0, gates = 3, 2, 4 if cell == "lstm" else 1
    h, square, v = torch.zeros(T, B, n), torch.zeros(n, n), torch.zeros(n)
    xp, V = torch.zeros(T, B, gates * n), torch.zeros(gates * n, n)
    memory, origin = torch.zeros(B, m0, n), torch.zeros(B, m0, dtype=torch.int64)
    c0 = h[0] if cell == "lstm" else None
    full_attention.forward(
        xp, V, square, square, v, None, h[0], c0, memory, memory, origin, cell, "tanh", "sum", None, True
    )
    activations, log_sums = torch.zeros(T, B, 5 * n if cell == "lstm" else 0), torch.zeros(T, B)
    full_attention.backward(
        h, h, None, V, square, square, v, h[0], c0, memory, memory, origin, h, h, activations, log_sums, cell, "tanh",
        "sum", None,
    )  # fmt: skip


def run_sab(n: int, top: int) -> None:
    T, B, m0 = 3, 2, 4
    h, gates, V, w = torch.zeros(T, B, n), torch.zeros(T, B, 4 * n), torch.zeros(4 * n, n), torch.zeros(n)
    states, origin = torch.zeros(B, m0, n), torch.zeros(B, m0, dtype=torch.int64)
    memory = op.CarriedMemory(states, states, origin, torch.zeros(B, m0), torch.zeros(B, dtype=torch.int64))
    options = op.SabOptions(store_every=2, top=top, truncation=5)
    sab.sab_forward(gates, V, w, h[0], h[0], memory, options, None, True)
    slots, attention = torch.zeros(T, B, top, dtype=torch.int32), torch.zeros(T, B, top)
    saved = op.SabSaved(h, h, gates, slots, attention)
    sab.sab_backward(h, h, None, V, w, h[0], memory, options, saved, None)


# Tiles of one block and of clusters of 2 to 16; slots that do and do not fill a lane; rows of one and of more pieces.
RUNS = {
    "rnn-20": (run_cells, (plain.RNN, 20)),
    "rnn-512": (run_cells, (plain.RNN, 512)),
    "gru-200": (run_cells, (plain.GRU, 200)),
    "lstm-256": (run_cells, (plain.LSTM, 256)),
    "screened-rnn-100": (run_screened, ("rnn", 100, 10, 10, False)),
    "screened-rnn-256": (run_screened, ("rnn", 256, 3, 2, True)),
    "screened-lstm-20": (run_screened, ("lstm", 20, 0, 7, True)),
    "screened-lstm-200": (run_screened, ("lstm", 200, 8, 0, False)),
    "full-rnn-100": (run_full, ("rnn", 100, 2)),
    "full-lstm-128": (run_full, ("lstm", 128, 60)),
    "full-rnn-500": (run_full, ("rnn", 500, 200)),
    "full-lstm-1000": (run_full, ("lstm", 1000, 300)),
    "sab-20": (run_sab, (20, 5)),
    "sab-256": (run_sab, (256, 32)),
}


@pytest.mark.parametrize("run", RUNS)
def test_python_and_the_kernels_agree_on_shared_memory(launches, run):
    function, arguments = RUNS[run]
    function(*arguments)
    assert len(launches) == 2
    for name, defines in launches:
        assert defines["SHARED_FLOATS"] <= HOPPER.shared_floats
        emulator.compile_kernel(name, defines, "-fsyntax-only")


@pytest.mark.parametrize("run", ["rnn-20", "screened-rnn-100", "full-rnn-100", "sab-20"])
@pytest.mark.parametrize(("define", "message"), [("SHARED_FLOATS", "shared memory"), ("THREADS", "threads")])
def test_a_disagreement_does_not_compile(launches, run, define, message):
    function, arguments = RUNS[run]
    function(*arguments)
    for name, defines in launches:
        wrong = {**defines, define: defines[define] + 32}
        with pytest.raises(subprocess.CalledProcessError) as refused:
            emulator.compile_kernel(name, wrong, "-fsyntax-only")
        assert message in refused.value.stderr
        assert "disagree" in refused.value.stderr


def test_an_argument_of_another_name_or_type_is_refused():
    names = [parameter.name for parameter in compiler.parameters("cells_forward")]
    args = dict.fromkeys(names)
    assert compiler.order_arguments("cells_forward", args) == [None] * len(names)
    with pytest.raises(AssertionError, match=r"\['W'\] are not in both"):
        compiler.order_arguments("cells_forward", {**args, "W": None})
    with pytest.raises(AssertionError, match=r"lengths must be contiguous and torch\.int64"):
        compiler.order_arguments("cells_forward", {**args, "lengths": torch.zeros(2, dtype=torch.int32)})
    with pytest.raises(AssertionError, match="h0 must be contiguous"):
        compiler.order_arguments("cells_forward", {**args, "h0": torch.zeros(2, 3).T})
