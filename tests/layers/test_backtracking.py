"""Sparse attentive backtracking: its equations by hand, its gradient over many steps, and that it learns."""

from __future__ import annotations

import json

import pytest
import torch

import mnemoscope
from mnemoscope import training
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, Run, RunConfig, SequenceModel

n = 4


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("detach_scores", [True, False])
def test_by_hand(detach_scores: bool) -> None:
    """One sequence through the equations of Ke et al. 2018, in plain loops, gradient cuts included."""
    torch.manual_seed(5)
    options = dict(store_every=2, top=2, truncation=4, detach_scores=detach_scores)
    layer = mnemoscope.SAB(3, n, **options, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_score_l0.mul_(150)
    x = torch.randn(11, 3, dtype=torch.float64, requires_grad=True)
    cell = torch.nn.LSTMCell(3, n, dtype=torch.float64)
    cell.load_state_dict({name[:-3]: p for name, p in layer.state_dict().items() if "score" not in name})
    h, c, memory, outputs = torch.zeros(1, n, dtype=torch.float64), torch.zeros(1, n, dtype=torch.float64), [], []
    for t_, x_t in enumerate(x):
        if t_ and t_ % 4 == 0:
            h, c = h.detach(), c.detach()
        h, c = cell(x_t[None], (h, c))
        attended = torch.zeros(1, n, dtype=torch.float64)
        if memory:
            read = [torch.cat([h[0], m]) for m in memory]
            read = [both.detach() if detach_scores else both for both in read]
            a = torch.stack([layer.weight_score_l0 @ torch.tanh(both) for both in read])
            if len(memory) <= 2:
                a = torch.softmax(a, 0)
            else:
                a = torch.relu(a - (torch.sort(a).values[-2] + 1e-7))
                a = a / (a.sum() + 1e-7)
            attended = (a @ torch.stack(memory))[None]
        h = h + attended
        if (t_ + 1) % 2 == 0:
            memory.append(h[0])
        outputs.append(torch.cat([h[0], attended[0]]))
    expected, (output, _) = torch.stack(outputs), layer(x)
    close(output, expected)
    learned = [x, layer.weight_score_l0]
    ours, theirs = (torch.autograd.grad(y.square().sum(), learned) for y in (output, expected))
    for found, truth in zip(ours, theirs, strict=True):
        close(found, truth)


@pytest.mark.parametrize("detach_scores", [True, False])
def test_the_gradient_of_a_gradient_is_that_of_the_equations(detach_scores: bool) -> None:
    torch.manual_seed(0)
    layer = mnemoscope.SAB(3, n, store_every=1, top=2, truncation=3, detach_scores=detach_scores, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_score_l0.mul_(150)
    x = torch.randn(8, 2, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for backend in ("auto", "eager"):
        with mnemoscope.kernels.backend(backend):
            (first,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, *layer.parameters()]))
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-8, atol=1e-9)


def test_shows_its_options() -> None:
    assert str(mnemoscope.SAB(3, 4)).endswith("truncation=10)")
    assert "output='h', detach_scores=False" in str(mnemoscope.SAB(3, 4, output="h", detach_scores=False))


@pytest.mark.parametrize("seed", [2, 7, 11])
def test_gradients_are_finite_over_a_thousand_steps(seed: int) -> None:
    """Through the scores the gradient overflows from these starts, and has grown past 1e10 after 300 steps."""
    for detach_scores in (True, False):
        torch.manual_seed(seed)
        layer = mnemoscope.SAB(10, 32, detach_scores=detach_scores)
        layer(Copy(T=1000).batch(0, 2).inputs)[0].square().mean().backward()
        norm = float(torch.stack([p.grad.norm() for p in layer.parameters()]).norm())
        assert norm < 10 if detach_scores else not norm < 1e30


def updates_on_copy(T: int, updates: int) -> list[tuple[float, float]]:
    """Return the loss and the norm of the gradient at each update."""
    torch.manual_seed(0)
    task = Copy(T=T)
    model = SequenceModel.for_task(task, NetworkConfig("SAB", 128, readout_gain=6.0))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    found = []
    for update in range(updates):
        inputs, targets = task.batch(update, 16)
        loss = task.loss(model(inputs)[0], targets)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        found.append((loss.item(), norm.item()))
    return found


def test_learns_copy() -> None:
    losses = [loss for loss, _ in updates_on_copy(T=20, updates=400)]
    assert sum(losses[-10:]) / 10 < 0.97 * Copy(T=20).baseline  # which nothing without a memory reaches


def test_first_updates_over_a_thousand_steps() -> None:
    losses = [loss for loss, _ in updates_on_copy(T=1000, updates=6)]
    assert losses[-1] < 0.7 * losses[0]


def test_score_weights_start_small() -> None:
    """From N(0, 0.01^2), as in the authors' code."""
    torch.manual_seed(0)
    assert mnemoscope.SAB(3, 500).weight_score_l0.std().item() == pytest.approx(0.01, rel=0.1)


def test_a_run_written_when_the_defaults_were_others_still_loads(tmp_path, monkeypatch) -> None:
    options = {"output": "h", "detach_scores": False}
    network = NetworkConfig("SAB", 4, options=options)
    assert network.to_dict().items() >= options.items()
    first = {name: value for name, value in network.to_dict().items() if name not in options}
    with monkeypatch.context() as then:  # only options that differed from the defaults were written
        then.setattr(NetworkConfig, "to_dict", lambda self: first)
        training.train(RunConfig(Copy(T=3), network, FitConfig(updates=4, batch_size=2)), tmp_path)
    assert set(json.loads((tmp_path / "config.json").read_text())["network"]) == set(first)
    run = Run(tmp_path)
    assert run.config.network == network
    assert run.model().readout.in_features == 4
    assert NetworkConfig("SAB").options == {"output": "both", "detach_scores": True}


def test_memory_of_a_cuda_graph_has_a_slot_for_every_step(monkeypatch) -> None:
    """No number may be read while a graph is captured: steps that are not stored have empty slots."""
    torch.manual_seed(0)
    layer = mnemoscope.SAB(2, 4, store_every=3, top=2)
    x = torch.randn(7, 2, 2)
    output, state = layer(x)
    monkeypatch.setattr("mnemoscope.layers._backtracking.in_cuda_graph", lambda _: True)
    captured, wide = layer(x)
    torch.testing.assert_close(captured, output)
    assert (state[0].memory.origin.shape[-1], wide[0].memory.origin.shape[-1]) == (2, 7)
    monkeypatch.undo()
    torch.testing.assert_close(layer(x, wide)[0], layer(x, state)[0])
