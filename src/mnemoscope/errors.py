"""The errors that Mnemoscope raises on purpose: what was wrong, what was given, what is allowed."""


class MnemoscopeError(Exception):
    """Something the user can mend; its message is one line that says how."""
