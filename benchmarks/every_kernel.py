"""Every CUDA kernel once, for compute-sanitizer: `python benchmarks/kernels.py --parts small`."""

from __future__ import annotations

import argparse

import torch
from torch import nn

import mnemoscope as ms
from mnemoscope.kernels._cuda import compiler


def small(options: argparse.Namespace) -> None:
    """Every kernel once: on one block and over clusters, with carried states, whole batches and different lengths."""
    built = _record_builds()
    screened = {"buffer": 3, "relevant": 2}
    layers = [
        (ms.RNN(3, 128), 2),
        (ms.RNN(3, 200, nonlinearity="modrelu"), 2),
        (ms.LSTM(3, 100), 2),
        (ms.GRU(3, 100), 2),
        (ms.GORU(3, 128), 2),
        (ms.RAC(3, 60), 2),
        (ms.RelRNN(3, 128, **screened), 2),
        (ms.RelRNN(3, 60, buffer=0, relevant=3), 2),
        (ms.RelLSTM(3, 60, **screened), 2),
        (ms.RelLSTM(3, 128, output="s", **screened), 2),
        (ms.RelRNN(3, 512, **screened), 2),  # 16 blocks a cluster
        (ms.RelRNN(3, 256, **screened), 30),  # more sequences than clusters fit at once: they share
        (ms.RelLSTM(3, 256, **screened), 30),
        (ms.RelRNN(3, 520, **screened), 2),  # no cluster holds its weights: step by step
        (ms.RelLSTM(3, 520, **screened), 2),
        (ms.RelRNN(3, 512, **screened).bfloat16(), 16),  # on tensor cores
        (ms.RelLSTM(3, 512, **screened).bfloat16(), 16),
        (ms.MemRNN(3, 100), 2),
        (ms.MemLSTM(3, 60, output="s"), 2),
        (ms.SAB(3, 128, top=3, output="both"), 2),
    ]
    for layer, batch in layers:
        if type(layer).__name__ not in options.layers:
            continue
        layer = layer.to(options.device)
        like = next(layer.parameters())
        state = ms.detach(layer(torch.randn(4, batch, 3).to(like))[1])
        inputs = torch.randn(9, batch, 3).to(like)
        lengths = torch.full((batch,), 9).index_fill(0, torch.tensor([1]), 5)
        packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths, enforce_sorted=False)
        layer(packed, state)[0].data.square().sum().backward()
        layer(inputs)[0].square().sum().backward()
        print("ran", layer, flush=True)
    if options.device == "cuda":
        print("kernels that did not run:", *(sorted(set(built) ^ _all_kernels()) or ["none"]))


def _all_kernels() -> set[str]:
    return {path.stem for path in compiler.FOLDER.glob("*.cu")}


def _record_builds() -> list[str]:
    """Return a list that grows by the name of each CUDA kernel that is used for the first time."""
    names: list[str] = []
    build = compiler.build

    def recorded(name: str, defines: compiler.Defines) -> bytes:
        names.append(name)
        return build(name, defines)

    compiler.build = recorded
    return names
