"""A user's own task: functions, lists, loaders and one-shot iterators of (inputs, targets)."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import Custom

PAIRS = [(torch.randn(5, 2, 3), torch.tensor([0, n % 4])) for n in range(4)]


def parity(step, size, split):
    random = torch.Generator().manual_seed(hash((step, size, len(split))))
    bits = torch.randint(0, 2, (6, size, 1), generator=random)
    return bits.float(), bits.sum(0).squeeze(-1) % 2


def numbered(source, **options):
    return Custom(source, input_size=3, output_size=4, length=5, **options)


def test_function_source_serves_every_split():
    task = Custom(parity, input_size=1, output_size=2, length=6)
    assert torch.equal(task.batch(3, 4).inputs, task.batch(3, 4).inputs)
    assert not torch.equal(task.batch(3, 8).inputs, task.batch(3, 8, "test").inputs)
    assert (task.needs, task.steps_per_epoch(4), task.metric) == (5, None, "accuracy")


def test_list_source_in_any_order_and_again():
    task = numbered(PAIRS)
    for step in (0, 1, 3, 2, 2, 7, 4):
        assert torch.equal(task.batch(step, 2).inputs, PAIRS[step % 4][0])
    assert task.steps_per_epoch(2) == 4


def test_data_loader_source():
    inputs, targets = torch.randn(10, 5, 3), torch.randint(0, 4, (10,))

    def time_first(rows):
        return torch.stack([x for x, _ in rows], 1), torch.stack([y for _, y in rows])

    loader = DataLoader(TensorDataset(inputs, targets), batch_size=5, collate_fn=time_first)
    task = numbered(loader, valid=PAIRS)
    assert torch.equal(task.batch(1, 5).inputs, inputs[5:].transpose(0, 1))
    assert torch.equal(task.batch(2, 5).targets, targets[:5])
    assert torch.equal(task.batch(0, 5, "valid").inputs, PAIRS[0][0])


def test_iterator_source_goes_forward_only():
    task = numbered(iter(PAIRS))
    assert torch.equal(task.batch(0, 2).inputs, PAIRS[0][0])
    assert torch.equal(task.batch(2, 2).inputs, PAIRS[2][0])
    with pytest.raises(MnemoscopeError, match="have passed number 1"):
        task.batch(1, 2)
    with pytest.raises(MnemoscopeError, match="end before number 9"):
        task.batch(9, 2)


def test_empty_list_source_is_refused():
    with pytest.raises(MnemoscopeError, match="number of train batches = 0"):
        numbered([]).batch(0, 2)


def test_missing_split_is_refused():
    with pytest.raises(MnemoscopeError, match="no valid batches"):
        numbered(PAIRS).batch(0, 2, "valid")


@pytest.mark.parametrize("every_step", [True, False])
def test_custom_classes(every_step):
    targets = torch.randint(0, 4, (5, 6) if every_step else (6,))
    outputs = torch.randn(5, 6, 4)
    task = numbered([(torch.zeros(5, 6, 3), targets)])
    logits = outputs if every_step else outputs[-1]
    picked = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    assert task.loss(outputs, targets).item() == pytest.approx(-picked.mean().item(), rel=1e-5)
    right = (logits.argmax(-1) == targets).float().mean().item()
    assert task.metrics(outputs, targets)["accuracy"] == pytest.approx(right)


def test_ignored_classes_do_not_count():
    task, outputs = numbered(PAIRS), torch.randn(5, 2, 4)
    targets = torch.full((5, 2), -100)
    targets[3] = outputs[3].argmax(-1)
    assert task.metrics(outputs, targets)["accuracy"] == 1
    assert task.weight(targets) == 2


def test_a_batch_without_targets_that_count_does_not_count():
    task = Custom([], input_size=1, output_size=2, length=3)
    outputs, ignored = torch.randn(3, 4, 2), torch.full((4,), -100)
    batches = [torch.tensor([0, 1, 1, 0]), ignored]
    metrics = [task.metrics(outputs, targets) for targets in batches]
    assert task.combine(metrics, [task.weight(targets) for targets in batches]) == metrics[0]  # not NaN
    with pytest.raises(MnemoscopeError, match="custom: no target of these batches counts"):
        task.combine(metrics[1:], [0])


@pytest.mark.parametrize("every_step", [True, False])
def test_custom_numbers(every_step):
    task = numbered(PAIRS, answer="numbers")
    outputs = torch.randn(5, 2, 4)
    targets = torch.randn(5, 2, 4) if every_step else torch.randn(2, 4)
    errors = (outputs - targets) if every_step else (outputs[-1] - targets)
    assert task.loss(outputs, targets).item() == pytest.approx(errors.square().mean().item())
    assert (task.metric, task.higher_is_better) == ("mse", False)
    assert task.metrics(outputs, targets)["mse"] == task.loss(outputs, targets).item()


def test_fields_are_set_by_the_user():
    task = numbered(PAIRS, needs=3, solved=0.9, baseline=1.5)
    assert (task.needs, task.solved, task.baseline) == (3, 0.9, 1.5)
    assert replace(task, seed=4).seed == 4


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (torch.zeros(3), "pair of tensors"),
        ((torch.zeros(5, 2, 7), torch.zeros(2)), r"shape of inputs = \(5, 2, 7\) .* must be \(T, B, 3\)"),
        ((torch.zeros(5, 2, 3), torch.zeros(5, 2, 1)), "dimensions of targets = 3"),
    ],
)
def test_wrong_batch_shapes_are_refused(pair, words):
    with pytest.raises(MnemoscopeError, match=words):
        numbered([pair]).batch(0, 2)


def test_token_input_of_custom_task():
    pairs = [(torch.zeros(5, 2, dtype=torch.int64), PAIRS[0][1])]
    task = Custom(pairs, input_size=9, output_size=4, length=5, token_input=True)
    assert task.token_input
    assert task.batch(0, 2).inputs.shape == (5, 2)
    with pytest.raises(MnemoscopeError, match="input_size = 0"):
        Custom(PAIRS, output_size=2, length=3)


@pytest.mark.parametrize(
    ("targets", "options", "words"),
    [
        (torch.zeros(5).long(), {}, r"shape of targets = \(5,\) is not allowed.*\(4,\) or \(3, 4\)"),
        (torch.zeros(4, 3).long(), {}, r"\(4,\) or \(3, 4\)"),
        (torch.zeros(4), {}, "dtype of targets = torch.float32 is not allowed.*int64"),
        (torch.full((4,), 7), {}, "class in targets = 7 is not allowed.*0 to 1, or -100"),
        (torch.zeros(2, 4), {"answer": "numbers"}, r"\(4, 2\) or \(3, 4, 2\)"),
        (torch.zeros(4, 2).long(), {"answer": "numbers"}, "dtype of targets = torch.int64 is not allowed"),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets, options, words):
    """Numbers (output_size, B) would be read in another order, and the rest end in an error of torch's loss."""
    task = Custom(lambda *_: (torch.zeros(3, 4, 1), targets), input_size=1, output_size=2, length=3, **options)
    with pytest.raises(MnemoscopeError, match=words):
        task.batch(0, 4)
