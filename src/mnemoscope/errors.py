"""The error that Mnemoscope raises on purpose."""


class MnemoscopeError(ValueError):
    """A user error. Its message is one line: what was wrong, what was given, what is allowed.

    It is a ValueError, so handlers written for torch catch it. Code of our own that turns a library's ValueError into
    a MnemoscopeError must not do so to one that is a MnemoscopeError already.
    """
