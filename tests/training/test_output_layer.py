"""The read-out of many outputs, whose products are padded on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mnemoscope.training import NetworkConfig, SequenceModel
from mnemoscope.training import _output_layer as output_layer
from mnemoscope.training._output_layer import OutputLayer, missing_outputs, padded_linear, product_dtype


@pytest.mark.parametrize(
    ("rows", "outputs", "dtype", "device", "expected"),
    [
        (1300, 33278, torch.float32, "cuda", 2),
        (1300, 10001, torch.float32, "cuda", 47),
        (1300, 10000, torch.float32, "cuda", 0),  # a multiple of 4: aligned
        (1300, 33280, torch.float32, "cuda", 0),
        (1300, 33284, torch.float32, "cuda", 0),
        (1300, 33284, torch.bfloat16, "cuda", 60),  # no multiple of 8
        (1300, 33278, torch.float16, "cuda", 2),
        (1300, 33280, torch.bfloat16, "cuda", 0),
        (1300, 33278, torch.float64, "cuda", 0),
        (1300, 33278, torch.float32, "cpu", 0),
        (1300, 33278, torch.float32, "mps", 0),
        (1300, 50, torch.float32, "cuda", 0),
        (1300, 4095, torch.float32, "cuda", 0),
        (1300, 4097, torch.float32, "cuda", 63),
        (20, 33278, torch.float32, "cuda", 0),  # one step of a batch
        (512, 33278, torch.float32, "cuda", 2),
    ],
)
def test_outputs_are_padded_where_that_is_faster(
    rows: int, outputs: int, dtype: torch.dtype, device: str, expected: int
) -> None:
    assert missing_outputs(rows, outputs, dtype, device) == expected


def passes(call: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, *rest: int) -> list[Tensor]:
    """Outputs and gradients, with a weight for each output, such that a mistaken column shows."""
    given = [tensor.clone().requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    y = call(*given, *([None] if bias is None else []), *rest)
    along = torch.arange(y.numel()).reshape(y.shape).to(y) % 7 - 3
    return [y, *torch.autograd.grad((y * along).sum(), given)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 4, 8), (5, 8), (8,)])
def test_padded_product_is_that_of_the_plain_layer(shape: tuple[int, ...], bias: bool) -> None:
    """Bit for bit: small whole numbers, of which every sum is exact in whatever order."""
    x, W = torch.randint(-4, 5, shape).float(), torch.randint(-4, 5, (11, 8)).float()
    b = torch.randint(-4, 5, (11,)).float() if bias else None
    plain = passes(F.linear, x, W, b)
    padded = passes(padded_linear, x, W, b, 53)
    for one, other in zip(padded, plain, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, torch.dtype, str]]:
    """Every layer is padded here, on the CPU; what the decision was asked for is listed."""
    calls = []

    def decide(*question: Any) -> int:
        calls.append(question)
        return 57

    monkeypatch.setattr(output_layer, "missing_outputs", decide)
    return calls


def network(**options: Any) -> SequenceModel:
    torch.manual_seed(1)
    return SequenceModel(7, 7, NetworkConfig("LSTM", 8, embedding=8, **options), token_input=True)


def both_passes(net: SequenceModel) -> list[Tensor]:
    ids = torch.arange(12).reshape(6, 2) % 7
    y, _ = net(ids)
    loss = F.cross_entropy(y.flatten(0, 1), ids.flatten())
    return [y, *torch.autograd.grad(loss, list(net.parameters()))]


OPTIONS: list[dict[str, Any]] = [{}, {"tied": True}, {"skip": True}, {"head": 6}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_padded_network_is_the_plain_one(options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    plain = both_passes(network(**options).double())
    asked = request.getfixturevalue("asked")
    net = network(**options).double()
    for one, other in zip(both_passes(net), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    layers = 2 if "skip" in options else 1
    assert asked == [(12, 7, torch.float64, "cpu")] * layers


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_networks_are_saved_as_before(options: dict[str, Any]) -> None:
    """Weights of nn.Linear fit, and on the CPU they give the same bits."""
    net = network(**options)
    expected = both_passes(net)
    saved = net.state_dict()
    for name in ("readout", "direct"):
        if (layer := getattr(net, name)) is not None:
            setattr(net, name, nn.Linear(layer.in_features, layer.out_features, layer.bias is not None))
    if net.embedding is not None and "tied" in options:
        net.readout.weight = net.embedding.weight
    assert net.state_dict().keys() == saved.keys()
    net.load_state_dict(saved)
    for one, other in zip(both_passes(net), expected, strict=True):
        assert torch.equal(one, other)


def test_a_readout_still_counts_as_linear() -> None:
    net = network(skip=True)
    assert isinstance(net.readout, OutputLayer)
    assert net.affine_readout is net.readout.weight
    net.readout = nn.Linear(8, 7)
    assert net.affine_readout is net.readout.weight

    class Doubled(OutputLayer):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    net.readout = Doubled(8, 7)
    assert net.affine_readout is None


def test_a_layer_without_numbers_still_has_a_shape() -> None:
    assert OutputLayer(4, 7, device="meta")(torch.empty(3, 2, 4, device="meta")).shape == (3, 2, 7)


@pytest.mark.cuda
def test_under_autocast_its_type_decides() -> None:
    x = torch.empty(3, 4, device="cuda")
    assert product_dtype(x) is torch.float32
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert product_dtype(x) is torch.bfloat16
        assert product_dtype(x.double()) is torch.float64


@pytest.mark.usefixtures("asked")
def test_a_padded_layer_compiles_as_a_whole() -> None:
    layer, x = OutputLayer(4, 7), torch.randn(3, 2, 4)
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, layer(x))


@pytest.mark.cuda
@pytest.mark.parametrize("outputs", [4097, 4098, 4100])
def test_on_a_gpu_the_layer_is_the_plain_one(outputs: int) -> None:
    """Whole numbers again; also in a CUDA graph, which no call may interrupt to wait."""
    layer = OutputLayer(8, outputs, device="cuda")
    x = torch.randint(-4, 5, (65, 20, 8), device="cuda").float()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randint(-4, 5, parameter.shape))
    found = passes(lambda *given: torch.func.functional_call(layer, named(given[1:]), given[0]), x, *layer.parameters())
    plain = passes(F.linear, x, *layer.parameters())
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one, other)

    y, graph = layer(x), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        again = layer(x)
    graph.replay()
    assert torch.equal(again, y)


def named(parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip(("weight", "bias"), parameters, strict=True))
