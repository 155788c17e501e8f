"""Ctrl-C while the command loads.

torch and the libraries of a command take seconds to import, some of them in one long call, and some swallow a
KeyboardInterrupt. Until they are there, a signal therefore ends the process at once, as it does for a program that
handles none: nothing has been written yet. Only the command does this, not a script that imports the package.
"""

from __future__ import annotations

import signal
import sys
import threading
from itertools import pairwise
from pathlib import Path


def _is_command() -> bool:
    """True in a process of `mnemoscope` or of `python -m mnemoscope`."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    if name == "-m":  # Python has yet to find the module
        words = sys.orig_argv
        return ("-m", "mnemoscope") in pairwise(words)
    return Path(name).stem == "mnemoscope"


def _begin() -> bool:
    """Let Ctrl-C end the process, unless it is handled otherwise; return whether it now does."""
    if not _is_command() or threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return True


_is_loading = _begin()


def loaded() -> None:
    """Let Ctrl-C be a KeyboardInterrupt again: the command begins."""
    global _is_loading
    if _is_loading:
        _is_loading = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
