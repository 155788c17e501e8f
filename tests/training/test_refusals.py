"""Wrong arguments from Python: an error that says what is allowed, never another result than the one asked for."""

import pytest
import torch
from torch import nn

from mnemoscope import MnemoscopeError
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, Run, RunConfig, SequenceModel, evaluate, fit, resume, train

TASK = Copy(T=3)
CONFIG = FitConfig(updates=1, batch_size=2, evaluate_batches=1)


class Readout(nn.Module):
    """A model that returns its outputs alone."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 9)

    def forward(self, inputs, state=None):
        return self.linear(inputs)


def test_a_model_without_a_state_among_its_results():
    for run in (lambda: fit(Readout(), TASK, CONFIG), lambda: evaluate(Readout(), TASK, batches=1)):
        with pytest.raises(MnemoscopeError, match=r"Readout returned a Tensor; .* must return \(outputs, state\)"):
            run()


def test_a_tensor_of_two_steps_is_not_outputs_and_state():
    class Two(Readout):
        def forward(self, inputs, state=None):
            return torch.stack([self.linear(inputs)] * 2)

    with pytest.raises(MnemoscopeError, match="Two returned a Tensor"):
        fit(Two(), TASK, CONFIG)


def test_a_misspelt_name_of_weights_is_refused(tmp_path):
    train(RunConfig(TASK, NetworkConfig("RNN", 4), CONFIG), tmp_path / "run")
    run = Run(tmp_path / "run")
    for read in (run.model, run.checkpoint):
        with pytest.raises(MnemoscopeError, match="which = 'bset' is not allowed"):
            read("bset")


@pytest.mark.parametrize("updates", ["9", True, 0])
def test_updates_of_a_resumed_run(tmp_path, updates):
    train(RunConfig(TASK, NetworkConfig("RNN", 4), CONFIG), tmp_path / "run")
    with pytest.raises(MnemoscopeError, match="updates must be a whole number of at least 1; got"):
        resume(tmp_path / "run", updates=updates)


@pytest.mark.parametrize("batches", [0, -1, "2", 1.5])
def test_number_of_batches_to_evaluate_on(batches):
    with pytest.raises(MnemoscopeError, match="batches must be a whole number of at least 1; got"):
        evaluate(SequenceModel.for_task(TASK, NetworkConfig("RNN", 4)), TASK, batches=batches)


def frozen():
    return SequenceModel.for_task(TASK, NetworkConfig("LSTM", 4)).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (lambda: abs, {}, "fit trains an nn.Module; got a builtin_function_or_method"),
        (lambda: nn.LSTM, {}, "fit trains an nn.Module; got the class LSTM"),
        (frozen, {}, "SequenceModel has no parameter that requires a gradient: there is nothing to train"),
        (
            lambda: SequenceModel.for_task(TASK, NetworkConfig("LSTM", 4)),
            {"projections": abs},
            "projections are a list of functions",
        ),
    ],
)
def test_what_cannot_be_trained(model, options, words, tmp_path):
    with pytest.raises(MnemoscopeError, match=words):
        fit(model(), TASK, CONFIG, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_weights_to_keep_in_snapshots_that_are_not_taken(tmp_path):
    network, config = NetworkConfig("LSTM", 4), FitConfig(updates=1, batch_size=2, snapshot_weights=("layer",))
    with pytest.raises(MnemoscopeError, match=r"snapshot-weights .* needs snapshot-every or snapshot-at"):
        train(RunConfig(TASK, network, config), tmp_path / "run")
