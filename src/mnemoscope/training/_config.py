"""The configuration of a run as frozen dataclasses: default, type, help and allowed values in one place."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal

from mnemoscope.errors import MnemoscopeError
from mnemoscope.schema import added_later, check_fields, check_object, from_dict, to_dict
from mnemoscope.tasks import TASKS, Task
from mnemoscope.training._layer_options import check_options, layer_options
from mnemoscope.training._method import method_of

Optimizer = Literal["adam", "rmsprop", "sgd"]
Schedule = Literal["constant", "inverse", "inverse-sqrt", "step", "milestones", "plateau"]
Precision = Literal["32-true", "64-true", "tf32-true", "bf16-mixed", "bf16-true"]
Device = Literal["auto", "cpu", "cuda"]

SECTIONS = ("task", "network", "fit")
"""Of a config.json."""


@dataclass(frozen=True)
class NetworkConfig:
    """The network: an embedding if the inputs are ids, a recurrent layer, and a linear read-out at every step."""

    model: str = "RelRNN"
    """The recurrent layer, by a name that `mnemoscope list` shows."""
    hidden_size: int = 128
    """Units of the recurrent layer."""
    num_layers: int = 1
    """Recurrent layers on top of each other."""
    embedding: int = 0
    """Size of the embedding of an id; 0 gives one-hot inputs. Only for tasks whose inputs are ids, and agents: what
    they see is encoded in that many features; 0 gives them a vector as it is, and 64 features of cells and words."""
    tied: bool = False
    """Whether the read-out shares the embedding's weights; needs embedding = hidden-size."""
    skip: bool = False
    """Whether the read-out sees the input too: y = C h + D x."""
    dropout: float = 0.0
    """Probability of dropping a feature of the embedding, between layers and before the read-out."""
    init: Literal["xavier", "torch", "uniform", "system"] = "xavier"
    """Initial weights. xavier: those of inputs and read-out normal by Xavier's rule, with which attentive layers learn
    faster. torch: as torch draws them. uniform: those of embedding and read-out between -0.1 and 0.1, no bias of the
    read-out, all others as torch draws them; PyTorch's example of language modelling begins so. system: W, U, C and D
    of the random stable system of the task gaussian, biases 0."""
    readout_gain: float = 1.0
    """Factor on the read-out's initial weights; with 6 to 8, attentive layers learn Copy faster and from more seeds."""
    embedding_gain: float = added_later(1.0)
    """Factor on the initial weights of the embedding, or of what an agent encodes its observations with."""
    forget_bias: float = added_later(0.0)
    """Added to the initial biases of forget gates: with 1 or 2, new cells keep what they hold. Only for LSTM, MemLSTM,
    RelLSTM and torch.LSTM."""
    head: int = added_later(0)
    """Units of a relu layer between the recurrent layer and the read-out; 0 reads out at once."""
    truncated: int = added_later(0)
    """Inputs that an output may depend on: at every step the layer starts anew and reads that many (Miller & Hardt,
    eq. 3); 0 is the recurrence itself. `bptt` instead truncates gradients and carries the state on."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the recurrent layer by name, as its constructor takes them; those not given have its defaults."""

    def __post_init__(self) -> None:
        check_fields(self)
        options = check_options(self.model, self.options, common=_COMMON_FIELDS)
        object.__setattr__(self, "options", options)
        require(self, "hidden_size", self.hidden_size >= 1, "at least 1")
        require(self, "num_layers", 1 <= self.num_layers <= 1000, "between 1 and 1000")
        require(self, "truncated", self.truncated >= 0, "0 (never) or more")
        require(self, "embedding", self.embedding >= 0, "0 (one-hot) or more")
        require(self, "readout_gain", self.readout_gain > 0, "above 0")
        require(self, "readout_gain", self.readout_gain == 1 or not self.tied, "1 where the read-out is tied")
        require(self, "embedding_gain", self.embedding_gain > 0, "above 0")
        require(self, "embedding_gain", self.embedding_gain == 1 or not self.tied, "1 where the read-out is tied")
        require(self, "head", self.head >= 0, "0 (none) or more")
        require(self, "head", not (self.head and self.tied), "0 where the read-out is tied")
        require(self, "dropout", 0 <= self.dropout < 1, "at least 0 and below 1")
        if self.tied and self.embedding != self.hidden_size:
            raise MnemoscopeError(
                f"tied = True needs embedding = hidden_size; got embedding = {self.embedding}, "
                f"hidden_size = {self.hidden_size}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration for JSON, with the layer's options beside the other fields."""
        content: dict[str, Any] = to_dict(self)
        options = content.pop("options")
        return {**content, **options}

    @staticmethod
    def from_dict(data: Any, where: str = "network") -> NetworkConfig:
        """Return the configuration in JSON data; anything wrong raises a one-line error.

        Every name that is not a field is an option of the layer. An option that is null is not set: the first run
        folders list the options of all layers.
        """
        check_object(data, where)
        common = {name: value for name, value in data.items() if name in _COMMON_FIELDS}
        options = {name: value for name, value in data.items() if name not in _COMMON_FIELDS}
        config = from_dict(NetworkConfig, common, where)
        return replace(config, options=check_options(config.model, options, where, common=_COMMON_FIELDS))


_COMMON_FIELDS = tuple(field.name for field in fields(NetworkConfig) if field.name != "options")


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What every way of training has: an optimizer, when to evaluate and save, and where the run is computed."""

    updates: int = field(default=2000, kw_only=False)
    """Maximum number of weight updates."""
    optimizer: Optimizer = "adam"
    """The optimizer."""
    lr: float = 1e-3
    """Learning rate, before its schedule."""
    momentum: float = 0.0
    """Momentum of sgd and rmsprop."""
    weight_decay: float = 0.0
    """L2 penalty on the weights."""
    schedule: Schedule = "constant"
    """Learning-rate schedule. At update t, inverse gives lr/t and inverse-sqrt lr/sqrt(t). step multiplies the rate by
    `factor` every `step_every` updates, milestones at each of `milestones`. plateau does so once more than `patience`
    evaluations in a row brought no lower held-out loss."""
    factor: float = 0.5
    """Factor of the step, milestones and plateau schedules."""
    step_every: int = 1000
    """Updates between the drops of the step schedule."""
    milestones: tuple[int, ...] = added_later(())
    """Updates after which the milestones schedule drops the rate, in ascending order; epochs in a budget of epochs."""
    patience: int = 0
    """Evaluations without improvement before the rate drops (plateau schedule)."""
    clip: float = 1.0
    """Largest norm of the gradient; a larger one is scaled down to it. 0 does not clip."""
    stable: float | None = None
    """Project the recurrent layer onto its stable set after each update: a step keeps at most this part of the distance
    between two states. At most 1, with which states do not move apart."""
    precision: Precision = "32-true"
    """Floating-point format of weights and arithmetic. tf32-true is 32-true with matrix products in TF32 on a GPU:
    three digits of each factor, and faster where layers are wide or a vocabulary is large."""
    device: Device = "auto"
    """Where to train; auto takes a GPU if there is one."""
    evaluate_every: int = 100
    """Updates between evaluations on held-out batches."""
    stop_when_solved: bool = True
    """Whether to stop once the held-out metric reaches the task's threshold."""
    log_every: int = 10
    """Updates that one line of metrics.jsonl averages."""
    checkpoint_every: int = 500
    """Updates between checkpoints: the most that a killed run loses."""
    record_every: int = 0
    """Updates between records of all parameters in trajectory/; 0 records none."""
    snapshot_every: int = added_later(0)
    """Updates, or epochs in a budget of epochs, between snapshots of the weights in snapshots/; 0 takes none."""
    snapshot_at: tuple[int, ...] = added_later(())
    """Further updates, or epochs, after which a snapshot is taken. With any, the initial weights are kept too."""
    snapshot_weights: tuple[str, ...] = added_later(())
    """Beginnings of the names of the weights that a snapshot keeps, as layer.weight_hh; by default all of them."""
    diverged: float = 1e6
    """Loss above which a run counts as diverged and stops."""
    seed: int = 0
    """Seed of the initial weights and of dropout; the data have a seed of their own."""
    threads: int = 0
    """CPU threads; 0 takes torch's choice and records it, because results depend on it."""
    tensorboard: bool = False
    """Whether to log for TensorBoard too, in tensorboard/."""
    ranks: int = added_later(1)
    """Processes that share every batch. torchrun starts them and says how many; results depend on it by rounding."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("step_every", "evaluate_every", "log_every", "checkpoint_every", "ranks"):
            require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("patience", "record_every", "snapshot_every", "weight_decay", "clip"):
            require(self, name, getattr(self, name) >= 0, "at least 0")
        for name in ("lr", "diverged"):
            require(self, name, getattr(self, name) > 0, "above 0")
        require(self, "momentum", 0 <= self.momentum < 1, "at least 0 and below 1")
        require(self, "momentum", not self.momentum or self.optimizer != "adam", "0 with adam, which has its own")
        require(self, "factor", 0 < self.factor < 1, "between 0 and 1")
        require(self, "stable", self.stable is None or 0 < self.stable <= 1, "above 0 and at most 1")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        ascending = all(a < b for a, b in pairwise((0, *self.milestones)))
        require(self, "milestones", ascending, "in ascending order, at least 1")
        if (self.schedule == "milestones") != bool(self.milestones):
            raise MnemoscopeError(
                f"schedule = {self.schedule!r} with milestones = {list(self.milestones)} is not allowed; the schedule "
                "milestones needs some, and no other has any"
            )
        object.__setattr__(self, "snapshot_at", tuple(self.snapshot_at))
        object.__setattr__(self, "snapshot_weights", tuple(self.snapshot_weights))
        require(self, "snapshot_at", all(moment >= 0 for moment in self.snapshot_at), "at least 0")
        require(self, "seed", 0 <= self.seed < 2**63, "at least 0 and below 2^63")
        require(self, "threads", 0 <= self.threads <= 1024, "between 0 (torch's choice) and 1024")

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration for JSON."""
        content: dict[str, Any] = to_dict(self)
        return content


@dataclass(frozen=True)
class FitConfig(LoopConfig):
    """How a network is trained on batches."""

    epochs: int = 0
    """Maximum number of passes over the data, instead of `updates`; 0 uses `updates`. Only for fixed data sets."""
    batch_size: int = 64
    """Sequences in a batch."""
    accumulate: int = 1
    """Batches whose gradients are averaged for one update."""
    bptt: int = 0
    """Steps after which back-propagation is truncated while the state is carried on; 0 never truncates in a batch."""
    carry_memory: int | None = added_later(None, kw_only=True)
    """States that an attentive layer's memory keeps from one batch of running text to the next, while h is carried on:
    its newest; 0 empties it. By default all, which is refused for layers whose memory grows without end."""
    scale_clip: bool = added_later(False, kw_only=True)
    """Whether `clip` is multiplied by the share of the loss that asks for an answer: 10/(T + 20) on Copy and Denoise,
    whose loss is a mean over all steps. With clip = 12 the norm is then at most 1 at T = 100 and 0.06 at T = 2000."""
    skip_nonfinite: int = added_later(0, kw_only=True)
    """Updates in a row that may be skipped because their gradient is infinite or NaN: weights and optimizer state stay,
    the next batch is taken, and metrics.jsonl counts them. One more, or with 0 the first, ends the run as diverged."""
    evaluate_batches: int | None = field(default=None, kw_only=True)
    """Held-out batches in an evaluation; by default all of them, or 8 if the task generates data endlessly."""
    evaluate_train: bool = added_later(False, kw_only=True)
    """Whether evaluations also measure the training data, without dropout; they are recorded as split train."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("updates", "batch_size", "accumulate"):
            require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("epochs", "bptt", "skip_nonfinite"):
            require(self, name, getattr(self, name) >= 0, "at least 0")
        require(self, "carry_memory", self.carry_memory is None or self.carry_memory >= 0, "at least 0")
        require(self, "evaluate_batches", self.evaluate_batches is None or self.evaluate_batches >= 1, "at least 1")


@dataclass(frozen=True)
class RunConfig:
    """A run: the task, the network, and how it is trained."""

    task: Task
    network: NetworkConfig = field(default_factory=NetworkConfig)
    fit: LoopConfig = field(default=None)  # type: ignore[assignment]
    """By default a `FitConfig`, or what the task's own method takes."""

    def __post_init__(self) -> None:
        check_task(self.task)
        if not isinstance(self.network, NetworkConfig):
            raise MnemoscopeError(f"network is a NetworkConfig; got a {type(self.network).__name__}")
        if self.fit is None:
            object.__setattr__(self, "fit", default_config(self.task))
        check_config(self.fit, self.task)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of config.json."""
        task = {"name": self.task.name, **to_dict(self.task)}
        return {"task": task, "network": self.network.to_dict(), "fit": self.fit.to_dict()}

    @staticmethod
    def from_dict(data: Any, where: str = "config") -> RunConfig:
        """Return the configuration in a config.json; anything wrong raises a one-line error.

        The environment and the earlier budgets that a run's file also holds are not part of it.
        """
        check_sections(data, where)
        task = task_from_dict(data["task"], f"{where}: task")
        network = NetworkConfig.from_dict(data["network"], f"{where}: network")
        return RunConfig(task, network, from_dict(config_type(task), data["fit"], f"{where}: fit"))


def check_sections(data: Any, where: str) -> None:
    """Refuse JSON data that is not the content of a config.json."""
    if not isinstance(data, dict) or set(data) - {"environment", "earlier_updates"} != set(SECTIONS):
        raise MnemoscopeError(f"{where} is not the configuration of a run: it must have task, network and fit")


def config_type(task: Task | type[Task]) -> type[LoopConfig]:
    """Return the configuration that the training of a task has: a `FitConfig`, unless it has a method of its own."""
    method = method_of(task)
    return FitConfig if method is None else method.config_type


def check_task(task: Task) -> None:
    """Refuse what is not a task, such as a task's name or class."""
    if not isinstance(task, Task):
        raise MnemoscopeError(f"task is a Task, as mnemoscope.tasks.Copy(T=100); got {task!r}")


def check_config(config: LoopConfig, task: Task) -> None:
    """Refuse the configuration of another kind of training than the task's."""
    kind = config_type(task)
    if not isinstance(config, kind):
        raise MnemoscopeError(f"{task.name} is trained with a {kind.__name__}; got a {type(config).__name__}")


def default_config(task: Task) -> LoopConfig:
    """Return how a task is trained if nothing is said about it."""
    method = method_of(task)
    return FitConfig() if method is None else method.default_config(task)


def task_from_dict(data: Any, where: str) -> Task:
    """Return a task from its name and fields."""
    check_object(data, where)
    name = data.get("name")
    kind = TASKS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise MnemoscopeError(f"{where}.name = {reprlib.repr(name)} is not a task; tasks are {', '.join(TASKS)}")
    return from_dict(kind, {key: value for key, value in data.items() if key != "name"}, where)


def default_value(config: Mapping[str, Any], name: str) -> Any:
    """Return the default of a field, as "fit.lr" or "network.buffer", that a config.json leaves out, or None."""
    section, _, name = name.partition(".")
    task = TASKS[config["task"]["name"]]
    kinds: dict[str, Any] = {"task": task, "network": NetworkConfig, "fit": config_type(task)}
    known = {field.name: field.default for field in fields(kinds[section])} if section in kinds else {}
    if section == "network":
        known |= {option.name: option.default for option in layer_options(config["network"]["model"]).values()}
    return known.get(name)


def require(config: object, name: str, condition: bool, allowed: str) -> None:
    """Refuse a field's value in one line unless `condition` holds."""
    if not condition:
        value = getattr(config, name)
        raise MnemoscopeError(f"{name.replace('_', '-')} = {value!r} is not allowed; it must be {allowed}")
