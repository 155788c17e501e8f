"""The result of a scope: data, not a plot. Saved as JSON, with the arrays beside it in safetensors."""

from __future__ import annotations

import hashlib
import html
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import (
    LOCK_SECONDS,
    FileMissing,
    locked,
    make_folder,
    read_bytes,
    read_json,
    remove,
    version,
    write_atomic,
)
from mnemoscope.schema import check_fields, checked_fields, convert, from_dict

Status = Literal["certified", "estimated", "not applicable", "skipped", "failed"]
FILE = "findings.json"
FORMAT = 2  # 1 had no status for each figure
READS = 100  # attempts at an examination that another process keeps replacing


@dataclass(frozen=True, eq=False, repr=False)
class Finding:
    """One measurement of one model.

    Attributes:
        scope: the name of the scope that made it.
        sentence: the result in one sentence.
        status: how far to trust the sentence. `certified`: every figure in it is proved; `estimated`: measured on
            these inputs; `not applicable` to this model; `skipped`: the time was up; `failed`.
        why: the condition that was checked, or the reason why there is no result.
        figures: the few numbers that matter, ``{"horizon": 38.0}``.
        series: the arrays that charts are drawn from; numpy arrays on the CPU.
        spread: the variation of figures and series over sequences or seeds, under the same names.
        labels: results that are words: the name of a regime, the names of rows.
        certified: the names of the figures that are proved: the conditions of a theorem were checked. All others are
            estimated; see `status_of`.
        assumptions: what the result takes for granted.
        warnings: what is wrong with the model, and how to fix it.
        method: how it was measured, in one line.
        seconds: how long it took.
        title: the scope's heading; stored with the finding, as are `question` and `help`, so that a report can be drawn
            without the scope that made it.
        question: the question that the scope answers.
        help: paragraphs on how to read the scope's charts.

    Examples:
        >>> finding = mnemoscope.Finding("mine", "It remembers 3 steps.", "estimated", figures={"steps": 3})
        >>> finding.figures["steps"], finding.status_of("steps")
        (3.0, 'estimated')
    """

    scope: str
    sentence: str
    status: Status
    why: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    series: dict[str, np.ndarray] = field(default_factory=dict)
    spread: dict[str, np.ndarray] = field(default_factory=dict)
    labels: dict[str, str | list[str]] = field(default_factory=dict)
    certified: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    method: str = ""
    seconds: float = 0.0
    title: str = ""
    question: str = ""
    help: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise MnemoscopeError(f"a finding's status is one of {', '.join(get_args(Status))}; got {self.status!r}")
        check_fields(self, "scope", "sentence", "why", "labels", *_TUPLES, "method", "title", "question")
        for name in ("series", "spread"):
            arrays = {key: _array(value) for key, value in getattr(self, name).items()}
            object.__setattr__(self, name, arrays)
            for key, array in arrays.items():
                if array.dtype.kind not in "fiub":
                    raise MnemoscopeError(
                        f"{self.scope}: the {name} of {key!r} is of {array.dtype}; it must be of real numbers"
                    )
        object.__setattr__(self, "figures", {key: float(value) for key, value in self.figures.items()})
        self._check_certified()
        if not self.title:
            object.__setattr__(self, "title", self.scope.replace("_", " ").capitalize())

    def _check_certified(self) -> None:
        unknown = [name for name in self.certified if name not in self.figures]
        if unknown:
            raise MnemoscopeError(f"{self.scope} certifies {', '.join(unknown)}, which are not among its figures")
        if self.status == "certified" and self.figures and not self.certified:
            raise MnemoscopeError(f"{self.scope} is certified, but names no figure that is")

    def status_of(self, figure: str) -> Status:
        """Return the status of one figure: certified, estimated, or the finding's own if there is no result."""
        if not self.has_result:
            return self.status
        if figure not in self.figures:
            raise MnemoscopeError(f"{self.scope} has no figure {figure!r}; it has {', '.join(self.figures)}")
        return "certified" if figure in self.certified else "estimated"

    @property
    def has_result(self) -> bool:
        """True if something was measured: there are figures to show and charts to draw."""
        return self.status in ("certified", "estimated")

    def __repr__(self) -> str:
        return f"<Finding {self}>"

    def __str__(self) -> str:
        return f"{self.scope} ({self.status}): {self.sentence}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Finding):
            return NotImplemented
        document, arrays = _split(self)
        other_document, other_arrays = _split(other)
        if document != other_document or arrays.keys() != other_arrays.keys():
            return False
        return all(_same(array, other_arrays[key]) for key, array in arrays.items())

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, repr=False)
class Examination:
    """All findings of one model.

    Attributes:
        findings: by scope, in the order in which they were made.
        verdict: what they amount to, in three sentences.
        about: what was examined (model, inputs), in words.
        partial: True if the examination was interrupted.
        seconds: how long it took.

    Examples:
        >>> found = mnemoscope.examine(nn.GRU(3, 16), torch.randn(20, 4, 3), scopes=["recurrence", "horizon"])
        >>> [finding.scope for finding in found]
        ['recurrence', 'horizon']
    """

    findings: dict[str, Finding]
    verdict: str
    about: dict[str, str] = field(default_factory=dict)
    partial: bool = False
    seconds: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "verdict", "about")

    def __getitem__(self, scope: str) -> Finding:
        if scope not in self.findings:
            raise MnemoscopeError(f"there is no finding {scope!r}; there are {', '.join(self.findings) or 'none'}")
        return self.findings[scope]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings.values())

    def __len__(self) -> int:
        return len(self.findings)

    def __repr__(self) -> str:
        model = self.about.get("model", "a model")
        return f"<Examination of {model}: {', '.join(self.findings) or 'no findings'}; print it for its sentences>"

    def __str__(self) -> str:
        lines = [self.verdict]
        lines += [f"- {finding}" for finding in self if finding.status != "not applicable"]
        lines += [f"- {', '.join(scopes)} (not applicable): {why}." for why, scopes in self._not_applicable().items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same as a table: what a notebook shows."""
        rows: list[tuple[str, str, str]] = [
            (finding.scope, finding.status, finding.sentence) for finding in self if finding.status != "not applicable"
        ]
        rows += [(", ".join(scopes), "not applicable", f"{why}.") for why, scopes in self._not_applicable().items()]
        left = ' style="text-align: left"'  # notebooks align cells to the right
        table = "".join(
            f"<tr><th{left}>{html.escape(scope)}</th><td{left}>{status}</td><td{left}>{html.escape(words)}</td></tr>"
            for scope, status, words in rows
        )
        return f"<p>{html.escape(self.verdict)}</p><table>{table}</table>"

    def _not_applicable(self) -> dict[str, list[str]]:
        """The scopes that do not apply, by their common reason."""
        grouped: dict[str, list[str]] = {}
        for finding in self:
            if finding.status == "not applicable":
                grouped.setdefault(finding.why, []).append(finding.scope)
        return grouped

    def save(self, folder: str | Path) -> Path:
        """Write ``findings.json`` and its arrays into a folder; replaces an older examination there."""
        return _save(self, Path(folder))

    @staticmethod
    def load(folder: str | Path) -> Examination:
        """Read what `save` wrote."""
        return _load(Path(folder))


def arrays(**values: Any) -> dict[str, np.ndarray]:
    """Return tensors or lists by name as the arrays of a finding."""
    return {name: _array(value) for name, value in values.items()}


def _array(value: Any) -> np.ndarray:
    """Return a copy of a tensor, an array or a list as a numpy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy has no bfloat16
            value = value.float()
        value = value.numpy()
    return np.array(value)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def _split(finding: Finding) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what JSON holds of a finding, and its arrays under ``series/name`` and ``spread/name``."""
    document = {f.name: getattr(finding, f.name) for f in fields(finding) if f.name not in ("series", "spread")}
    document["figures"] = {key: _json_number(value) for key, value in finding.figures.items()}
    for name in _TUPLES:
        document[name] = list(document[name])
    series = {f"series/{key}": array for key, array in finding.series.items()}
    spread = {f"spread/{key}": array for key, array in finding.spread.items()}
    return document, series | spread


_TUPLES = ("certified", "assumptions", "warnings", "help")  # which JSON gives back as lists


def _json_number(value: float) -> float | str:
    """JSON has no NaN or infinity: they are written as strings, which float() reads back."""
    return value if math.isfinite(value) else str(value)


def _save(examination: Examination, folder: Path) -> Path:
    # The document, and all arrays under "number of the finding/kind/name".
    parts = [_split(finding) for finding in examination]
    documents = [document for document, _ in parts]
    arrays = {_unicode(f"{i}/{key}"): array for i, (_, own) in enumerate(parts) for key, array in own.items()}
    data = save_arrays({key: array.copy(order="C") for key, array in arrays.items()})
    name = f"arrays-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
    about = {key: value for key, value in vars(examination).items() if key != "findings"}
    document = {"format": FORMAT, "arrays": name, **about, "findings": documents}
    text = _unicode(json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False))

    # Arrays first: a failure before the document is replaced leaves the old examination readable. Without the lock,
    # another process would delete our arrays as old ones before the document names them.
    with locked(make_folder(folder, follow=True), wait=LOCK_SECONDS, again=True):
        write_atomic(folder / name, data)
        write_atomic(folder / FILE, text.encode())
        for old in folder.glob("arrays-*.safetensors"):
            if old.name != name:
                remove(old)
    return folder / FILE


def _unicode(text: str) -> str:
    """Return `text` with question marks for what is not Unicode, as the name of a file need not be."""
    return text.encode(errors="replace").decode()


def _load(folder: Path) -> Examination:
    """Read an examination; if another process replaces it meanwhile, the new one."""
    path = folder / FILE if folder.is_dir() else folder
    for _ in range(READS):
        before = version(path)
        document = _read_document(path)
        try:
            data = read_bytes(path.parent / document.arrays)
        except FileMissing:
            if version(path) == before:
                raise
            continue  # replaced between the two reads
        return _examination(document, _read_arrays(data, path), path)
    raise MnemoscopeError(f"{path} changes faster than it can be read; wait for the process that writes it")


@dataclass(frozen=True)
class _Document:
    """The content of findings.json, checked but for the findings, whose arrays are in another file."""

    format: Literal[1, 2]
    arrays: str
    verdict: str
    about: dict[str, str]
    partial: bool
    seconds: float
    findings: list[dict[str, Any]]


def _read_document(path: Path) -> _Document:
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") not in (1, FORMAT):
        raise MnemoscopeError(f"{path} is not a file of findings of format {FORMAT}")
    document = from_dict(_Document, content, str(path))
    if Path(document.arrays).name != document.arrays:
        raise MnemoscopeError(f"{path}.arrays = {document.arrays!r} is not allowed; it must be a file's name")
    return document


def _read_arrays(data: bytes, path: Path) -> dict[str, np.ndarray]:
    try:
        return load_arrays(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:  # its dtypes may be unknown
        raise MnemoscopeError(f"the arrays of {path} cannot be read: {error}") from error


def _examination(document: _Document, arrays: Mapping[str, np.ndarray], path: Path) -> Examination:
    findings = {}
    for i, part in enumerate(document.findings):
        content = _from_format_1(part) if document.format == 1 else part
        finding = _join(content, f"{i}/", arrays, f"{path}: findings[{i}]")
        findings[finding.scope] = finding
    return Examination(findings, document.verdict, document.about, document.partial, document.seconds)


def _from_format_1(document: Mapping[str, Any]) -> dict[str, Any]:
    """Call certified findings of format 1 estimated: they marked figures that were measured, or proved too little."""
    status = document.get("status")
    return {**document, "status": "estimated" if status == "certified" else status}


_JsonNumber = float | Literal["nan", "inf", "-inf"]  # as `_json_number` writes it


def _join(document: dict[str, Any], prefix: str, arrays: Mapping[str, np.ndarray], where: str) -> Finding:
    """Put a finding together from its part of the document and the arrays under `prefix`: reverses `_split`."""
    kinds: dict[str, dict[str, np.ndarray]] = {"series": {}, "spread": {}}
    for key, array in arrays.items():
        kind, _, name = key.removeprefix(prefix).partition("/")
        if key.startswith(prefix) and kind in kinds:
            kinds[kind][name] = array
    figures = convert(dict[str, _JsonNumber], document.get("figures", {}), f"{where}.figures")
    content = checked_fields(Finding, {**document, **kinds, "figures": {}}, where)
    return Finding(**{**content, "figures": figures})
