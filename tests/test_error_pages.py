"""The pages of errors: one for each, whole, and in the places where they are looked for."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import tomllib
import traceback
from pathlib import Path

import pytest

import ropewalk
from ropewalk import errors
from ropewalk.cli.explain import error_names, error_page
from ropewalk.compat.broken_executor import as_futures_name_it
from ropewalk.errors import RopewalkError
from ropewalk.transport.failures import failure_of, rebuild_error
from tests.test_errors import CLASSES, fields
from tests.typing.public_interface import PUBLIC_MODULES

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(each.__name__ for each in CLASSES)
SECTIONS = ["An example of its message", "Causes, the most frequent first", "What to do"]


def test_every_error_has_a_page_and_no_page_is_left_of_what_is_gone() -> None:
    assert error_names() == NAMES


def test_every_exception_of_ours_that_is_exported_is_in_the_tree() -> None:
    exported = {
        found
        for name in PUBLIC_MODULES
        if (module := vars(__import__(name, fromlist=["_"])))
        for found in module.values()
        if inspect.isclass(found)
        and issubclass(found, BaseException)
        and found.__module__.startswith("ropewalk")
        and not issubclass(found, SystemExit)  # these end a run, and are no errors
    }
    assert exported <= set(CLASSES)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_whole(name: str) -> None:
    page = error_page(name)
    title, meaning, *_ = page.split("\n\n")
    assert title == f"# {name}"
    assert meaning.endswith(".") and "\n" not in meaning
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == SECTIONS
    _, example, causes, advice = re.split(r"^## .*\n", page, flags=re.MULTILINE)
    assert re.search(r"```text\n.+\n```", example, re.DOTALL)
    assert re.findall(r"^(\d)\. .+\.$", causes, re.MULTILINE) == [
        str(n + 1) for n in range(len(causes.split("\n")) - 3)
    ]
    assert len(advice.split()) > 8


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_a_page_names_the_attributes_and_what_else_its_error_is(error: type[RopewalkError]) -> None:
    page = error_page(error.__name__)
    others = [base for base in error.__bases__ if base not in (Exception, RopewalkError)]
    for name in (*fields(error), *(base.__name__ for base in others)):
        assert f"`{name}`" in page, name


def test_links_of_the_pages_lead_to_pages() -> None:
    """The site has them in docs/errors, which is a link, so that `..` is docs."""
    assert os.path.samefile(ROOT / "docs" / "errors", Path(ropewalk.__file__).parent / "error_pages")
    for name in [*NAMES, "index"]:
        for link in re.findall(r"\]\(([^)#]+)\)", error_page(name)):
            path = os.path.normpath(os.path.join(ROOT, "docs", "errors", link))
            assert os.path.exists(path.replace(f"{ROOT}/docs/errors", f"{ROOT}/src/ropewalk/error_pages")), (name, link)


def test_the_index_lists_every_page_with_its_first_sentence() -> None:
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(\1\.md\) \| (.*) \|$", error_page("index"), re.MULTILINE))
    assert rows == {name: error_page(name).split("\n\n")[1] for name in NAMES}


def test_the_pages_are_in_the_package_and_so_in_its_wheel() -> None:
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert target == {"packages": ["src/ropewalk"]}, "hatch packs every file of these folders"


def test_an_error_names_its_page_and_a_refinement_that_of_what_it_refines() -> None:
    class Refined(errors.TaskTimeout):
        pass

    class Private(RopewalkError):
        pass

    expected = ["To learn more: ropewalk explain TaskTimeout"]
    assert errors.TaskTimeout("late").__notes__ == Refined("late").__notes__ == expected
    assert not hasattr(Private("no page"), "__notes__") and not hasattr(RopewalkError("none"), "__notes__")


def test_an_error_names_its_page_once_however_it_has_travelled() -> None:
    error = errors.TaskPoisoned("task 3 killed 3 workers in a row", index=3)
    for _ in range(2):
        error = rebuild_error(failure_of(as_futures_name_it(pickle.loads(pickle.dumps(error)))), "worker 1")
    assert "".join(traceback.format_exception_only(error)).count("ropewalk explain TaskPoisoned") == 1
