"""mnemoscope list: the models, tasks, scopes and known systems there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro
from rich.table import Table

from mnemoscope.cli._console import first_sentence, parse, show, show_json
from mnemoscope.cli._systems import PREFIX, system_options
from mnemoscope.scopes import SCOPES, Scope
from mnemoscope.systems import SYSTEMS
from mnemoscope.tasks import TASKS
from mnemoscope.training import models


@dataclass(frozen=True)
class List:
    """List the models, tasks, scopes and known systems."""

    kinds: tyro.conf.Positional[tuple[Literal["models", "tasks", "scopes", "systems"], ...]] = ()
    """What to list; all by default."""
    json: bool = False
    """Print the names as JSON on standard output."""


def main(arguments: list[str]) -> int:
    options = parse(List, arguments, "list")
    names = {
        "models": {name: _model_sentence(name, kind) for name, kind in models().items()},
        "tasks": {name: first_sentence(kind) for name, kind in TASKS.items()},
        "scopes": {name: _scope_sentence(scope) for name, scope in SCOPES.items()},
        "systems": {PREFIX + name: _system_sentence(name) for name in SYSTEMS},
    }
    names = {kind: names[kind] for kind in options.kinds or names}
    if options.json:
        show_json(names)
        return 0
    for title, sentences in names.items():
        heading = "the question it answers" if title == "scopes" else "what it is"
        table = Table("name", heading, title=title, title_justify="left", width=110)
        for name, sentence in sentences.items():
            table.add_row(name, sentence)
        show(table)
    return 0


def _model_sentence(name: str, kind: type) -> str:
    return f"PyTorch's own nn.{kind.__name__}" if name.startswith("torch.") else first_sentence(kind)


def _scope_sentence(scope: Scope) -> str:
    """The question, and the options that --set takes."""
    options = ", ".join(scope.options)
    return f"{scope.question} (--set {scope.name}.OPTION: {options})" if options else scope.question


def _system_sentence(name: str) -> str:
    options = " ".join(f"{option}={default:.4g}" for option, default in system_options(name).items())
    return f"{first_sentence(SYSTEMS[name])}{f' (--with {options})' if options else ''}"
