"""The rooms of the package keep the rules of docs/architecture.md: who imports whom, and what is public."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src"
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"
PACKAGE = "mnemoscope"


class Import(NamedTuple):
    """One imported name: `from target import name`, or `import target` with no name."""

    importer: str
    target: str  # the module that is loaded
    name: str | None
    when: str  # "load": with the module; "call": inside a function; "types": for type checkers only


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")
PUBLIC_PACKAGES = [name for name in PACKAGES if "._" not in name]


def room(module: str) -> str:
    """The top-level package or module that `module` belongs to; `mnemoscope` for the root itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else PACKAGE


def imports_in(node: ast.AST, when: str = "load") -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Every import statement below `node`, and when it runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports_in(child, "call")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from imports_in(child, "types")
        else:
            yield from imports_in(child, when)


def all_imports() -> Iterator[Import]:
    """Every import of a name of this package, in every module of it."""
    for importer, path in MODULES.items():
        for statement, when in imports_in(ast.parse(path.read_text())):
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    if alias.name.split(".")[0] == PACKAGE:
                        yield Import(importer, alias.name, None, when)
            elif (statement.module or "").split(".")[0] == PACKAGE:
                for alias in statement.names:
                    inner = f"{statement.module}.{alias.name}"
                    if inner in MODULES:
                        yield Import(importer, inner, None, when)
                    else:
                        yield Import(importer, statement.module or "", alias.name, when)


IMPORTS = list(all_imports())


def drawn_edges() -> set[tuple[str, str]]:
    """The edges that the table "Who imports whom" of docs/architecture.md draws."""
    section = ARCHITECTURE.read_text().split("## Who imports whom", 1)[1].split("\n## ", 1)[0]
    edges = set()
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            imported = [name.strip(" `") for name in cells[1].split(",")]
            edges |= {(cells[0].strip("`"), name) for name in imported if name != "nothing"}
    return edges


def test_imports_are_absolute():
    for path in MODULES.values():
        for statement, _ in imports_in(ast.parse(path.read_text())):
            assert not (isinstance(statement, ast.ImportFrom) and statement.level), path


def test_modules_import_each_other_without_a_cycle():
    graph: dict[str, set[str]] = defaultdict(set)
    for found in IMPORTS:
        if found.when == "load":
            graph[found.importer].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


def test_no_private_name_is_imported_across_rooms():
    reached = set()
    for found in IMPORTS:
        path = [*found.target.split(".")[1:], *([found.name] if found.name else [])]
        private = any(part.startswith("_") and not part.endswith("__") for part in path)
        if private and room(found.importer) != room(found.target):
            reached.add((room(found.importer), ".".join(path)))
    assert reached == set()


def test_no_private_attribute_is_reached_across_rooms():
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text())
        rooms = {}  # the local names of other rooms' modules
        for found in IMPORTS:
            if found.importer == module and found.name is None and room(found.target) != room(module):
                rooms[found.target.split(".")[-1]] = found.target
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in rooms:
                assert not node.attr.startswith("_") or node.attr.endswith("__"), f"{path}:{node.lineno}"


def test_rooms_import_each_other_as_architecture_md_draws():
    edges = {(room(found.importer), room(found.target)) for found in IMPORTS}
    edges = {(importer, imported) for importer, imported in edges if importer != imported}
    drawn = drawn_edges()
    assert edges - drawn == set(), "not drawn"
    assert drawn - edges == set(), "drawn, but not imported"


def test_architecture_md_names_every_room():
    text = ARCHITECTURE.read_text()
    rooms = {room(module) for module in MODULES}
    for name in rooms - {PACKAGE, "__main__"}:
        assert f"| `{name}` |" in text.split("## Who imports whom")[0], name


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_no_name_is_both_a_module_and_a_public_attribute(package):
    inner = {name.removeprefix(f"{package}.").split(".")[0] for name in MODULES if name.startswith(f"{package}.")}
    listed = set(importlib.import_module(package).__all__)
    subpackages = {name.rsplit(".", 1)[1] for name in PUBLIC_PACKAGES if name.startswith(f"{package}.")}
    assert (inner & listed) - subpackages == set()


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_every_room_lists_its_public_names(package):
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name), f"{package}.{name}"
        assert not name.startswith("_")


@pytest.mark.parametrize("package", [name for name in PUBLIC_PACKAGES if name != PACKAGE])
def test_public_modules_of_a_room_are_lists_of_names_or_scripts(package):
    """Code lives in private modules; a public one lists names, or is something to run with `python -m`."""
    for name, path in MODULES.items():
        if name.startswith(f"{package}.") and "._" not in name and name not in PACKAGES:
            text = path.read_text()
            assert "__all__ = [" in text or '__name__ == "__main__"' in text, name


def test_importing_the_package_loads_no_heavy_library():
    heavy = {"tyro", "plotly", "pooch", "flint", "gymnasium", "matplotlib", "scipy", "transformers", "lightning_fabric"}
    code = "import sys, mnemoscope; print(*{name.split('.')[0] for name in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(out.split()) & heavy == set()


def test_rooms_are_attributes_without_an_import_of_their_own():
    code = "import mnemoscope; print(mnemoscope.scopes.horizon.__name__, mnemoscope.tasks.__name__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["horizon", "mnemoscope.tasks"]
