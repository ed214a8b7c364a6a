"""Code, tests and documents cite pages of ours by headings that exist, and name files that are there.

A citation is the name of a page and headings in quotation marks: docs/theory.md, "Parity" and "Cut". It may go on in
the next line of a comment or docstring. Section numbers of our own pages are no citations: they change without notice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__)

_PAGE = r"(?:[\w.-]+/)*[\w-]+\.md"
_CITED = re.compile(rf'({_PAGE})`?((?:,? (?:and )?"[^"]+")+)')
_NUMBERED = re.compile(rf"({_PAGE})\W{{0,4}}(?:in )?(?:sections?|chapters?|sec\.|§)\s*\d", re.IGNORECASE)
_NUMBER_FIRST = re.compile(rf"(?:sections?|chapters?|§)\s*\d[\d.]* of `?({_PAGE})", re.IGNORECASE)
#: Where a line of a comment or docstring goes on in the next one.
_LINE_BREAK = re.compile(r"\s*\n\s*(?:#:?\s*|> *)?")
_INTERNALS = ["ARCHITECTURE.md", "docs/theory.md", "docs/internals/*.md"]


def files() -> Iterator[Path]:
    """Whatever may cite: code, tests, examples, benchmarks and documents."""
    for folder in ("src", "tests", "examples", "benchmarks"):
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if path != HERE)
    yield from documents()


def texts() -> dict[Path, str]:
    """The texts of those files that name a page."""
    return {path: text for path in files() if ".md" in (text := path.read_text())}


def documents() -> list[Path]:
    """All pages of ours."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("benchmarks/*.md"))]


def joined(text: str) -> str:
    """The text without its line breaks."""
    return _LINE_BREAK.sub(" ", text)


def cited(text: str) -> list[tuple[str, str]]:
    """Pages and headings that a text cites."""
    return [
        (match[1], heading) for match in _CITED.finditer(joined(text)) for heading in re.findall(r'"([^"]+)"', match[2])
    ]


def numbered(text: str) -> list[str]:
    """Citations of section numbers of our pages."""
    return [match[0] for rule in (_NUMBERED, _NUMBER_FIRST) for match in rule.finditer(joined(text))]


def without_examples(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def headings(text: str) -> set[str]:
    """The headings of a page, without those that are comments in its examples."""
    return set(re.findall(r"^#+ +(.+?) *$", without_examples(text), re.MULTILINE))


def unresolved(text: str, pages: Mapping[str, str]) -> list[str]:
    """What a text cites and `pages`, texts by name, do not have."""
    return [
        f'{page}, "{heading}"'
        for page, heading in cited(text)
        if page not in pages or heading not in headings(pages[page])
    ]


def anchor(heading: str) -> str:
    """What a link to a heading ends with."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def named(path: Path, text: str) -> set[str]:
    """The pages that a file names; command lines in a document may write files of their own."""
    if path.suffix == ".md":
        text = re.sub(r"`[^`\n]*`", lambda code: "" if " " in code[0] else code[0], without_examples(text))
    return set(re.findall(rf"(?<![\w/.:{{}}-]){_PAGE}\b", text))


def is_there(name: str, from_: Path) -> bool:
    """Whether a page exists that a file names: seen from the repository, from a folder of docs, or from that file."""
    return "NAME" in name or any(
        (folder / name).exists() for folder in (ROOT, ROOT / "docs", ROOT / "docs" / "internals", from_.parent)
    )


TEXTS = texts()
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in documents()}


def test_every_heading_that_is_cited_exists() -> None:
    found = {str(path.relative_to(ROOT)): unresolved(text, PAGES) for path, text in TEXTS.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_the_contract_is_cited_by_code_and_by_tests() -> None:
    for folder in ("src", "tests"):
        pages = {page for path, text in TEXTS.items() if path.is_relative_to(ROOT / folder) for page, _ in cited(text)}
        assert "docs/theory.md" in pages, f"nothing is found in {folder}: is the rule for citations right?"


def test_no_page_of_ours_is_cited_by_section_number() -> None:
    found = {str(path.relative_to(ROOT)): numbered(text) for path, text in TEXTS.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_every_page_that_is_named_is_in_the_repository() -> None:
    found = {
        str(path.relative_to(ROOT)): [name for name in sorted(named(path, text)) if not is_there(name, path)]
        for path, text in TEXTS.items()
        if not path.is_relative_to(ROOT / "tests" / "docs")  # these make pages of their own
    }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("document", sorted(PAGES))
def test_links_with_an_anchor_lead_to_a_heading(document: str) -> None:
    path = ROOT / document
    wrong = [
        f"{page}#{to}"
        for page, to in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", PAGES[document])
        if to not in map(anchor, headings((path.parent / page if page else path).read_text()))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "document", sorted(str(path.relative_to(ROOT)) for kind in _INTERNALS for path in ROOT.glob(kind))
)
def test_files_and_folders_of_code_that_a_page_names_exist(document: str) -> None:
    paths = set(re.findall(r"`((?:\w+/)+(?:[\w*]+\.py)?|\w+\.py)`", PAGES[document]))
    homes = [ROOT / "src" / "ropewalk", ROOT]
    assert sorted(name for name in paths if not any(list(home.glob(name.rstrip("/"))) for home in homes)) == []
    assert paths, f"{document} names no file: is the rule for names right?"


# --- the rules themselves ---------------------------------------------------------------------------------------------

_PAGE_OF_TWO = {"docs/a.md": "# Title\n\n```\n# no heading\n```\n\n## One thing\n\n## Another thing\n"}


@pytest.mark.parametrize(
    "text",
    [
        'see docs/a.md, "One thing"',
        '(docs/a.md, "One thing" and "Another thing")',
        '    #: docs/a.md,\n    #: "One\n    #: thing", says why',
        'See `docs/a.md`, "One thing", "Another thing".',
    ],
)
def test_a_citation_is_found_and_misses_its_heading_when_that_is_renamed(text: str) -> None:
    assert cited(text) and unresolved(text, _PAGE_OF_TWO) == []
    renamed = {name: page.replace("One thing", "A thing") for name, page in _PAGE_OF_TWO.items()}
    assert unresolved(text, renamed) == ['docs/a.md, "One thing"']
    assert unresolved(text, {})[0] == 'docs/a.md, "One thing"'


def test_comments_in_examples_are_no_headings() -> None:
    assert headings(_PAGE_OF_TWO["docs/a.md"]) == {"Title", "One thing", "Another thing"}


@pytest.mark.parametrize(
    "text", ["(training.md, section 2)", "training.md,\n  section 5", "docs/a.md § 3", "section 4 of docs/a.md"]
)
def test_section_numbers_of_pages_are_found(text: str) -> None:
    assert numbered(text)


@pytest.mark.parametrize(
    "text", ["PipeDream (SOSP'19, section 3.3)", "docs/a.md has a section on it", "a.md. Section B"]
)
def test_section_numbers_of_papers_are_left_alone(text: str) -> None:
    assert numbered(text) == []
