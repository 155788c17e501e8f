"""What the scopes cost: python benchmarks/scopes.py [horizon] [watch] [lyapunov] [landscape] [examine].

Without names, all of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from mnemoscope import GRU, LSTM, RNN, MemRNN, RelLSTM, RelRNN, examine, kernels
from mnemoscope.scopes import SCOPES, Watch, horizon, landscape, lyapunov
from mnemoscope.theory.smoothness import chaotic_lstm

STEPS, BATCH, HIDDEN, INPUT = 1000, 32, 128, 10


def median_seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """Return the median time of a call, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "nn.LSTM": nn.LSTM(INPUT, HIDDEN),
        "LSTM": LSTM(INPUT, HIDDEN),
        "RNN": RNN(INPUT, HIDDEN),
        "GRU": GRU(INPUT, HIDDEN),
        "RelRNN": RelRNN(INPUT, HIDDEN),
        "MemRNN": MemRNN(INPUT, HIDDEN),
    }


def forward_backward_seconds(run: Callable[[], Tensor], repeats: int = 4) -> tuple[float, float]:
    """Return the median times of a forward pass and of the backward pass from its last output."""
    forward, backward = [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        y = run()[-1].sum()
        middle = time.perf_counter()
        y.backward()
        forward.append(middle - start)
        backward.append(time.perf_counter() - middle)
    return statistics.median(forward[1:]), statistics.median(backward[1:])  # the first call warms up


def bench_horizon() -> Table:
    """All lags of inputs, and of inputs and states: time beyond a forward pass, in backward passes."""
    headings = ("model", "forward, s", "backward, s", "inputs, s", "passes", "inputs and states, s", "passes")
    table = Table(*headings)
    x = torch.randn(STEPS, BATCH, INPUT)
    for name, model in models().items():
        forward, backward = forward_backward_seconds(lambda model=model: model(x)[0])
        row = [name, f"{forward:.3f}", f"{backward:.3f}"]
        for states in (False, True):
            seconds = median_seconds(lambda m=model, states=states: horizon(m, x, states=states, behavior=False), 4)
            row += [f"{seconds:.3f}", f"{(seconds - forward) / backward:.1f}"]
        table.add_row(*row)
    return table


def bench_watch() -> Table:
    """One look of `Watch` in 100 updates, as a share of the training time."""
    table = Table("model", "update, s", "look, s", "share of time, one look in 100 updates")
    x = torch.randn(200, BATCH, INPUT)
    for name, model in models().items():
        optimizer = torch.optim.Adam(model.parameters())

        def update(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            model(x)[0].square().mean().backward()
            optimizer.step()

        update_time = median_seconds(update)
        look_time = median_seconds(Watch(model, x).look)
        share = look_time / (100 * update_time + look_time)
        table.add_row(name, f"{update_time:.3f}", f"{look_time:.3f}", f"{share:.1%}")
    return table


def bench_lyapunov() -> Table:
    """128 exponents of an LSTM with 128 units, against a full autograd Jacobian at every step."""
    table = Table("", "s a step", "speed-up")
    model, x = LSTM(INPUT, HIDDEN), torch.randn(40, 1, INPUT)
    ours = median_seconds(lambda: lyapunov(model, x, exponents=128)) / len(x)
    state = tuple(t.detach() for t in model.initial_state(1))

    def by_jacobians() -> None:
        def step(h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            return model.step(x[0], (h, c))[1]

        blocks = torch.autograd.functional.jacobian(step, state)
        full = torch.cat([torch.cat([b.reshape(HIDDEN, HIDDEN) for b in row], 1) for row in blocks])
        torch.linalg.qr(full @ torch.eye(2 * HIDDEN, 128))

    theirs = median_seconds(by_jacobians)
    table.add_row("full Jacobians", f"{theirs:.4f}", "1.0")
    table.add_row("lyapunov", f"{ours:.4f}", f"{theirs / ours:.1f}")
    return table


def bench_landscape() -> Table:
    """A 51 x 51 plane of the chaotic LSTM's cost over 200 steps, against a loop over the points."""
    table = Table("", "s a point", "speed-up")
    model, x = LSTM(1, 2, bias=False, dtype=torch.float64), torch.zeros(200, 1, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight_hh_l0.copy_(chaotic_lstm(1.0).weight_hh)
    target = model(x)[0].detach() + 0.1
    own = {name: p.detach().clone() for name, p in model.named_parameters()}

    def point() -> None:
        with torch.no_grad(), kernels.backend("eager"):
            y = torch.func.functional_call(model, {name: 1.01 * p for name, p in own.items()}, (x,))[0]
            nn.functional.mse_loss(y, target)

    theirs = median_seconds(point, 10)
    plane = median_seconds(lambda: landscape(model, x, targets=target, loss=nn.functional.mse_loss, points=51))
    table.add_row("a loop over the points", f"{theirs:.5f}", "1.0")
    table.add_row("landscape", f"{plane / 51**2:.5f}", f"{theirs / (plane / 51**2):.1f}")
    return table


class LanguageModel(nn.Module):
    """Two layers of 200 units between an embedding and a read-out of 10,000 words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 200)
        self.lstm = nn.LSTM(200, 200, 2)
        self.readout = nn.Linear(200, 10_000)

    def forward(self, words: Tensor) -> Tensor:
        return self.readout(self.lstm(self.embedding(words))[0])


def bench_examine() -> Table:
    """`examine` scope by scope with default options, in seconds of CPU time: they hardly depend on other work."""
    torch.manual_seed(0)
    words, following = torch.randint(10_000, (2, 100, 8))
    loss = {
        "targets": following,
        "loss": lambda y, target: nn.functional.cross_entropy(y.flatten(0, 1), target.ravel()),
    }
    cases: dict[str, tuple[nn.Module, Tensor, dict[str, Any]]] = {
        "nn.LSTM(64, 256, 2), T = 200, batch 16": (nn.LSTM(64, 256, 2), torch.randn(200, 16, 64), {}),
        "language model, T = 100, batch 8": (LanguageModel(), words, loss),
        "RelLSTM(32, 128), T = 200, batch 16": (RelLSTM(32, 128), torch.randn(200, 16, 32), {}),
    }
    table = Table("scope", *cases)
    examine(LSTM(3, 8), torch.randn(20, 2, 3))  # imports parts of torch
    seconds = {
        name: [
            _cpu_seconds(lambda c=case, name=name: examine(c[0], c[1], scopes=[name], **c[2]))
            for case in cases.values()
        ]
        for name in SCOPES
    }
    for name, row in seconds.items():
        table.add_row(name, *(f"{value:.1f}" for value in row))
    table.add_row("together", *(f"{sum(column):.1f}" for column in zip(*seconds.values(), strict=True)))
    return table


def _cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


BENCHMARKS: dict[str, Callable[[], Table]] = {
    "horizon": bench_horizon,
    "watch": bench_watch,
    "lyapunov": bench_lyapunov,
    "landscape": bench_landscape,
    "examine": bench_examine,
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"usage: python benchmarks/scopes.py [{'] ['.join(BENCHMARKS)}]; got {' '.join(unknown)}")
    console = Console()
    for name in names or list(BENCHMARKS):
        console.print(f"[bold]{name}[/]: {BENCHMARKS[name].__doc__}")
        console.print(BENCHMARKS[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
