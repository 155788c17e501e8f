"""Each synthetic task is what its paper says, on random configurations."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mnemoscope.tasks import Adding, Copy, Denoise, Gaussian, StartEnd, Symbols

lengths, steps, sizes = st.integers(1, 60), st.integers(0, 10**9), st.integers(1, 9)
quickly = settings(max_examples=40, deadline=None)


def symbols_of(inputs: Tensor) -> Tensor:
    """(T, B, classes) one-hot -> (T, B), checked to be one-hot."""
    assert torch.equal(inputs.sum(-1), torch.ones(inputs.shape[:2]))
    assert set(inputs.unique().tolist()) <= {0.0, 1.0}
    return inputs.argmax(-1)


def best_constant_loss(task, count: int) -> float:
    """The least loss that the same answers for all of `count` sequences can reach, found by descent."""
    targets = task.batch(0, count).targets
    constant = torch.zeros(task.length, 1, task.output_size, requires_grad=True)
    optimizer = torch.optim.LBFGS([constant], lr=1, max_iter=40, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = task.loss(constant.expand(-1, count, -1), targets)
        loss.backward()
        return loss

    optimizer.step(closure)
    return closure().item()


@quickly
@given(T=lengths, step=steps, size=sizes)
def test_copy(T, step, size):
    inputs, targets = Copy(T).batch(step, size)
    said = symbols_of(inputs)
    assert said.shape == (T + 20, size)
    assert torch.equal(targets[-10:], said[:10])
    assert ((said[:10] >= 1) & (said[:10] <= 8)).all()
    assert (said[10 : T + 9] == 0).all()
    assert (said[T + 9] == 9).all()
    assert (said[T + 10 :] == 0).all()
    assert (targets[: T + 10] == 0).all()


@quickly
@given(T=lengths, step=steps, size=sizes)
def test_denoise_steps_are_distinct_and_in_order(T, step, size):
    inputs, targets = Denoise(T).batch(step, size)
    said = symbols_of(inputs)
    for column in range(size):
        shown = said[: T + 9, column]
        assert (shown > 0).sum() == 10
        assert torch.equal(shown[shown > 0], targets[-10:, column])
    assert (said[T + 9] == 9).all()
    assert (said[T + 10 :] == 0).all()
    assert (targets[: T + 10] == 0).all()


def test_denoise_uses_every_step():
    inputs = Denoise(5).batch(0, 400).inputs
    often = (symbols_of(inputs)[:14] > 0).float().mean(1)
    assert torch.allclose(often, torch.full((14,), 10 / 14), atol=0.1)


@pytest.mark.parametrize("task", [Copy(13), Denoise(13)])
def test_copy_and_denoise_baseline_is_the_loss_of_a_guess(task):
    """Certain of the blanks, undecided among the eight symbols."""
    targets = task.batch(0, 50).targets
    outputs = torch.full((task.length, 50, 9), -1e4)
    outputs[:-10, :, 0] = 0
    outputs[-10:, :, 1:] = 0
    assert task.loss(outputs, targets).item() == pytest.approx(task.baseline, rel=1e-5)


@pytest.mark.parametrize(
    ("task", "count"),
    [(Copy(1), 400), (Symbols(sequences=9000), 9000), (StartEnd(), 9000), (Gaussian(3), 9000), (Adding(4), 9000)],
)
def test_no_constant_prediction_beats_the_baseline(task, count):
    assert best_constant_loss(task, count) == pytest.approx(task.baseline, rel=0.03)


def test_copy_accuracy_counts_the_last_ten_steps_only():
    task = Copy(20)
    targets = task.batch(0, 8).targets
    outputs = F.one_hot(targets, 9).float()
    assert task.metrics(outputs, targets)["accuracy"] == 1
    outputs[:-10] = outputs[:-10].flip(-1)
    assert task.metrics(outputs, targets)["accuracy"] == 1
    outputs[-5:] = F.one_hot(targets[-5:] % 8 + 1, 9).float()
    assert task.metrics(outputs, targets)["accuracy"] == pytest.approx(0.5)


@quickly
@given(T=st.integers(2, 60), step=steps, size=sizes)
def test_adding(T, step, size):
    inputs, targets = Adding(T).batch(step, size)
    numbers, markers = inputs.unbind(-1)
    assert (markers[: T // 2].sum(0) == 1).all()
    assert (markers[T // 2 :].sum(0) == 1).all()
    assert torch.allclose((numbers * markers).sum(0), targets.squeeze(-1))
    assert ((numbers >= 0) & (numbers < 1)).all()


def test_adding_baseline_is_the_variance_of_two_uniforms():
    targets = Adding(10).batch(0, 20_000).targets
    always_one = torch.ones(10, 20_000, 1)
    assert Adding(10).loss(always_one, targets).item() == pytest.approx(1 / 6, rel=0.03)
    assert targets.double().var().item() == pytest.approx(1 / 6, rel=0.03)


def test_adding_accuracy_within_0_04():
    targets = torch.zeros(4, 1)
    outputs = torch.tensor([0.0, 0.039, 0.041, -0.5]).view(1, 4, 1)
    assert Adding(2).metrics(outputs, targets)["accuracy"] == 0.5


def test_symbols_match_the_paper():
    task = Symbols()
    assert (task.length, task.input_size, task.output_size, task.needs) == (150, 6, 4, 139)
    inputs, classes = task.batch(0, 1000, "valid")
    said = symbols_of(inputs)
    relevant = said < 2  # p, q
    assert (relevant.sum(0) == 2).all()
    steps = relevant.nonzero()[:, 0]
    assert set(steps.tolist()) == set(range(10, 20)) | set(range(40, 50))
    first, second = said[10:20].min(0).values, said[40:50].min(0).values
    assert torch.equal(classes, 2 * first + second)
    assert classes.bincount().min() > 200


def test_symbols_go_through_their_thousand_sequences_each_epoch():
    task = Symbols()
    assert task.steps_per_epoch(100) == 10
    epochs = [[task.batch(epoch * 10 + step, 100).inputs for step in range(10)] for epoch in range(2)]
    first, again = ({row.numpy().tobytes() for part in epoch for row in part.unbind(1)} for epoch in epochs)
    assert len(first) == 1000
    assert first == again
    assert not torch.equal(epochs[0][0], epochs[1][0])


def test_held_out_symbols_are_all_seen_once_and_are_new():
    task = Symbols(sequences=50)
    assert task.steps_per_epoch(20, "test") == 3
    rows = [row for step in range(3) for row in task.batch(step, 20, "test").inputs.unbind(1)]
    trained = [row for step in range(2) for row in task.batch(step, 25).inputs.unbind(1)]
    known = {row.numpy().tobytes() for row in trained}
    assert len({row.numpy().tobytes() for row in rows}) == 50
    assert len(known) == 50
    assert not known & {row.numpy().tobytes() for row in rows}


@quickly
@given(st.data())
def test_start_end(data):
    span, symbols = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 5))
    task = StartEnd(2 * span + data.draw(st.integers(0, 6)), span, symbols, data.draw(st.integers(1, span)))
    size = data.draw(sizes)
    inputs, repeats = task.batch(data.draw(steps), size)
    said = symbols_of(inputs)
    different = (said[:span] != said[-span:]).sum(0)
    assert torch.equal(different, (1 - repeats) * task.changes)
    assert repeats.sum() in (size // 2, size - size // 2)


def test_start_end_single_symbols_are_uninformative():
    """No step alone tells the answer: each symbol is as likely after either."""
    task = StartEnd(T=10, span=4, symbols=3, changes=2)
    inputs, repeats = task.batch(0, 20_000)
    gap = inputs[:, repeats == 1].mean(1) - inputs[:, repeats == 0].mean(1)
    assert gap.abs().max() < 0.03


def test_start_end_of_odd_batch_size_is_balanced():
    answers = [StartEnd().batch(step, 1).targets.item() for step in range(200)]
    assert 70 < sum(answers) < 130


@pytest.mark.parametrize(("scaling", "std"), [("balanced", 1.0), ("literal", 2.0)])
def test_gaussian_instances(scaling, std):
    task = Gaussian(scaling=scaling)
    inputs, targets = task.batch(0, 64)
    assert inputs.shape == (200, 64, 32)
    assert inputs.std().item() == pytest.approx(std, rel=0.01)
    assert inputs.mean().item() == pytest.approx(0, abs=0.02)
    assert (inputs.abs() < std).float().mean().item() == pytest.approx(math.erf(0.5**0.5), abs=0.01)
    assert targets.abs().max() <= 2
    assert torch.equal(inputs, task.batch(7, 64).inputs)
    assert task.baseline == pytest.approx(4 / 3)


@pytest.mark.parametrize(("scaling", "u", "c"), [("balanced", 0.5 / 32, 1 / 32), ("literal", 0.5, 1.0)])
def test_gaussian_system_is_stable_and_scaled(scaling, u, c):
    task = Gaussian(scaling=scaling)
    systems = [task.system(instance) for instance in range(20)]
    assert all(torch.linalg.matrix_norm(s.W, 2) <= 0.75 + 1e-12 for s in systems)
    assert torch.cat([s.U for s in systems]).var().item() == pytest.approx(u, rel=0.05)
    assert torch.cat([torch.cat([s.C, s.D]) for s in systems]).var().item() == pytest.approx(c, rel=0.2)
    states, inputs = torch.randn(3, 32, dtype=torch.float64), torch.randn(3, 32, dtype=torch.float64)
    by_hand = [s @ systems[0].C[0] + x @ systems[0].D[0] for s, x in zip(states, inputs, strict=True)]
    assert torch.allclose(systems[0].predict(states, inputs).squeeze(-1), torch.stack(by_hand))


def test_literal_scaling_saturates_a_tanh_and_the_balanced_one_does_not():
    for scaling, least, most in (("literal", 0.9, 1.0), ("balanced", 0.0, 0.5)):
        task = Gaussian(scaling=scaling)
        drive = task.batch(0, 8).inputs.double() @ task.system().U.T
        saturated = (drive.tanh().abs() > 0.9).double().mean().item()
        assert least * 0.9 <= saturated <= most


def test_copy_loss_is_the_cross_entropy():
    task = Copy(T=3)
    outputs, (_, targets) = 3 * torch.randn(task.length, 4, task.output_size), task.batch(0, 4)
    wanted = F.cross_entropy(outputs.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(task.loss(outputs, targets), wanted)
