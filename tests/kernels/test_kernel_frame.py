"""When a kernel runs, when the eager loop does, and that torch's own machinery works with the kernels."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from mnemoscope import MnemoscopeError, kernels, layers
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cpu import library
from mnemoscope.kernels._cpu.structures import STRUCTURES
from mnemoscope.kernels._operator import OPERATORS
from mnemoscope.recurrence import leaves

compiled = pytest.mark.skipif(not library.available(torch.float32), reason="no compiled CPU kernels here")

LAYERS = {
    "RNN": dict(nonlinearity="modrelu"),
    "LSTM": {},
    "GRU": {},
    "RAC": {},
    "GORU": {},
    "MemRNN": {},
    "MemLSTM": {},
    "RelRNN": dict(buffer=2, relevant=2),
    "RelLSTM": dict(buffer=2, relevant=2),
}


def make(name: str, **kwargs: Any) -> layers.Layer:
    torch.manual_seed(0)
    return getattr(layers, name)(2, 4, **{**LAYERS[name], "dtype": torch.float64, **kwargs})


def sequence(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*(shape or (5, 3, 2)), dtype=dtype, generator=torch.Generator().manual_seed(1))


def forbid_eager_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_eager(*_: Any) -> None:
        raise AssertionError("the readable loop was used")

    monkeypatch.setattr("mnemoscope.layers._run.run_eager", run_eager)


@compiled
@pytest.mark.parametrize("name", LAYERS)
def test_layers_use_their_kernel_and_can_be_told_not_to(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make(name)
    forbid_eager_loop(monkeypatch)
    layer(sequence())
    with kernels.backend("eager"), pytest.raises(AssertionError, match="readable loop"):
        layer(sequence())
    layer(sequence())


def test_an_unknown_backend_is_refused_in_one_line() -> None:
    with pytest.raises(MnemoscopeError, match=r"one of auto, .*eager; got 'fast'"), kernels.backend("fast"):
        pass


@compiled
def test_changed_equations_are_followed() -> None:
    class Damped(layers.RNN):
        def advance(self, w: Any, u: Tensor, h: Tensor) -> tuple[Tensor, ...]:
            return (super().advance(w, u, h)[0] / 2,)

    class Forgetful(layers.RelRNN):
        def accumulate_relevance(self, memory: Any, alpha: Tensor) -> Any:
            return memory

    for kind in (Damped, Forgetful):
        layer, x = kind(2, 4), sequence(dtype=torch.float32)
        output = layer(x)[0]
        with kernels.backend("eager"):
            assert torch.equal(output, layer(x)[0])


def second_order(layer: layers.Layer, x: Tensor) -> list[Tensor]:
    roots = [x, *layer.parameters()]
    first = torch.autograd.grad(layer(x)[0].square().sum(), roots, create_graph=True)
    second = torch.autograd.grad(sum(g.pow(3).sum() for g in first), roots, allow_unused=True, materialize_grads=True)
    return [*first, *second]


@compiled
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_can_be_differentiated(name: str) -> None:
    layer, x = make(name), sequence().requires_grad_()
    found = second_order(layer, x)
    with kernels.backend("eager"):
        truth = second_order(layer, x)
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@compiled
def test_second_order_through_a_carried_state_counts_each_path_once() -> None:
    layer, x = make("RelLSTM"), sequence().requires_grad_()

    def twice() -> list[Tensor]:
        first, state = layer(x)
        loss = (layer(x, state)[0] * first).sum()
        grads = torch.autograd.grad(loss, list(layer.parameters()), create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in grads), [x, layer.weight_hh_l0]))

    found = twice()
    with kernels.backend("eager"):
        truth = twice()
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@compiled
@pytest.mark.parametrize("name", LAYERS)
def test_torch_func_and_forward_mode_take_the_readable_loop(name: str) -> None:
    layer, x = make(name), sequence()
    direction = torch.randn_like(x)
    reverse = torch.func.jacrev(lambda z: layer(z)[0])(x)
    slope = (reverse * direction).flatten(3).sum(-1)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, direction))[0]).tangent
    torch.testing.assert_close(tangent, slope)
    torch.testing.assert_close(torch.func.vmap(lambda z: layer(z)[0])(torch.stack([x, -x]))[0], layer(x)[0])


@compiled
@pytest.mark.parametrize("name", layers.LAYERS)
def test_torch_compile_traces_the_whole_layer(name: str) -> None:
    """Without a graph break: in training, and without gradients."""
    torch._dynamo.reset()  # its limit of compilations counts those of other layers
    torch.manual_seed(0)
    layer, x = layers.LAYERS[name](2, 4, dtype=torch.float64), sequence().requires_grad_()
    whole = torch.compile(layer, backend="aot_eager", fullgraph=True)
    inputs = [x, *layer.parameters()]
    found = torch.autograd.grad(whole(x)[0].square().sum(), inputs, allow_unused=True)
    truth = torch.autograd.grad(layer(x)[0].square().sum(), inputs, allow_unused=True)
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(whole(x)[0], layer(x)[0])


@compiled
@pytest.mark.parametrize("name", ["rnn_forward", "lstm_forward", "gru_forward", "attentive_forward", "sab_forward"])
def test_operators_keep_torchs_rules(name: str) -> None:
    """Schemas, fake shapes and autograd registrations, by torch's own checker."""
    if not library.has_loop(name):
        pytest.skip("this build has no such loop")
    n = 4
    xp, V, h0, w = sequence(5, 3, n), sequence(n, n).requires_grad_(), sequence(3, n), sequence(n)
    integers = dict(dtype=torch.int64)
    memory = op.CarriedMemory(
        sequence(3, 3, n), sequence(3, 3, n), torch.zeros(3, 3, **integers), sequence(3, 3), torch.zeros(3, **integers)
    )
    options = op.AttentionOptions("rnn", "tanh", buffer=2, relevant=1, mix="sum", decay=1.0, refresh=False)
    gates, wide = sequence(5, 3, 4 * n), sequence(4 * n, n)
    arguments = {
        "rnn_forward": (xp, V, h0, None, "tanh", None),
        "lstm_forward": (gates, wide, h0, h0, None, True),
        "gru_forward": (sequence(5, 3, 3 * n), sequence(3 * n, n).requires_grad_(), w, h0, None, True),
        "attentive_forward": (
            xp,
            op.AttentionWeights(V, V, V, w, None),
            op.AttentionState(h0, None),
            memory,
            options,
            None,
            True,
        ),
        "sab_forward": (gates, wide, w, h0, h0, memory, op.SabOptions(2, 2, 3, False), None, True),
    }
    operator = OPERATORS[name]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator.overload, tuple(operator.flatten(*arguments[name])), test_utils=checks)


@compiled
@pytest.mark.parametrize("name", LAYERS)
def test_without_torchs_dispatcher_the_numbers_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a profile a call goes by the dispatcher, and only there; both ways give the same bits."""
    layer, x = make(name), sequence().requires_grad_()

    def run() -> list[Tensor]:
        output, state = layer(x)
        loss = output.square().sum() + sum(t.sum() for t in leaves(state) if t.is_floating_point())
        return [output, *torch.autograd.grad(loss, [x, *layer.parameters()])]

    with torch.autograd.profiler.profile() as profile:
        truth = run()
    dispatched = {event.name for event in profile.function_events if event.name.startswith("mnemoscope::")}
    assert len(dispatched) == 2
    for operator in OPERATORS.values():
        monkeypatch.setattr(operator, "overload", None)
    for ours, theirs in zip(run(), truth, strict=True):
        assert torch.equal(ours, theirs)
    with torch.no_grad():
        assert torch.equal(layer(x)[0], truth[0])


@compiled
def test_tensors_of_other_kinds_go_by_torchs_dispatcher() -> None:
    x = torch._neg_view(sequence(2, 1, 3))
    V, h0 = sequence(3, 3), sequence(1, 3)
    assert torch.equal(op.rac_forward(x, V, h0, None, None), op.rac_forward(x.resolve_neg(), V, h0, None, None))


@compiled
def test_operators_are_called_by_the_names_of_their_parameters() -> None:
    xp, V, h0 = sequence(2, 1, 3), sequence(3, 3), sequence(1, 3)
    h = op.rac_forward(xp=xp, V=V, h0=h0, b=None, lengths=None)
    assert torch.equal(h, op.rac_forward(xp, V, h0, None, None))
    with pytest.raises(TypeError, match="rac_forward: missing or unknown arguments h1, lengths"):
        op.rac_forward(xp, V, h0, b=None, h1=None)  # type: ignore[call-arg]


@compiled
def test_a_run_is_named_after_its_operator_in_the_graph() -> None:
    assert make("LSTM")(sequence())[0].grad_fn.name() == "LstmBackward"


@compiled
def test_autocast_computes_in_single_precision_and_gives_gradients_back() -> None:
    layer, x = make("RelRNN", dtype=torch.float32), sequence(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x)[0]
    output.sum().backward()
    assert output.dtype == torch.bfloat16  # as nn.LSTM's; only the result is rounded
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())
    torch.testing.assert_close(output, layer(x)[0].bfloat16())  # the kernel projects the inputs, in its own precision


@compiled
@pytest.mark.parametrize("name", LAYERS)
def test_a_backward_pass_inside_autocast_is_not_rounded(name: str) -> None:
    layer, x = make(name, dtype=torch.float32), sequence(dtype=torch.float32)
    weights = [p for name, p in layer.named_parameters() if "ih" not in name]  # torch projects the inputs

    def gradients(inside: bool) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(x)[0].float().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            return torch.autograd.grad(output, weights)

    for ours, expected in zip(gradients(inside=True), gradients(inside=False), strict=True):
        assert torch.equal(ours, expected)


@compiled
@pytest.mark.parametrize("name", ["RNN", "LSTM", "RelRNN", "MemRNN"])
def test_results_are_the_same_bits_twice_and_on_any_number_of_threads(name: str) -> None:
    layer, x = make(name, dtype=torch.float32), sequence(9, 13, 2, dtype=torch.float32)

    def once(threads: int) -> Tensor:
        torch.set_num_threads(threads)
        return layer(x)[0].detach()

    before = torch.get_num_threads()
    try:
        assert torch.equal(once(1), once(1))
        assert torch.equal(once(1), once(3))
    finally:
        torch.set_num_threads(before)


@compiled
@pytest.mark.parametrize("name", ["RNN", "LSTM", "RelRNN", "MemRNN", "GORU"])
def test_nan_stays_nan_in_its_row(name: str) -> None:
    layer, x = make(name, dtype=torch.float32), sequence(dtype=torch.float32)
    x[2, 1] = torch.nan
    output = layer(x)[0]
    assert output[2:, 1].isnan().all()
    assert not output[:, 0].isnan().any()


@compiled
@pytest.mark.parametrize("name", ["LSTM", "MemRNN", "MemLSTM", "RelRNN", "RelLSTM"])
def test_an_infinite_input_is_bent_to_one(name: str) -> None:
    layer, x = make(name), sequence()
    x[2, 1, 0] = torch.inf
    found, last = layer(x)
    with kernels.backend("eager"):
        truth, its_last = layer(x)
    assert truth.isfinite().all()
    torch.testing.assert_close((found, last[0]), (truth, its_last[0]))


@compiled
def test_large_queries_and_keys_saturate_without_overflow() -> None:
    """Scores stay right where e^{2q} and e^{2k} are large but finite, and finite where they are not."""
    layer, x = make("MemRNN", dtype=torch.float32, nonlinearity="identity"), sequence(dtype=torch.float32)
    for size, exact in ((20.0, True), (1e4, False)):
        with torch.no_grad():
            layer.weight_hh_l0.zero_()
            layer.weight_query_l0.copy_(torch.eye(4) * size)
            layer.weight_key_l0.copy_(-torch.eye(4) * size)
        output = layer(x)[1].s
        assert output.isfinite().all()
        if exact:
            with kernels.backend("eager"):
                torch.testing.assert_close(output, layer(x)[1].s, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("build", ["generic", "avx2", "avx512"])
def test_every_build_gives_the_same_numbers(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    able = library._SUPPORTED.get(torch.backends.cpu.get_cpu_capability(), ("generic",))
    if build not in able or not any(library.builds(build)):
        pytest.skip(f"this machine or installation has no {build} build")
    monkeypatch.setattr(library, "_SUPPORTED", {})
    monkeypatch.setattr(library, "_FALLBACK", (build,))
    library.library.cache_clear()
    try:
        for name in LAYERS:
            for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
                layer, x = make(name, dtype=dtype), sequence(dtype=dtype)
                output = layer(x)[0]
                with kernels.backend("eager"):
                    torch.testing.assert_close(output, layer(x)[0], rtol=tolerance, atol=tolerance)
    finally:
        monkeypatch.undo()
        library.library.cache_clear()


def test_without_a_build_layers_work_and_say_so_once() -> None:
    program = (
        "import torch, warnings\n"
        "from mnemoscope.kernels._cpu import library\n"
        "library.builds = lambda name: []\n"
        "from mnemoscope import layers\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    layers.RelRNN(2, 3)(torch.randn(4, 1, 2))[0].sum().backward()\n"
        "    layers.LSTM(2, 3)(torch.randn(4, 1, 2))\n"
        "print([str(w.message) for w in said if 'mnemoscope' in str(w.message)])\n"
        "import sys; print('loaded:', [name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("no compiled CPU kernels") == 1
    assert "loaded: []" in done.stdout  # nor is anything compiled by torch, which took 17 s at the first call


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch's runtime may not have it")
def test_torchs_threads_are_borrowed_whatever_else_is_loaded() -> None:
    """scipy has modules with "omp" in their names; threads of our own would start anew on every call, late."""
    pytest.importorskip("scipy")
    program = "import scipy.linalg; from mnemoscope.kernels._cpu import library; print(library._gomp_parallel())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0


@compiled
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_that_runs_out_in_any_thread_is_an_error_of_its_own(threads: int) -> None:
    """Full attention over more states than there are addresses: its scratch is made before anything is read."""
    order = STRUCTURES["attentive_forward"].order
    fields: dict[str, Any] = dict.fromkeys(order, 0)
    fields |= dict(steps=1 << 45, batch=2, n=4, buffer=-1, activation_width=8)
    fields |= {name: torch.zeros(4, 4) for name in ("V", "W_a", "U_a", "v")}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(MemoryError, match="attentive_forward could not allocate"):
            library.call("attentive_forward", torch.float32, [fields[name] for name in order])
    finally:
        torch.set_num_threads(before)
