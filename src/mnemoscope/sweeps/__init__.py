"""Many runs: a grid of configurations, an engine to train them on, and a table of how they went."""

from mnemoscope.sweeps._driver import Engine, SweepCallback, SweepProgress, forget_failures, read_failures, run_jobs
from mnemoscope.sweeps._folder import Sweep, words
from mnemoscope.sweeps._grid import Grid, parse_grid
from mnemoscope.sweeps._halving import Halving
from mnemoscope.sweeps._job import Ending, Job, StopRequest, run_job
from mnemoscope.sweeps._local import LocalEngine, cpus
from mnemoscope.sweeps._ray import RayEngine
from mnemoscope.sweeps._runs import field_value, run_job_of, train_run
from mnemoscope.sweeps._slurm import SlurmEngine
from mnemoscope.sweeps._sweep import resume_sweep, sweep
from mnemoscope.sweeps._table import Group, SweepTable, bootstrap_interval, interquartile_mean, sweep_table

__all__ = [
    "Ending",
    "Engine",
    "Grid",
    "Group",
    "Halving",
    "Job",
    "LocalEngine",
    "RayEngine",
    "SlurmEngine",
    "StopRequest",
    "Sweep",
    "SweepCallback",
    "SweepProgress",
    "SweepTable",
    "bootstrap_interval",
    "cpus",
    "field_value",
    "forget_failures",
    "interquartile_mean",
    "parse_grid",
    "read_failures",
    "resume_sweep",
    "run_job",
    "run_job_of",
    "run_jobs",
    "sweep",
    "sweep_table",
    "train_run",
    "words",
]
