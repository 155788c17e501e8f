"""Texts of the help, wrapped to the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

INDENT = "  "
WHOLE: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}  # options and paths stay in one piece


def paragraphs(text: str) -> str:
    """Return text wrapped to the terminal; an empty line ends a paragraph.

    Every line is indented: tyro would join lines that begin with a letter.
    """
    return "\n\n".join(
        textwrap.fill(" ".join(part.split()), _columns(), initial_indent=INDENT, subsequent_indent=INDENT, **WHOLE)
        for part in text.split("\n\n")
    )


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and their texts in two columns, wrapped to the terminal."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    hanging = " " * (len(INDENT) + width + 2)
    return "\n".join(
        textwrap.fill(
            text,
            max(_columns(), len(hanging) + 20),
            initial_indent=f"{INDENT}{name:<{width}}  ",
            subsequent_indent=hanging,
            **WHOLE,
        )
        for name, text in rows
    )


def _columns() -> int:
    return max(40, shutil.get_terminal_size().columns)
