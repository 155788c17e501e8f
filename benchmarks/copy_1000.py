"""Trains RelRNN on Copy(T=1000) until 99 % of the symbols are right: python benchmarks/copy_1000.py [--lr 1e-3]."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from mnemoscope import RelRNN
from mnemoscope.tasks.copying import Copy


class Model(nn.Module):
    def __init__(self, task: Copy, n: int) -> None:
        super().__init__()
        self.memory = RelRNN(task.input_size, n)
        self.readout = nn.Linear(n, task.output_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.readout(self.memory(x)[0])


def accuracy(task: Copy, model: Model, device: str) -> float:
    """On sequences that training never sees."""
    with torch.no_grad():
        batches = [task.batch(step, 128, "valid") for step in range(2)]
        scores = [task.metrics(model(x.to(device)), y.to(device))["accuracy"] for x, y in batches]
    return sum(scores) / len(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--T", type=int, default=1000)
    parser.add_argument("--n", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--curve", type=Path, help="where to write the learning curve (CSV)")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    task, started = Copy(options.T), time.perf_counter()
    model = Model(task, options.n).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=options.lr)
    rows, update, score = ["update,seconds,loss,accuracy,largest_gradient"], 0, 0.0
    largest, skipped = 0.0, 0
    print(f"Copy(T={options.T}) on {device}; a model without memory has loss {task.baseline:.5f}", flush=True)
    while score < task.solved and time.perf_counter() - started < options.seconds:
        x, y = (t.to(device, non_blocking=True) for t in task.batch(update, options.batch, "train"))
        loss = task.loss(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):  # a gradient may leave float's range on its way through a thousand steps
            optimiser.step()
        largest, skipped = max(largest, norm.item()), skipped + (not torch.isfinite(norm))
        update += 1
        if update % 100 == 0:
            score, seconds = accuracy(task, model, device), time.perf_counter() - started
            rows.append(f"{update},{seconds:.1f},{loss.item():.6f},{score:.4f},{largest:.3g}")
            largest = 0.0
            print(rows[-1], flush=True)
            if options.curve:
                options.curve.write_text("\n".join(rows) + "\n")
    verdict, seconds = "solved" if score >= task.solved else "not solved", time.perf_counter() - started
    print(f"{verdict}: accuracy {score:.4f} after {update} updates ({int(skipped)} left out), {seconds:.1f} s")


if __name__ == "__main__":
    main()
