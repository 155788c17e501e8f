"""Writes docs/compatibility.md from the zoo and from the tests of clients: python tests/zoo/compatibility.py."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Sequence

from zoo_models import ZOO

ROOT = pathlib.Path(__file__).parents[2]

HEAD = """# Compatibility

Third-party models and libraries with which Mnemoscope is tested. This page is written by
`python tests/zoo/compatibility.py`; the versions are those of constraints.txt and tests/clients/constraints.txt.

## Models

`pip install -c constraints.txt -e '.[zoo]'`, then `pytest tests/zoo`: each model is made small with random weights and
examined by `mnemoscope.examine(model, inputs)`. What is known of it must be found, and no scope may fail.

| package | model | what is known, and found |
|---|---|---|
"""

CLIENTS = """
## Libraries that use the layers

`make clients` runs the tests in `tests/clients`, which put the layers where nn.LSTM stood. Each row is a test.

| tried with | what was tried |
|---|---|
"""


def versions() -> dict[str, str]:
    """Return the exact versions in both files of constraints, by package in lower case."""
    found = {}
    for file in ("constraints.txt", "tests/clients/constraints.txt"):
        lines = (ROOT / file).read_text("utf-8").splitlines()
        found.update(
            {_key(name): version.strip() for name, version in (line.split("==") for line in lines if "==" in line)}
        )
    return found


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def client_rows() -> list[str]:
    """Return a row for every test of a client: the packages that it imports, and its docstring."""
    pinned = versions()
    rows = []
    for path in sorted((ROOT / "tests" / "clients").glob("test_*.py")):
        module = ast.parse(path.read_text("utf-8"))
        shared = imported([node for node in module.body if isinstance(node, ast.Expr | ast.Assign)])
        for test in module.body:
            if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
                continue
            said = ast.get_docstring(test)
            if said is None:
                raise SystemExit(f"{path.name}: {test.name} does not say what it tries; give it a docstring")
            packages = [f"{name} {pinned.get(_key(name), '')}".strip() for name in imported([test]) or shared]
            rows.append(f"| {', '.join(packages) or 'torch'} | {' '.join(said.split())} |")
    return rows


def imported(nodes: Sequence[ast.AST]) -> list[str]:
    """Return the packages of others that are imported somewhere in these nodes."""
    found: dict[str, None] = {}
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "importorskip":
            found[ast.literal_eval(node.args[0])] = None
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found[node.module] = None
    packages = dict.fromkeys(name.partition(".")[0] for name in found)
    return [name for name in packages if name != "torch"]


def page() -> str:
    pinned = versions()
    models = [f"| {k.package} {pinned[_key(k.package)]} | {k.name} | {k.answer} |" for k in ZOO]
    rows = client_rows()
    clients = CLIENTS + "\n".join(rows) + "\n" if rows else ""
    return HEAD + "\n".join(models) + "\n" + clients


if __name__ == "__main__":
    (ROOT / "docs" / "compatibility.md").write_text(page(), "utf-8")
