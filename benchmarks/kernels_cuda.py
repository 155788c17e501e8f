"""Layers on a CUDA device beside cuDNN's: time a step, peak memory, ratio, speedup over the eager path.

    python benchmarks/kernels_cuda.py                   the tables (`cudnn`: the first of them alone)
    compute-sanitizer --tool racecheck python benchmarks/kernels_cuda.py small      every kernel once, on small sizes

Forward and backward in float32, medians; cuDNN as torch sets it up (it may use TF32, the kernels here never do).
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn

import mnemoscope as ms
from mnemoscope import kernels

DEVICE = "cuda"
INPUTS = 10


def median_ms(layer: nn.Module, T: int, B: int, repeats: int, gradients: bool = True) -> tuple[float, float]:
    """-> milliseconds, and the peak of memory in MB above what there was before."""
    x = torch.randn(T, B, layer.input_size, device=DEVICE)
    outer = torch.randn(T, B, layer.hidden_size, device=DEVICE)

    def step() -> None:
        with torch.set_grad_enabled(gradients):
            output = layer(x)[0]
        if gradients:
            output.backward(outer)
            layer.zero_grad(set_to_none=True)

    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, times = torch.cuda.memory_allocated(), []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times), (torch.cuda.max_memory_allocated() - before) / 2**20


def row(name: str, layer: nn.Module, T: int, B: int, base: float | None = None, repeats: int = 7) -> float:
    layer = layer.to(DEVICE)
    ms_all, peak = median_ms(layer, T, B, repeats)
    forward, _ = median_ms(layer, T, B, repeats, gradients=False)
    ratio = "" if base is None else f"{ms_all / base:.2f}"
    figures = (f"{ms_all:.2f}", f"{forward:.2f}", f"{1e3 * ms_all / T:.2f}", ratio, f"{peak:.0f}")
    print("|", " | ".join((name, str(layer.hidden_size), str(B), str(T), *figures)), "|", flush=True)
    return ms_all


def against_cudnn() -> None:
    print("\n| layer | n | batch | T | ms | forward ms | us a step | ratio | peak MB |\n" + "|---" * 9 + "|")
    n, B, T = 128, 64, 2020
    lstm, rnn = row("cuDNN LSTM", nn.LSTM(INPUTS, n), T, B), row("cuDNN RNN", nn.RNN(INPUTS, n), T, B)
    for layer in (ms.RNN, ms.OrthRNN, ms.ExpRNN, ms.RAC):
        row(f"{layer.__name__} / cuDNN RNN", layer(INPUTS, n), T, B, rnn)
    for layer in (ms.LSTM, ms.GORU, ms.RelRNN, ms.RelLSTM, ms.SAB):
        row(f"{layer.__name__} / cuDNN LSTM", layer(INPUTS, n), T, B, lstm)
    for layer in (ms.MemRNN, ms.MemLSTM):
        row(f"{layer.__name__} / cuDNN LSTM", layer(INPUTS, n), T, B, lstm, repeats=3)
    for n, T in ((256, 1020), (512, 1020)):
        lstm = row("cuDNN LSTM", nn.LSTM(INPUTS, n), T, B)
        row("RelRNN / cuDNN LSTM", ms.RelRNN(INPUTS, n), T, B, lstm)
    for batch in (1, 16, 128, 256):
        lstm = row("cuDNN LSTM", nn.LSTM(INPUTS, 128), 2020, batch)
        row("RelRNN / cuDNN LSTM", ms.RelRNN(INPUTS, 128), 2020, batch, lstm)


def growth() -> None:
    print("\n| RelRNN, n = 128, batch 64: T | us a step | peak MB |\n|---|---|---|")
    for T in (256, 2020, 16384, 65536):
        taken, peak = median_ms(ms.RelRNN(INPUTS, 128).to(DEVICE), T, 64, 3)
        print(f"| {T} | {1e3 * taken / T:.2f} | {peak:.0f} |", flush=True)


def against_eager(T: int = 220, B: int = 64, n: int = 128) -> None:
    print(f"\n| n = {n}, batch {B}, T = {T} | eager ms | fused ms | times faster |\n|---|---|---|---|")
    for kind in (ms.RNN, ms.LSTM, ms.GORU, ms.RAC, ms.RelRNN, ms.RelLSTM, ms.MemRNN, ms.SAB):
        layer = kind(INPUTS, n).to(DEVICE)
        fused, _ = median_ms(layer, T, B, 5)
        with kernels.backend("eager"):
            eager, _ = median_ms(layer, T, B, 1)
        print(f"| {kind.__name__} | {eager:.1f} | {fused:.2f} | {eager / fused:.0f} |", flush=True)


def small(names: list[str]) -> None:
    """Every kernel, alone and over a cluster, with carried states and sequences of different lengths."""
    screened = {"buffer": 3, "relevant": 2}
    for layer in (
        ms.RNN(3, 128), ms.RNN(3, 200, nonlinearity="modrelu"), ms.LSTM(3, 100), ms.GORU(3, 128), ms.RAC(3, 60),
        ms.RelRNN(3, 128, **screened), ms.RelRNN(3, 60, buffer=0, relevant=3),
        ms.RelLSTM(3, 128, output="s", **screened), ms.MemRNN(3, 100), ms.MemLSTM(3, 60, output="s"),
        ms.SAB(3, 128, top=3, output="both"),
    ):  # fmt: skip
        if names and type(layer).__name__ not in names:
            continue
        layer = layer.to(DEVICE)
        state = ms.detach(layer(torch.randn(4, 2, 3, device=DEVICE))[1])
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.randn(9, 2, 3, device=DEVICE), torch.tensor([9, 5]), enforce_sorted=False
        )
        output, _ = layer(packed, state)
        output.data.square().sum().backward()
        torch.cuda.synchronize()
        print("ran", layer, flush=True)


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}")
    if "small" in sys.argv[1:]:
        small(sys.argv[2:])
    elif "cudnn" in sys.argv[1:]:
        against_cudnn()
    else:
        against_cudnn()
        growth()
        against_eager()
