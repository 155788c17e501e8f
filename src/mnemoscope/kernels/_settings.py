"""What holds inside a `with` block, for one thread: the backend, and whether runs are recorded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mnemoscope.kernels._state_gradients import RecordedRun


class Settings(threading.local):
    """One thread's settings.

    An attribute of a thread-local object, and not a ContextVar: torch.compile traces and guards the one and refuses the
    other.

    Attributes:
        backend: "auto", "portable" or "eager".
        recorded: the runs recorded so far; None while nothing is recorded.
        plainly: while a checkpoint is run again, whether its first run could do without torch's dispatcher
            (`_dispatch.calls_plainly`); else None.
    """

    def __init__(self) -> None:
        self.backend = "auto"
        self.recorded: list[RecordedRun] | None = None
        self.plainly: bool | None = None


settings = Settings()
