"""What sums up a run, by exact values: means over batches, the best so far, thresholds, budgets, schedules."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mnemoscope.tasks import Characters, Copy, Custom, Symbols, Task, Words
from mnemoscope.training import Diverged, FitConfig, NetworkConfig, Run, RunConfig, evaluate, fit, train
from mnemoscope.training._best_so_far import BestSoFar
from mnemoscope.training._budget import total_updates
from mnemoscope.training._evaluation import held_out_batches
from mnemoscope.training._optimization import make_optimizer, make_schedule


def no_data(step: int, size: int, split: str) -> tuple[Tensor, Tensor]:
    raise AssertionError("no data are needed here")


def low(solved: float | None = None) -> Task:
    """A task whose headline metric is to be low."""
    return Custom(no_data, input_size=1, output_size=1, length=1, answer="numbers", solved=solved)


def high(solved: float | None = None) -> Task:
    """A task whose headline metric is to be high."""
    return Custom(no_data, input_size=1, output_size=1, length=1, solved=solved)


class Identity(nn.Module):
    """Gives its inputs as outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, state: object = None) -> tuple[Tensor, None]:
        return x * self.weight, None


def constant_batch(value: float, size: int) -> tuple[Tensor, Tensor]:
    """Inputs (1, size, 1) of one value, and targets of zero: the squared error is value ** 2."""
    return torch.full((1, size, 1), value), torch.zeros(size, 1)


def constant_task(value: float) -> Custom:
    """Every batch has the inputs and targets of `constant_batch`."""

    def batch(step: int, size: int, split: str) -> tuple[Tensor, Tensor]:
        return constant_batch(value, size)

    return Custom(batch, input_size=1, output_size=1, length=1, answer="numbers")


# Means over batches


def test_evaluate_is_the_mean_weighted_by_batch_size() -> None:
    batches = [constant_batch(1.0, 3), constant_batch(3.0, 1)]
    task = Custom(batches, valid=batches, input_size=1, output_size=1, length=1, answer="numbers")
    assert evaluate(Identity(), task) == {"loss": 3.0, "mse": 3.0}  # (3 * 1 + 1 * 9) / 4, not (1 + 9) / 2


def test_evaluate_does_not_count_ignored_targets() -> None:
    """Class -100 is ignored: the batches count for 2 and 1 predictions."""
    logits = torch.tensor([[[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]])
    batches = [(logits, torch.tensor([0, 0, -100])), (logits, torch.tensor([1, -100, -100]))]
    task = Custom(batches, valid=batches, input_size=2, output_size=2, length=1)
    assert evaluate(Identity(), task)["accuracy"] == 2 / 3


def test_perplexity_is_that_of_the_weighted_mean_loss() -> None:
    task = Words()
    found = task.combine([{"loss": 0.0, "perplexity": 1.0}, {"loss": math.log(16), "perplexity": 16.0}], [3, 1])
    assert found["loss"] == math.log(16) / 4
    assert found["perplexity"] == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(None, 3), (1, 1), (3, 3), (4, 3)],
)
def test_held_out_batches_are_at_most_those_of_the_split(asked: int | None, expected: int) -> None:
    assert held_out_batches(Symbols(sequences=10), 4, asked, "valid") == expected


def test_held_out_batches_of_endless_data_are_eight_by_default() -> None:
    assert held_out_batches(Copy(), 4, None, "valid") == 8
    assert held_out_batches(Copy(), 4, 100, "valid") == 100


def test_train_records_are_means_over_log_every_updates(tmp_path: Path) -> None:
    values = [1.0, 2.0, 4.0, 8.0]

    def batch(step: int, size: int, split: str) -> tuple[Tensor, Tensor]:
        return constant_batch(values[step % 4], size)

    task = Custom(batch, input_size=1, output_size=1, length=1, answer="numbers")
    fit(Identity(), task, FitConfig(4, lr=1e-30, log_every=2, clip=0, threads=1), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    training = [(line["update"], line["loss"]) for line in lines if "split" not in line]
    assert training == [(2, 2.5), (4, 40.0)]  # (1 + 4) / 2 and (16 + 64) / 2


# The best so far


@pytest.mark.parametrize(
    ("task", "values", "best", "best_update"),
    [
        (high(), [0.5, 0.5], 0.5, 1),
        (high(), [0.5, 0.6], 0.6, 2),
        (high(), [0.5, 0.4], 0.5, 1),
        (low(), [0.5, 0.5], 0.5, 1),
        (low(), [0.5, 0.4], 0.4, 2),
        (low(), [0.5, 0.6], 0.5, 1),
        (high(), [math.nan, 0.5], 0.5, 2),
        (high(), [0.5, math.nan], 0.5, 1),
        (high(), [0.5, math.inf], 0.5, 1),
        (low(), [0.0, -0.0], 0.0, 1),
        (high(), [math.nan], None, 0),
    ],
)
def test_best_so_far(task: Task, values: list[float], best: float | None, best_update: int) -> None:
    record = BestSoFar()
    for update, value in enumerate(values, 1):
        record = record.after({task.metric: value, "loss": 1.0}, update, task)
    assert (record.best, record.best_update) == (best, best_update)
    last = values[-1] if math.isfinite(values[-1]) else None
    assert record.held_out == {task.metric: last, "loss": 1.0}


def test_best_checkpoint_is_the_earlier_one_at_equality(tmp_path: Path) -> None:
    """All evaluations are equal, so the weights of the first one stay."""
    task = replace(constant_task(1.0), valid=[constant_batch(0.0, 2)])
    summary = fit(Identity(), task, FitConfig(3, evaluate_every=1, lr=0.1, threads=1), tmp_path / "run")
    assert (summary.best, summary.best_update) == (0.0, 1)
    assert Run(tmp_path / "run").checkpoint("best").update == 1


# Thresholds


@pytest.mark.parametrize(
    ("task", "value", "solved"),
    [
        (high(0.99), 0.99, True),
        (high(0.99), math.nextafter(0.99, 0), False),
        (high(0.99), math.nextafter(0.99, 1), True),
        (low(0.01), 0.01, True),
        (low(0.01), math.nextafter(0.01, 1), False),
        (low(0.01), math.nextafter(0.01, 0), True),
        (high(0.99), math.nan, False),
        (high(), 1.0, False),
    ],
)
def test_solved_at_the_exact_threshold(task: Task, value: float, solved: bool) -> None:
    assert BestSoFar().after({task.metric: value, "loss": 1.0}, 1, task).solves(task) is solved


def test_solved_asks_the_last_evaluation_not_the_best() -> None:
    task = high(0.9)
    record = BestSoFar().after({"accuracy": 1.0}, 1, task)
    assert record.solves(task)
    assert not record.after({"accuracy": 0.5}, 2, task).solves(task)
    assert not BestSoFar().solves(task)


@pytest.mark.parametrize(("limit", "diverges"), [(4.0, False), (math.nextafter(4.0, 0), True)])
def test_diverged_only_above_the_limit(limit: float, diverges: bool) -> None:
    task = constant_task(2.0)
    config = FitConfig(1, diverged=limit, evaluate_batches=1, log_every=1, threads=1)
    if diverges:
        with pytest.raises(Diverged, match="diverged at update 1: the loss is 4"):
            fit(Identity(), task, config)
    else:
        assert fit(Identity(), task, config).updates == 1


# Budgets and rounding


@pytest.mark.parametrize(
    ("epochs", "accumulate", "expected"),
    [(1, 1, 2), (1, 2, 1), (1, 3, 1), (3, 4, 2), (2, 4, 1), (3, 1, 6)],
)
def test_total_updates_of_epochs_are_rounded_up(epochs: int, accumulate: int, expected: int) -> None:
    """Ten sequences in batches of four: two batches an epoch, the last two sequences dropped."""
    config = FitConfig(epochs=epochs, accumulate=accumulate, batch_size=4)
    assert total_updates(Symbols(sequences=10), config) == expected


def test_total_updates_without_epochs() -> None:
    assert total_updates(Copy(), FitConfig(7)) == 7


def test_last_update_is_evaluated(tmp_path: Path) -> None:
    task = constant_task(1.0)
    fit(Identity(), task, FitConfig(5, evaluate_every=2, evaluate_batches=1, threads=1), tmp_path / "run")
    held_out = [record["update"] for record in Run(tmp_path / "run").metrics() if record.get("split") == "valid"]
    assert held_out == [2, 4, 5]


def test_text_chunks_are_rounded_up(tmp_path: Path) -> None:
    """90 training characters in one stream give 89 predictions; 5 each are held out, with 4 predictions."""
    path = tmp_path / "text.txt"
    path.write_text("ab" * 50)
    for bptt, expected in [(89, 1), (88, 2), (45, 2), (44, 3), (1, 89)]:
        assert Characters(data=str(path), bptt=bptt).steps_per_epoch(1) == expected
    assert Characters(data=str(path), bptt=4).steps_per_epoch(1, "valid") == 1
    assert Characters(data=str(path), bptt=3).steps_per_epoch(1, "valid") == 2


# Evaluations of the training data


def test_training_data_are_evaluated_with_every_sequence(tmp_path: Path) -> None:
    """Ten sequences in batches of four: training drops two in every epoch, an evaluation none."""
    task = Symbols(T=4, first=0, second=2, window=1, sequences=10)
    network = NetworkConfig("torch.RNN", 2, dropout=0.5)
    config = FitConfig(4, batch_size=4, threads=1, evaluate_every=2, evaluate_train=True, lr=0.3)
    train(RunConfig(task, network, config), tmp_path / "run")
    run = Run(tmp_path / "run")
    found = [record for record in run.metrics() if record.get("split") == "train"]
    assert [record["update"] for record in found] == [2, 4]
    outputs, _ = run.model().eval()(task.evaluation_batch(0, 10, "train").inputs)
    expected = task.metrics(outputs, task.evaluation_batch(0, 10, "train").targets)
    assert found[-1]["accuracy"] == pytest.approx(expected["accuracy"])
    assert found[-1]["loss"] == pytest.approx(expected["loss"])
    assert evaluate(run.model(), task, batch_size=4, split="train") == pytest.approx(expected)
    assert found[-1]["accuracy"] * 10 == pytest.approx(round(found[-1]["accuracy"] * 10))


# Schedules


def test_milestones_are_epochs_where_the_budget_is(tmp_path: Path) -> None:
    """Ten sequences in batches of four: two updates an epoch."""
    task = Symbols(T=4, first=0, second=2, window=1, sequences=10)
    config = FitConfig(epochs=4, schedule="milestones", milestones=(1, 3), factor=0.1, lr=1.0, optimizer="sgd")
    options = {"batch_size": 4, "log_every": 1, "threads": 1, "evaluate_every": 100}
    train(RunConfig(task, NetworkConfig("torch.RNN", 2), replace(config, **options)), tmp_path / "run")
    found = [record["lr"] for record in Run(tmp_path / "run").metrics() if "split" not in record]
    assert found == pytest.approx([1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01])  # of the next update


def rates(config: FitConfig, losses: list[float]) -> list[float]:
    """The learning rate after each evaluation."""
    optimizer = make_optimizer([nn.Parameter(torch.zeros(1))], config)
    schedule = make_schedule(optimizer, config)
    found = []
    for loss in losses:
        schedule.step(loss)  # type: ignore[arg-type]
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize(
    ("patience", "losses", "expected"),
    [
        (0, [1.0, 1.0, 1.0], [1.0, 0.5, 0.25]),
        (1, [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.5, 0.5]),
        (1, [1.0, 1.0, math.nextafter(1.0, 0), 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 0.5]),
        (2, [1.0, 2.0, 1.0, 1.5], [1.0, 1.0, 1.0, 0.5]),
    ],
    ids=["equal-is-no-improvement", "patience-1", "any-lower-loss-is-an-improvement", "best-not-last"],
)
def test_plateau_patience(patience: int, losses: list[float], expected: list[float]) -> None:
    config = FitConfig(schedule="plateau", optimizer="sgd", lr=1.0, factor=0.5, patience=patience)
    assert rates(config, losses) == expected
