"""What has to be true of the site, beyond what MkDocs checks: nothing is missing, and nothing comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path

from docs.site.public_names import PublicName, public_names

_DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def public_modules(root: Path) -> list[str]:
    """The public modules that the page on stability lists."""
    page = (root / "docs" / "stability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`ropewalk.*?) \|", page, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(.*?)`", row)]


def all_public_names(root: Path) -> list[PublicName]:
    """The public names of all public modules."""
    return [name for module in public_modules(root) for name in public_names(root / "src", module)]


def faults_of_reference(names: Iterable[PublicName], modules: Iterable[str], pages: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the reference, a sentence each.

    A name is documented if a page has it, or its module, in a line `::: path`; by whichever of its public paths. For
    modules, and for names of the standard library, it is enough to be named in backquotes.

    Args:
        names: all public names.
        modules: all public modules.
        pages: the text of each page of the reference, by its file name.
    """
    every, public = list(names), set(modules)
    directives = {path for text in pages.values() for path in _DIRECTIVE.findall(text)}
    shown = {name.home for name in every if {name.path, name.home, name.home.rpartition(".")[0]} & directives}
    mentioned = {word for text in pages.values() for word in re.findall(r"`([\w.]+)`", text)}
    for name in every:
        if name.is_ours and not name.docstring:
            yield f"{name.path} has no docstring; it is defined as {name.home}"
        said = name.path if name.home in public else "" if name.is_ours else name.name
        if name.home not in shown and name.module not in directives and said not in mentioned:
            how = f"`{said}` in backquotes" if said else f"the line `::: {name.path}`"
            yield f"{name.path} is public, and no page of docs/reference has it; add {how}"
    paths = {name.path for name in every} | {name.home for name in every} | public
    for path in sorted(directives - paths):
        yield f"docs/reference has `::: {path}`, which is not public"


METHODS = ("ropewalk.Pool.map", "ropewalk.Trainer.step", "ropewalk.population.Algorithm.ask")
"""Methods that the reference has to show; they stand for those of all classes."""


def missing_methods(pages: Iterable[str]) -> list[str]:
    """Which of `METHODS` no page of the reference has a heading for, from the HTML of its pages."""
    found = {name for html in pages for name in re.findall(r'id="(ropewalk[\w.]*)"', html)}
    return [name for name in METHODS if name not in found]


class _Assets(HTMLParser):
    """Finds what a browser loads to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"link": ("href",), "a": (), "area": ()}.get(tag, ("src", "srcset", "data", "poster"))
        self.found += [value for name, value in attrs if name in names and value]


def remote_assets(html: str) -> list[str]:
    """What a page loads from other hosts: scripts, styles, fonts, pictures, frames."""
    assets = _Assets()
    assets.feed(html)
    styles = re.findall(r"""(?:url\(|@import )["']?([^"')]+)""", html)
    return [path for path in (*assets.found, *styles) if re.match(r"(?:https?:)?//", path)]
