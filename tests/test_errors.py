"""A MnemoscopeError is a ValueError, and no handler of ours re-wraps one of our own messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mnemoscope
from mnemoscope import MnemoscopeError, adapters, layers, report, tasks, theory, training
from mnemoscope.cli import main
from mnemoscope.cli._weights import read_tensors
from mnemoscope.errors import first_line, type_and_line
from mnemoscope.finding import Examination
from mnemoscope.tasks import Custom
from mnemoscope.training import FitConfig, NetworkConfig, SequenceModel, Stop, fit
from mnemoscope.training._trajectory import read_parameters


def test_mnemoscope_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"^hidden-size = 0 is not allowed; it must be at least 1$"):
        NetworkConfig(hidden_size=0)


def other_format(folder: Path) -> None:
    (folder / "findings.json").write_text('{"format": 99}')
    Examination.load(folder)


def sequence_model(folder: Path) -> None:
    SequenceModel(2, 2, NetworkConfig("GORU", 6))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda folder: read_parameters(folder, 3), r"^cannot read .*: No such file or directory$"),
        (lambda folder: read_tensors(folder / "none.safetensors"), r"^cannot read .*: No such file or directory$"),
        (other_format, r"^\S*findings.json is not a file of findings of format 2$"),
        (sequence_model, r"^GORU"),
    ],
    ids=["trajectory", "weights", "findings", "layer"],
)
def test_error_message_is_not_wrapped(action: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    with pytest.raises(MnemoscopeError, match=message):
        action(tmp_path)


def test_error_message_is_not_wrapped_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--lr", "-1"], ["--hidden-size", "0"]):
        assert main(["train", "copy", *option]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "mnemoscope: lr = -1.0 is not allowed; it must be above 0",
        "mnemoscope: hidden-size = 0 is not allowed; it must be at least 1",
    ]


class Gone(Custom):
    """Carries its state from batch to batch; its data can be taken away."""

    carries_state = True

    def resets_state(self, step: int, size: int, split: object = "train") -> bool:
        return step == 0


def test_error_message_is_not_wrapped_by_resume(tmp_path: Path) -> None:
    calls: list[int] = []

    def batch(step: int, size: int, split: str) -> tuple[Tensor, Tensor]:
        calls.append(step)
        if len(calls) > limit:
            raise MnemoscopeError("the data are gone")
        return torch.ones(3, size, 2), torch.ones(size, 1)

    def stop(progress: object) -> None:
        if len(calls) >= 3:
            raise Stop

    task = Gone(batch, input_size=2, output_size=1, length=3, answer="numbers")
    config = FitConfig(9, evaluate_every=100, batch_size=2, threads=1)
    network = NetworkConfig("RNN", 2)
    limit = 10**6
    with pytest.raises(Stop):
        fit(SequenceModel(2, 1, network), task, config, tmp_path / "run", callback=stop)
    calls.clear()
    limit = 1  # the check before the folder is opened passes; the batch that the carried state is shaped by does not
    with pytest.raises(MnemoscopeError, match=r"^the data are gone$"):
        fit(SequenceModel(2, 1, network), task, config, tmp_path / "run", resume=True)


def test_an_error_without_a_message_is_named_once() -> None:
    assert (first_line(AssertionError()), type_and_line(AssertionError())) == ("AssertionError", "AssertionError")
    assert type_and_line(RuntimeError("\n  mat1 and mat2\nshapes")) == "RuntimeError: mat1 and mat2"
    assert type_and_line(KeyError("x")) == "KeyError: 'x'"


RNN, LSTM = mnemoscope.RNN(4, 8), mnemoscope.LSTM(4, 8)
COPY = tasks.Copy(T=3)
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "trace a layer of torch's": (lambda: mnemoscope.trace(nn.LSTM(4, 8), torch.ones(5, 2, 4)), "as_recurrence"),
    "truncate a layer of torch's": (lambda: theory.Truncated(nn.LSTM(4, 8), 3), "as_recurrence"),
    "make ours of ours": (lambda: adapters.from_torch(LSTM), "nn.RNN, nn.LSTM or nn.GRU; got mnemoscope.layers"),
    "keep half a state": (lambda: layers.trim_memory(torch.ones(1, 2, 3), 2.5), "keep must be a whole number"),
    "name a task": (lambda: training.RunConfig("copy"), "task is a Task, .* got 'copy'"),
    "leave the network out": (lambda: training.RunConfig(COPY, training.FitConfig()), "network is a NetworkConfig"),
    "configure by a dict": (lambda: training.RunConfig(COPY, {"model": "LSTM"}), "network is a NetworkConfig"),
    "fit on a name": (lambda: training.fit(RNN, "copy"), "task is a Task, .* got 'copy'"),
    "fit on a class": (lambda: training.fit(RNN, tasks.Copy), "task is a Task, .* got <class"),
    "train a network": (
        lambda: training.train(training.NetworkConfig()),
        "train takes a RunConfig; got a NetworkConfig",
    ),
    "a page of a finding": (lambda: report.render(LSTM), "an Examination, or several by name; got LSTM"),
    "a page of a list": (lambda: report.render([LSTM]), "an Examination, or several by name; got list"),
    "an LSTM as an RNN": (lambda: theory.rnn_constants(*LSTM.parameters(), input_bound=1.0), r"\(n, d\) and \(n, n\)"),
    "a negative bound": (
        lambda: theory.rnn_constants(*RNN.parameters(), input_bound=-1.0),
        "input_bound must be at least 0",
    ),
    "a negative bound of an LSTM's inputs": (
        lambda: theory.lstm_certificate(*LSTM.parameters(), input_bound=-1.0),
        "input_bound must be at least 0",
    ),
    "certify a layer": (lambda: theory.lstm_certificate(LSTM, input_bound=1.0), r"\*layer.parameters\(\)"),
    "certify nothing": (lambda: theory.lstm_certificate(input_bound=1.0), r"\*layer.parameters\(\)"),
    "certify a stack": (
        lambda: theory.lstm_certificate(*mnemoscope.LSTM(8, 8, 2).parameters(), input_bound=1.0),
        "of one layer",
    ),
    "halve an odd length": (lambda: theory.generic_rank(1, 2, 2, 5), "even number of time steps, got 5"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_python_get_one_line(mistake: str) -> None:
    call, message = MISTAKES[mistake]
    with pytest.raises(MnemoscopeError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
