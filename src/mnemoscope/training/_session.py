"""One process's part of a run: the loop, what it writes down, and how it goes on from where another stopped."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import to_json, write_whole
from mnemoscope.tasks import Task
from mnemoscope.training._best_so_far import Standing
from mnemoscope.training._checkpoint import Checkpoint, write_checkpoint
from mnemoscope.training._config import FitConfig
from mnemoscope.training._folder import RunFolder, fingerprint
from mnemoscope.training._learner import Learner, part_of
from mnemoscope.training._metrics import Metrics
from mnemoscope.training._progress import Diverged, Progress, Stop, Summary, Watch
from mnemoscope.training._schema import from_plain
from mnemoscope.training._tensorboard_log import Board
from mnemoscope.training._trajectory import record_parameters


class Session:
    """The run of a learner, in a folder or in memory alone."""

    def __init__(self, learner: Learner, folder: RunFolder | None, about: dict[str, Any], watch: Watch | None) -> None:
        self.learner, self.folder, self.about, self.watch = learner, folder, about, watch
        self.task, self.config = learner.task, learner.config
        self.total = total_updates(self.task, self.config)
        self.metrics = Metrics(folder.metrics if folder else None)
        self.board: Board | None = None
        self.fresh: list[Tensor] = []  # (loss, gradient norm) of the last updates, still on the device
        self.pending = torch.zeros(0, 2, dtype=torch.float64)  # the same of all updates that no record sums up yet
        self.standing = Standing()
        self.saved: Path | None = None

    def begin(self) -> None:
        """Start a new run, with a checkpoint of its first weights."""
        if self.folder is not None:
            self.folder.begin(self.about)
            self.folder.prepare()
        self._first_files()

    def restore(self) -> None:
        """Go on from the newest sound checkpoint, or from the beginning where there is none yet."""
        assert self.folder is not None
        self.folder.prepare()
        checkpoint = self.folder.latest(self._accept)
        if checkpoint is None:
            self.metrics.cut()
            return self._first_files()
        where = str(self.folder.checkpoints / f"{checkpoint.update:08d}.safetensors")
        self.learner.restore(checkpoint, where)
        self._take_back(checkpoint, where)
        self.metrics.cut()
        self.saved = Path(where)
        return None

    def _first_files(self) -> None:
        self.record()  # before the checkpoint, here as later: what a checkpoint has behind it is not written again
        self.save()

    def run(self) -> Summary:
        """Update until the task is solved or the budget is spent."""
        start, begun = self.learner.done, time.perf_counter()
        if self.folder is not None and self.config.tensorboard:
            self.board = Board(self.folder.tensorboard, start)
        try:
            self._tell(None)
            while not self.finished:
                self._one_update()
        finally:
            if self.board is not None:
                self.board.close()
        return self._conclude(time.perf_counter() - begun, self.learner.done - start)

    @property
    def finished(self) -> bool:
        return self.learner.done >= self.total or (self.config.stop_when_solved and self.standing.solves(self.task))

    def _one_update(self) -> None:
        loss, norm = self.learner.update()
        self.fresh.append(torch.stack([loss, norm]))
        if self._due(self.config.record_every):
            self.record()
        if self._due(self.config.log_every):
            self._log()
        if self._due(self.config.evaluate_every) or self.learner.done == self.total:
            self._evaluate()
        if self._due(self.config.checkpoint_every) or self.finished:
            self.save()
        self._tell(loss)

    def _due(self, every: int) -> bool:
        return every > 0 and self.learner.done % every == 0

    def _tell(self, loss: Tensor | None) -> None:
        if self.watch is None:
            return
        try:
            self.watch(Progress(self.learner.done, self.total, loss, self.standing.held_out))
        except Stop:
            self.save()
            raise

    def _settle(self) -> None:
        """Fetch the fresh losses and norms; raises where one of them is no number."""
        if not self.fresh:
            return
        values = torch.stack(self.fresh).double().cpu()
        self.fresh.clear()
        bad = ~values.isfinite().all(1) | (values[:, 0] > self.config.diverged)
        if bad.any():
            first = int(bad.nonzero()[0])
            raise self._diverged(self.learner.done - len(values) + 1 + first, *values[first].tolist())
        self.pending = torch.cat([self.pending, values])

    def _diverged(self, update: int, loss: float, norm: float) -> Diverged:
        bad_loss = not math.isfinite(loss) or loss > self.config.diverged
        what = f"the loss is {loss:g}" if bad_loss else f"the norm of the gradient is {norm:g}"
        hint = f"try a lower lr (it was {self.config.lr:g}) or a tighter clip (it was {self.config.clip:g}; 0 is none)"
        return Diverged(update, what, self.saved, hint)

    def _log(self) -> None:
        self._settle()
        loss, norm = self.pending.mean(0).tolist()
        self.pending = self.pending[:0]
        self._note({"update": self.learner.done, "loss": loss, "gradient_norm": norm, "lr": self.learner.lr})

    def _evaluate(self) -> None:
        self._settle()
        found = self.learner.evaluate()
        if not math.isfinite(found["loss"]):
            raise self._diverged(self.learner.done, found["loss"], 0.0)
        self.standing = self.standing.after(found, self.learner.done, self.task)
        self._note({"update": self.learner.done, "split": "valid", **(self.standing.held_out or {})})
        if self.standing.best_update == self.learner.done:
            self._write_best()

    def _write_best(self) -> None:
        if self.folder is not None:
            weights = {f"model.{name}": tensor for name, tensor in self.learner.model.state_dict().items()}
            best = Checkpoint(self.learner.done, weights, {self.task.metric: self.standing.best})
            write_checkpoint(self.folder.checkpoints, best, "best")

    def _note(self, record: dict[str, Any]) -> None:
        self.metrics.add(record)
        if self.board is not None:
            self.board.add(record)

    def record(self) -> None:
        """Write the parameters down, where trajectories are recorded."""
        if self.folder is not None and self.config.record_every:
            record_parameters(self.folder.trajectory, self.learner.done, self.learner.model)

    def save(self) -> None:
        """Write a checkpoint of everything; never one with numbers that are none."""
        if self.folder is None:
            return
        self._settle()
        tensors = {**self.learner.tensors(), "pending.values": self.pending}
        for name, tensor in self.learner.model.state_dict().items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise Diverged(self.learner.done, f"{name} is not finite", self.saved, "try a lower lr")
        numbers = {
            "learner": self.learner.numbers(),
            "metrics": self.metrics.mark(),
            "standing": asdict(self.standing),
            "config_sha256": fingerprint(self.about),
            "torch": torch.__version__,
        }
        self.saved = self.folder.save(Checkpoint(self.learner.done, tensors, numbers))

    def _accept(self, checkpoint: Checkpoint) -> None:
        assert self.folder is not None
        if checkpoint.numbers.get("config_sha256") != fingerprint(self.about):
            raise MnemoscopeError(f"{self.folder.config} was changed after the run began; put it back to resume")
        mark = checkpoint.numbers.get("metrics")
        self.metrics.rewind(mark if isinstance(mark, dict) else {})

    def _take_back(self, checkpoint: Checkpoint, where: str) -> None:
        pending = part_of(checkpoint, "pending").get("values")
        if pending is None or pending.shape[1:] != (2,) or pending.dtype != torch.float64:
            raise MnemoscopeError(f"{where} does not fit this run: its pending losses are not (updates, 2) in float64")
        self.pending = pending
        self.standing = from_plain(Standing, checkpoint.numbers.get("standing"), f"{where}: standing")

    def _conclude(self, seconds: float, updates: int) -> Summary:
        summary = Summary(
            outcome="solved" if self.standing.solves(self.task) else "budget spent",
            updates=self.learner.done,
            metric=self.task.metric,
            best=self.standing.best,
            best_update=self.standing.best_update,
            held_out=self.standing.held_out or {},
            baseline=self.task.baseline,
            parameters=sum(p.numel() for p in self.learner.model.parameters()),
            seconds=seconds,
            updates_per_second=updates / seconds,
        )
        if self.folder is not None:
            write_whole(self.folder.summary, to_json(asdict(summary), indent=2))
        return summary


def total_updates(task: Task, config: FitConfig) -> int:
    """The budget in updates."""
    if not config.epochs:
        return config.updates
    batches = task.steps_per_epoch(config.batch_size)
    if batches is None:
        raise MnemoscopeError(f"epochs = {config.epochs} needs a fixed data set; {task.name} makes new data for ever")
    return math.ceil(config.epochs * batches / config.accumulate)
