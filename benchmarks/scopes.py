"""What the scopes cost, in units of what training costs: python benchmarks/scopes.py [horizon] [watch] ..."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from mnemoscope import LSTM, RNN, RelRNN
from mnemoscope.scopes import Watch, horizon

STEPS, BATCH, HIDDEN, INPUT = 1000, 32, 128, 10


def median_seconds(call: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])  # the first warms up


def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "nn.LSTM": nn.LSTM(INPUT, HIDDEN), "LSTM": LSTM(INPUT, HIDDEN), "RNN": RNN(INPUT, HIDDEN),
        "RelRNN": RelRNN(INPUT, HIDDEN),
    }  # fmt: skip


def backward_seconds(run: Callable[[], Tensor], repeats: int = 3) -> float:
    """The backward pass alone of the sum of what a run gives last."""
    times = []
    for _ in range(repeats + 1):
        y = run()[-1].sum()
        start = time.perf_counter()
        y.backward()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def step_by_step(model: nn.Module, x: Tensor) -> Tensor:
    state, outputs = model.initial_state(x.shape[1]), []
    for x_t in x.unbind(0):
        y, state = model.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs)


def bench_horizon() -> Table:
    """All lags of inputs, and of inputs and states, against one plain backward pass of the model's own."""
    table = Table("model", "plain backward, s", "inputs, s", "passes", "and states, s", "passes", "loop's passes")
    x = torch.randn(STEPS, BATCH, INPUT)
    for name, model in models().items():
        plain = backward_seconds(lambda model=model: model(x)[0])
        loop = backward_seconds(lambda model=model: step_by_step(model, x)) if hasattr(model, "step") else None
        inputs = median_seconds(lambda model=model: horizon(model, x, states=False, behaviour=False))
        states = median_seconds(lambda model=model: horizon(model, x, behaviour=False))
        passes = [f"{cost / plain:.1f}" for cost in (inputs, states)]
        in_loops = f"{states / loop:.1f}" if loop else "-"
        table.add_row(name, f"{plain:.3f}", f"{inputs:.3f}", passes[0], f"{states:.3f}", passes[1], in_loops)
    return table


def bench_watch() -> Table:
    """One look in 100 updates, as a share of the training's time."""
    table = Table("model", "update, s", "look, s", "share of time, one look in 100 updates")
    x = torch.randn(200, BATCH, INPUT)
    for name, model in models().items():
        optimizer = torch.optim.Adam(model.parameters())

        def update(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            model(x)[0].square().mean().backward()
            optimizer.step()

        one, look = median_seconds(update), median_seconds(Watch(model, x).look)
        table.add_row(name, f"{one:.3f}", f"{look:.3f}", f"{look / (100 * one + look):.1%}")
    return table


BENCHES: dict[str, Callable[[], Table]] = {"horizon": bench_horizon, "watch": bench_watch}


def main(names: list[str]) -> None:
    console = Console()
    for name in names or list(BENCHES):
        console.print(f"[bold]{name}[/]: {BENCHES[name].__doc__}")
        console.print(BENCHES[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
