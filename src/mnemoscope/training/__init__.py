"""Training a network on a task: the loop, its run folder, and the metrics it records."""

from mnemoscope.training._checkpoint import check_tensors_match
from mnemoscope.training._config import (
    FitConfig,
    LoopConfig,
    NetworkConfig,
    RunConfig,
    config_type,
    default_config,
    default_value,
    require,
)
from mnemoscope.training._distances import Distances, distances
from mnemoscope.training._environment import AllowedChange, Change, Environment
from mnemoscope.training._evaluation import evaluate
from mnemoscope.training._fit import fit
from mnemoscope.training._layer_options import layer_options, models
from mnemoscope.training._learner import Learner, device_name, select_device
from mnemoscope.training._method import Method
from mnemoscope.training._metrics import MetricsRecord
from mnemoscope.training._model import SequenceModel, make_layer
from mnemoscope.training._progress import Diverged, Enough, Progress, ProgressCallback, Stop, Summary
from mnemoscope.training._ranks import this_rank
from mnemoscope.training._run import CheckpointName, Run, initial_model, make_network, resume, train

__all__ = [
    "AllowedChange",
    "Change",
    "CheckpointName",
    "Distances",
    "Diverged",
    "Enough",
    "Environment",
    "FitConfig",
    "Learner",
    "LoopConfig",
    "Method",
    "MetricsRecord",
    "NetworkConfig",
    "Progress",
    "ProgressCallback",
    "Run",
    "RunConfig",
    "SequenceModel",
    "Stop",
    "Summary",
    "check_tensors_match",
    "config_type",
    "default_config",
    "default_value",
    "device_name",
    "distances",
    "evaluate",
    "fit",
    "initial_model",
    "layer_options",
    "make_layer",
    "make_network",
    "models",
    "require",
    "resume",
    "select_device",
    "this_rank",
    "train",
]
