"""The order of the pages of the site. New pages in a folder, and new guides, appear by themselves."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docs.site.links import links_of, page_of

#: The guides, in the order in which they are read; others follow in the order of their names.
GUIDES = (
    "pool.md",
    "multiprocessing.md",
    "programs.md",
    "population.md",
    "reinforcement-learning.md",
    "search.md",
    "search-spaces.md",
    "search-schedulers.md",
    "tracking.md",
    "pipeline.md",
    "training.md",
    "exchange.md",
    "page.md",
    "reports.md",
    "engines.md",
    "command-line.md",
    "troubleshooting.md",
)
EXPLANATION = ("theory.md", "glossary.md", "stability.md")
PROJECT = ("ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
_MEASURED = (
    "README pool calls processes planner profiler pipeline exchange gd_sec population rl tracking search page engines "
    "scale"
)
BENCHMARKS = tuple(f"benchmarks/{name}.md" for name in _MEASURED.split())
ABOUT = {
    "Tutorials": "Learn by doing, a step at a time.",
    "How-to": "One question each, answered on one page.",
    "Guides": "All that a part of Ropewalk does, from the pool to the cluster.",
    "Coming from": "What you write in another library, and what you write here.",
    "Reference": "Every public name: arguments, shapes, units, errors.",
    "Errors": "What an exception means, its causes, and what to do.",
    "Explanation": "What is promised and why it holds; how a task, a call or a gradient passes through the code.",
    "Benchmarks": "Measurements beside other libraries, and where Ropewalk falls short.",
}
_ENOUGH = 40
"""Characters; a first sentence that is shorter is followed by the next one."""
_OF_OWN = {"index.md", "gallery.md"}

Section = dict[str, list[str]]


def navigation(root: Path) -> list[str | Section]:
    """The pages of the site by section.

    Args:
        root: the repository.
    """
    docs = root / "docs"
    top = {path.name for path in docs.glob("*.md")} - _OF_OWN - set(EXPLANATION)
    guides = [*(name for name in GUIDES if name in top), *sorted(top - set(GUIDES))]
    gallery = ["gallery.md"] if (docs / "gallery.md").is_file() else []
    outside = [page_of(path, root) for path in PROJECT]
    sections: list[Section] = [  # in the order of the site
        {"Tutorials": [*_folder(docs, "tutorials"), *gallery]},
        {"How-to": _folder(docs, "how-to")},
        {"Guides": guides},
        {"Coming from": _folder(docs, "coming-from")},
        {"Reference": _folder(docs, "reference")},
        {"Errors": _folder(docs, "errors")},
        {"Explanation": [*EXPLANATION, outside[0], *_folder(docs, "internals"), *outside[1:]]},
        {"Benchmarks": [page_of(path, root) for path in BENCHMARKS]},
    ]
    return ["index.md", *(section for section in sections if any(section.values()))]


def _folder(docs: Path, name: str) -> list[str]:
    """The pages of a folder: its index, what the index links to in that order, and the others by name."""
    there = sorted(f"{name}/{path.name}" for path in (docs / name).glob("*.md"))
    index = f"{name}/index.md"
    if index not in there:
        return there
    linked = links_of((docs / index).read_text(encoding="utf-8"), f"docs/{index}")
    return _without_repeats([index, *(to.removeprefix("docs/") for to in linked), *there], set(there))


def _without_repeats(pages: Iterable[str], wanted: set[str]) -> list[str]:
    return [page for page in dict.fromkeys(pages) if page in wanted]


def with_titles(sections: Iterable[str | Section], root: Path) -> list[Any]:
    """The same, each page with the title that the navigation shows: that of the page up to its colon.

    Args:
        sections: what `navigation` returns.
        root: the repository.
    """

    def titled(page: str) -> str | dict[str, str]:
        path = root / "docs" / page
        title = summary(path.read_text(encoding="utf-8"))[0] if path.is_file() else ""
        return {title.partition(":")[0]: page} if ":" in title else page

    named = [section if isinstance(section, dict) else {"Home": [section]} for section in sections]
    return [
        {name: pages[0] if name == "Home" else [titled(page) for page in pages]}
        for each in named
        for name, pages in each.items()
        if pages
    ]


def cards(sections: Iterable[str | Section]) -> str:
    """A card for each section, which leads to its first page.

    Args:
        sections: what `navigation` returns.
    """
    pages = ((name, pages) for section in sections if isinstance(section, dict) for name, pages in section.items())
    items = [f"-   [**{name}**]({pages[0]})\n\n    {ABOUT[name]}\n" for name, pages in pages if pages]
    return '<div class="grid cards" markdown>\n\n' + "\n".join(items) + "\n</div>\n"


def summary(markdown: str) -> tuple[str, str]:
    """The title of a page, and what its first sentences say, both as plain text."""
    title = re.search(r"^# (.+)$", markdown, re.MULTILINE)
    after = markdown[title.end() :] if title else markdown
    paragraphs = (each.strip() for each in re.split(r"\n\s*\n", after))
    first = next((each for each in paragraphs if re.match(r"[A-Za-z`*\[(]", each)), "")
    words = ""
    for sentence in re.split(r"(?<=[.:?!])\s", _plain(first)):
        words = f"{words} {sentence}".strip()
        if len(words) >= _ENOUGH:
            break
    return _plain(title[1]) if title else "", words.rstrip(":")


def _plain(markdown: str) -> str:
    without_links = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return re.sub(r"\s+", " ", re.sub(r"[*`]", "", without_links)).strip()


def llms_txt(description: str, sections: Iterable[tuple[str, list[tuple[str, str, str]]]]) -> str:
    """The index of the documentation for language models, in the form of llmstxt.org.

    Args:
        description: of the project, one sentence.
        sections: the name of each, with its pages: path, title, first sentence.
    """
    lines = ["# Ropewalk", "", f"> {description}", ""]
    for name, pages in sections:
        lines += [f"## {name}", ""]
        lines += [f"- [{title}]({posixpath.normpath(path)}): {words}".rstrip(": ") for path, title, words in pages]
        lines.append("")
    return "\n".join(lines)
