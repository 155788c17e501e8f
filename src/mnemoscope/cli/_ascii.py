"""Terminals that show no more than ASCII: letters of mathematics are spelled out there, and no command fails."""

from __future__ import annotations

import codecs
import sys
import unicodedata
from io import TextIOWrapper

WORDS = {
    "λ": "lambda",
    "κ": "kappa",
    "ρ": "rho",
    "ν": "nu",
    "σ": "sigma",
    "≈": "~",
    "≤": "<=",
    "≥": ">=",
    "×": "x",
    "·": "-",
    "–": "-",
    "—": "-",
    "−": "-",
    "…": "...",
    "→": "->",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "∞": "inf",
    "²": "^2",
}


def write_ascii_where_needed() -> None:
    """Let standard output and standard error spell out what their encoding lacks."""
    codecs.register_error("mnemoscope.spell", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not _shows_all(stream.encoding):
            stream.reconfigure(errors="mnemoscope.spell")


def _shows_all(encoding: str) -> bool:
    try:
        "λ≈–╭│".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for the characters that could not be written: a word, a letter without its accent, a line, or ?."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_spell_character(character) for character in missing), error.end


def _spell_character(character: str) -> str:
    if character in WORDS:
        return WORDS[character]
    name = unicodedata.name(character, "")
    if name.startswith("BOX DRAWINGS"):
        return "|" if name.endswith("VERTICAL") else "-"
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or "?"
