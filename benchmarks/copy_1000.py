"""Trains RelRNN on Copy(T=1000) until 99 % of the symbols are right: python benchmarks/copy_1000.py [--start 100].

With `--start` the silence that is trained on begins short and doubles each time it is mastered; the accuracy that is
reported, and that ends the training, is always the one on T.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from mnemoscope.tasks import Copy
from mnemoscope.training import NetworkConfig, SequenceModel

TARGET = 0.99
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@torch.no_grad()
def accuracy(task: Copy, model: SequenceModel) -> float:
    """On sequences that training never sees."""
    x, y = (t.to(DEVICE) for t in task.batch(0, 256, "valid"))
    return task.metrics(model(x)[0], y)["accuracy"]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--T", type=int, default=1000)
    parser.add_argument("--start", type=int, help="the first T that is trained on; T itself by default")
    parser.add_argument("--n", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient at T = 100")
    parser.add_argument("--readout-gain", type=float, default=6.0, help="factor on the read-out's first weights")
    parser.add_argument("--init", default="henaff", help="the layer's recurrent_init")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--curve", type=Path, help="where to write the learning curve (CSV)")
    return parser.parse_args()


def main() -> None:
    given = options()
    torch.manual_seed(given.seed)
    whole, task, began = Copy(given.T), Copy(given.start or given.T), time.perf_counter()
    network = NetworkConfig("RelRNN", given.n, readout_gain=given.readout_gain, recurrent_init=given.init)
    model = SequenceModel.for_task(whole, network).to(DEVICE)
    optimiser = torch.optim.Adam(model.parameters(), lr=given.lr)
    rows, update, score, skipped, largest = ["update,seconds,T,loss,accuracy,largest_gradient"], 0, 0.0, 0, 0.0
    while score < TARGET and time.perf_counter() - began < given.seconds:
        x, y = (t.to(DEVICE, non_blocking=True) for t in task.batch(update, given.batch, "train"))
        loss = task.loss(model(x)[0], y)
        optimiser.zero_grad()
        loss.backward()
        limit = given.clip * 120 / task.length  # the loss is a mean over all steps, and few of them ask for anything
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        if torch.isfinite(norm):  # a gradient may leave float's range on its way through a thousand steps
            optimiser.step()
            largest = max(largest, norm.item())
        else:
            skipped += 1
        update += 1
        if update % 100 == 0:
            score, seconds = accuracy(whole, model), time.perf_counter() - began
            rows.append(f"{update},{seconds:.1f},{task.T},{loss.item():.6f},{score:.4f},{largest:.3g}")
            print(rows[-1], flush=True)
            if given.curve:
                given.curve.write_text("\n".join(rows) + "\n")
            if task.T < whole.T and accuracy(task, model) >= TARGET:
                task = Copy(min(2 * task.T, whole.T))
            largest = 0.0
    verdict, seconds = "solved" if score >= TARGET else "not solved", time.perf_counter() - began
    print(f"{verdict}: accuracy {score:.4f} after {update} updates ({skipped} left out), {seconds:.1f} s on {DEVICE}")


if __name__ == "__main__":
    main()
