"""Layers on a CUDA device: the fused kernels against the eager loop in float64, and against torch's own layers."""

from __future__ import annotations

import random

import pytest
import torch
from fused_truth import Packed, assert_fused_equals_eager, calm, errors_of, opposed, relative

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels._cuda import screened

pytestmark = pytest.mark.cuda
DEVICE = "cuda"
TOLERANCE = 2e-5

LAYERS = {
    "RNN": ms.RNN,
    "OrthRNN": ms.OrthRNN,
    "ExpRNN": ms.ExpRNN,
    "LinearSystem": ms.LinearSystem,
    "RAC": ms.RAC,
    "LSTM": ms.LSTM,
    "GRU": ms.GRU,
    "GORU": ms.GORU,
    "RelRNN": ms.RelRNN,
    "RelLSTM": ms.RelLSTM,
    "MemRNN": ms.MemRNN,
    "MemLSTM": ms.MemLSTM,
    "SAB": ms.SAB,
}


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that ran, without the one that may follow any of them."""
    from mnemoscope.kernels._cuda import compiler

    names = []

    def recorded(launch):
        def run(name, *rest, **named):
            if name != "weight_gradients":
                names.append(name)
            launch(name, *rest, **named)

        return run

    for launch in ("launch", "launch_steps"):
        monkeypatch.setattr(compiler, launch, recorded(getattr(compiler, launch)))
    return names


def check(layer, launched, T, B, state=None, tolerance=TOLERANCE, inputs=5):
    x = 2 * torch.randn(T, B, inputs, device=DEVICE)
    launched.clear()
    assert_fused_equals_eager(calm(layer), x, state, tolerance)
    assert launched, "the layer took its eager path"


def steps_for(name: str, T: int) -> int:
    """RAC starts from W_H^+ 1: its first step does not depend on W_H."""
    return max(T, 2) if name == "RAC" else T


def size_for(name: str, n: int) -> int:
    """GORU's rotations need a power of two."""
    return 1 << max(1, n.bit_length() - 1) if name == "GORU" else n


SIZES = [(1, 3, 1), (7, 20, 3), (64, 1, 5), (100, 50, 4), (128, 40, 140), (200, 15, 3), (256, 9, 2)]


@pytest.mark.parametrize(("n", "T", "B"), SIZES)
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("ExpRNN", "LinearSystem")])
def test_sizes(launched, name, n, T, B):
    check(LAYERS[name](5, size_for(name, n), device=DEVICE), launched, steps_for(name, T), B)


@pytest.mark.parametrize("name", ["RNN", "OrthRNN", "RAC", "GRU", "RelRNN", "MemRNN"])
def test_more_than_256_units(launched, name):
    check(LAYERS[name](5, 511, device=DEVICE), launched, 8, 2)


@pytest.mark.parametrize(
    ("name", "n", "B"),
    [("RelRNN", 513, 3), ("RelRNN", 1024, 130), ("RelRNN", 2048, 2), ("RelLSTM", 300, 140), ("RelLSTM", 1025, 3)],
)
def test_layers_wider_than_a_cluster(launched, name, n, B):
    layer = calm(LAYERS[name](5, n, device=DEVICE))
    tolerance = 5e-5  # sums over many units: the eager float32 run has lost a digit as well
    check(layer, launched, 14, B, tolerance=tolerance)
    assert set(launched) == {"screened_step_forward", "screened_step_backward"}
    state = ms.detach(layer(2 * torch.randn(13, B, 5, device=DEVICE))[1])
    check(layer, launched, 14, B, state, tolerance=tolerance)


@pytest.mark.parametrize(
    ("name", "n"),
    [("OrthRNN", 513), ("ExpRNN", 600), ("LinearSystem", 1024), ("RAC", 520), ("GORU", 1024), ("OrthRNN", 2048)],
)
def test_cells_wider_than_a_cluster(launched, name, n):
    check(LAYERS[name](5, n, device=DEVICE), launched, 9, 3, tolerance=5e-5)
    assert set(launched) == {"cells_step_forward", "cells_step_backward"}


@pytest.mark.parametrize(("name", "n"), [("RNN", 700), ("LSTM", 300), ("GRU", 600)])
def test_wide_packed_sequences(launched, name, n):
    packed = Packed(calm(LAYERS[name](5, n, device=DEVICE)), torch.tensor([3, 9, 6]))
    assert_fused_equals_eager(packed, torch.randn(9, 3, 5, device=DEVICE))
    assert set(launched) == {"cells_step_forward", "cells_step_backward"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "GORU", "RAC", "RelRNN", "RelLSTM", "MemRNN", "MemLSTM", "SAB"])
def test_weights_of_half_precision(launched, name, dtype):
    layer = calm(LAYERS[name](5, 32, device=DEVICE)).to(dtype)
    x = torch.randn(9, 3, 5, device=DEVICE, dtype=dtype)
    output, _ = layer(x)
    output.sum().backward()
    assert launched, "the layer took its eager path"
    assert output.dtype is dtype
    truth, _ = layer.float()(x.float())
    assert relative(output.float(), truth) < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize(("buffer", "relevant"), [(15, 18), (25, 15), (0, 40), (40, 0), (60, 60), (100, 100)])
@pytest.mark.parametrize(("name", "n", "B"), [("RelRNN", 128, 70), ("RelLSTM", 128, 3), ("RelRNN", 600, 3)])
def test_more_slots_than_a_warp_has_lanes(launched, name, n, B, buffer, relevant):
    layer = calm(LAYERS[name](5, n, buffer=buffer, relevant=relevant, device=DEVICE))
    T = buffer + relevant // 2 + 9
    check(layer, launched, T, B, tolerance=5e-5)
    by_cluster = screened.supports(name == "RelLSTM", n, buffer + relevant, torch.device(DEVICE))
    assert by_cluster == (n == 128 and buffer + relevant <= (104 if name == "RelLSTM" else 128))
    assert set(launched) == {f"screened_{'' if by_cluster else 'step_'}{each}" for each in ("forward", "backward")}
    state = ms.detach(layer(2 * torch.randn(T, B, 5, device=DEVICE))[1])
    check(layer, launched, 12, B, state, tolerance=1e-3)  # the eager loop in float32 is up to 2e-4 off, too


@pytest.mark.parametrize(
    ("name", "n", "B"), [("RelRNN", 512, 70), ("RelRNN", 200, 140), ("RelRNN", 128, 530), ("RelLSTM", 200, 130)]
)
def test_batches_whose_sequences_share_a_cluster(launched, name, n, B):
    layer = calm(LAYERS[name](5, n, device=DEVICE))
    assert_fused_equals_eager(layer, torch.randn(17, B, 5, device=DEVICE))
    assert set(launched) == {"screened_batch_forward", "screened_batch_backward"}
    state = ms.detach(layer(torch.randn(13, B, 5, device=DEVICE))[1])
    assert_fused_equals_eager(layer, torch.randn(9, B, 5, device=DEVICE), state)
    lengths = torch.randint(1, 10, (B,), generator=torch.Generator().manual_seed(0))
    assert_fused_equals_eager(Packed(layer, lengths), torch.randn(9, B, 5, device=DEVICE))


@pytest.mark.parametrize("seed", range(5))
def test_random_widths_of_screening(launched, seed):
    dice = random.Random(seed)
    layer = LAYERS[dice.choice(["RelRNN", "RelLSTM"])](
        5, dice.randint(257, 2048), buffer=dice.randint(0, 10), relevant=dice.randint(1, 10), device=DEVICE
    )
    check(layer, launched, dice.randint(1, 30), dice.randint(1, 9))


@pytest.mark.parametrize("n", [1, 64, 128, 200])
@pytest.mark.parametrize("name", ["ExpRNN", "LinearSystem"])
def test_layers_on_the_plain_kernel(launched, name, n):
    check(LAYERS[name](5, n, device=DEVICE), launched, 12, 3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("ExpRNN", "GORU")])
def test_random_shapes(launched, name, seed):
    """Without the layers of modReLU: where a unit rounds to the other side of its kink, the gradient is another."""
    dice = random.Random(f"{name} {seed}")
    n = dice.randint(1, 256)
    T = steps_for(name, dice.randint(1, 40))
    B = dice.randint(1, 20)
    check(LAYERS[name](5, n, device=DEVICE), launched, T, B)


@pytest.mark.parametrize("name", LAYERS)
def test_a_carried_state(launched, name):
    layer = calm(LAYERS[name](5, size_for(name, 48), device=DEVICE))
    state = ms.detach(layer(2 * torch.randn(25, 3, 5, device=DEVICE))[1])
    check(layer, launched, 30, 3, state)


@pytest.mark.parametrize("name", LAYERS)
def test_packed_sequences_in_both_directions(launched, name):
    layer = calm(LAYERS[name](5, size_for(name, 24), num_layers=2, bidirectional=True, device=DEVICE))
    packed = Packed(layer, torch.tensor([9, 1, 4, 7]))
    assert_fused_equals_eager(packed, torch.randn(9, 4, 5, device=DEVICE))
    assert launched


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_equals_torchs_layer(launched, name):
    ours = LAYERS[name](5, 100, num_layers=2, bidirectional=True, device=DEVICE)
    theirs = getattr(torch.nn, name)(5, 100, num_layers=2, bidirectional=True, device=DEVICE)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(30, 4, 5, device=DEVICE)
    outer = torch.randn(30, 4, 200, device=DEVICE)
    found = []
    for layer in (ours, theirs):
        output, state = layer(x)
        grads = torch.autograd.grad(output, list(layer.parameters()), outer)
        found.append([output, *(state if name == "LSTM" else [state]), *grads])
    assert launched
    for a, b in zip(*found, strict=True):
        assert relative(a, b) < TOLERANCE


@pytest.mark.parametrize(
    "options", [{}, {"top": 1}, {"store_every": 1, "top": 32}, {"truncation": 3, "output": "both"}]
)
def test_backtracking(launched, options):
    check(ms.SAB(5, 48, device=DEVICE, **options), launched, 60, 3)


@pytest.mark.parametrize("n", [2, 64, 128, 256, 512])
def test_goru(launched, n):
    check(ms.GORU(5, n, device=DEVICE), launched, 12, 3)


def test_gru_without_bias(launched):
    check(ms.GRU(5, 48, bias=False, device=DEVICE), launched, 12, 3)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity", "modrelu"])
@pytest.mark.parametrize("layer", [ms.RNN, ms.RelRNN, ms.MemRNN])
def test_nonlinearities(launched, layer, nonlinearity):
    check(layer(5, 40, nonlinearity=nonlinearity, device=DEVICE), launched, 12, 3)


@pytest.mark.parametrize(
    ("buffer", "relevant", "options"),
    [
        (0, 0, {}),
        (0, 4, {}),
        (4, 0, {}),
        (1, 1, {}),
        (10, 10, {}),
        (20, 12, {}),
        (32, 0, {}),
        (3, 3, {"mix": "mean"}),
        (5, 5, {"decay": 0.8}),
        (5, 5, {"refresh": True, "output": "s"}),
    ],
)
@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM])
def test_screening(launched, layer, buffer, relevant, options):
    check(layer(5, 48, buffer=buffer, relevant=relevant, device=DEVICE, **options), launched, 60, 3)


@pytest.mark.parametrize(
    ("name", "n"),
    [
        *[(name, 128) for name in ("LSTM", "GRU", "RelRNN", "RelLSTM", "MemRNN")],
        ("RelRNN", 512),  # sequences share clusters
        ("RelLSTM", 600),  # step by step
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_runs_are_bitwise_equal(name, n, dtype):
    if name == "MemRNN" and dtype is torch.bfloat16:
        pytest.skip("attention over the whole past has no bfloat16 kernel")
    layer = LAYERS[name](5, n, device=DEVICE, dtype=dtype)
    x, outer = torch.randn(50, 40, 5, device=DEVICE, dtype=dtype), torch.randn(50, 40, n, device=DEVICE, dtype=dtype)

    def gradients():
        output, _ = layer(x)
        return [output, *torch.autograd.grad(output, list(layer.parameters()), outer)]

    for a, b in zip(gradients(), gradients(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "RelRNN", "RelLSTM"])
def test_bfloat16_is_close_to_float32(launched, name):
    layer = calm(LAYERS[name](5, 64, device=DEVICE))
    x = torch.randn(20, 3, 5, device=DEVICE)
    truth, _ = layer(x)
    launched.clear()
    output, _ = layer.bfloat16()(x.bfloat16())
    output.float().sum().backward()
    assert launched
    assert output.dtype == torch.bfloat16
    assert relative(output, truth) < 5e-2


@pytest.mark.parametrize(
    ("name", "n", "B", "options"),
    [
        ("RelRNN", 512, 64, {}),
        ("RelRNN", 512, 70, {"output": "s"}),
        ("RelRNN", 300, 64, {"mix": "mean"}),
        ("RelRNN", 200, 130, {}),
        ("RelLSTM", 256, 64, {}),
        ("RelLSTM", 512, 5, {"refresh": True, "output": "s"}),
    ],
)
def test_bfloat16_on_the_tensor_cores(launched, name, n, B, options):
    """Every error is one of rounding; the gradients of queries and scores are sums of small differences.

    There is a slot for every state: which of two states is more relevant may depend on how numbers are rounded.
    """
    layer = calm(LAYERS[name](5, n, device=DEVICE, buffer=10, relevant=10, **options)).bfloat16()
    T, earlier = 14, 6
    lengths = torch.randint(1, T + 1, (B,), generator=torch.Generator().manual_seed(0))
    state = ms.detach(layer(torch.randn(earlier, B, 5, device=DEVICE).bfloat16())[1])
    for module, start in ((layer, None), (Packed(layer, lengths), None), (layer, state)):
        launched.clear()
        errors = errors_of(module, torch.randn(T, B, 5, device=DEVICE).bfloat16(), start)
        assert set(launched) == {"screened_tensor_forward", "screened_tensor_backward"}
        for what, error in errors.items():
            assert error < (5e-2 if "query" in what or "score" in what else 1e-2), what


@pytest.mark.parametrize("name", LAYERS)
def test_a_backward_pass_inside_autocast_is_not_rounded(launched, name):
    layer = calm(LAYERS[name](5, 64, device=DEVICE))
    x = torch.randn(20, 3, 5, device=DEVICE)
    weights = [p for name, p in layer.named_parameters() if "ih" not in name]  # torch projects the inputs

    def gradients(inside):
        with torch.autocast(DEVICE, torch.bfloat16):
            output = layer(x)[0].float().sum()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=inside):
            return torch.autograd.grad(output, weights)

    outside = gradients(False)
    assert launched
    for ours, expected in zip(gradients(True), outside, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM, ms.MemRNN, ms.MemLSTM])
def test_queries_and_keys_of_any_size(launched, layer):
    """float32 has lost some digits of a small sum of large numbers."""
    check(opposed(layer(5, 24, device=DEVICE)), launched, 9, 3, tolerance=1e-3)


def test_five_thousand_steps(launched):
    check(ms.RelRNN(5, 128, device=DEVICE), launched, 5000, 2)


def test_what_does_not_fit_is_refused():
    from mnemoscope.kernels._cuda import supports

    fits = dict(n=128, dtype=torch.float32, device=torch.device(DEVICE))
    assert supports("attentive", **fits, buffer=10, relevant=10)
    assert supports("attentive", **fits, buffer=200, relevant=56)
    assert not supports("attentive", **fits, buffer=200, relevant=57)
    assert supports("gru", **fits)
    assert supports("rnn", **{**fits, "n": 2048})
    assert not supports("sab", **{**fits, "n": 1025}, relevant=10)
    assert not supports("rnn", **{**fits, "dtype": torch.float64})
    assert not supports("elman", **fits)


def test_a_size_without_a_kernel_takes_the_portable_path(launched):
    layer = ms.RelRNN(3, 16, buffer=250, relevant=10, device=DEVICE)
    x = torch.randn(4, 2, 3, device=DEVICE)
    output, _ = layer(x)
    assert not launched
    with kernels.backend("eager"):
        truth, _ = layer(x)
    assert relative(output, truth) < TOLERANCE
