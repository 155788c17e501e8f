"""Teaching a network a task: the loop, its run folder, and what is measured on the way."""

from mnemoscope.training._config import FitConfig, NetworkConfig, RunConfig
from mnemoscope.training._evaluation import evaluate
from mnemoscope.training._fit import fit
from mnemoscope.training._model import SequenceModel, models
from mnemoscope.training._progress import Diverged, Progress, Stop, Summary
from mnemoscope.training._run import Run, resume, train

__all__ = [
    "Diverged",
    "FitConfig",
    "NetworkConfig",
    "Progress",
    "Run",
    "RunConfig",
    "SequenceModel",
    "Stop",
    "Summary",
    "evaluate",
    "fit",
    "models",
    "resume",
    "train",
]
