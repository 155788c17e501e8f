"""Measurements of a model, one a file, each returning a Finding."""

from mnemoscope.scopes._attention import attention
from mnemoscope.scopes._attractors import attractors
from mnemoscope.scopes._entropy import entropy
from mnemoscope.scopes._frame.examine import examine
from mnemoscope.scopes._frame.scope import SCOPES, Scope, scope
from mnemoscope.scopes._frame.subject import Subject, subject_of
from mnemoscope.scopes._frame.untouched import untouched
from mnemoscope.scopes._frame.watch import Watch, lightning_callback
from mnemoscope.scopes._horizon import horizon
from mnemoscope.scopes._landscape import landscape
from mnemoscope.scopes._lyapunov import lyapunov
from mnemoscope.scopes._paths import paths
from mnemoscope.scopes._recurrence import recurrence
from mnemoscope.scopes._separation import separation
from mnemoscope.scopes._signal import signal
from mnemoscope.scopes._smoothness import smoothness
from mnemoscope.scopes._stability import stability
from mnemoscope.scopes._truncation import truncation

__all__ = [
    "SCOPES",
    "Scope",
    "Subject",
    "Watch",
    "attention",
    "attractors",
    "entropy",
    "examine",
    "horizon",
    "landscape",
    "lightning_callback",
    "lyapunov",
    "paths",
    "recurrence",
    "scope",
    "separation",
    "signal",
    "smoothness",
    "stability",
    "subject_of",
    "truncation",
    "untouched",
]
