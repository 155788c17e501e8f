"""V of ExpRNN and Q of GORU are computed once for many steps without gradients, and never stay behind their numbers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import mnemoscope
from mnemoscope.layers import _matrix_exp, _orthogonal

ROWS = {
    "ExpRNN": dict(),
    "ExpRNN dynamic": dict(trivialization="dynamic"),
    "ExpRNN of two layers": dict(num_layers=2),
    "GORU": dict(),
    "GORU of two layers": dict(num_layers=2),
}
every_row = pytest.mark.parametrize("row", ROWS)


def make(row: str) -> mnemoscope.layers.Layer:
    torch.manual_seed(0)
    return getattr(mnemoscope, row.partition(" ")[0])(3, 8, **ROWS[row])


def angles(layer: nn.Module) -> nn.Parameter:
    """Return the parameter of the orthogonal matrix of the last layer."""
    return [p for name, p in layer.named_parameters() if name.endswith("original") or "angles" in name][-1]


def stepped(layer: mnemoscope.layers.Layer) -> torch.Tensor:
    with torch.no_grad():
        return layer.step(torch.ones(2, 3), torch.ones(layer.num_layers, 2, 8))[0]


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """The orthogonal matrices that were computed so far."""
    made: list[str] = []

    def counting(function: Callable) -> Callable:
        return lambda *arguments: made.append(function.__name__) or function(*arguments)

    monkeypatch.setattr(_matrix_exp, "matrix_exp", counting(_matrix_exp.matrix_exp))
    monkeypatch.setattr(_orthogonal, "rotation", counting(_orthogonal.rotation))
    return made


@every_row
def test_steps_without_gradients_compute_it_once(row, computed) -> None:
    layer = make(row)
    computed.clear()
    layer.initial_state(2)
    assert not computed  # a state of zeros reads no weights
    first = stepped(layer)
    assert len(computed) == layer.num_layers
    assert torch.equal(stepped(layer), first)
    with torch.inference_mode():
        layer(torch.ones(4, 2, 3))
    assert len(computed) == layer.num_layers


@every_row
@pytest.mark.parametrize("write", ["in place", "past torch's count", "another tensor"])
def test_it_follows_every_way_of_writing_to_its_parameter(row, write) -> None:
    layer = make(row)
    before = stepped(layer)
    parameter = angles(layer)
    with torch.no_grad():
        if write == "in place":
            parameter.add_(0.5)
        elif write == "past torch's count":
            parameter.data.add_(0.5)
        else:
            parameter.data = parameter + 0.5
    after = stepped(layer)
    assert not torch.allclose(after, before)
    fresh = make(row)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(stepped(fresh), after)


def test_it_follows_the_base_of_the_dynamic_map() -> None:
    layer = make("ExpRNN dynamic")
    before = stepped(layer)
    with torch.no_grad():
        layer.weight_hh_l0 = -torch.eye(8)
    assert not torch.allclose(stepped(layer), before)


@every_row
def test_a_gradient_has_a_graph_of_its_own(row) -> None:
    layer = make(row)
    for _ in range(2):
        stepped(layer)
        layer.zero_grad()
        layer.step(torch.ones(2, 3), layer.initial_state(2))[0].sum().backward()
    output = layer(torch.ones(4, 2, 3))[0]
    output.sum().backward()
    assert angles(layer).grad.abs().max() > 0


@every_row
def test_copies_and_other_types_compute_their_own(row) -> None:
    layer = make(row)
    before = stepped(layer)
    copies = [copy.deepcopy(layer)]
    if isinstance(layer, mnemoscope.GORU):  # torch pickles no parametrized module
        copies.append(pickle.loads(pickle.dumps(layer)))
    for other in copies:
        assert torch.equal(stepped(other), before)
        with torch.no_grad():
            angles(other).add_(0.5)
        assert not torch.allclose(stepped(other), before)
    assert torch.equal(stepped(layer), before)
    with torch.no_grad():
        wide = layer.double().step(torch.ones(2, 3).double(), torch.ones(layer.num_layers, 2, 8).double())[0]
    torch.testing.assert_close(wide.float(), before)


@every_row
def test_what_autocast_rounds_is_not_kept(row) -> None:
    expected, layer = stepped(make(row)), make(row)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stepped(layer)
    assert torch.equal(stepped(layer), expected)


def test_what_a_caller_reads_is_its_own() -> None:
    layer = make("ExpRNN")
    before = stepped(layer)
    with torch.no_grad():
        layer.weight_hh_l0.numpy()[...] = 0
    assert torch.equal(stepped(layer), before)


def test_one_more_parametrization_is_read_too() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = 0.5

        def forward(self, V: torch.Tensor) -> torch.Tensor:
            return self.by * V

    layer, half = make("ExpRNN"), Half()
    parametrize.register_parametrization(layer, "weight_hh_l0", half, unsafe=True)
    before = stepped(layer)
    half.by = 2.0
    assert not torch.allclose(stepped(layer), before)


def test_a_parametrization_of_the_users_own_takes_its_place() -> None:
    class Skew(nn.Module):
        def forward(self, A: torch.Tensor) -> torch.Tensor:
            return A.triu() - A.triu().mT

    layer = make("ExpRNN")
    parametrize.remove_parametrizations(layer, "weight_hh_l0")
    parametrize.register_parametrization(layer, "weight_hh_l0", Skew())
    before = stepped(layer)
    with torch.no_grad():
        angles(layer).mul_(2)
    assert not torch.allclose(stepped(layer), before)


def test_a_hook_of_the_parametrization_is_called() -> None:
    layer = make("ExpRNN")
    before = stepped(layer)
    layer.parametrizations.weight_hh_l0.register_forward_hook(lambda module, inputs, V: -V)
    assert not torch.allclose(stepped(layer), before)


def test_what_torch_caches_ends_with_its_context() -> None:
    layer = make("ExpRNN")
    with parametrize.cached():
        stepped(layer)
        with torch.no_grad():
            angles(layer).mul_(2)
        stepped(layer)  # of the cached V, as the caller asked for
    assert torch.equal(stepped(layer), stepped(copy.deepcopy(layer)))


@every_row
def test_weights_kept_from_inference_mode_can_be_differentiated_by(row) -> None:
    layer = make(row)
    with torch.inference_mode():
        layer(torch.ones(4, 2, 3))
    with torch.no_grad():
        w = layer.weights(0)
    h = torch.ones(2, 8, requires_grad=True)
    layer.cell(w, layer.project(w, torch.ones(2, 3)), h)[0].sum().backward()
    assert h.grad is not None
