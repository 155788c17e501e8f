"""Findings -> one HTML page that needs nothing but a browser."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import write_whole
from mnemoscope.finding import Examination, Finding
from mnemoscope.report._chart import Chart, figure
from mnemoscope.report._charts import charts_of, scopes_of
from mnemoscope.report._headline import alarms, headlines, verdict, warnings
from mnemoscope.report._interactive import for_page
from mnemoscope.report._palette import DARK, LIGHT

LIMIT = 6_000_000  # bytes of a page
LEAST_DETAIL = 0.05


@dataclass(frozen=True)
class Section:
    """A scope on the page: its findings by model, the table of their figures, and its charts."""

    scope: str
    title: str
    question: str
    help: tuple[str, ...]
    findings: dict[str, Finding]
    names: list[str]  # of figures, over all models
    charts: list[Chart]

    def cell(self, model: str, name: str) -> str:
        value = self.findings[model].figures.get(name)
        return "–" if value is None else figure(value)


def write_page(examinations: Examination | Mapping[str, Examination], path: str | Path, title: str = "") -> Path:
    """Write the page of one examination, or of several by the models' names, which are then compared."""
    path = Path(path)
    write_whole(path, render(examinations, title).encode())
    return path


def render(examinations: Examination | Mapping[str, Examination], title: str = "") -> str:
    """The page as HTML. Charts keep as much detail as a page of six megabytes can hold."""
    named = by_name(examinations)
    if not named:
        raise MnemoscopeError("a page needs at least one examination")
    detail, text = 1.0, _page(named, title, 1.0)
    while len(text.encode()) > LIMIT and detail > LEAST_DETAIL:
        detail /= 2
        text = _page(named, title, detail)
    return text


def by_name(examinations: Examination | Mapping[str, Examination]) -> dict[str, Examination]:
    """Examinations under the models' names."""
    if isinstance(examinations, Examination):
        return {examinations.about.get("name") or examinations.about.get("model", "model"): examinations}
    return dict(examinations)


def all_charts(examinations: Examination | Mapping[str, Examination]) -> list[Chart]:
    """Every chart of the page, in its order."""
    named = by_name(examinations)
    return [chart for scope in scopes_of(named) for chart in charts_of(named, scope)]


def _page(examinations: dict[str, Examination], title: str, detail: float) -> str:
    sections = [section(examinations, scope) for scope in scopes_of(examinations)]
    charts = [for_page(chart, detail) for part in sections for chart in part.charts]
    return fill(
        "page.html", charts, title=title or " and ".join(_few(list(examinations))), examinations=examinations,
        alarms=alarms(examinations), warnings=warnings(examinations), verdict=verdict(examinations),
        headlines=headlines(examinations), partial=any(e.partial for e in examinations.values()),
        sections=[part for part in sections if part.charts or _found(part)],
        empty=[part for part in sections if not (part.charts or _found(part))],
        details={name: _details(e) for name, e in examinations.items()},
    )  # fmt: skip


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= 3 else [f"{len(names)} models"]


def _found(part: Section) -> bool:
    return any(finding.has_result for finding in part.findings.values())


def section(examinations: Mapping[str, Examination], scope: str) -> Section:
    """All that is said of a scope."""
    findings = {name: e.findings[scope] for name, e in examinations.items() if scope in e.findings}
    names = list(dict.fromkeys(name for finding in findings.values() for name in finding.figures))
    texts = next((f for f in findings.values() if f.question), next(iter(findings.values())))  # old files have none
    charts = charts_of(examinations, scope)
    return Section(scope, texts.title, texts.question, texts.help, findings, names, charts)


def _details(examination: Examination) -> dict[str, list[tuple[str, str]]]:
    """What was examined and with what, in groups: ``group/name`` in `about`."""
    groups: dict[str, list[tuple[str, str]]] = {"Examined": []}
    for key, value in examination.about.items():
        group, _, name = key.rpartition("/")
        groups.setdefault(group.capitalize() or "Examined", []).append((name, value))
    costs = [(finding.scope, f"{finding.seconds:.2f} s") for finding in examination]
    return {**groups, "Cost": [*costs, ("in all", f"{examination.seconds:.2f} s")]}


def fill(template: str, charts: Sequence[dict[str, Any]], **values: Any) -> str:
    """A template with style, script, plotly and charts inlined; only these scripts may run, and nothing is fetched."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("mnemoscope.report", "templates")
    tidy: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, autoescape=True, **tidy)
    environment.globals |= {"palette": {"light": LIGHT, "dark": DARK}, "figure": figure}
    scripts = [plotly_script(), _asset("page.js")] if charts else [_asset("page.js")]
    data = {"charts": charts, "palette": {"light": LIGHT, "dark": DARK}}
    return environment.get_template(template).render(
        style=_theme() + _asset("style.css"), scripts=scripts, policy=_policy(scripts), data=_for_script(data), **values
    )


def plotly_script() -> str:
    """plotly's own script, from the installed package."""
    try:
        return _text(Path(str(files("plotly"))) / "package_data" / "plotly.min.js")
    except (ModuleNotFoundError, OSError) as error:
        raise MnemoscopeError("the page needs plotly's script: pip install 'plotly>=6'") from error


@cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")


def _asset(name: str) -> str:
    return (files("mnemoscope.report") / "templates" / name).read_text("utf-8")


def _theme() -> str:
    """The palette for the style sheet: swatches have the colours of the charts."""
    light, dark = (" ".join(f"--c{i}: {c};" for i, c in enumerate(colours)) for colours in (LIGHT, DARK))
    swatches = "".join(f'.swatch[data-colour="{i}"] {{ background: var(--c{i}); }}\n' for i in range(len(LIGHT)))
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{swatches}"


def _policy(scripts: Sequence[str]) -> str:
    """No network, and no script but these: names from a user cannot run, whatever they hold."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    graphics = "'unsafe-eval'"  # plotly compiles its drawing on the graphics card
    rest = "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; worker-src blob:; base-uri 'none'"
    return f"default-src 'none'; script-src {hashes} {graphics}; {rest}; form-action 'none'"


def _for_script(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
