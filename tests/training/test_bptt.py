"""Truncated back-propagation: our network cuts its recurrent layer alone, and gives the gradients of all of it cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from regression_task import QUIET
from torch import Tensor, nn

from mnemoscope.layers import LAYERS
from mnemoscope.recurrence import State, detach, leaves
from mnemoscope.tasks import Characters
from mnemoscope.training import FitConfig, NetworkConfig, SequenceModel, fit
from mnemoscope.training._batch_learner import BatchLearner


class Wrapped(nn.Module):
    """A network in another module, as a user's: the trainer calls it piece by piece."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        return self.model(x, state)


@pytest.fixture
def text(tmp_path: Path) -> Characters:
    (tmp_path / "text.txt").write_text("the sea and the sand and the sun " * 60)
    return Characters(str(tmp_path / "text.txt"), bptt=11, ids=True)


def network(text: Characters, name: str = "RNN", **options: Any) -> SequenceModel:
    torch.manual_seed(3)
    return SequenceModel.for_task(text, NetworkConfig(name, 8, **{"embedding": 8, **options}))


def gradients(model: nn.Module, text: Characters, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Loss and gradients of two chunks, of which the second goes on from the first's state, and that state."""
    config = FitConfig(2, precision="64-true", **{"bptt": 4, **QUIET, **options})
    learner = BatchLearner(model, text, config)
    found = [learner._backward(step) for step in range(2)]
    found += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return found, leaves(learner._carried)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"embedding": 0},
    {"tied": True},
    {"skip": True},
    {"head": 5},
    {"num_layers": 2},
    {"truncated": 3},
]


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in [*LAYERS, "torch.LSTM"]), *(("LSTM", options) for options in OPTIONS)],
    ids=str,
)
def test_gradients_are_those_of_the_whole_model_cut(name: str, options: dict[str, Any], text: Characters) -> None:
    found, carried = gradients(network(text, name, **options), text, carry_memory=3)
    expected, state = gradients(Wrapped(network(text, name, **options)), text, carry_memory=3)
    for one, other in zip([*found, *carried], [*expected, *state], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    whole, _ = gradients(network(text, name, **options), text, carry_memory=3, bptt=0)
    differs = [not torch.allclose(one, other, rtol=1e-6) for one, other in zip(found[2:], whole[2:], strict=True)]
    assert any(differs)  # that something was cut


class Counted:
    """The steps of each call of a module."""

    def __init__(self, module: nn.Module) -> None:
        self.steps: list[int] = []
        module.register_forward_hook(lambda _, inputs, output: self.steps.append(len(inputs[0])))


@pytest.mark.parametrize("wrapped", [False, True])
def test_embedding_dropout_and_readout_run_once_a_chunk(wrapped: bool, text: Characters) -> None:
    net = network(text, dropout=0.5)
    assert net.embedding is not None
    around = [Counted(net.embedding), Counted(net.drop), Counted(net.readout)]
    layer, whole = Counted(net.layer), Counted(net)
    gradients(Wrapped(net) if wrapped else net, text)
    pieces = [4, 4, 3] * 2
    assert layer.steps == pieces
    assert whole.steps == (pieces if wrapped else [11] * 2)
    assert around[0].steps == around[2].steps == whole.steps
    assert len(around[1].steps) == 2 * len(whole.steps)


def test_a_forward_of_your_own_is_called_piece_by_piece(text: Characters) -> None:
    class Louder(SequenceModel):
        def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:  # type: ignore[override]
            y, state = super().forward(x, state)
            return 2 * y, state

    louder = Louder(text.input_size, text.output_size, NetworkConfig("RNN", 8, embedding=8), token_input=True)
    patched = network(text)
    original = patched.forward
    patched.forward = lambda x, state: original(x, state)  # type: ignore[method-assign]
    compiled = torch.compile(network(text), backend="eager")
    for net in (louder, patched, compiled):
        layer = Counted(net.layer)
        fit(net, text, FitConfig(1, bptt=4, **QUIET))
        assert layer.steps[:3] == [4, 4, 3]


@pytest.mark.parametrize("name", ["RNN", "RelLSTM"])
def test_sequences_that_begin_in_a_chunk_begin_in_its_pieces(name: str) -> None:
    model = SequenceModel(4, 3, NetworkConfig(name, 5, skip=True)).double()
    x = torch.randn(7, 2, 4, dtype=torch.float64)
    starts = torch.zeros(7, 2, dtype=torch.bool)
    starts[2, 0] = starts[3, 1] = starts[5, 1] = True

    def found(y: Tensor, state: State) -> list[Tensor]:
        loss = (y * torch.arange(y.numel()).view_as(y)).sum()
        return [y, *leaves(state), *torch.autograd.grad(loss, list(model.parameters()))]

    outputs, state = [], None
    for first in range(0, 7, 3):
        y, state = model(x[first : first + 3], state, starts=starts[first : first + 3])
        state = detach(state)
        outputs.append(y)
    expected = found(torch.cat(outputs), state)
    for one, other in zip(found(*model(x, starts=starts, bptt=3)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(x, bptt=3)[0], model(x)[0])
    assert torch.equal(model(x, bptt=7)[0], model(x)[0])
