"""Hooks of mkdocs, with which the pages that GitHub shows make a site.

Links are written as GitHub reads them, relative to the file that they are in. The site has the files outside docs/ that
its pages link to, such as ../README.md: a file docs/x is x there, and any other file y of the repository repository/y;
what those files link to is there too. A link to a folder leads nowhere in a site, so only its words stay.

In docstrings `h'_t` and `||x||_2` are mathematics: underscores are no emphasis, for which pages have asterisks.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^][]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
OUTSIDE = "repository/"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    from markdown import Extension, Markdown
    from markdown.inlinepatterns import SimpleTextInlineProcessor

    class PlainUnderscores(Extension):
        def extendMarkdown(self, md: Markdown) -> None:
            md.inlinePatterns.register(SimpleTextInlineProcessor("(_)"), "underscore", 70)  # before emphasis, at 60

    config.markdown_extensions.append(PlainUnderscores())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    pages = [in_repository(file.src_uri) for file in files.documentation_pages()]
    for path in sorted(linked_outside(pages)):
        files.append(File.generated(config, in_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return rewritten(markdown, in_repository(page.file.src_uri))


def in_site(path: str) -> str:
    """Return where the site has a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE + path


def in_repository(page: str) -> str:
    """Return which file of the repository a page of the site is: the inverse of `in_site`."""
    return page.removeprefix(OUTSIDE) if page.startswith(OUTSIDE) else "docs/" + page


def target(path: str, link: str) -> str:
    """Return the file of the repository that a link in the file `path` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def linked_outside(pages: list[str]) -> set[str]:
    """Return the files outside docs/ that these pages lead to, directly or by other pages."""
    found: set[str] = set()
    remaining = list(pages)
    while remaining:
        path = remaining.pop()
        for _, link, _ in LINK.findall((ROOT / path).read_text()):
            other = target(path, link)
            if not other.startswith(("docs/", "../")) and other not in found and (ROOT / other).is_file():
                found.add(other)
                remaining += [other] if other.endswith(".md") else []
    return found


def rewritten(text: str, path: str) -> str:
    """Return the text of the file `path` with its links as the site needs them."""
    here = posixpath.dirname(in_site(path)) or "."

    def rewrite(match: re.Match[str]) -> str:
        words, link, anchor = match.groups(default="")
        other = target(path, link)
        if (ROOT / other).is_dir():
            return words
        if not (ROOT / other).is_file():
            return match[0]  # no link, or a broken one: mkdocs says so
        return f"[{words}]({posixpath.relpath(in_site(other), here)}{anchor})"

    return LINK.sub(rewrite, text)
