"""Every layer inside a CUDA graph, on a CUDA device: nothing in a call may wait for the device.

Each case has a process of its own: a call that waits breaks its capture, and with it the process's CUDA context.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from mnemoscope.layers import LAYERS, _matrix_exp

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("hidden_size", [128, 600])
@pytest.mark.parametrize("name", LAYERS)
def test_replayed_graph_gives_the_numbers_of_a_call(name: str, hidden_size: int) -> None:
    done = subprocess.run([sys.executable, __file__, name, str(hidden_size)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def replay(name: str, hidden_size: int) -> None:
    """Capture forward and backward of a layer, replay them on other inputs, and compare with a call."""
    torch.manual_seed(0)
    if name == "GORU":  # whose rotations need a power of two; 1,024 units run step by step, as 600 do elsewhere
        hidden_size = 128 if hidden_size == 128 else 1024
    layer = LAYERS[name](10, hidden_size).to("cuda")
    x, other = torch.randn(2, 20, 8, 10, device="cuda")
    grad = torch.randn(20, 8, layer.output_size, device="cuda")

    def call() -> list[torch.Tensor]:
        layer.zero_grad(set_to_none=True)
        output = layer(x)[0]
        output.backward(grad)
        return [output.detach(), *[p.grad for p in layer.parameters() if p.grad is not None]]

    # Warm up and capture on a side stream, as torch's documentation asks for.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    layer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        captured = call()

    # New numbers in the same place: the graph must read them. The exponential must be that of the graph: states that
    # differ in their last digits lie on other sides of modReLU's kink.
    x.copy_(other)
    graph.replay()
    replayed = [tensor.clone() for tensor in captured]
    _matrix_exp.matrix_exp = _matrix_exp.matrix_exp_of_unread_norm
    for ours, theirs in zip(replayed, call(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    replay(sys.argv[1], int(sys.argv[2]))
