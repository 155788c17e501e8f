"""How long training takes, estimated from its sizes: told before a study begins, and to choose the cheapest."""

from __future__ import annotations

import math
import time
from functools import cache

import torch

from mnemoscope.rl import PPOConfig
from mnemoscope.tasks import Task
from mnemoscope.training import FitConfig, RunConfig

# Microseconds of one step on one CPU core at n = 128: of a call, and of each sequence in the batch.
_CPU = {
    "LSTM": (16.0, 4.5),
    "torch.LSTM": (20.0, 7.0),
    "RNN": (8.0, 1.5),
    "torch.RNN": (8.0, 1.5),
    "OrthRNN": (13.0, 1.3),
    "ExpRNN": (23.0, 1.5),
    "GORU": (10.0, 6.0),
    "SAB": (20.0, 6.0),
    "RelRNN": (18.0, 4.4),
    "RelLSTM": (30.0, 8.3),
    "MemRNN": (20.0, 7.7),
    "MemLSTM": (35.0, 11.0),
}
_OTHER = (30.0, 8.0)
# The same on one H200 at batch 64, which a larger batch hardly changes.
_GPU = {"LSTM": 2.8, "RNN": 1.0, "OrthRNN": 1.2, "ExpRNN": 1.9, "GORU": 5.1, "SAB": 5.3, "RelRNN": 4.3, "RelLSTM": 6.9}
_CALL_SECONDS = 1.5e-3  # of an update, however small the network: of Python, the optimizer, small kernels
_CALL_SECONDS_ON_GPU = 2e-3  # of host time for an update, however short
_FULL_ATTENTION = ("MemRNN", "MemLSTM")
_FLOPS_A_SECOND = 2.7e10  # of a large matrix product on one core
_FRAMES_A_SECOND = 3000.0  # of an agent in play and training, on one core
_REFERENCE_SECONDS = 0.0135  # of `_workload` on the machine on which the figures above were taken


# Symbols or sequences of the training data, steps if they are not a field, and outputs: known without reading the data.
_DATA = {
    ("words", "wikitext-2"): (2_088_628, 33_278),
    ("words", "ptb"): (929_589, 10_000),
    ("characters", "ptb"): (5_017_483, 50),
}
_IMAGES = 50_000
_OTHER_TEXT = (1_000_000, 10_000)


def training_seconds(config: RunConfig, *, on_gpu: bool = False) -> float:
    """Return about how long a run takes on one core of the reference machine, or on its GPU, if it is never solved."""
    task, network, fit = config.task, config.network, config.fit
    if isinstance(fit, PPOConfig):
        frames = fit.updates * fit.envs * (fit.rollout or task.length) if fit.updates else fit.frames
        return frames / _FRAMES_A_SECOND
    assert isinstance(fit, FitConfig)
    batch = fit.batch_size
    steps, outputs, per_epoch = _sizes(task, batch)
    updates = (fit.epochs * per_epoch if fit.epochs else fit.updates) * fit.accumulate
    width = (network.hidden_size / 128) ** 2 if network.hidden_size > 128 else network.hidden_size / 128
    width *= network.num_layers
    readout_flops = 6.0 * steps * batch * outputs * network.hidden_size * (2 if network.embedding else 1)

    # Attention over everything costs the more, the longer the sequence.
    growth = 1 + steps / 130 if network.model in _FULL_ATTENTION else 1.0
    if on_gpu:
        a_step = _GPU.get(network.model, 5.0) * max(1.0, width / 4) * growth
        return updates * max(_CALL_SECONDS_ON_GPU, steps * a_step * 1e-6 + readout_flops / 2e13)
    call, sequence = _CPU.get(network.model, _OTHER)
    a_step = (call + sequence * batch * width) * growth
    return updates * (_CALL_SECONDS + steps * a_step * 1e-6 + readout_flops / _FLOPS_A_SECOND)


def _sizes(task: Task, batch: int) -> tuple[int, int, int]:
    """The steps of a sequence, the size of the read-out, and the batches of an epoch."""
    if task.carries_state:
        symbols, outputs = _DATA.get((task.name, str(getattr(task, "data", ""))), _OTHER_TEXT)
        outputs = getattr(task, "vocabulary", 0) or outputs
        return task.length, outputs, math.ceil(symbols / (batch * task.length))
    if task.name == "digits":
        return task.length, task.output_size, _IMAGES // batch
    if task.name == "chorales":
        return getattr(task, "cut", 0) or 130, task.output_size, math.ceil(230 / batch)
    return task.length, task.output_size, task.steps_per_epoch(batch) or 1


@cache
def machine_factor() -> float:
    """Return how many times slower one core of this machine is than one of the reference machine, at small products."""
    best = math.inf
    for _ in range(3):
        started = time.process_time()  # not of the clock: what else the machine does just now says little
        _workload()
        best = min(best, time.process_time() - started)
    return best / _REFERENCE_SECONDS


def _workload() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        weight = torch.full((128, 128), 0.01)
        x = torch.ones(64, 128)
        for _ in range(300):
            x = torch.tanh(x @ weight)
    finally:
        torch.set_num_threads(threads)


def words_for(seconds: float) -> str:
    """Return a duration in words: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 36_000 else f"{seconds / 3600:,.0f} h"
