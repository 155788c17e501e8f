"""Cases of pages: findings with hostile names, words and numbers, drawn; nothing of theirs may run in a browser."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser

from fuzz.damage import NUMBERS, STRINGS, array
from fuzz.sandbox import Failed, Sandbox
from mnemoscope.finding import Examination, Finding
from mnemoscope.report import all_charts, render, write_figures
from mnemoscope.scopes import SCOPES

Rng = random.Random


def pages(rng: Rng, box: Sandbox) -> None:
    """Findings with any names, words, figures and series, drawn as a page: no script of theirs runs."""

    def make() -> None:
        examinations = {rng.choice(STRINGS): _examination(rng) for _ in range(rng.choice([1, 1, 2, 3]))}
        _check_page(render(examinations, rng.choice(STRINGS)))
        if rng.random() < 0.02:
            write_figures(all_charts(examinations)[:1], box.box / "figures", ["svg"])
        next(iter(examinations.values())).save(box.box / "saved")
        Examination.load(box.box / "saved")

    box.guarded(make)


def _examination(rng: Rng) -> Examination:
    found = {}
    for _ in range(rng.randrange(4)):
        scope = rng.choice([*SCOPES, *SCOPES, "learning", *STRINGS])
        names = ("decay", "loss", "update", "metric", "norms", "exponents", "x", scope, *STRINGS)
        figures = {rng.choice(names): _number(rng) for _ in range(rng.randrange(4))}
        series = {rng.choice(names): array(rng) for _ in range(rng.randrange(4))}
        found[scope] = Finding(
            scope,
            rng.choice(STRINGS),
            rng.choice(["certified", "estimated", "estimated", "not applicable", "failed"])
            if not figures
            else rng.choice(["estimated", "failed"]),
            rng.choice(STRINGS),
            figures,
            series,
            {name: array(rng) for name in series if rng.random() < 0.5},
            {rng.choice(names): rng.choice([rng.choice(STRINGS), list(STRINGS[:3])]) for _ in range(rng.randrange(3))},
            warnings=tuple(rng.sample(STRINGS, rng.randrange(3))),
            help=tuple(rng.sample(STRINGS, rng.randrange(3))),
            question=rng.choice(STRINGS),
        )
    about = {rng.choice(STRINGS): rng.choice(STRINGS) for _ in range(rng.randrange(4))}
    return Examination(found, rng.choice(STRINGS), {**about, "needs": rng.choice(STRINGS)})


def _number(rng: Rng) -> float:
    number = rng.choice([*NUMBERS, float("nan"), float("inf"), -float("inf")])
    return float(number) if abs(number) < 1e308 or number != number or abs(number) == float("inf") else 1e308


class _Scripts(HTMLParser):
    """Collects what could run: scripts, handlers, addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for name, content in attributes:
            if name.startswith("on") or (name in ("href", "src") and re.match(r"\s*javascript:", content or "", re.I)):
                self.problems.append(f"<{tag} {name}={content!r}>")
        is_data = str(dict(attributes).get("href")).startswith("data:")  # the page's own icon
        if tag in ("iframe", "object", "embed", "base", "form", "img") or (tag == "link" and not is_data):
            self.problems.append(f"<{tag}>")


def _check_page(page: str) -> None:
    """A page has its own scripts and no others."""
    text = re.sub(r"<script>.{1000000,}?</script>", "<script></script>", page, count=1, flags=re.S)  # plotly's own
    found = _Scripts()
    found.feed(text)
    if found.problems or found.scripts > 3:
        raise Failed(f"the page has {found.scripts} scripts and {found.problems[:3]}")
