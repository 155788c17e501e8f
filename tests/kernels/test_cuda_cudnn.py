"""RNN, LSTM and GRU by cuDNN: the same numbers, states and gradients, of gradients too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels import _cudnn
from mnemoscope.kernels._cuda import layout
from mnemoscope.layers._run import choose_cudnn

LAYERS = {
    "tanh": (ms.RNN, nn.RNN, {}),
    "relu": (ms.RNN, nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (ms.LSTM, nn.LSTM, {}),
    "gru": (ms.GRU, nn.GRU, {}),
}


@pytest.fixture
def cudnn_runs(monkeypatch):
    """Every size is cuDNN's, in full precision; yields the cells that ran."""
    ran = []
    forward = _cudnn.cudnn_rnn

    def counted(*arguments):
        ran.append(arguments[6])
        return forward(*arguments)

    monkeypatch.setattr(_cudnn, "cudnn_rnn", counted)
    monkeypatch.setattr(kernels, "ours_up_to", lambda device: 0)
    monkeypatch.setattr(kernels, "cudnn_is_faster", lambda *_: True)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return ran


@pytest.mark.parametrize(("gap", "packed_by_cudnn"), [(0, 1), (4, 2)])
def test_weights_are_packed_by_cudnn_until_their_order_is_known(monkeypatch, gap, packed_by_cudnn):
    """Without a GPU: cuDNN is a function that puts its weights into a buffer, with or without gaps between them."""
    calls = []

    def pack(parts, *_):
        calls.append(len(parts))
        buffer = torch.zeros(sum(part.numel() + gap for part in parts))
        start = 0
        for part in parts:
            place = buffer[start : start + part.numel()].view_as(part)
            place.copy_(part)
            part.set_(place)
            start += part.numel() + gap
        return buffer

    monkeypatch.setattr(_cudnn, "cudnn_pack_weights", pack)
    monkeypatch.setattr(_cudnn, "_lie_in_order", {})
    torch.manual_seed(0)
    weights = [torch.randn(20, 3), torch.randn(20, 5), torch.randn(20), torch.randn(20)]
    first, second = _cudnn._pack_weights("lstm", weights), _cudnn._pack_weights("lstm", weights)
    assert torch.equal(first, second)
    assert len(calls) == packed_by_cudnn
    _cudnn._pack_weights("lstm", weights[:2])  # of another kind
    assert len(calls) == packed_by_cudnn + 1


def test_autocast_leaves_float64_alone(monkeypatch):
    """As nn.LSTM's, and as our own kernels': the size of a batch does not decide the precision. Without a GPU."""
    monkeypatch.setattr(_cudnn, "_has_cudnn", lambda: True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    found = {}
    for dtype in (torch.float32, torch.float64):
        x = SimpleNamespace(is_cuda=True, shape=(3, 2, 4), dtype=dtype)
        found[dtype] = _cudnn.cudnn_dtype(x, None)
    assert found == {torch.float32: torch.get_autocast_dtype("cuda"), torch.float64: torch.float64}


TORCH_FUNCTIONS = {0: torch.rnn_relu, 1: torch.rnn_tanh, 2: torch.lstm, 3: torch.gru}


@pytest.fixture
def cudnn_on_the_cpu(monkeypatch):
    """Every sequence is cuDNN's, which torch's functions for the CPU stand for; yields the modes that ran."""
    ran = []

    def run(x, weights, h0, c0, mode):
        state = h0 if c0 is None else [h0, c0]
        found = TORCH_FUNCTIONS[mode](x, state, weights, len(weights) == 4, 1, 0.0, False, False, False)
        return found if len(found) == 3 else (*found, x.new_empty(0))

    def unpack(packed, weights):
        parts = packed.split([weight.numel() for weight in weights])
        return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]

    def forward(x, weights, stride, packed, h0, c0, mode, *options):
        ran.append(mode)
        assert h0.dim() == 3
        return *run(x, unpack(packed, weights), h0, c0, mode), x.new_empty(0), packed

    def backward(x, weights, stride, packed, h0, c0, h, dh, dh_T, dc_T, mode, *options):
        inputs = [t.detach().requires_grad_() for t in (x, h0, *([] if c0 is None else [c0]), *weights)]
        x, h0, *rest = inputs
        weights = rest[-stride:]
        with torch.enable_grad():
            found = run(x, weights, h0, None if c0 is None else rest[0], mode)
        pairs = [(y, g) for y, g in zip(found, (dh, dh_T, dc_T), strict=True) if g is not None]
        grads = torch.autograd.grad([y for y, _ in pairs], inputs, [g for _, g in pairs])
        return *grads[:2], None if c0 is None else grads[2], list(grads[-stride:])

    def choose(layer, x, lengths):
        cell = layer.cudnn_cell()
        return None if cell is None or lengths is not None else (x.dtype, cell)

    monkeypatch.setattr(_cudnn, "cudnn_rnn", forward)
    monkeypatch.setattr(_cudnn, "cudnn_rnn_backward", backward)
    monkeypatch.setattr(_cudnn, "cudnn_pack_weights", lambda parts, *_: torch.cat([part.view(-1) for part in parts]))
    monkeypatch.setattr(_cudnn, "_lie_in_order", {})
    monkeypatch.setattr(kernels, "ours_up_to", lambda device: 0)
    for module in ("_run", "_plain"):
        monkeypatch.setattr(f"mnemoscope.layers.{module}.choose_cudnn", choose)
    return ran


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("carried", [True, False])
@pytest.mark.parametrize("stack", [{}, {"num_layers": 2, "bidirectional": True}], ids=["alone", "stack"])
def test_equals_torch_around_a_cudnn_of_the_cpu(cudnn_on_the_cpu, cell, bias, carried, stack):
    ours, theirs, options = LAYERS[cell]
    torch.manual_seed(0)
    layer = ours(3, 20, bias=bias, **stack, **options).double()
    peer = theirs(3, 20, bias=bias, **stack, **options).double()
    peer.load_state_dict(layer.state_dict())
    x = torch.randn(7, 4, 3).double()
    count = 4 if stack else 1
    state = None
    if carried:
        h = torch.randn(count, 4, 20).double().requires_grad_()
        state = (h, h.flip(0)) if cell == "lstm" else h
    found = gradients(layer, x, state)
    assert len(cudnn_on_the_cpu) == count
    for a, b in zip(found, gradients(peer, x, state), strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b)
    if carried:
        (dh,) = torch.autograd.grad(layer(x, state)[0].square().sum(), h)
        (expected,) = torch.autograd.grad(peer(x, state)[0].square().sum(), h)
        torch.testing.assert_close(dh, expected)


@pytest.mark.parametrize("cell", LAYERS)
def test_the_gradient_of_a_gradient_around_a_cudnn_of_the_cpu(cudnn_on_the_cpu, cell):
    ours, _, options = LAYERS[cell]
    layer = ours(3, 6, **options).double()
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (layer, lambda x: by_steps(layer, x)):
        output, final = run(x)
        h = final[0] if isinstance(final, tuple) else final
        (first,) = torch.autograd.grad(output.square().sum() + h.sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, *layer.parameters()]))
    assert len(cudnn_on_the_cpu) == 1
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def by_steps(layer, x):
    """The layer's own loop over its steps."""
    state, outputs = layer.initial_state(x.shape[1]), []
    for step in x:
        output, state = layer.step(step, state)
        outputs.append(output)
    return torch.stack(outputs), state


@pytest.mark.parametrize("cell", LAYERS)
def test_a_single_layer_leaves_to_others_what_is_not_cudnns(cudnn_on_the_cpu, cell):
    ours, _, options = LAYERS[cell]
    x = torch.randn(7, 4, 3)
    layer = ours(3, 20, **options)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 5, 5, 2]))
    layer(packed)
    assert not cudnn_on_the_cpu
    segments = ours(3, 20, checkpoint=True, **options)
    segments.load_state_dict(layer.state_dict())
    torch.testing.assert_close(segments(x)[0], layer(x)[0])
    assert len(cudnn_on_the_cpu) == 4  # three segments, and one whole

    class Begun(ours):
        def initial_cell_state(self, w, batch):
            zero = super().initial_cell_state(w, batch)
            return tuple(t + 0.5 for t in zero) if isinstance(zero, tuple) else zero + 0.5

    begun = Begun(3, 20, **options)
    found = begun(x)[0]
    with kernels.backend("eager"):
        torch.testing.assert_close(found, begun(x, begun.initial_state(4))[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ms.MnemoscopeError, match="Expected hidden size"):
        layer(x, torch.zeros(1, 3, 20))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("cell", "gates"), [("tanh", 1), ("lstm", 4), ("gru", 3)])
def test_weights_one_behind_the_other_are_what_cudnn_packs(monkeypatch, cell, gates, dtype):
    monkeypatch.setattr(_cudnn, "_lie_in_order", {})
    n = 7
    shapes = [(gates * n, 3), (gates * n, n), (gates * n,), (gates * n,)]
    weights = [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]
    for count in (2, 4):
        first = _cudnn._pack_weights(cell, weights[:count])
        assert torch.equal(first, _cudnn._pack_weights(cell, weights[:count]))


def gradients(layer: nn.Module, x: torch.Tensor, state) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    output, final = layer(x, state)
    finals = final if isinstance(final, tuple) else (final,)
    loss = output.square().sum() + sum(t.sin().sum() for t in finals)
    return [output, *finals, *torch.autograd.grad(loss, [x, *layer.parameters()])]


@pytest.mark.cuda
@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("carried", [True, False])
def test_equals_torch(cudnn_runs, cell, bias, carried):
    ours, theirs, options = LAYERS[cell]
    layer = ours(3, 20, num_layers=2, bidirectional=True, bias=bias, **options).cuda()
    peer = theirs(3, 20, num_layers=2, bidirectional=True, bias=bias, **options).cuda()
    peer.load_state_dict(layer.state_dict())
    x = torch.randn(7, 4, 3, device="cuda")
    state = None
    if carried:
        h = torch.randn(4, 4, 20, device="cuda")
        state = (h, h.flip(0)) if cell == "lstm" else h
    found = gradients(layer, x, state)
    assert len(cudnn_runs) == 4
    for a, b in zip(found, gradients(peer, x, state), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


DEVICE = torch.device("cpu")  # whose limits are set


def device_of(monkeypatch, *clusters):
    limits = layout.Limits(clusters=clusters, multiprocessors=132, shared_floats=227 * 256)
    monkeypatch.setattr(layout, "limits", lambda device: limits)


def test_small_layers_are_ours_and_wide_ones_cudnns(monkeypatch):
    device_of(monkeypatch, 1, 2, 4, 8, 16)
    assert kernels.ours_up_to(DEVICE) == 128
    assert not any(_cudnn.cudnn_is_faster(cell, 128, 4096, DEVICE) for cell in LAYERS)
    assert all(_cudnn.cudnn_is_faster(cell, 513, 1, DEVICE) for cell in LAYERS)
    assert _cudnn.cudnn_is_faster("lstm", 257, 1, DEVICE)
    assert not _cudnn.cudnn_is_faster("gru", 257, 96, DEVICE)
    assert _cudnn.cudnn_is_faster("gru", 257, 97, DEVICE)


def test_what_one_block_does_not_hold_is_cudnns(monkeypatch):
    device_of(monkeypatch, 1)  # Ampere, Ada
    assert kernels.ours_up_to(DEVICE) == 64
    assert [_cudnn.cudnn_is_faster(cell, 128, 16, DEVICE) for cell in LAYERS] == [False, False, True, False]
    assert not _cudnn.cudnn_is_faster("lstm", 64, 16, DEVICE)
    assert _cudnn.cudnn_is_faster("tanh", 256, 16, DEVICE)


def test_a_device_too_old_for_our_kernels_has_cudnn(monkeypatch):
    device_of(monkeypatch)
    assert kernels.ours_up_to(DEVICE) == 0
    assert all(_cudnn.cudnn_is_faster(cell, 1, 1, DEVICE) for cell in LAYERS)


@pytest.mark.parametrize("cell", LAYERS)
def test_float64_of_any_width_is_cudnns(monkeypatch, cell):
    """Our kernels have no float64: a narrow layer ran by the eager loop. Without a GPU."""
    device_of(monkeypatch, 1, 2, 4, 8, 16)
    monkeypatch.setattr(_cudnn, "_has_cudnn", lambda: True)
    ours, _, options = LAYERS[cell]
    for n in (20, 200):
        found = {}
        for dtype in (torch.float32, torch.float64):
            x = SimpleNamespace(is_cuda=True, device=DEVICE, shape=(3, 2, 4), dtype=dtype)
            found[dtype] = choose_cudnn(ours(4, n, **options), x, None)
        assert found == {torch.float32: None, torch.float64: (torch.float64, cell)}


def test_cudnn_runs_no_other_equations():
    cells = {name: layer(3, 4).cudnn_cell() for name, layer in ms.layers.LAYERS.items()}
    known = {name: cell for name, cell in cells.items() if cell is not None}
    assert known == {"RNN": "tanh", "LSTM": "lstm", "GRU": "gru"}
    assert ms.RNN(3, 4, nonlinearity="relu").cudnn_cell() == "relu"
    for options in ({"nonlinearity": "modrelu"}, {"nonlinearity": "identity"}, {"preactivation": True}):
        assert ms.RNN(3, 4, **options).cudnn_cell() is None

    class Changed(ms.LSTM):
        def advance(self, w, u, h, c):
            return super().advance(w, 2 * u, h, c)

    assert Changed(3, 4).cudnn_cell() is None


@pytest.mark.cuda
@pytest.mark.parametrize("cell", LAYERS)
def test_wide_layers_are_cudnns(cell, monkeypatch):
    ran = []
    forward = _cudnn.cudnn_rnn
    monkeypatch.setattr(_cudnn, "cudnn_rnn", lambda *arguments: ran.append(1) or forward(*arguments))
    ours, _, options = LAYERS[cell]
    layer = ours(3, 1030, **options).cuda()
    x = torch.randn(5, 2, 3, device="cuda")
    found = layer(x)[0]
    assert ran
    with kernels.backend("eager"):
        torch.testing.assert_close(found, layer(x)[0], rtol=2e-3, atol=2e-3)  # cuDNN may use TF32
    layer.double()
    found = layer(x.double())[0]
    with kernels.backend("eager"):
        torch.testing.assert_close(found, layer(x.double())[0], rtol=1e-10, atol=1e-10)


@pytest.mark.cuda
@pytest.mark.parametrize("cell", LAYERS)
def test_padded_rows_and_recorded_runs_are_not(cudnn_runs, cell):
    ours, _, options = LAYERS[cell]
    layer = ours(3, 20, **options).cuda()
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3, device="cuda"), torch.tensor([5, 3]))
    layer(packed)
    with kernels.recording() as runs:
        layer(torch.randn(5, 2, 3, device="cuda"))
    assert not cudnn_runs
    assert len(runs) == 1


@pytest.mark.cuda
@pytest.mark.parametrize("cell", LAYERS)
def test_the_gradient_of_a_gradient(cudnn_runs, cell):
    ours, _, options = LAYERS[cell]
    layer = ours(3, 6, **options).cuda().double()
    x = torch.randn(4, 2, 3, device="cuda", dtype=torch.float64, requires_grad=True)
    found = []
    for backend in ("auto", "eager"):
        with kernels.backend(backend):
            (first,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, *layer.parameters()]))
    assert cudnn_runs
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.cuda
def test_autocast_computes_in_its_type(cudnn_runs):
    layer = ms.LSTM(3, 20).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, (h, _) = layer(torch.randn(5, 2, 3, device="cuda"))
    assert cudnn_runs
    assert output.dtype == h.dtype == torch.bfloat16


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("bias", [True, False])
def test_differentiable_gradients_equal_torchs(cell, bias):
    _, theirs, options = LAYERS[cell]
    peer = theirs(3, 4, bias=bias, **options).double()
    leaf = {"dtype": torch.float64, "requires_grad": True}
    x, h0, c0 = torch.randn(5, 2, 3, **leaf), torch.randn(1, 2, 4, **leaf), torch.randn(1, 2, 4, **leaf)
    state = (h0, c0) if cell == "lstm" else h0
    output, final = peer(x, state)
    h_T, c_T = final if cell == "lstm" else (final, None)
    grads = [torch.randn_like(output), torch.randn_like(h0), torch.randn_like(c0) if cell == "lstm" else None]

    weights = [*peer.parameters(), *[None] * (4 - len(list(peer.parameters())))]
    arguments = [x, *weights, h0, c0 if cell == "lstm" else None]
    found = _cudnn._naive_gradients(cell, arguments, tuple(grads))

    wanted = [t for t in arguments if t is not None]
    outputs = [output, h_T] + ([] if c_T is None else [c_T])
    expected = torch.autograd.grad(outputs, wanted, [g for g in grads if g is not None])
    assert [g is None for g in found] == [t is None for t in arguments]
    for a, b in zip([g for g in found if g is not None], expected, strict=True):
        torch.testing.assert_close(a, b)
        assert a.requires_grad
