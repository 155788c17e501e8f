"""One process's part of a run: the training loop, what it writes, and how it continues where another stopped."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import to_json, write_atomic
from mnemoscope.schema import convert, from_dict
from mnemoscope.training._best_so_far import BestSoFar, finite_or_none
from mnemoscope.training._checkpoint import Checkpoint, write_best
from mnemoscope.training._environment import AllowedChange, Change, Environment, changes
from mnemoscope.training._folder import RunFolder
from mnemoscope.training._learner import Learner, device_name, tensors_under
from mnemoscope.training._metrics import MetricsLog, MetricsPosition
from mnemoscope.training._progress import Diverged, Enough, Outcome, Progress, ProgressCallback, Stop, Summary
from mnemoscope.training._run_description import RunDescription
from mnemoscope.training._snapshots import SnapshotSchedule, write_snapshot
from mnemoscope.training._tensorboard_log import TensorBoardLog
from mnemoscope.training._trajectory import record_parameters

_log = logging.getLogger("mnemoscope")


class Session:
    """The run of a learner, in a folder or in memory only."""

    def __init__(
        self,
        learner: Learner,
        folder: RunFolder | None,
        description: RunDescription,
        environment: Environment,
        callback: ProgressCallback | None,
    ) -> None:
        self.learner = learner
        self.ranks = learner.ranks
        self.folder = folder
        self.writes_to = folder if self.ranks.is_first else None
        self.description = description
        self.environment = environment
        self.callback = callback
        self.task = learner.task
        self.config = learner.config
        self.total = learner.total
        self._snapshots = SnapshotSchedule(self.config.snapshot_every, self.config.snapshot_at, learner.in_updates)
        self.metrics = MetricsLog(None if self.writes_to is None else self.writes_to.metrics)
        self.tensorboard: TensorBoardLog | None = None
        # (loss, gradient norm) of each update: first on the device, then collected until a record averages them.
        self.on_device: list[Tensor] = []
        self.pending = torch.zeros(0, 2, dtype=torch.float64)
        self.skipped_in_a_row = 0
        self.best_so_far = BestSoFar()
        self.changes: tuple[Change, ...] = ()
        self.last_checkpoint: Path | None = None
        self._may_change: Collection[AllowedChange] = ()
        self.stopped_early = False
        self.first_update = 0
        self.started_at = time.perf_counter()

    def begin(self) -> None:
        """Start a new run, with a checkpoint of its initial weights."""
        folder = self.folder
        if folder is not None:
            self.ranks.on_first(lambda: folder.begin(self.description))
        self._write_initial_files()

    def restore(self, allow_changed: Collection[AllowedChange] = ()) -> None:
        """Continue from the newest checkpoint that is not damaged, or from the beginning if there is none."""
        assert self.folder is not None
        self._may_change = allow_changed
        checkpoint = self.ranks.on_first(self._latest_checkpoint)
        if checkpoint is None:
            self.ranks.on_first(self._begin_anew)
            self._write_initial_files()
            return
        path = self.folder.checkpoints / f"{checkpoint.update:08d}.safetensors"
        self._restore_records(checkpoint, str(path))  # first: weights may not fit just because the data has changed
        self.learner.restore(checkpoint, str(path))
        self.ranks.on_first(self._take_up_folder)
        self.last_checkpoint = path

    def _latest_checkpoint(self) -> Checkpoint | None:
        """Read the newest checkpoint, and how far metrics.jsonl had come when it was written."""
        assert self.folder is not None
        checkpoint = self.folder.latest()
        if checkpoint is None:
            self._note_changes(self.description.environment, 0)
        else:
            self._accept(checkpoint)
        return checkpoint

    def _begin_anew(self) -> None:
        assert self.folder is not None
        has_records = self.folder.metrics.exists()  # a run saves its initial weights before it has any
        self._take_up_folder()
        if has_records:
            _log.warning("%s has records and no checkpoint any more; it begins anew", self.folder.path)

    def _take_up_folder(self) -> None:
        """Change the folder of a resumed run, now that nothing can refuse it: its summary is deleted no sooner.

        metrics.jsonl is cut back to the checkpoint, and config.json gets the larger budget.
        """
        assert self.folder is not None
        self.folder.prepare()
        if self.folder.description() != self.description:
            self.folder.extend(self.description)
        self.metrics.truncate()

    def _write_initial_files(self) -> None:
        # Parameters are recorded before a checkpoint, here as later: a resumed run does not record them again.
        self._record_weights()
        self.save()

    def run(self) -> Summary:
        """Update until the task is solved or the budget is spent."""
        self.first_update = self.learner.updates_done
        self.started_at = time.perf_counter()
        if self.writes_to is not None and self.config.tensorboard:
            self.tensorboard = TensorBoardLog(self.writes_to.tensorboard, self.first_update)
        try:
            self._report_progress(None)
            while not self.finished:
                self._one_update()
        except Enough:
            self.stopped_early = not self.finished
        finally:
            if self.tensorboard is not None:
                self.tensorboard.close()
        return self._summarize(self._outcome(), self.learner.updates_done)

    def note_divergence(self, error: Diverged) -> None:
        """Write to summary.json at which update and how the run diverged."""
        self._summarize("diverged", error.update, str(error))

    @property
    def finished(self) -> bool:
        if self.learner.updates_done >= self.total:
            return True
        return self.config.stop_when_solved and self.best_so_far.solves(self.task)

    def _one_update(self) -> None:
        loss, norm = self.learner.update()
        self.on_device.append(torch.stack([loss, norm]))
        self._record_weights()
        if self._is_due(self.config.log_every):
            self._log()
        if self._is_due(self.config.evaluate_every) or self.learner.updates_done == self.total:
            self._evaluate()
        if self._is_due(self.config.checkpoint_every) or self.finished:
            self.save()
        self._report_progress(loss)

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.learner.updates_done % every == 0

    def _report_progress(self, loss: Tensor | None) -> None:
        """Call the callback. If it asks for the end of the run in any rank, all save and end after this update."""
        asked: Stop | None = None
        wish = _GO_ON
        if self.callback is not None:
            try:
                figures = self.learner.figures()
                self.callback(Progress(self.learner.updates_done, self.total, loss, self.best_so_far.held_out, figures))
            except Stop as stop:
                asked = stop
                wish = _ENOUGH if isinstance(stop, Enough) else _STOP
        decided = self.ranks.all_reduce_max(wish)
        if decided == _GO_ON:
            return
        self.save()
        if asked is not None and wish == decided:
            raise asked
        if decided == _ENOUGH:
            raise Enough("another process ended the run")
        raise Stop("another process stopped the run")

    def _collect_losses(self) -> None:
        """Fetch the new losses and norms from the device; raise `Diverged` at the first that is NaN or too large."""
        if not self.on_device:
            return
        values = torch.stack(self.on_device).double().cpu()
        self.on_device.clear()
        bad = ~values.isfinite().all(1) | (values[:, 0] > self.config.diverged)
        if self.learner.may_skip:
            bad &= ~self._skipped(values)
        if bad.any():
            first = int(bad.nonzero()[0])
            self.pending = torch.cat([self.pending, values[:first]])
            loss, norm = values[first].tolist()
            raise self._diverged(self.learner.updates_done - len(values) + 1 + first, loss, norm)
        self.pending = torch.cat([self.pending, values])

    def _skipped(self, values: Tensor) -> Tensor:
        """Which updates were skipped, their gradient not being finite; one too many in a row is not among them."""
        skipped = ~values[:, 1].isfinite()
        for number, is_skipped in enumerate(skipped.tolist()):
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if is_skipped else 0
            skipped[number] &= self.skipped_in_a_row <= self.learner.may_skip
        return skipped

    def _diverged(self, update: int, loss: float, norm: float) -> Diverged:
        hint = f"try a lower lr (it was {self.config.lr:g}) or a tighter clip (it was {self.learner.clip:g}; 0 is none)"
        if not math.isfinite(loss) or loss > self.config.diverged:
            what = f"the loss is {loss:g}"
        else:
            what = f"the norm of the gradient is {norm:g}"
            if not self.learner.may_skip:
                hint = f"{hint}, or skip such updates (skip-nonfinite)"
        if self.skipped_in_a_row > 1:
            what = f"{what}, and was not finite in the {self.skipped_in_a_row - 1} updates before"
        return Diverged(update, what, self.last_checkpoint, hint)

    def _log(self) -> None:
        """Write the mean loss and gradient norm since the last record, and how many updates were skipped."""
        self._collect_losses()
        loss, norm = (_mean_of_finite(column) for column in self.pending.mT)
        skipped = self._skipped_and_pending
        self.pending = self.pending[:0]
        update = self.learner.updates_done
        record = {"update": update, "loss": loss, "gradient_norm": norm, "lr": self.learner.lr}
        if skipped:
            record["skipped"] = skipped
        self._write_record({**record, **self.learner.figures()})

    @property
    def _skipped_and_pending(self) -> int:
        """Skipped updates that no record has counted yet."""
        return int((~self.pending[:, 1].isfinite()).sum())

    def _evaluate(self) -> None:
        """Evaluate on held-out batches, write the metrics, and save the weights if they are the best so far."""
        self._collect_losses()
        update = self.learner.updates_done
        metrics = self.learner.evaluate()
        loss = metrics.get("loss", 0.0)
        if not math.isfinite(loss):
            raise self._diverged(update, loss, 0.0)
        self.best_so_far = self.best_so_far.after(metrics, update, self.task)
        self._write_record({"update": update, "split": "valid", **(self.best_so_far.held_out or {})})
        if self.best_so_far.best_update == update:
            self._write_best()
        training_data = self.learner.evaluate_training_data()
        if training_data is not None:
            self._write_record({"update": update, "split": "train", **finite_or_none(training_data)})

    def _write_best(self) -> None:
        if self.writes_to is not None:
            weights = {f"model.{name}": tensor for name, tensor in self.learner.model.state_dict().items()}
            best = Checkpoint(self.learner.updates_done, weights, {self.task.metric: self.best_so_far.best})
            write_best(self.writes_to.checkpoints, best)

    def _write_record(self, record: dict[str, Any]) -> None:
        self.metrics.add(record)
        if self.tensorboard is not None:
            self.tensorboard.add(record)

    def _record_weights(self) -> None:
        """Write the parameters to trajectory/ and the weights to snapshots/, where the configuration asks for it."""
        folder = self.writes_to
        if folder is None:
            return
        update = self.learner.updates_done
        if self._is_due(self.config.record_every):
            record_parameters(folder.trajectory, update, self.learner.model)
        if update in self._snapshots:
            write_snapshot(folder.snapshots, update, self.learner.model, self.config.snapshot_weights)

    def save(self) -> None:
        """Write a checkpoint of everything; raise `Diverged` instead if a weight is NaN or infinite."""
        if self.folder is None:
            return
        self._collect_losses()
        update = self.learner.updates_done
        tensors = {**self.learner.tensors(), "pending.values": self.pending}
        for name, tensor in self.learner.model.state_dict().items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise Diverged(update, f"{name} is not finite", self.last_checkpoint, "try a lower lr")
        numbers = {
            "learner": self.learner.numbers(),
            "metrics": self.metrics.position(),
            "best_so_far": asdict(self.best_so_far),
            "skipped_in_a_row": self.skipped_in_a_row,
            "config_sha256": self.description.sha256,
            "environment": asdict(self.environment),
            "changes": [asdict(change) for change in self.changes],
        }
        if self.writes_to is not None:
            self.last_checkpoint = self.writes_to.save(Checkpoint(update, tensors, numbers))

    def _accept(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint of another configuration, or one that does not match metrics.jsonl.

        Metrics reach the disk before the checkpoint that counts them, so no kill or power cut leaves less.
        """
        assert self.folder is not None
        if checkpoint.numbers.get("config_sha256") not in self.description.accepted_sha256:
            raise MnemoscopeError(f"{self.folder.config} was changed after the run began; put it back to resume")
        position = from_dict(MetricsPosition, checkpoint.numbers.get("metrics"), f"{self.folder.checkpoints}: metrics")
        if self.metrics.rewind(position):
            return
        if "metrics" not in self._may_change:
            raise MnemoscopeError(
                f"{self.folder.metrics} is damaged: it is not what it was when the checkpoint was written; "
                "put it back, or go on with what can be read of it by --allow-changed metrics"
            )
        self.metrics.salvage(checkpoint.update)

    def _note_changes(self, before: Environment, update: int) -> None:
        """Compare the environment with that of the process before, and whether metrics.jsonl was kept."""
        found = changes(before, self.environment, update, self._may_change)
        if self.metrics.salvaged:
            found.append(
                Change(update, "metrics", "as recorded", f"{len(self.metrics.records)} records that were left")
            )
        self.changes = (*self.changes, *found)

    def _note_larger_budget(self, checkpoint: Checkpoint) -> None:
        """Say in the summary that a checkpoint was made under a smaller budget."""
        hashes = self.description.accepted_sha256
        which = hashes.index(str(checkpoint.numbers.get("config_sha256")))
        if which:
            before, now = self.description.earlier_updates[which - 1], self.description.fit["updates"]
            self.changes = (*self.changes, Change(checkpoint.update, "updates", str(before), str(now)))

    def _restore_records(self, checkpoint: Checkpoint, where: str) -> None:
        pending = tensors_under(checkpoint, "pending").get("values")
        if pending is None or pending.shape[1:] != (2,) or pending.dtype != torch.float64:
            raise MnemoscopeError(f"{where} does not fit this run: its pending losses are not (updates, 2) in float64")
        self.pending = pending
        numbers = checkpoint.numbers
        best_so_far = numbers.get("best_so_far", numbers.get("standing"))  # its name in the first run folders
        self.best_so_far = from_dict(BestSoFar, best_so_far, f"{where}: best_so_far")
        self.skipped_in_a_row = convert(int, numbers.get("skipped_in_a_row", 0), f"{where}: skipped_in_a_row")
        self.changes = convert(tuple[Change, ...], numbers.get("changes", []), f"{where}: changes")
        before = numbers.get("environment", {"torch": numbers.get("torch")})  # the first checkpoints had no more
        environment = from_dict(Environment, before, f"{where}: environment")
        self._note_larger_budget(checkpoint)
        self.ranks.on_first(lambda: self._note_changes(environment, checkpoint.update))

    def _summarize(self, outcome: Outcome, updates: int, message: str = "") -> Summary:
        """Return how the run ended, and write it to summary.json."""
        seconds = time.perf_counter() - self.started_at
        summary = Summary(
            outcome=outcome,
            updates=updates,
            metric=self.task.metric,
            best=self.best_so_far.best,
            best_update=self.best_so_far.best_update,
            held_out=self.best_so_far.held_out or {},
            baseline=self.task.baseline,
            parameters=sum(p.numel() for p in self.learner.model.parameters()),
            seconds=seconds,
            updates_per_second=(self.learner.updates_done - self.first_update) / seconds,
            changes=self.changes,
            message=message,
            skipped=self._skipped_and_pending + sum(record.get("skipped", 0) for record in self.metrics.records),
            device=device_name(next(self.learner.model.parameters()).device.type),
        )
        if self.writes_to is not None:
            write_atomic(self.writes_to.summary, to_json(asdict(summary), indent=2))
        return summary

    def _outcome(self) -> Outcome:
        if self.stopped_early:
            return "stopped early"
        return "solved" if self.best_so_far.solves(self.task) else "budget spent"


_GO_ON, _STOP, _ENOUGH = range(3)  # what a callback asks for; of several ranks the largest counts


def _mean_of_finite(values: Tensor) -> float | None:
    """The mean of (N,) but for what is not finite, as of updates that were skipped; None if nothing is left."""
    is_finite = values.isfinite()
    if is_finite.all():
        return float(values.mean())
    return float(values[is_finite].mean()) if is_finite.any() else None
