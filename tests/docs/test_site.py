"""The site of the documentation is complete and needs no network; `make docs` builds the whole of it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from docs.site.checks import all_public_names, faults_of_reference, missing_methods, public_modules, remote_assets
from docs.site.links import links_of, page_of, shown_as_page, with_links_of_site, with_separate_lists
from docs.site.navigation import ABOUT, GUIDES, Section, cards, llms_txt, navigation, summary, with_titles
from docs.site.public_names import PublicName, public_names

from tests.typing.public_interface import PUBLIC_MODULES

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = {path.name: path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")}


@pytest.fixture(scope="module")
def names() -> list[PublicName]:
    return all_public_names(ROOT)


# --- public names -----------------------------------------------------------------------------------------------------


def test_every_public_name_has_a_docstring_and_is_in_the_reference(names: list[PublicName]) -> None:
    assert list(faults_of_reference(names, public_modules(ROOT), REFERENCE)) == []


def test_a_name_that_is_not_in_the_reference_is_named_with_the_line_to_add(names: list[PublicName]) -> None:
    without = {name: text.replace("::: ropewalk.task_seed\n", "") for name, text in REFERENCE.items()}
    (fault,) = faults_of_reference(names, public_modules(ROOT), without)
    assert fault == (
        "ropewalk.task_seed is public, and no page of docs/reference has it; add the line `::: ropewalk.task_seed`"
    )


def test_a_name_without_a_docstring_and_a_line_for_what_is_not_public_are_faults() -> None:
    name = PublicName("ropewalk", "Pool", "ropewalk.pool.pool.Pool", None, True)
    pages = {"pool.md": "::: ropewalk.Pool\n\n::: ropewalk.nothing\n"}
    assert list(faults_of_reference([name], ["ropewalk"], pages)) == [
        "ropewalk.Pool has no docstring; it is defined as ropewalk.pool.pool.Pool",
        "docs/reference has `::: ropewalk.nothing`, which is not public",
    ]


@pytest.mark.parametrize("module", sorted(PUBLIC_MODULES))
def test_the_names_read_from_the_sources_are_those_of_the_imported_module(module: str) -> None:
    imported = importlib.import_module(module)
    found = {name.name for name in public_names(ROOT / "src", module)}
    if hasattr(imported, "__all__"):
        lazy = getattr(imported, "_lazy", None)
        assert found == set(imported.__all__) | set(lazy.homes if lazy else ())
    else:
        assert all(hasattr(imported, name) for name in found)


def test_a_definition_is_found_through_imports_other_names_and_overloads(names: list[PublicName]) -> None:
    by_path = {name.path: name for name in names}
    assert by_path["ropewalk.context.SpawnProcess"].home == "ropewalk.compat.process.Process"
    assert by_path["ropewalk.managers.Namespace"].home == "multiprocessing.managers.Namespace"
    evaluate = by_path["ropewalk.population.evaluate"]
    assert evaluate.docstring and evaluate.docstring.startswith("Run a population method")


def test_a_reference_without_methods_is_noticed() -> None:
    # For some weeks it had classes and functions only: a list of filters is a list of patterns.
    html = '<h4 id="ropewalk.Pool.map"></h4><h3 id="ropewalk.Trainer"></h3>'
    assert missing_methods([html]) == ["ropewalk.Trainer.step", "ropewalk.population.Algorithm.ask"]
    assert "            filters: public\n" in (ROOT / "mkdocs.yml").read_text()


# --- navigation -------------------------------------------------------------------------------------------------------


def pages_of(sections: list[str | Section]) -> list[str]:
    return [page for each in sections if isinstance(each, dict) for pages in each.values() for page in pages]


def test_every_page_is_in_the_navigation_once() -> None:
    sections = navigation(ROOT)
    pages = ["index.md", *pages_of(sections)]
    assert sections[0] == "index.md" and len(pages) == len(set(pages))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert there - set(pages) == set()
    assert set(GUIDES) <= there


def test_sections_come_in_the_order_in_which_they_are_read() -> None:
    order = [name for each in navigation(ROOT) if isinstance(each, dict) for name in each]
    assert order == [name for name in ABOUT if name in order]
    assert set(order) >= {"Guides", "Reference", "Errors", "Explanation", "Benchmarks"}


def test_a_new_page_of_a_folder_appears_after_those_that_its_index_names(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "tutorials"
    folder.mkdir(parents=True)
    (folder / "index.md").write_text("# Tutorials\n\n[second](z.md), [first](pool.md), [code](../../examples/a.py)\n")
    for name in ("a.md", "pool.md", "z.md"):
        (folder / name).write_text("# A title: and more\n")
    tutorials = navigation(tmp_path)[1]
    assert tutorials == {"Tutorials": [f"tutorials/{name}.md" for name in ("index", "z", "pool", "a")]}
    assert with_titles(["index.md", tutorials], tmp_path) == [
        {"Home": "index.md"},
        {"Tutorials": ["tutorials/index.md", *({"A title": f"tutorials/{name}.md"} for name in ("z", "pool", "a"))]},
    ]
    assert "[**Tutorials**](tutorials/index.md)" in cards([tutorials])


def test_the_index_for_language_models_has_a_line_for_each_page() -> None:
    text = llms_txt("A library.", [("Guides", [("pool.html", "The pool", "Tasks on workers."), ("a.html", "A", "")])])
    assert text == (
        "# Ropewalk\n\n> A library.\n\n## Guides\n\n- [The pool](pool.html): Tasks on workers.\n- [A](a.html)\n"
    )


def test_a_summary_is_plain_text_of_enough_sentences() -> None:
    page = "# The `rw.Pool`\n\n![a picture](a.png)\n\nShort. A [pool](pool.md) runs *tasks* on many\nworkers. More.\n"
    assert summary(page) == ("The rw.Pool", "Short. A pool runs tasks on many workers.")


# --- links ------------------------------------------------------------------------------------------------------------


def test_links_between_files_of_the_repository_become_links_between_pages() -> None:
    text = (
        "[a](training.md#arguments) [b](../README.md) [c](../examples/hello.py) [d](../SECURITY.md#scope)"
        ' [e](../examples) [f](https://a.b/c.md) <img src="pictures/pool.png"> [g](missing.md)'
        "\n\n```\n[h](../README.md)\n```\n"
    )
    assert with_links_of_site(text, "docs/programs.md", ROOT) == (
        "[a](training.md#arguments) [b](index.md) [c](repository/examples/hello.py.md) "
        "[d](repository/SECURITY.md#scope) [e](repository/examples/contents.md) "
        '[f](https://a.b/c.md) <img src="pictures/pool.png"> [g](missing.md)\n\n'
        "```\n[h](../README.md)\n```\n"
    )
    here = with_links_of_site("[a](docs/theory.md) ![b](docs/pictures/pool.png)", "ARCHITECTURE.md", ROOT)
    assert here == "[a](../theory.md) ![b](../pictures/pool.png)"
    assert list(links_of(text, "docs/programs.md"))[:3] == ["docs/training.md", "README.md", "examples/hello.py"]
    assert page_of("docs/internals/task.md", ROOT) == "internals/task.md"


def test_code_a_notebook_and_a_folder_are_shown_as_pages() -> None:
    assert "`````python\n" in shown_as_page("examples/hello.py", ROOT)
    assert "```python\nimport" in shown_as_page("examples/search_notebook.ipynb", ROOT)
    assert "- [hello.py](hello.py): " in shown_as_page("examples", ROOT)


def test_a_list_right_below_a_sentence_gets_an_empty_line() -> None:
    assert (
        with_separate_lists("It has:\n- one\n- two\n\n```\na\n- b\n```\n")
        == "It has:\n\n- one\n- two\n\n```\na\n- b\n```\n"
    )


# --- nothing from elsewhere -------------------------------------------------------------------------------------------


def test_what_a_page_loads_from_another_host_is_found_and_links_are_not() -> None:
    html = (
        '<a href="https://a.b">x</a><script src="https://c.d/e.js"></script><link rel="stylesheet" href="//f.g/h.css">'
        '<img src="pictures/a.png"><style>@import "https://i.j/k.css"; a { background: url(https://l.m/n.png) }</style>'
    )
    assert remote_assets(html) == ["https://c.d/e.js", "//f.g/h.css", "https://i.j/k.css", "https://l.m/n.png"]


def test_the_site_is_configured_to_load_nothing_and_to_be_strict_about_links() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    assert re.search(r"^  font: false$", config, re.MULTILINE)
    assert re.search(r"^  - offline$", config, re.MULTILINE) and re.search(r"^  - search$", config, re.MULTILINE)
    assert not re.search(r"https?://", config)
    assert "links: {not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}" in config
    assert re.search(r"^\t.*mkdocs build --strict", (ROOT / "Makefile").read_text(), re.MULTILINE)
