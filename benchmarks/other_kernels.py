"""LSTM and RNN beside the fused kernels of another library, FlashRNN: python benchmarks/other_kernels.py [--json FILE].

FlashRNN (pip install flashrnn, Apache-2.0) computes in bfloat16 and compiles its kernels with nvcc when they are first
called, which takes a minute each. Where it is not installed, or does not compile, this says so and ends. haste_pytorch
has a source release alone (0.5.0rc0), which is compiled when it is installed, and is not compared. One layer of 64
sequences, forward + backward, medians by turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import mnemoscope as ms
from tables import Table, machine, save
from timing import INPUT_SIZE, forward_backward, median_seconds

FUNCTIONS = {"LSTM": ("lstm", 4), "RNN": ("elman", 1)}  # FlashRNN's name, and gates
BATCH = 64


class FlashRNN(nn.Module):
    """A layer over flashrnn(), with the projection of the inputs that our layers and torch's have."""

    def __init__(self, name: str, hidden_size: int, backend: str) -> None:
        super().__init__()
        self.function, gates = FUNCTIONS[name]
        self.shape = (gates, 1, hidden_size)  # gates, heads, units
        self.backend = backend
        self.project = nn.Linear(INPUT_SIZE, gates * hidden_size, bias=False)
        self.weight_hh = nn.Parameter(torch.randn(gates, 1, hidden_size, hidden_size) / hidden_size**0.5)
        self.bias = nn.Parameter(torch.zeros(self.shape))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        from flashrnn import flashrnn

        projected = self.project(x).transpose(0, 1).unflatten(-1, self.shape)  # (B, T, gates, heads, units)
        states, last = flashrnn(projected, self.weight_hh, self.bias, function=self.function, backend=self.backend)
        return states[0, :, :, 0].transpose(0, 1), last


def call_of(layer: nn.Module, T: int, dtype: torch.dtype) -> Callable[[], None]:
    layer = layer.to("cuda", dtype)
    x = torch.randn(T, BATCH, INPUT_SIZE, device="cuda", dtype=dtype)
    grad_output = torch.randn_like(layer(x)[0])

    def call() -> None:
        layer.zero_grad(set_to_none=True)
        layer(x)[0].backward(grad_output)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for the table; the others in it are kept")
    parser.add_argument("--T", type=int, default=1020)
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    try:
        import flashrnn  # noqa: F401
    except ImportError as error:
        raise SystemExit(f"flashrnn cannot be imported ({error}): nothing is compared") from None

    table = Table("layer", "n", "ours, float32 ms", "cuDNN, float32", "cuDNN, bfloat16", "FlashRNN, bfloat16", "how")
    for name in FUNCTIONS:
        for n in options.hidden:
            float32 = [getattr(module, name)(INPUT_SIZE, n) for module in (ms, nn)]
            calls = [forward_backward(layer.cuda(), options.T, BATCH, "cuda") for layer in float32]
            calls.append(call_of(getattr(nn, name)(INPUT_SIZE, n), options.T, torch.bfloat16))
            backend = "cuda_fused"
            try:
                calls.append(call_of(FlashRNN(name, n, backend), options.T, torch.bfloat16))
            except Exception as error:  # of a compiler, a driver or a size that it does not take
                backend = f"failed: {str(error).splitlines()[0][:80]}"
            times = [1e3 * seconds for seconds in median_seconds(*calls, repeats=options.repeats)]
            table.add(name, n, *times, *[None] * (4 - len(times)), backend)
    if options.json:
        save(options.json, machine("cuda", 1), {"flashrnn": table})


if __name__ == "__main__":
    main()
