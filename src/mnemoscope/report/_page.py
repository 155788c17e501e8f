"""Findings -> one HTML page that needs nothing but a browser."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import visible, write_atomic
from mnemoscope.finding import Examination, Finding
from mnemoscope.report._chart import Chart, format_number
from mnemoscope.report._charts import charts_of, scopes_of
from mnemoscope.report._headline import alarms, headlines, verdict, warnings
from mnemoscope.report._interactive import plotly_chart
from mnemoscope.report._palette import DARK, LIGHT

MAX_BYTES = 6_000_000  # of a page
LEAST_DETAIL = 0.05


@dataclass(frozen=True)
class Section:
    """A scope on the page: its words, its findings by model, the names of their figures, and its charts."""

    scope: str
    title: str
    question: str
    help: tuple[str, ...]
    findings: dict[str, Finding]
    figures: list[str]  # names of figures that any model has
    charts: list[Chart]

    @property
    def has_result(self) -> bool:
        return bool(self.charts) or any(finding.has_result for finding in self.findings.values())

    def status(self, model: str, figure: str) -> str:
        """Return whether a figure of a model is certified or estimated; empty if the model has no such figure."""
        finding = self.findings[model]
        return finding.status_of(figure) if figure in finding.figures else ""

    def cell(self, model: str, figure: str) -> str:
        """Return a figure of a model as the table shows it."""
        value = self.findings[model].figures.get(figure)
        return "–" if value is None else format_number(value)


def write_page(examinations: Examination | Mapping[str, Examination], path: str | Path, title: str = "") -> Path:
    """Write the page of one examination, or of several by the models' names, which are then compared.

    Examples:
        >>> from mnemoscope.report import write_page
        >>> found = mnemoscope.examine(nn.GRU(3, 16), torch.randn(20, 4, 3), scopes=["horizon"])
        >>> path = write_page(found, "page.html", title="A GRU")
    """
    path = Path(path)
    write_atomic(path, render(examinations, title).encode())
    return path


def render(examinations: Examination | Mapping[str, Examination], title: str = "") -> str:
    """Return the page as HTML. Charts keep as much detail as a page of six megabytes can hold."""
    named = _by_name(examinations)
    if not named:
        raise MnemoscopeError("a page needs at least one examination")
    return within_limit(lambda detail: _page(named, title, detail))


def within_limit(page: Callable[[float], str]) -> str:
    """Return a page with as much detail, from 1 down, as six megabytes can hold; the least if none fits."""
    detail = 1.0
    text = page(detail)
    while len(text.encode()) > MAX_BYTES and detail > LEAST_DETAIL:
        detail /= 2
        text = page(detail)
    return text


def _by_name(examinations: Examination | Mapping[str, Examination]) -> dict[str, Examination]:
    """Examinations by the models' names."""
    if isinstance(examinations, Examination):
        name = examinations.about.get("name") or examinations.about.get("model", "model")
        return {name: examinations}
    if not isinstance(examinations, Mapping):
        raise MnemoscopeError(f"a page shows an Examination, or several by name; got {type(examinations).__name__}")
    return dict(examinations)


def all_charts(examinations: Examination | Mapping[str, Examination]) -> list[Chart]:
    """Return every chart of the page, in its order."""
    named = _by_name(examinations)
    return [chart for scope in scopes_of(named) for chart in charts_of(named, scope)]


def _page(examinations: dict[str, Examination], title: str, detail: float) -> str:
    sections = [_section(examinations, scope) for scope in scopes_of(examinations)]
    return fill_template(
        "page.html",
        [plotly_chart(chart, detail) for section in sections for chart in section.charts],
        title=title or _title(list(examinations)),
        examinations=examinations,
        alarms=alarms(examinations),
        warnings=warnings(examinations),
        verdict=verdict(examinations),
        headlines=headlines(examinations),
        partial=any(examination.partial for examination in examinations.values()),
        sections=[section for section in sections if section.has_result],
        without_result=_by_reason([section for section in sections if not section.has_result]),
        details={name: _details(examination) for name, examination in examinations.items()},
    )


def _by_reason(sections: Sequence[Section]) -> list[list[Section]]:
    """Sections without a result, those together that have none for the same reason."""
    groups: dict[tuple[tuple[str, str, str], ...], list[Section]] = {}
    for section in sections:
        reason = tuple((name, f.status, f.why or f.sentence) for name, f in section.findings.items())
        groups.setdefault(reason, []).append(section)
    return list(groups.values())


def _title(names: list[str]) -> str:
    return " and ".join(names) if len(names) <= 3 else f"{len(names)} models"


def _section(examinations: Mapping[str, Examination], scope: str) -> Section:
    findings = {
        name: examination.findings[scope] for name, examination in examinations.items() if scope in examination.findings
    }
    figures = list(dict.fromkeys(figure for finding in findings.values() for figure in finding.figures))
    # Findings saved by older versions have no words of their own.
    words = next((finding for finding in findings.values() if finding.question), next(iter(findings.values())))
    charts = charts_of(examinations, scope)
    return Section(scope, words.title, words.question, words.help, findings, figures, charts)


def _details(examination: Examination) -> dict[str, list[tuple[str, str]]]:
    """What was examined, with what, and how long it took, in groups: `about` has them as ``group/name``."""
    groups: dict[str, list[tuple[str, str]]] = {"Examined": []}
    for key, value in examination.about.items():
        group, _, name = key.rpartition("/")
        groups.setdefault(group.capitalize() or "Examined", []).append((name, value))
    costs = [(finding.scope, f"{finding.seconds:.2f} s") for finding in examination]
    return {**groups, "Cost": [*costs, ("in all", f"{examination.seconds:.2f} s")]}


def fill_template(template: str, charts: Sequence[dict[str, Any]], **values: Any) -> str:
    """Return a page with style, scripts and charts inlined: only these scripts may run, and nothing is fetched."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    palette = {"light": LIGHT, "dark": DARK}
    environment = Environment(
        loader=PackageLoader("mnemoscope.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"palette": palette}
    scripts = [_plotly_script(), _asset("page.js")] if charts else [_asset("page.js")]
    page = environment.get_template(template).render(
        style=_palette_style() + _asset("style.css"),
        scripts=scripts,
        policy=_security_policy(scripts),
        data=_json_for_script({"charts": charts, "palette": palette}),
        **values,
    )
    return page.encode(errors="backslashreplace").decode()  # a file's name need not be Unicode


def _shown(value: Any) -> Any:
    """What the page shows of a value: characters that set the direction of writing would turn the words behind them."""
    return visible(value) if type(value) is str else value  # not markup, which is our own


def _plotly_script() -> str:
    """plotly's own script, from the installed package."""
    try:
        return _read_once(Path(str(files("plotly"))) / "package_data" / "plotly.min.js")
    except (ModuleNotFoundError, OSError) as error:
        raise MnemoscopeError("the page needs plotly's script: pip install 'plotly>=6'") from error


@cache
def _read_once(path: Path) -> str:
    return path.read_text("utf-8")


def _asset(name: str) -> str:
    return (files("mnemoscope.report") / "templates" / name).read_text("utf-8")


def _palette_style() -> str:
    """The palette as a style sheet: swatches have the colors of the charts."""
    light = " ".join(f"--c{i}: {color};" for i, color in enumerate(LIGHT))
    dark = " ".join(f"--c{i}: {color};" for i, color in enumerate(DARK))
    swatches = "".join(f'.swatch[data-color="{i}"] {{ background: var(--c{i}); }}\n' for i in range(len(LIGHT)))
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{swatches}"


def _security_policy(scripts: Sequence[str]) -> str:
    """The Content-Security-Policy: no network, and no script but these, whatever a user's names hold."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    webgl = "'unsafe-eval'"  # plotly compiles its WebGL drawing by eval
    rest = "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; worker-src blob:; base-uri 'none'"
    return f"default-src 'none'; script-src {hashes} {webgl}; {rest}; form-action 'none'"


def _json_for_script(value: Any) -> str:
    """JSON that cannot end the script element that it is in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
