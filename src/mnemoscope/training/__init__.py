"""Teaching a network a task: the loop, its run folder, and what is measured on the way."""

from .config import FitConfig, NetworkConfig, RunConfig
from .evaluation import evaluate
from .fit import fit
from .model import SequenceModel, models
from .progress import Diverged, Progress, Stop, Summary
from .run import Run, resume, train

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
