"""What a scope found: data, not a plot. Findings are kept as JSON, their arrays beside it in safetensors."""

from __future__ import annotations

import hashlib
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
from mnemoscope.files import write_whole

Status = Literal["certified", "estimated", "not applicable", "skipped", "failed"]
FILE = "findings.json"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Finding:
    """One measurement of one model.

    `figures` are the few numbers that matter (``{"horizon": 38.0}``), `series` the arrays a chart is drawn from, and
    `spread` their variation over sequences or seeds under the same names. Arrays are numpy's, on the CPU.

    The status says how far to trust it: `certified`, a theorem's conditions were checked; `estimated`, measured on
    these inputs; `not applicable` to this model; `skipped`, for want of time; `failed`. `why` gives the condition or
    the reason.
    """

    scope: str
    sentence: str
    status: Status
    why: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    series: dict[str, np.ndarray] = field(default_factory=dict)
    spread: dict[str, np.ndarray] = field(default_factory=dict)
    labels: dict[str, str | list[str]] = field(default_factory=dict)  # words: a regime's name, the names of rows
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # with the way to mend it
    method: str = ""  # one line
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise MnemoscopeError(f"a finding's status is one of {', '.join(get_args(Status))}; got {self.status!r}")
        for name in ("series", "spread"):
            object.__setattr__(self, name, {key: _array(value) for key, value in getattr(self, name).items()})
        object.__setattr__(self, "figures", {key: float(value) for key, value in self.figures.items()})

    @property
    def found(self) -> bool:
        """Whether there is anything to draw."""
        return self.status in ("certified", "estimated")

    def __str__(self) -> str:
        return f"{self.scope} ({self.status}): {self.sentence}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Finding):
            return NotImplemented
        words, arrays = _split(self)
        other_words, other_arrays = _split(other)
        same_names = words == other_words and arrays.keys() == other_arrays.keys()
        return same_names and all(_same(array, other_arrays[key]) for key, array in arrays.items())

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Examination:
    """The findings of one model, in the order in which they were made, and what they come to.

    `about` says what was examined (model, inputs) in words. `partial` is set when the examination was interrupted.
    """

    findings: dict[str, Finding]
    verdict: str
    about: dict[str, str] = field(default_factory=dict)
    partial: bool = False
    seconds: float = 0.0

    def __getitem__(self, scope: str) -> Finding:
        if scope not in self.findings:
            raise MnemoscopeError(f"there is no finding {scope!r}; there are {', '.join(self.findings) or 'none'}")
        return self.findings[scope]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings.values())

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(f"- {finding}" for finding in self)])

    def save(self, folder: str | Path) -> Path:
        """Write ``findings.json`` and its arrays into a folder; an older examination there is replaced whole."""
        return _save(self, Path(folder))

    @staticmethod
    def load(folder: str | Path) -> Examination:
        """Read what `save` wrote."""
        return _load(Path(folder))


def arrays(**values: Any) -> dict[str, np.ndarray]:
    """Tensors or lists by name, as the arrays of a finding."""
    return {name: _array(value) for name, value in values.items()}


def _array(value: Any) -> np.ndarray:
    """A numpy array of its own, from a tensor, an array or a list."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()  # numpy has no such numbers
    return np.array(value)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def _split(finding: Finding) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What JSON holds of a finding, and its arrays by kind and name."""
    words = {f.name: getattr(finding, f.name) for f in fields(finding) if f.name not in ("series", "spread")}
    words["figures"] = {key: _number(value) for key, value in finding.figures.items()}
    words["assumptions"], words["warnings"] = list(finding.assumptions), list(finding.warnings)
    arrays = {f"{kind}/{key}": a for kind in ("series", "spread") for key, a in getattr(finding, kind).items()}
    return words, arrays


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has no word for these; float() reads them back


def _save(examination: Examination, folder: Path) -> Path:
    parts = [_split(finding) for finding in examination]
    arrays = {f"{i}/{key}": array for i, (_, found) in enumerate(parts) for key, array in found.items()}
    data = save_arrays({key: array.copy(order="C") for key, array in arrays.items()})
    name = f"arrays-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
    about = {key: value for key, value in vars(examination).items() if key != "findings"}
    document = {"format": FORMAT, "arrays": name, **about, "findings": [words for words, _ in parts]}
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, data)
        write_whole(folder / FILE, text.encode())  # from here on the folder holds the new examination
        for old in folder.glob("arrays-*.safetensors"):
            if old.name != name:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise MnemoscopeError(f"cannot write findings into {folder}: {error.strerror}") from error
    return folder / FILE


def _load(folder: Path) -> Examination:
    path = folder / FILE if folder.is_dir() else folder
    try:
        document = json.loads(path.read_text("utf-8"))
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise MnemoscopeError(f"{path} is not a file of findings of format {FORMAT}")
        arrays = load_arrays((path.parent / Path(document["arrays"]).name).read_bytes())
        found = [_join(words, f"{i}/", arrays) for i, words in enumerate(document["findings"])]
        about = {f.name: document[f.name] for f in fields(Examination) if f.name != "findings"}
    except MnemoscopeError:
        raise
    except OSError as error:
        raise MnemoscopeError(f"cannot read findings from {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise MnemoscopeError(f"{path} does not hold findings: {type(error).__name__}: {error}") from error
    return Examination({finding.scope: finding for finding in found}, **about)


def _join(words: Mapping[str, Any], prefix: str, arrays: Mapping[str, np.ndarray]) -> Finding:
    kinds: dict[str, dict[str, np.ndarray]] = {"series": {}, "spread": {}}
    for key, array in arrays.items():
        if key.startswith(prefix):
            kind, name = key.removeprefix(prefix).split("/", 1)
            kinds[kind][name] = array
    lists = {key: tuple(words[key]) for key in ("assumptions", "warnings")}
    return Finding(**{**words, **lists, **kinds})
