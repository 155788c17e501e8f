"""What there is to remember."""

from .adding import Adding
from .chorales import Chorales
from .copying import Copy, Denoise
from .custom import Custom
from .digits import Digits
from .gaussian import Gaussian
from .startend import StartEnd
from .symbols import Symbols
from .task import Batch, Split, Task
from .text import Characters, Words

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (Copy, Denoise, Adding, Symbols, Digits, Characters, Words, Chorales, Gaussian, StartEnd)
}
"""Every task by the name it has on the command line; `Custom` is for Python alone."""

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
]
