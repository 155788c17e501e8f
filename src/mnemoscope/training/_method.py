"""How a task is learnt that is not a source of batches: what it brings along."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from mnemoscope.tasks import Split, Task

if TYPE_CHECKING:
    from mnemoscope.training._config import LoopConfig, NetworkConfig
    from mnemoscope.training._learner import Learner
    from mnemoscope.training._model import SequenceModel


class Method(ABC):
    """A way of training: its configuration, the network, the learner and the evaluation.

    A task that is not learnt from batches has one as its class attribute `method`. Run folders, resuming, metrics and
    the command line are the same for all.
    """

    config_type: ClassVar[type[Any]]
    """The dataclass of its configuration, a `LoopConfig`: the section "fit" of config.json."""

    @abstractmethod
    def default_config(self, task: Task) -> LoopConfig:
        """Return how a task is trained if nothing is said about it."""

    @abstractmethod
    def network(self, task: Task, config: NetworkConfig, fit: LoopConfig | None = None) -> SequenceModel:
        """Return the network of a configuration for a task, as it is trained by `fit`."""

    @abstractmethod
    def learner(self, model: Any, task: Task, config: Any) -> Learner:
        """Return what makes the updates."""

    @abstractmethod
    def evaluate(
        self,
        model: Any,
        task: Task,
        *,
        batch_size: int,
        batches: int | None,
        split: Split,
        callback: Callable[[int, int], object],
    ) -> dict[str, float]:
        """Return the task's metrics, as `mnemoscope.training.evaluate` does."""


def method_of(task: Task | type[Task]) -> Method | None:
    """Return a task's own method; None if it is learnt from batches."""
    return getattr(task, "method", None)
