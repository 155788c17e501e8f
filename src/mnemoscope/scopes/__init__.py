"""Measurements of a model, one a file, each returning a Finding."""

from mnemoscope.scopes.attention import attention
from mnemoscope.scopes.attractors import attractors
from mnemoscope.scopes.entropy import entropy
from mnemoscope.scopes.examine import examine
from mnemoscope.scopes.horizon import horizon
from mnemoscope.scopes.landscape import landscape
from mnemoscope.scopes.lyapunov import lyapunov
from mnemoscope.scopes.paths import paths
from mnemoscope.scopes.recurrence import recurrence
from mnemoscope.scopes.scope import SCOPES, Scope, scope
from mnemoscope.scopes.separation import separation
from mnemoscope.scopes.signal import signal
from mnemoscope.scopes.smoothness import smoothness
from mnemoscope.scopes.stability import stability
from mnemoscope.scopes.subject import Subject, subject_of
from mnemoscope.scopes.truncation import truncation
from mnemoscope.scopes.untouched import untouched
from mnemoscope.scopes.watch import Watch, lightning_callback

__all__ = [
    "SCOPES", "Scope", "Subject", "Watch", "attention", "attractors", "entropy", "examine", "horizon", "landscape",
    "lightning_callback", "lyapunov", "paths", "recurrence", "scope", "separation", "signal", "smoothness", "stability",
    "subject_of", "truncation", "untouched",
]
