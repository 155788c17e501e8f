"""One run over several processes: the numbers of one process, the same bytes every time, and one end for all."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import ranks_processes as processes
import torch

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import Adding, Batch, Characters, Chorales, Copy, Custom, Task
from mnemoscope.training import FitConfig, NetworkConfig, Run, RunConfig, train
from mnemoscope.training._ranks import Ranks

FIT = FitConfig(
    updates=20,
    batch_size=8,
    accumulate=2,
    schedule="plateau",
    lr=0.01,
    evaluate_every=5,
    evaluate_batches=3,
    log_every=4,
    checkpoint_every=7,
    threads=1,
    stop_when_solved=False,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join("abcdefgh"[i * i * i % 7] for i in range(6000)))
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    processes.warm_up()


def config_of(task: str, text: str, fit: FitConfig = FIT) -> RunConfig:
    network = NetworkConfig("RelRNN", 8, options={"buffer": 2, "relevant": 2})
    if task == "characters":  # the state is carried from batch to batch, and truncated inside of one
        return RunConfig(Characters(data=text, bptt=10), network, replace(fit, bptt=4))
    tasks: dict[str, Task] = {"copy": Copy(T=5), "adding": Adding(T=12), "chorales": Chorales(cut=40)}
    return RunConfig(tasks[task], NetworkConfig("LSTM", 8) if task == "chorales" else network, fit)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for name, t in Run(folder).checkpoint().tensors.items() if name.startswith("model.")}


def assert_close(one: Path, several: Path, tolerance: float) -> None:
    for name, expected in weights(one).items():
        assert (weights(several)[name] - expected).abs().max() < tolerance, name
    ours, theirs = Run(one).metrics(), Run(several).metrics()
    assert [record.keys() for record in ours] == [record.keys() for record in theirs]
    for record, other in zip(ours, theirs, strict=True):
        for name in ("loss", "gradient_norm", "lr"):
            if name in record:
                # The loss is recorded in float32, whatever the weights are in.
                assert other[name] == pytest.approx(record[name], rel=max(100 * tolerance, 1e-6))


TASKS = ["copy", "adding", "characters", pytest.param("chorales", marks=pytest.mark.data)]


@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_are_one_at_the_same_batch(task: str, text: str, tmp_path: Path) -> None:
    config = config_of(task, text, replace(FIT, precision="64-true"))
    train(config, tmp_path / "one")
    processes.run(config, tmp_path / "two", 2)
    assert_close(tmp_path / "one", tmp_path / "two", 1e-12)
    assert Run(tmp_path / "two").config.fit.ranks == 2
    assert "ranks" not in json.loads((tmp_path / "one" / "config.json").read_text())["fit"]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-5), ("64-true", 1e-12)])
@pytest.mark.parametrize("task", TASKS)
def test_ranks_are_one_after_200_updates(
    task: str, precision: str, tolerance: float, world: int, text: str, tmp_path: Path
) -> None:
    fit = replace(FIT, updates=200, evaluate_every=20, checkpoint_every=50, lr=1e-3, precision=precision)
    config = config_of(task, text, fit)
    train(config, tmp_path / "one")
    processes.run(config, tmp_path / "several", world)
    assert_close(tmp_path / "one", tmp_path / "several", tolerance)


def files(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    assert found.pop("summary.json")
    return found


def test_a_killed_rank_and_a_second_run_give_the_same_bytes(text: str, tmp_path: Path) -> None:
    config = config_of("characters", text)
    config = replace(config, network=replace(config.network, dropout=0.2))  # each rank has random numbers of its own
    processes.run(config, tmp_path / "a", 2)
    expected = files(tmp_path / "a")
    codes = processes.finish(processes.start(config, tmp_path / "b", 2, kill_rank=1, kill_at=10))
    assert codes[1] == -signal.SIGKILL
    assert Run(tmp_path / "b").saved_update == 7
    processes.run(config, tmp_path / "b", 2)
    assert files(tmp_path / "b") == expected
    names = Run(tmp_path / "a").checkpoint().tensors
    assert "rank1.random.cpu" in names
    assert "rank1.carried.0" in names


@pytest.mark.slow
def test_any_rank_killed_at_ten_random_moments(text: str, tmp_path: Path) -> None:
    random.seed(0)
    config = config_of("characters", text, replace(FIT, updates=60))
    begun = time.monotonic()
    processes.run(config, tmp_path / "a", 2)
    seconds = time.monotonic() - begun
    expected = files(tmp_path / "a")
    for number in range(10):
        folder = tmp_path / f"killed-{number}"
        started = processes.start(config, folder, 2)
        started[0].join(random.uniform(0, seconds))
        random.choice(started).kill()
        processes.finish(started)
        processes.run(config, folder, 2)
        assert files(folder) == expected, number


def test_a_stop_in_one_rank_ends_all_after_the_same_update(text: str, tmp_path: Path) -> None:
    config = config_of("copy", text)
    codes = processes.finish(processes.start(config, tmp_path / "run", 2, stop_rank=1, stop_at=9))
    assert codes == [5, 5]
    assert Run(tmp_path / "run").saved_update == 9
    processes.run(config, tmp_path / "run", 2)
    processes.run(config, tmp_path / "whole", 2)
    assert weights(tmp_path / "run").keys() == weights(tmp_path / "whole").keys()
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "run")[name], tensor)


def test_divergence_and_solving_end_all_ranks(text: str, tmp_path: Path) -> None:
    config = config_of("copy", text)
    diverging = replace(config, fit=replace(FIT, diverged=1e-3))
    assert processes.finish(processes.start(diverging, tmp_path / "diverging", 2)) == [3, 3]
    assert "diverged at update 1" in (tmp_path / "error-1").read_text()
    fit = replace(FIT, updates=400, schedule="constant", stop_when_solved=True)
    easy = RunConfig(Adding(T=2), NetworkConfig("LSTM", 16), fit)
    processes.run(easy, tmp_path / "easy", 2)
    summary = Run(tmp_path / "easy").summary()
    assert summary.outcome == "solved"
    assert summary.updates < 400


def test_a_batch_that_does_not_divide_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    config = config_of("copy", text, replace(FIT, batch_size=7))
    assert processes.finish(processes.start(config, tmp_path / "run", 2)) == [2, 2]
    message = "batch-size = 7 does not divide among 2 processes; use a multiple of 2"
    assert [(tmp_path / f"error-{rank}").read_text() for rank in range(2)] == [message] * 2
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_run_of_two_ranks_is_not_continued_by_one(text: str, tmp_path: Path) -> None:
    config = config_of("copy", text)
    processes.finish(processes.start(config, tmp_path / "run", 2, stop_rank=0, stop_at=3))
    with pytest.raises(MnemoscopeError, match="ranks = 2, but 1 process started; use torchrun --nproc-per-node 2"):
        train(Run(tmp_path / "run").config)


def test_rows_of_every_layout_of_targets() -> None:
    inputs = torch.arange(4 * 6 * 2).view(4, 6, 2)
    task = Copy()
    layouts = {"classes": [(4, 6), (6,)], "numbers": [(4, 6, 3), (6, 3)]}
    for answer, shapes in layouts.items():
        custom = Custom(lambda *_: None, input_size=2, output_size=3, length=4, answer=answer)
        for shape in shapes:
            targets = torch.randn(shape)
            for one in (task, custom):
                rows = one.rows(Batch(inputs, targets), slice(2, 4))
                assert rows.inputs.equal(inputs[:, 2:4])
                assert rows.targets.equal(targets[:, 2:4] if shape[:2] == (4, 6) else targets[2:4])
    square = Batch(torch.zeros(3, 3, 2), torch.arange(9.0).view(3, 3))  # (B, output_size), as large as (T, B)
    numbers = Custom(lambda *_: None, input_size=2, output_size=3, length=3, answer="numbers")
    assert numbers.rows(square, slice(0, 1)).targets.equal(square.targets[:1])


def test_batches_are_split_into_equal_rows() -> None:
    assert [Ranks(rank, 3).rows(9) for rank in range(3)] == [slice(0, 3), slice(3, 6), slice(6, 9)]
    with pytest.raises(MnemoscopeError, match="batch-size = 8 does not divide among 3 processes"):
        Ranks(0, 3).rows(8)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux tells the names of threads")
def test_no_thread_of_the_group_is_left_when_a_process_ends(tmp_path: Path) -> None:
    """One that is still there when Python ends may abort the process, after its run has ended well."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "from mnemoscope.tasks import Copy\n"
        "from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, train\n"
        "fit = FitConfig(updates=2, batch_size=4, evaluate_batches=1, threads=1)\n"
        "train(RunConfig(Copy(T=2), NetworkConfig('torch.RNN', 4), fit), sys.argv[1])\n"
        "names = [path.read_text() for path in pathlib.Path('/proc/self/task').glob('*/comm')]\n"
        "left = [name for name in names if 'gloo' in name]\n"
        "os.write(1, f'left: {left}\\n'.encode())\n"  # at once: the other process writes to the same pipe
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", "2", str(script), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("left: []") == 2, done.stdout


def test_torchrun_trains_by_the_usual_command(tmp_path: Path) -> None:
    options = "--model torch.RNN --hidden-size 4 --batch-size 4 --task.T 2 --updates 6 --evaluate-batches 1 --threads 1"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", "2"]
    command += ["-m", "mnemoscope", "train", "copy", *options.split(), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("budget spent after 6 updates") == 1
    assert Run(tmp_path / "run").config.fit.ranks == 2
