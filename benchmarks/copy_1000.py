"""Train RelRNN on Copy(T=1000) until 99 % of the symbols are right: python benchmarks/copy_1000.py [--start 100].

With `--start` training begins with a shorter T, which doubles each time it is mastered. The accuracy that is reported,
and that ends the training, is always the one on T.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from mnemoscope.tasks import Copy
from mnemoscope.training import NetworkConfig, SequenceModel

TARGET = 0.99
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@torch.no_grad()
def accuracy(task: Copy, model: SequenceModel) -> float:
    """Return the accuracy on sequences that training never sees."""
    x, y = (t.to(DEVICE) for t in task.batch(0, 256, "valid"))
    return task.metrics(model(x)[0], y)["accuracy"]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--T", type=int, default=1000)
    parser.add_argument("--start", type=int, help="first T to train on; by default T itself")
    parser.add_argument("--n", type=int, default=128, help="hidden units")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0, help="largest gradient norm at T = 100")
    parser.add_argument("--readout-gain", type=float, default=6.0, help="factor on the read-out's initial weights")
    parser.add_argument("--init", default="henaff", help="the layer's recurrent_init")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600, help="time limit")
    parser.add_argument("--curve", type=Path, help="where to write the learning curve (CSV)")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    torch.manual_seed(options.seed)
    final_task = Copy(options.T)
    task = Copy(options.start or options.T)
    layer_options = {"recurrent_init": options.init}
    network = NetworkConfig("RelRNN", options.n, readout_gain=options.readout_gain, options=layer_options)
    model = SequenceModel.for_task(final_task, network).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)

    def make_batch(number: int) -> tuple[Tensor, Tensor]:
        x, y = task.batch(number, options.batch, "train")
        return x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)

    rows = ["update,seconds,T,loss,accuracy,largest_gradient"]
    update = skipped = 0
    score = largest_norm = 0.0
    start = time.perf_counter()
    x, y = make_batch(0)
    while score < TARGET and time.perf_counter() - start < options.seconds:
        loss = task.loss(model(x)[0], y)
        optimizer.zero_grad()
        loss.backward()

        # The loss is a mean over all steps, few of which have anything to say: it shrinks with the length.
        limit = options.clip * 120 / task.length
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        x, y = make_batch(update + 1)  # while the device computes: the next line waits for it
        if torch.isfinite(norm):
            optimizer.step()
            largest_norm = max(largest_norm, norm.item())
        else:  # the gradient overflowed on its way through a thousand steps
            skipped += 1

        update += 1
        if update % 100 == 0:
            score = accuracy(final_task, model)
            seconds = time.perf_counter() - start
            rows.append(f"{update},{seconds:.1f},{task.T},{loss.item():.6f},{score:.4f},{largest_norm:.3g}")
            print(rows[-1], flush=True)
            if options.curve:
                options.curve.write_text("\n".join(rows) + "\n")
            if task.T < final_task.T and accuracy(task, model) >= TARGET:
                task = Copy(min(2 * task.T, final_task.T))
                x, y = make_batch(update)
            largest_norm = 0.0

    verdict = "solved" if score >= TARGET else "not solved"
    seconds = time.perf_counter() - start
    print(f"{verdict}: accuracy {score:.4f} after {update} updates ({skipped} skipped), {seconds:.1f} s on {DEVICE}")


if __name__ == "__main__":
    main()
