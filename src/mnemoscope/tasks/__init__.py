"""What there is to remember."""

from .copying import Copy, Denoise
from .task import Batch, Split, Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Copy, Denoise)}
"""Every task by the name it has on the command line."""

__all__ = ["TASKS", "Batch", "Copy", "Denoise", "Split", "Task"]
