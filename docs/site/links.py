"""Links between files of the repository, as links between pages of the site.

Pages link to each other, and to the README, examples and benchmarks, by the paths of the repository, which a code host
and an editor can follow. The site has its own paths: a page of docs/ lies at the root, and every file outside of docs/
that a page links to becomes a page below `repository/`. Code and folders are shown as pages as well.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

HOME = "index.md"
OUTSIDE = "repository"
PICTURES = (".png", ".svg", ".jpg", ".gif", ".webp")
_FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2`*[ ]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"""(?P<before>\]\(|(?:src|href)=")(?P<path>[^)#"\s]*)(?P<anchor>#[^)"\s]*)?(?P<after>[)"])""")
_LISTED = (".py", ".ipynb", ".md", ".yaml")
_LIST_AFTER_TEXT = re.compile(r"^(?! *(?:[-*]|\d+\.) |[ |>#<]|$)(.*)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)


def page_of(path: str, root: Path) -> str:
    """The path of the page that shows a file of the repository.

    Args:
        path: of the file or folder, relative to `root`.
        root: the repository.
    """
    if path == "README.md":
        return HOME
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (root / path).is_dir():
        return f"{OUTSIDE}/{path}/contents.md"
    return f"{OUTSIDE}/{path}" if path.endswith((".md", *PICTURES)) else f"{OUTSIDE}/{path}.md"


def links_of(markdown: str, path: str) -> Iterator[str]:
    """The paths in the repository that a page links to.

    Args:
        markdown: the text of the page.
        path: its path in the repository.
    """
    for text, is_code in _parts(markdown):
        if not is_code:
            yield from (to for match in _LINK.finditer(text) if (to := _target(match["path"], path)))


def with_links_of_site(markdown: str, path: str, root: Path) -> str:
    """Return the text of a page with links as the site needs them.

    Args:
        markdown: the text of the page.
        path: its path in the repository.
        root: the repository.
    """
    here = posixpath.dirname(page_of(path, root))

    def replaced(match: re.Match[str]) -> str:
        to = _target(match["path"], path)
        if to is None or not (root / to).exists():  # the build says that it is missing
            return match[0]
        link = posixpath.relpath(page_of(to, root), here or ".")
        if match["before"] == 'href="':
            link = re.sub(r"\.md$", ".html", link)
        return f"{match['before']}{link}{match['anchor'] or ''}{match['after']}"

    return "".join(text if is_code else _LINK.sub(replaced, text) for text, is_code in _parts(markdown))


def with_separate_lists(markdown: str) -> str:
    """Return a page with an empty line before each list, as Python's Markdown wants it."""
    return "".join(text if is_code else _LIST_AFTER_TEXT.sub(r"\1\n\n", text) for text, is_code in _parts(markdown))


def shown_as_page(path: str, root: Path) -> str:
    """The Markdown that shows a file or a folder outside of docs/.

    Args:
        path: of the file or folder, relative to `root`.
        root: the repository.
    """
    file = root / path
    if file.is_dir():
        return f"# {path}\n\n" + "".join(_rows(file))
    text = file.read_text(encoding="utf-8")
    show: Callable[[str], str] = {".md": str, ".ipynb": _notebook}.get(file.suffix, lambda text: _code(file, text))
    return show(text) if file.suffix == ".md" else f"# {path}\n\n{show(text)}"


def _code(file: Path, text: str) -> str:
    language = {".py": "python", ".yaml": "yaml", ".toml": "toml"}.get(file.suffix, "")
    return f"`````{language}\n{text.rstrip()}\n`````\n"


def _notebook(text: str) -> str:
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
    return "\n\n".join(words if kind == "markdown" else f"```python\n{words}\n```" for kind, words in cells) + "\n"


def _rows(folder: Path) -> Iterator[str]:
    """A link to each file of a folder, with what it says of itself."""
    for file in sorted(folder.iterdir()):
        if file.suffix in _LISTED and not file.name.startswith("_"):
            words = ast.get_docstring(ast.parse(file.read_text())) if file.suffix == ".py" else None
            about = f": {words.splitlines()[0]}" if words else ""
            yield f"- [{file.name}]({file.name}){about}\n"


def _target(link: str, path: str) -> str | None:
    """The path in the repository that a link of a page leads to; None if it leads elsewhere."""
    if not link or re.match(r"[a-z]+:", link):
        return None
    to = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return None if to.startswith("..") else to


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """The text and the blocks of code of a page, in order, each with whether it is code."""
    end = 0
    for match in _FENCE.finditer(markdown):
        yield markdown[end : match.start()], False
        yield match[0], True
        end = match.end()
    yield markdown[end:], False
