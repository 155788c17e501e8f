"""Writes docs/compatibility.md from the zoo and from the tests of clients: python tests/zoo/compatibility.py."""

from __future__ import annotations

import ast
import pathlib
import re

from zoo_models import ZOO

ROOT = pathlib.Path(__file__).parents[2]

HEAD = """# Compatibility

Models and libraries that nobody here wrote, with which Mnemoscope is tried. This page is written by
`python tests/zoo/compatibility.py`; the versions are those of constraints.txt.

## Models

`pip install -c constraints.txt -e '.[zoo]'`, then `pytest tests/zoo`: each model is made small with random weights and
examined by `mnemoscope.examine(model, inputs)`. What is known of it must be found, and no scope may fail.

| package | model | what is known, and found |
|---|---|---|
"""

CLIENTS = """
## Libraries that use the layers

`pytest -m clients` runs the tests in `tests/clients`, which put the layers where nn.LSTM stood.

| tried with | what |
|---|---|
"""


def versions() -> dict[str, str]:
    """Return the exact versions in constraints.txt, by package in lower case."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = (line.split("==") for line in lines if "==" in line)
    return {_key(name): version.strip() for name, version in pinned}


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def client_rows() -> list[str]:
    """Return a row for every test of a client: its file and its name in words, with the first line of its docstring."""
    rows = []
    for path in sorted((ROOT / "tests" / "clients").glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                words = node.name.removeprefix("test_").replace("_", " ")
                said = (ast.get_docstring(node) or "").partition("\n")[0]
                what = f"{words}: {said[0].lower()}{said[1:]}" if said else words
                rows.append(f"| {path.stem.removeprefix('test_').replace('_', ' ')} | {what} |")
    return rows


def page() -> str:
    pinned = versions()
    models = [f"| {k.package} {pinned[_key(k.package)]} | {k.name} | {k.answer} |" for k in ZOO]
    rows = client_rows()
    clients = CLIENTS + "\n".join(rows) + "\n" if rows else ""
    return HEAD + "\n".join(models) + "\n" + clients


if __name__ == "__main__":
    (ROOT / "docs" / "compatibility.md").write_text(page(), "utf-8")
