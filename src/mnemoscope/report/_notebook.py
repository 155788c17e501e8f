"""The page inside a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field

from mnemoscope.errors import check_count
from mnemoscope.finding import Examination
from mnemoscope.report._page import render


@dataclass(frozen=True)
class InlinePage:
    """The page of one examination, or of several by the models' names, as the result of a notebook's cell.

    It is the file that `write_page` writes, in a frame of its own: nothing is fetched, and its scripts cannot reach the
    notebook.

    Args:
        examinations: an `Examination`, or several by the models' names, which are then compared.
        title: above the page; by default the models' names.
        height: of the frame, in pixels.
    """

    examinations: Examination | Mapping[str, Examination] = field(repr=False)
    title: str = ""
    height: int = 800

    def __post_init__(self) -> None:
        check_count("height", self.height)

    def _repr_html_(self) -> str:
        page = html.escape(render(self.examinations, self.title))
        style = f"width: 100%; height: {self.height}px; border: 0"
        return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{page}"></iframe>'
