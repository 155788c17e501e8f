"""What every task owes: shapes, batches that depend on (seed, split, step) alone, a loss and its metrics."""

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import TASKS, Adding, Batch, Copy, Denoise, Digits, Gaussian, Split, StartEnd, Symbols
from mnemoscope.tasks._finite import FiniteData

SMALL = [Copy(7), Denoise(7), Adding(9), Symbols(), Gaussian(6), StartEnd(T=9, span=3)]
FROM_FILES = {"digits", "characters", "words", "chorales"}
PLAYED = {"tmaze", "minigrid", "gym"}  # environments, tested with the agents
OTHERS = set(TASKS) - FROM_FILES - PLAYED - {task.name for task in SMALL}  # a new task is tested with its defaults
SYNTHETIC = [*SMALL, *(TASKS[name]() for name in sorted(OTHERS))]
REPEATING = {"symbols", "gaussian"}  # a finite set of sequences: the seed and the epoch decide, not the step alone
named = pytest.mark.parametrize("task", SYNTHETIC, ids=lambda task: task.name)


def same(one: Batch, other: Batch) -> bool:
    return torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def test_names_on_the_command_line():
    names = "copy denoise adding symbols digits characters words chorales gaussian start-end"
    assert set(names.split()) <= set(TASKS)  # run folders hold them
    assert all(name == task.name for name, task in TASKS.items())


@named
def test_shapes(task):
    inputs, targets = task.batch(0, 5)
    assert inputs.shape == (task.length, 5, task.input_size)
    assert inputs.dtype == torch.float32
    assert not task.token_input
    assert 5 in targets.shape
    assert 0 < task.needs <= task.length


@named
def test_batch_depends_on_its_step_only(task):
    late = task.batch(11, 4)
    task.batch(3, 4)
    torch.manual_seed(1)
    assert same(late, replace(task).batch(11, 4))


@named
def test_global_random_state_is_unchanged(task):
    before = torch.get_rng_state()
    task.batch(0, 3)
    assert torch.equal(before, torch.get_rng_state())


@named
def test_steps_seeds_and_splits_differ(task):
    here = task.batch(0, 16)
    others = [task.batch(0, 16, "valid"), task.batch(0, 16, "test"), replace(task, seed=1).batch(0, 16)]
    if task.name not in REPEATING:
        others.append(task.batch(1, 16))
    assert not any(torch.equal(here.inputs, other.inputs) for other in others)


@named
def test_loss_is_differentiable_and_metrics_have_the_headline(task):
    targets = task.batch(0, 4).targets
    outputs = torch.randn(task.length, 4, task.output_size, requires_grad=True)
    loss = task.loss(outputs, targets)
    loss.backward()
    assert outputs.grad is not None
    assert outputs.grad.abs().sum() > 0
    metrics = task.metrics(outputs, targets)
    assert metrics["loss"] == pytest.approx(loss.item())
    assert task.metric in metrics
    assert task.weight(targets) > 0


@named
def test_default_device_and_dtype_do_not_change_a_batch(task):
    plain = task.batch(2, 3)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            other = replace(task).batch(2, 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert other.inputs.dtype == torch.float32
    assert same(plain, other)


@pytest.mark.parametrize(("arguments", "word"), [((-1, 4), "step"), ((0, 0), "size"), ((0, 4, "tset"), "split")])
def test_wrong_batch_arguments_are_refused(arguments, word):
    with pytest.raises(MnemoscopeError, match=f"^{word} = .* is not allowed"):
        Copy(5).batch(*arguments)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Copy(0), "T"),
        (lambda: Copy(2.5), "T"),  # type: ignore[arg-type]
        (lambda: Copy("9"), "T"),  # type: ignore[arg-type]
        (lambda: Adding(1), "T"),
        (lambda: Symbols(T=49), "T"),
        (lambda: Symbols(second=19), "second"),
        (lambda: StartEnd(T=5, span=3), "T"),
        (lambda: StartEnd(changes=11), "changes"),
        (lambda: Gaussian(contraction=1.0), "contraction"),
        (lambda: Gaussian(contraction="0.5"), "contraction"),
        (lambda: Gaussian(scaling="none"), "scaling"),  # type: ignore[arg-type]
        (lambda: Digits(pixels=5), "pixels"),
        (lambda: Digits(order="random"), "order"),  # type: ignore[arg-type]
    ],
)
def test_wrong_fields_are_refused_in_one_line(make, word):
    with pytest.raises(MnemoscopeError, match=f"^{word} = .* is not allowed: {word} must be [^\n]*$"):
        make()


def test_with_length_changes_the_length_only():
    task = Denoise(10, seed=3).with_length(40)
    assert (task.T, task.seed, task.length) == (40, 3, 60)
    with pytest.raises(MnemoscopeError, match="digits has one length, 784 steps"):
        Digits().with_length(10)


def test_combine_weights_batches():
    """Sizes differ, so an unweighted mean would be wrong."""
    task, rows = Adding(6), (3, 7)
    batches = [task.batch(step, size) for step, size in enumerate(rows)]
    outputs = [torch.randn(6, size, 1) for size in rows]
    apart = [task.metrics(out, batch.targets) for out, batch in zip(outputs, batches, strict=True)]
    together = task.combine(apart, [task.weight(batch.targets) for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    whole = task.metrics(torch.cat(outputs, 1), targets)
    assert together == pytest.approx(whole)
    assert together["mse"] != pytest.approx(sum(m["mse"] for m in apart) / 2)


def test_independent_sequences_always_reset_the_state():
    assert Copy(5).resets_state(17, 4)
    assert Copy(5).steps_per_epoch(4) is None


def fingerprint() -> str:
    parts = [task.batch(3, 4) for task in (Copy(5, seed=1), Denoise(5), Adding(5), StartEnd())]
    return hashlib.sha256(b"".join(p.numpy().tobytes() for batch in parts for p in batch)).hexdigest()[:16]


def test_batches_are_the_same_in_another_process_and_hash_seed():
    code = "from test_task_contract import fingerprint; print(fingerprint())"
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    env = os.environ | {"PYTHONHASHSEED": "99", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == fingerprint()


def test_batches_match_recorded_hashes():
    """A saved run resumes on the batches it would have had: a change here breaks every run that exists."""
    symbols = Copy(5, seed=1).batch(3, 2).targets[-10:].T.tolist()
    assert symbols[0] == [4, 6, 5, 5, 6, 3, 8, 6, 1, 8]
    assert fingerprint() == "7e8cd6a9093cf766"


@pytest.mark.parametrize("name", list(TASKS))
def test_command_line_reads_every_field(name):
    tyro = pytest.importorskip("tyro")
    assert isinstance(tyro.cli(TASKS[name], args=["--seed", "5"]), TASKS[name])
    for option in fields(TASKS[name]):
        kind = str(option.type).removesuffix(" | None")
        assert kind in ("int", "float", "str", "bool", "tuple[str, ...]") or kind.startswith("Literal")


def test_baselines():
    assert Copy(100).baseline == pytest.approx(10 * math.log(8) / 120)
    assert {task.name for task in SYNTHETIC if task.baseline is None} == set()


@pytest.mark.parametrize(
    ("count", "size", "train", "held_out"),
    [(10, 4, 2, 3), (12, 4, 3, 3), (4, 4, 1, 1), (5, 4, 1, 2), (1, 1, 1, 1)],
)
def test_batches_per_epoch_are_rounded_down_for_training_else_up(count, size, train, held_out) -> None:
    task = Symbols(sequences=count)
    assert [task.steps_per_epoch(size, split) for split in ("train", "valid", "test")] == [train, held_out, held_out]


def test_batches_larger_than_the_training_set_are_refused() -> None:
    task = Symbols(sequences=3)
    with pytest.raises(MnemoscopeError, match="size = 4 is not allowed: size must be at most the 3 training sequences"):
        task.steps_per_epoch(4)
    assert task.steps_per_epoch(3) == 1
    assert task.steps_per_epoch(4, "valid") == 1
    assert task.batch(0, 4, "valid").targets.shape == (3,)


def test_an_epoch_has_every_sequence_once_in_a_new_order() -> None:
    task = NumberedSequences()
    epochs = [[task.batch(step, 3).targets.tolist() for step in (e, e + 1, e + 2)] for e in (0, 3)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [3, 3, 3]
        assert len({index for batch in epoch for index in batch}) == 9
    assert epochs[0] != epochs[1]
    held_out = [task.batch(step, 4, "valid").targets.tolist() for step in range(4)]
    assert held_out == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]


@pytest.mark.parametrize("size", [4, 11])
def test_an_evaluation_of_the_training_split_has_every_sequence(size: int) -> None:
    task = NumberedSequences()
    batches = [task.evaluation_batch(i, size, "train") for i in range(task.evaluation_steps(size, "train"))]
    assert torch.cat([batch.targets for batch in batches]).tolist() == list(range(10))


@dataclass(frozen=True)
class NumberedSequences(FiniteData):
    """Ten sequences, each with its number as its target."""

    name = "numbered"
    input_size = output_size = length = 1
    loss = metrics = None  # type: ignore[assignment]

    def _count(self, split: Split) -> int:
        return 10

    def _select(self, rows: Tensor, split: Split) -> Batch:
        return Batch(rows.view(1, -1, 1).float(), rows)
