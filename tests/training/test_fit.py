"""What the loop does, against updates made by hand."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from regression_task import QUIET, TASK, model, regression
from torch import Tensor, nn

from mnemoscope import MnemoscopeError
from mnemoscope.layers import trim_memory
from mnemoscope.tasks import Characters, Copy, Custom, Symbols
from mnemoscope.training import (
    FitConfig,
    NetworkConfig,
    Progress,
    Run,
    RunConfig,
    SequenceModel,
    evaluate,
    fit,
    train,
)
from mnemoscope.training._batch_learner import BatchLearner
from mnemoscope.training._folder import RunFolder


def by_hand(updates: int, rate, *, clip: float = math.inf, pieces=None, batches: int = 1) -> SequenceModel:
    """Gradient descent written out: w <- w - rate(t) * mean of the batches' gradients, clipped by norm."""
    net = model()
    for t in range(1, updates + 1):
        net.zero_grad()
        for i in range(batches):
            x, y = regression((t - 1) * batches + i, 3, "train")
            output, state = None, None
            for piece in x.split(pieces or len(x)):
                output, state = net(piece, state)
                state = state.detach()
            (nn.functional.mse_loss(output[-1], y) / batches).backward()
        gradients = [p.grad for p in net.parameters()]
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        with torch.no_grad():
            for p, g in zip(net.parameters(), gradients, strict=True):
                p -= rate(t) * g * min(1.0, clip / norm)
    return net


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"rate": lambda t: 0.05}),
        ({"schedule": "inverse"}, {"rate": lambda t: 0.05 / t}),
        ({"schedule": "inverse-sqrt"}, {"rate": lambda t: 0.05 / math.sqrt(t)}),
        ({"schedule": "step", "step_every": 2, "factor": 0.1}, {"rate": lambda t: 0.05 * 0.1 ** ((t - 1) // 2)}),
        (
            {"schedule": "milestones", "milestones": (1, 3), "factor": 0.1},
            {"rate": lambda t: 0.05 * 0.1 ** ((t > 1) + (t > 3))},
        ),
        ({"clip": 0.3}, {"rate": lambda t: 0.05, "clip": 0.3}),
        ({"bptt": 3}, {"rate": lambda t: 0.05, "pieces": 3}),
        ({"accumulate": 2}, {"rate": lambda t: 0.05, "batches": 2}),
    ],
    ids=["constant", "inverse", "inverse-sqrt", "step", "milestones", "clip", "bptt", "accumulate"],
)
def test_updates_match_gradient_descent_by_hand(options, expected) -> None:
    net = model()
    config = FitConfig(5, optimizer="sgd", lr=0.05, **{**QUIET, "clip": 0.0, **options})
    fit(net, TASK, config)
    for one, other in zip(net.parameters(), by_hand(5, **expected).parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_plateau_lowers_the_rate_when_the_held_out_loss_does_not_fall(tmp_path: Path) -> None:
    frozen = model()
    for p in frozen.parameters():
        p.requires_grad_(False)
    frozen.readout.bias.requires_grad_(True)
    config = FitConfig(8, optimizer="sgd", lr=1e-30, schedule="plateau", factor=0.1, patience=1)
    options = {**QUIET, "evaluate_every": 2, "log_every": 1}
    rates = records(frozen, FitConfig(**{**vars(config), **options}), tmp_path)
    assert rates == pytest.approx([1e-30] * 6 + [1e-31] * 2)  # evaluations 2 and 3 are no better than 1


def records(net: nn.Module, config: FitConfig, folder: Path, name: str = "lr") -> list[float]:
    fit(net, TASK, config, folder / "run")
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines if "split" not in line]


@pytest.mark.parametrize("T", [2, 30])
def test_scaled_clip_follows_the_share_of_the_loss_that_asks_for_an_answer(T: int, tmp_path: Path) -> None:
    task = Copy(T=T)
    net = SequenceModel.for_task(task, NetworkConfig("torch.RNN", 4))
    before = [p.detach().clone() for p in net.parameters()]
    config = FitConfig(1, optimizer="sgd", lr=1.0, clip=1e-3, scale_clip=True, **{**QUIET, "evaluate_every": 1})
    fit(net, task, config, tmp_path / "run")
    step = torch.cat([(p - start).flatten() for p, start in zip(net.parameters(), before, strict=True)])
    assert step.norm().item() == pytest.approx(1e-3 * 10 / (T + 20), rel=1e-3)
    assert Run(tmp_path / "run").config.fit.scale_clip


def test_tasks_that_ask_at_every_step_or_at_the_end_leave_a_scaled_clip_as_it_is() -> None:
    assert TASK.answer_share == 1
    assert Custom(regression, input_size=2, output_size=1, length=4, answer_share=0.5).answer_share == 0.5
    with pytest.raises(MnemoscopeError, match="answer_share = 0 is not allowed: answer_share must be above 0"):
        Custom(regression, input_size=2, output_size=1, length=4, answer_share=0)


@pytest.fixture
def text_task(tmp_path: Path) -> Characters:
    (tmp_path / "text.txt").write_text("the sea and the sand " * 100)
    return Characters(str(tmp_path / "text.txt"), bptt=6)


@pytest.mark.parametrize("name", ["MemRNN", "MemLSTM", "SAB"])
def test_memory_that_grows_without_end_is_refused_on_running_text(name: str, text_task: Characters) -> None:
    net = SequenceModel.for_task(text_task, NetworkConfig(name, 4))
    message = f"{name} keeps every state, and characters carries its memory from batch to batch: it would grow without"
    with pytest.raises(MnemoscopeError, match=message):
        fit(net, text_task, FitConfig(1, **QUIET))
    with pytest.raises(MnemoscopeError, match="set carry-memory = 0 to empty it before each, or to the"):
        evaluate(net, text_task, batch_size=3)
    fit(net, text_task, FitConfig(3, carry_memory=4, **QUIET))
    copy = Copy(T=1)  # of which nothing is carried
    fit(SequenceModel.for_task(copy, NetworkConfig(name, 4)), copy, FitConfig(1, **QUIET))


@pytest.mark.parametrize("keep", [0, 2, 100])
def test_carried_memory_is_what_the_next_batch_attends(keep: int, text_task: Characters) -> None:
    """The loss over three batches is that of a loop that trims the state itself."""
    net = SequenceModel.for_task(text_task, NetworkConfig("MemRNN", 4, readout_gain=3.0))
    found = evaluate(net, text_task, batch_size=3, batches=3, carry_memory=keep)["loss"]
    state, losses, h = None, [], []
    with torch.no_grad():
        for step in range(3):
            inputs, targets = text_task.batch(step, 3, "valid")
            outputs, state = net(inputs, state)
            assert state.memory.origin.shape[-1] == min(keep, 6 * step) + 6
            losses.append((text_task.loss(outputs, targets).item(), targets.numel()))
            h.append(state.plain)
            state = trim_memory(state, keep)
            assert torch.equal(state.plain, h[-1])
    assert found == pytest.approx(sum(a * b for a, b in losses) / sum(b for _, b in losses))


def test_gradient_norm_is_recorded_before_clipping(tmp_path: Path) -> None:
    norms = records(model(), FitConfig(3, optimizer="sgd", clip=1e-3, log_every=1, **QUIET), tmp_path, "gradient_norm")
    assert min(norms) > 0.01


def test_slow_parameters_have_a_tenth_of_the_learning_rate() -> None:
    net = SequenceModel(2, 1, NetworkConfig("ExpRNN", 4))
    slow = set(net.layer.slow_parameters())
    before = [p.detach().clone() for p in net.parameters()]
    x, y = regression(0, 3, "train")
    nn.functional.mse_loss(net(x)[0][-1], y).backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    fit(net, TASK, FitConfig(1, optimizer="sgd", lr=0.1, **{**QUIET, "clip": 0.0}))
    assert slow
    for p, start, gradient in zip(net.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(p.detach(), start - (0.01 if p in slow else 0.1) * gradient)


def test_stable_keeps_the_layer_contracting_after_every_update(tmp_path: Path) -> None:
    net = model("RNN", 5)
    nn.init.eye_(net.layer.weight_hh_l0)
    config = FitConfig(6, optimizer="sgd", lr=3.0, stable=0.6, record_every=1, **QUIET)
    fit(net, TASK, config, tmp_path / "run")
    updates, path = Run(tmp_path / "run").trajectory()
    assert updates == list(range(7))
    assert torch.equal(path[-1], nn.utils.parameters_to_vector(net.parameters()).detach())
    norms = []
    for vector in path:
        nn.utils.vector_to_parameters(vector, net.parameters())
        norms.append(torch.linalg.matrix_norm(net.layer.weight_hh_l0, 2).item())
    assert max(norms) <= 0.6 * (1 + 1e-6)
    assert max(norms) > 0.59
    with pytest.raises(MnemoscopeError, match=r"stable = 0.6 is not allowed: the stable sets are known for"):
        fit(SequenceModel(2, 1, NetworkConfig("GRU", 4)), TASK, config)


def test_stable_1_keeps_the_norm_of_the_recurrent_weights_at_most_1() -> None:
    net = model("RNN", 5)
    with torch.no_grad():
        net.layer.weight_hh_l0.copy_(3 * torch.eye(5))
    fit(net, TASK, FitConfig(3, optimizer="sgd", lr=1e-30, stable=1.0, **QUIET))
    torch.testing.assert_close(net.layer.weight_hh_l0.detach(), torch.eye(5), rtol=1e-5, atol=1e-6)
    assert torch.linalg.matrix_norm(net.layer.weight_hh_l0, 2) <= 1


def test_projections_are_called_after_each_update() -> None:
    seen = []
    fit(model(), TASK, FitConfig(3, **QUIET), projections=[lambda net: seen.append(net.readout.bias.item())])
    assert len(seen) == 4  # and once before the first
    assert len(set(seen)) == 4


class Counting(nn.Module):
    """Its state counts the steps it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.starts: list[float] = []

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        state = x.new_zeros(1, x.shape[1], 1) if state is None else state
        self.starts.append(state[0, 0, 0].item())
        return x[..., :1] * self.weight, state + len(x)


class Stream(Custom):
    """Three batches a pass, the second and third going on from the one before."""

    carries_state = True

    def resets_state(self, step: int, size: int, split="train") -> bool:
        return step % 3 == 0


def test_state_is_carried_until_the_task_resets_it() -> None:
    net = Counting()
    task = Stream(regression, input_size=2, output_size=1, length=4, answer="numbers")
    fit(net, task, FitConfig(5, **{**QUIET, "accumulate": 1, "bptt": 2}))
    training, held_out = net.starts[:10], net.starts[10:]
    assert training == [0, 2, 4, 6, 8, 10, 0, 2, 4, 6]
    assert held_out == [0]


def test_stop_when_solved(tmp_path: Path) -> None:
    task = Custom(regression, input_size=2, output_size=1, length=4, answer="numbers", solved=1e-3)
    config = FitConfig(3000, lr=0.02, evaluate_every=50, evaluate_batches=2, threads=1)
    summary = fit(model(), task, config, tmp_path / "run")
    assert summary.outcome == "solved"
    assert summary.updates < 3000
    assert summary.updates % 50 == 0
    assert summary.best == summary.held_out["mse"] <= 1e-3


def test_global_torch_state_is_restored(tmp_path: Path) -> None:
    net = model()
    torch.manual_seed(5)
    before = (torch.get_rng_state(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    fit(net, TASK, FitConfig(2, **{**QUIET, "threads": 1}))
    after = (torch.get_rng_state(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_evaluate_restores_the_mode_and_weights_batches() -> None:
    net = SequenceModel(2, 1, NetworkConfig("LSTM", 4, dropout=0.5))
    together = evaluate(net, TASK, batch_size=4, batches=2, split="test")
    assert net.training
    net.eval()
    each = [TASK.metrics(net(x)[0], y)["mse"] for x, y in (regression(step, 4, "test") for step in (0, 1))]
    assert together["mse"] == pytest.approx(sum(each) / 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "split = 'dev' is not allowed; it must be one of 'train', 'valid', 'test'"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1; got 0"),
        ({"batches": 0}, "batches must be a whole number of at least 1; got 0"),
        ({"carry_memory": -1}, "carry_memory must be a whole number of at least 0; got -1"),
    ],
)
def test_evaluate_refuses_wrong_options(options: dict, message: str) -> None:
    task = Symbols(T=60, sequences=10)
    model = SequenceModel.for_task(task, NetworkConfig("RNN", hidden_size=4))
    with pytest.raises(MnemoscopeError, match=message):
        evaluate(model, task, **options)
    with pytest.raises(MnemoscopeError, match="task is a Task"):
        evaluate(model, "symbols")  # type: ignore[arg-type]


def test_to_resume_takes_a_folder() -> None:
    with pytest.raises(MnemoscopeError, match="resume=True needs the folder of the run"):
        fit(nn.LSTM(10, 9), Copy(T=5), FitConfig(updates=1), resume=True)


def test_user_model_and_user_task_can_be_resumed(tmp_path: Path) -> None:
    whole, parts = Counting(), Counting()
    config = FitConfig(6, checkpoint_every=2, **QUIET)
    fit(whole, TASK, config, tmp_path / "whole")

    def interrupt(progress: Progress) -> None:
        if progress.update == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(parts, TASK, config, tmp_path / "parts", callback=interrupt)
    again = Counting()
    fit(again, TASK, config, tmp_path / "parts", resume=True)
    assert torch.equal(whole.weight, again.weight)
    with pytest.raises(MnemoscopeError, match=r"has a network of your own, test_fit.Counting"):
        _ = Run(tmp_path / "parts").config
    with pytest.raises(MnemoscopeError, match=r"its fit has lr = 0.001, not 0.5"):
        fit(again, TASK, FitConfig(6, lr=0.5, checkpoint_every=2, **QUIET), tmp_path / "parts", resume=True)


class Stateless(nn.Linear):
    """Has no state, and records in which mode it was called."""

    def forward(self, x: Tensor, state: None = None) -> tuple[Tensor, None]:
        assert self.training == torch.is_grad_enabled()
        return super().forward(x), None


def test_model_without_state_is_trained_in_train_mode() -> None:
    task = Stream(regression, input_size=2, output_size=1, length=4, answer="numbers")
    assert fit(Stateless(2, 1).eval(), task, FitConfig(4, bptt=2, **QUIET)).updates == 4


def test_epochs() -> None:
    data = [regression(step, 3, "train") for step in range(5)]
    task = Custom(data, valid=data[:1], input_size=2, output_size=1, length=4, answer="numbers")
    assert fit(model(), task, FitConfig(epochs=3, accumulate=2, **QUIET)).updates == 8
    with pytest.raises(MnemoscopeError, match="epochs = 3 needs a fixed data set"):
        fit(model(), TASK, FitConfig(epochs=3, **QUIET))


def test_milestones_are_epochs_where_training_is_counted_in_epochs() -> None:
    data = [regression(step, 3, "train") for step in range(5)]
    task = Custom(data, valid=data[:1], input_size=2, output_size=1, length=4, answer="numbers")
    config = FitConfig(epochs=3, schedule="milestones", milestones=(1, 2), factor=0.1, lr=1.0, **QUIET)
    learner = BatchLearner(model(), task, config)
    rates = []
    for _ in range(15):
        rates.append(learner._optimizer.param_groups[0]["lr"])
        learner.update()
    assert rates == pytest.approx(5 * [1.0] + 5 * [0.1] + 5 * [0.01])


@pytest.mark.parametrize("precision", ["32-true", "64-true", "tf32-true"])
def test_precision(precision) -> None:
    net = model()
    summary = fit(net, TASK, FitConfig(2, precision=precision, **QUIET))
    assert {p.dtype for p in net.parameters()} == {torch.float64 if precision == "64-true" else torch.float32}
    assert summary.held_out["loss"]


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [("cuda", "tf32-true", "high"), ("cuda", "32-true", "highest"), ("cpu", "tf32-true", "highest")],
)
def test_matrix_products_are_in_tf32_while_a_run_on_a_gpu_asks_for_it(monkeypatch, device, precision, expected) -> None:
    seen = []
    monkeypatch.setattr("mnemoscope.training._fit.select_device", lambda config: device)  # the learner's is the CPU
    fit(
        model(),
        TASK,
        FitConfig(1, device="cpu", precision=precision, **QUIET),
        callback=lambda progress: seen.append(torch.get_float32_matmul_precision()),
    )
    assert set(seen) == {expected}
    assert torch.get_float32_matmul_precision() == "highest"


def test_folder_that_is_not_empty_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    config = RunConfig(Copy(T=2), NetworkConfig("torch.RNN", 2), FitConfig(1, **QUIET))
    with pytest.raises(MnemoscopeError, match="is not empty and holds no run; choose another folder"):
        train(config, tmp_path)
    with pytest.raises(MnemoscopeError, match=r"notes.txt is a file; choose another folder"):
        train(config, tmp_path / "notes.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    train(config, tmp_path / "deep/run")
    with pytest.raises(MnemoscopeError, match="already holds a run; resume it, or choose another folder"):
        train(config, tmp_path / "deep/run")
    with pytest.raises(MnemoscopeError, match=r"is not a run folder: it has no config.json"):
        Run(tmp_path)


def test_lock_keeps_a_second_process_out(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").locked(), ThreadPoolExecutor(1) as others:
        refused = others.submit(fit, model(), TASK, FitConfig(1, **QUIET), tmp_path / "run")
        with pytest.raises(MnemoscopeError, match="is in use by another process"):
            refused.result()


def test_tensorboard_log_has_the_metrics(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    fit(model(), TASK, FitConfig(4, log_every=2, tensorboard=True, **QUIET), tmp_path / "run")
    board = reading.EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    logged = [(event.step, event.value) for event in board.Scalars("train/loss")]
    assert logged == [(r["update"], pytest.approx(r["loss"])) for r in lines if "split" not in r]
    assert [event.step for event in board.Scalars("valid/mse")] == [4]
