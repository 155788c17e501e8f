"""Measurements of a model, one a file, each returning a Finding."""

from mnemoscope.scopes.attention import attention
from mnemoscope.scopes.examine import examine
from mnemoscope.scopes.horizon import horizon
from mnemoscope.scopes.recurrence import recurrence
from mnemoscope.scopes.scope import SCOPES, Scope, scope
from mnemoscope.scopes.signal import signal
from mnemoscope.scopes.stability import stability
from mnemoscope.scopes.subject import Subject, subject_of
from mnemoscope.scopes.truncation import truncation
from mnemoscope.scopes.untouched import untouched
from mnemoscope.scopes.watch import Watch, lightning_callback

__all__ = [
    "SCOPES", "Scope", "Subject", "Watch", "attention", "examine", "horizon", "lightning_callback", "recurrence",
    "scope", "signal", "stability", "subject_of", "truncation", "untouched",
]
