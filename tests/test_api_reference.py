"""The API reference names every public name once, and what docstrings say of arguments is true of them.

`make docs` builds the site itself, with mkdocs; nothing here needs it.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import runpy
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

import mnemoscope
from test_architecture import PUBLIC_PACKAGES

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
FUNCTIONS = (FunctionType, classmethod, staticmethod, property, cached_property)


def find(path: str) -> Any:
    """The object at a dotted path."""
    room, _, name = path.rpartition(".")
    return getattr(importlib.import_module(room), name)


def entries(page: Path) -> list[str]:
    """The dotted path of everything that a page documents."""
    return re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)


ENTRIES = [path for page in PAGES for path in entries(page)]


def documented(page: Path) -> Iterator[tuple[str, Any]]:
    """Every class and function of a page, and the methods of these classes, by dotted path."""
    for path in entries(page):
        found = find(path)
        if inspect.isclass(found):
            yield path, found
            fields = getattr(found, "__dataclass_fields__", {})  # a default may be a function
            for name, method in vars(found).items():
                if not name.startswith("_") and name not in fields and isinstance(method, FUNCTIONS):
                    yield f"{path}.{name}", getattr(method, "__func__", method)
        elif callable(found) and getattr(found, "__module__", "").startswith("mnemoscope"):
            yield path, found


DOCUMENTED = {page: dict(documented(page)) for page in PAGES}
EXAMPLES = {path: found for page in PAGES for path, found in DOCUMENTED[page].items() if ">>>" in (found.__doc__ or "")}


def described(doc: str, section: str) -> list[str]:
    """What stands before the colons under a head such as "Args:" in a docstring."""
    text = re.search(rf"^{section}:\n((?:    .*\n|\n)+)", doc + "\n", re.MULTILINE)
    return re.findall(r"^    (\S[^:\n]*):", text[1], re.MULTILINE) if text else []


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_every_public_name_is_on_one_page(package: str) -> None:
    room = importlib.import_module(package)
    for name in room.__all__:
        found = getattr(room, name)
        if not isinstance(found, ModuleType):  # a room of its own
            homes = [path for path in ENTRIES if path.endswith(f".{name}") and find(path) is found]
            assert len(homes) == 1, f"{package}.{name} is in docs/api as {homes}"


def test_everything_in_the_reference_is_public() -> None:
    assert len(set(ENTRIES)) == len(ENTRIES)
    for path in ENTRIES:
        assert not any(part.startswith("_") for part in path.split(".")), path
        assert find(path) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_is_in_the_index_and_the_navigation(page: Path) -> None:
    assert f"      - api/{page.name}\n" in (ROOT / "mkdocs.yml").read_text()
    assert page.name == "index.md" or f"]({page.name})" in (ROOT / "docs" / "api" / "index.md").read_text()


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    for page in (ROOT / "docs").glob("*.md"):
        assert f"- {page.name}\n" in navigation, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_docstrings_are_there_and_describe_arguments_that_there_are(page: Path) -> None:
    for path, found in DOCUMENTED[page].items():
        doc = inspect.getdoc(found)
        assert doc, path
        for name in described(doc, "Args"):
            assert name.lstrip("*") in inspect.signature(found).parameters, path
        for name in described(doc, "Attributes"):
            assert name.isidentifier(), path  # one by one


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_of_docstrings_print_what_they_say(path: str, tmp_path: Path, monkeypatch: Any) -> None:
    """With nothing imported but torch, nn and mnemoscope."""
    monkeypatch.chdir(tmp_path)
    names = {"torch": torch, "nn": torch.nn, "mnemoscope": mnemoscope}
    test = doctest.DocTestParser().get_doctest(EXAMPLES[path].__doc__, names, path, None, None)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)


def test_links_of_a_page_lead_to_the_same_files_in_the_site() -> None:
    rewritten: Callable[[str, str], str] = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))["rewritten"]
    outside = "[a](../README.md), [b](../CONTRIBUTING.md#a-layer), [c](layers.md), [d](../studies), [e](gone.md)"
    assert rewritten(outside, "docs/index.md") == (
        "[a](repository/README.md), [b](repository/CONTRIBUTING.md#a-layer), [c](layers.md), d, [e](gone.md)"
    )
    assert rewritten("[a](docs/layers.md), [b](LICENSE)", "README.md") == "[a](../layers.md), [b](LICENSE)"
    assert rewritten("[a](../../README.md), [b](../layers.md)", "docs/api/layers.md") == (
        "[a](../repository/README.md), [b](../layers.md)"
    )
