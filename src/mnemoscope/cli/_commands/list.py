"""mnemoscope list: what there is."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from importlib import import_module

from rich.table import Table

from mnemoscope.cli._console import first_sentence, parse, show, show_json


@dataclass(frozen=True)
class List:
    """Name the models, tasks and scopes."""

    json: bool = False
    """Print the names as JSON on standard output."""


def main(arguments: list[str]) -> int:
    options = parse(List, arguments, "list")
    rooms = {"models": models(), "tasks": tasks(), "scopes": scopes(), "studies": studies()}
    if options.json:
        show_json(rooms)
        return 0
    for room, names in rooms.items():
        table = Table("name", "what it is", title=room, title_justify="left", width=110)
        for name, line in names.items():
            table.add_row(name, line)
        if names:
            show(table)
    return 0


def models() -> dict[str, str]:
    from mnemoscope.training import models as every

    return {name: _model(name, kind) for name, kind in every().items()}


def _model(name: str, kind: type) -> str:
    return f"PyTorch's own nn.{kind.__name__}" if name.startswith("torch.") else first_sentence(kind)


def tasks() -> dict[str, str]:
    from mnemoscope.tasks import TASKS

    return {name: first_sentence(kind) for name, kind in TASKS.items()}


def scopes() -> dict[str, str]:
    """Every scope and the question it answers."""
    from mnemoscope.scopes import SCOPES

    return {name: scope.question for name, scope in SCOPES.items()}


def studies() -> dict[str, str]:
    """The papers that have a room in `studies`, where this installation has them."""
    try:
        room = import_module("mnemoscope.studies")
    except ModuleNotFoundError:
        return {}
    names = sorted(module.name for module in pkgutil.iter_modules(room.__path__) if module.ispkg)
    return {name: first_sentence(import_module(f"mnemoscope.studies.{name}")) for name in names}
