"""Python and the CUDA kernels agree on shared memory, threads and arguments; and the kernels compile for a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess

import emulator
import pytest
import torch

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import cells, cells_steps, compiler, full_attention, layout, sab, screened, screened_steps
from mnemoscope.kernels._cuda.products import Factors
from mnemoscope.kernels._operator import CUDA_CELLS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the kernels are compiled by g++")

HOPPER = layout.Limits(clusters=(1, 2, 4, 8, 16), multiprocessors=132, shared_floats=227 * 256)


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """Launches on a device that is not there: the last one's kernel, defines, threads and shared memory."""
    recorded = []

    def launch(name, defines, *, blocks, threads, shared_floats, args, steps=None, before=None):
        compiler.pack_arguments(name, args if steps is None else {**args, "t": 0})
        recorded.append((name, {**defines, "THREADS": threads, "SHARED_FLOATS": shared_floats}))

    monkeypatch.setattr(compiler, "launch", launch)
    monkeypatch.setattr(compiler, "launch_steps", launch)
    monkeypatch.setattr(layout, "limits", lambda device: HOPPER)
    return recorded


def test_no_kernel_has_what_nvrtc_refuses_and_other_compilers_take() -> None:
    """A lambda with a parameter of any type is a function of the host there."""
    for path in compiler.FOLDER.iterdir():
        assert "](auto" not in path.read_text(), path.name


def run_cells(family: str, n: int) -> None:
    T, B = 3, 2
    cell = CUDA_CELLS[family]
    h = torch.zeros(T, B, n)
    xp = torch.zeros(T, B, cell.rows * n)
    V = torch.zeros(cell.rows * n, n)
    cells.run_forward(cell, xp=xp, V=V, h0=h[0], lengths=None, h=h)
    cells.run_backward(cell, dh=h, V=V, lengths=None, dxp=xp, dh0=h[0])


def run_cells_by_step(family: str, n: int) -> None:
    T, B = 3, 2
    cell = CUDA_CELLS[family]
    h, xp = torch.zeros(T, B, n), torch.zeros(T, B, cell.rows * n)
    V = torch.zeros(cell.rows * n, n)
    cells_steps.run_forward(cell, xp=xp, V=V, h0=h[0], lengths=None, h=h)
    cells_steps.run_backward(cell, dh=h, V=V, lengths=None, dxp=xp, dh0=h[0])


def carried(B: int, m0: int, n: int) -> op.CarriedMemory:
    return op.CarriedMemory(
        values0=torch.zeros(B, m0, n),
        keys0=torch.zeros(B, m0, n),
        origin0=torch.zeros(B, m0, dtype=torch.int64),
        relevance0=torch.zeros(B, m0),
        clock0=torch.zeros(B, dtype=torch.int64),
    )


def run_attention(cell: str, n: int, B: int, buffer: int = -1, relevant: int = 0, with_ds: bool = True) -> None:
    T, m0 = 3, 2 if buffer < 0 else buffer + relevant
    gates = 4 if cell == "lstm" else 1
    h, square = torch.zeros(T, B, n), torch.zeros(n, n)
    weights = op.AttentionWeights(torch.zeros(gates * n, n), square, square, torch.zeros(n), None)
    state = op.AttentionState(h[0], h[0] if cell == "lstm" else None)
    options = op.AttentionOptions(cell, "tanh", buffer, relevant, "sum", 1.0, False)
    inputs = weights, state, carried(B, m0, n), options
    xp = torch.zeros(T, B, gates * n)
    kernels, kernel_width = full_attention if buffer < 0 else screened, 0
    if buffer >= 0 and not screened.supports(cell == "lstm", n, m0, xp.device):
        kernels, kernel_width = screened_steps, screened_steps.kernel_width(n, options)
    run = op.allocate_run(xp, n, inputs[2], options, True, kernel_width)
    kernels.forward(run, xp, *inputs, None, True)
    saved = op.AttentiveSaved(*[getattr(run, name) for name in op.AttentiveSaved._fields])
    kernels.backward(op.AttentiveOutputGradients(h, h if with_ds else None, None), *inputs, saved, None)


def run_tensor_cores(cell: str, n: int, B: int, buffer: int, relevant: int, with_ds: bool) -> None:
    T, gates = 3, 4 if cell == "lstm" else 1
    h, square = torch.zeros(T, B, n), torch.zeros(n, n)
    weights = op.AttentionWeights(torch.zeros(gates * n, n), square, square, torch.zeros(n), None)
    state = op.AttentionState(h[0], h[0] if cell == "lstm" else None)
    options = op.AttentionOptions(cell, "tanh", buffer, relevant, "sum", 1.0, False)
    inputs = weights, state, carried(B, buffer + relevant, n), options
    xp = torch.zeros(T, B, gates * n)
    run = op.allocate_run(xp, n, inputs[2], options, True)
    screened.forward(run, xp, *inputs, None, True, bfloat16=True)
    saved = op.AttentiveSaved(*[getattr(run, name) for name in op.AttentiveSaved._fields])
    grads = op.AttentiveOutputGradients(h, h if with_ds else None, None)
    screened.backward(grads, *inputs, saved, None, factors=Factors(saved.h, saved.s, weights))


def run_sab(n: int, top: int) -> None:
    T, B = 3, 2
    h, gates, V, w = torch.zeros(T, B, n), torch.zeros(T, B, 4 * n), torch.zeros(4 * n, n), torch.zeros(n)
    memory, options = carried(B, 4, n), op.SabOptions(2, top, 5, False)
    run = sab.sab_forward(gates, V, w, h[0], h[0], memory, options, None, True)
    saved = op.SabSaved(*[getattr(run, name) for name in op.SabSaved._fields])
    sab.sab_backward(h, h, None, V, w, h[0], memory, options, saved, None)


# Tiles of one block and of clusters of 2 to 16; slots that do and do not fill a lane; rows of one and of more pieces.
RUNS = {
    "rnn-20": (run_cells, ("rnn", 20)),
    "rnn-512": (run_cells, ("rnn", 512)),
    "gru-200": (run_cells, ("gru", 200)),
    "lstm-256": (run_cells, ("lstm", 256)),
    "rnn-600, by step": (run_cells_by_step, ("rnn", 600)),
    "lstm-300, by step": (run_cells_by_step, ("lstm", 300)),
    "goru-1024, by step": (run_cells_by_step, ("goru", 1024)),
    "screened-rnn-100": (run_attention, ("rnn", 100, 2, 10, 10, False)),
    "screened-rnn-256": (run_attention, ("rnn", 256, 2, 3, 2, True)),
    "screened-lstm-20": (run_attention, ("lstm", 20, 2, 0, 7, True)),
    "screened-lstm-200": (run_attention, ("lstm", 200, 2, 8, 0, False)),
    "steps-rnn-513": (run_attention, ("rnn", 513, 2, 10, 10, True)),
    "steps-lstm-1024": (run_attention, ("lstm", 1024, 128, 5, 2, False)),
    "steps-lstm-2048": (run_attention, ("lstm", 2048, 1, 10, 22, True)),
    "steps-rnn-600, more slots than lanes": (run_attention, ("rnn", 600, 2, 40, 40, True)),
    "screened-rnn-128, more slots than lanes": (run_attention, ("rnn", 128, 2, 60, 60, False)),
    "screened-lstm-128, more slots than lanes": (run_attention, ("lstm", 128, 64, 15, 25, True)),
    "screened-rnn-512, shared clusters": (run_attention, ("rnn", 512, 64, 10, 5, True)),
    "screened-lstm-200, shared clusters": (run_attention, ("lstm", 200, 64, 8, 3, False)),
    "tensor-rnn-512": (run_tensor_cores, ("rnn", 512, 64, 10, 10, False)),
    "tensor-rnn-300": (run_tensor_cores, ("rnn", 300, 5, 3, 2, True)),
    "tensor-rnn-20": (run_tensor_cores, ("rnn", 20, 1, 0, 7, True)),
    "tensor-lstm-256": (run_tensor_cores, ("lstm", 256, 64, 10, 10, False)),
    "tensor-lstm-512": (run_tensor_cores, ("lstm", 512, 100, 20, 12, True)),
    "full-rnn-100": (run_attention, ("rnn", 100, 2)),
    "full-lstm-128": (run_attention, ("lstm", 128, 60)),
    "full-rnn-500": (run_attention, ("rnn", 500, 200)),
    "full-lstm-1000": (run_attention, ("lstm", 1000, 300)),
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


@pytest.mark.parametrize("run", ["rnn-20", "screened-rnn-100", "tensor-rnn-20", "full-rnn-100", "sab-20"])
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA toolkit's compiler")
@pytest.mark.parametrize(
    "run",
    [
        "rnn-20",
        "gru-200",
        "lstm-256",
        "screened-lstm-200",
        "tensor-rnn-512",
        "tensor-lstm-256",
        "full-lstm-128",
        "sab-256",
    ],
)
def test_the_kernels_compile_for_a_gpu(launches, run, tmp_path):
    function, arguments = RUNS[run]
    function(*arguments)
    for name, defines in launches:
        command = ["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", "--resource-usage", *compiler.options(defines)]
        command += ["-o", str(tmp_path / "kernel.cubin"), str(compiler.FOLDER / f"{name}.cu")]
        report = subprocess.run(command, check=True, capture_output=True, text=True)
        spilled = re.search(r" (\d+) bytes spill stores", report.stderr)
        assert spilled is not None
        # Full attention's are most of them on the way of keys that have no power of two.
        assert int(spilled[1]) <= (64 if name.startswith("full_attention") else 0)


def test_an_argument_of_another_name_or_type_is_refused():
    names = [parameter.name for parameter in compiler.parameters("cells_forward")]
    args = {name: 7 if name in ("n", "T", "B", "b_hh_size") else None for name in names}
    assert compiler.pack_arguments("cells_forward", args) == ([0] * (len(names) - 4) + [7] * 4, -1)
    with pytest.raises(TypeError, match=r"\['W'\] are not in both"):
        compiler.pack_arguments("cells_forward", {**args, "W": None})
    with pytest.raises(KeyError, match="xp"):
        compiler.pack_arguments("cells_forward", {**{k: v for k, v in args.items() if k != "xp"}, "W": None})
    with pytest.raises(TypeError, match=r"lengths must be contiguous and torch\.int64"):
        compiler.pack_arguments("cells_forward", {**args, "lengths": torch.zeros(2, dtype=torch.int32)})
    with pytest.raises(TypeError, match="h0 must be contiguous"):
        compiler.pack_arguments("cells_forward", {**args, "h0": torch.zeros(2, 3).T})
