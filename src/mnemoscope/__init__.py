"""Mnemoscope shows how far back a recurrent network remembers, and gives it layers that remember further."""

from mnemoscope.errors import MnemoscopeError

__version__ = "0.1.0"
__all__ = ["MnemoscopeError"]
