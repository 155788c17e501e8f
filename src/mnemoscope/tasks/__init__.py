"""Tasks: sequences to remember, with their loss, metrics and baseline."""

from mnemoscope.tasks._adding import Adding
from mnemoscope.tasks._chorales import Chorales
from mnemoscope.tasks._copying import Copy, Denoise
from mnemoscope.tasks._custom import Custom
from mnemoscope.tasks._data import missing_data
from mnemoscope.tasks._digits import Digits
from mnemoscope.tasks._gaussian import Gaussian
from mnemoscope.tasks._start_end import StartEnd
from mnemoscope.tasks._symbols import Symbols
from mnemoscope.tasks._task import Batch, Split, Task
from mnemoscope.tasks._text import Characters, Words

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (Copy, Denoise, Adding, Symbols, Digits, Characters, Words, Chorales, Gaussian, StartEnd)
}
"""Every task by its name on the command line. `Custom` is for Python only."""

__all__ = [
    "TASKS",
    "Adding",
    "Batch",
    "Characters",
    "Chorales",
    "Copy",
    "Custom",
    "Denoise",
    "Digits",
    "Gaussian",
    "Split",
    "StartEnd",
    "Symbols",
    "Task",
    "Words",
    "missing_data",
]
