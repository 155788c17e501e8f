"""Measurements of a model, one a file, each returning a Finding."""

from mnemoscope.scopes.scope import SCOPES, Scope, scope
from mnemoscope.scopes.subject import Subject, subject_of
from mnemoscope.scopes.untouched import untouched

__all__ = ["SCOPES", "Scope", "Subject", "scope", "subject_of", "untouched"]
