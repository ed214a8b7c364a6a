"""`ropewalk explain`: the page of an error."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ropewalk.cli import explain
from tests.cli.command import ropewalk


@pytest.mark.parametrize("name", ["TaskPoisoned", "taskpoisoned", "ropewalk.errors.TaskPoisoned"])
def test_a_page_is_printed_as_it_is_where_no_terminal_is(name: str) -> None:
    done = ropewalk("explain", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == explain.error_page("TaskPoisoned")


def test_a_page_is_formatted_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=80))
    explain.explain.main(["TaskPoisoned"], standalone_mode=False)
    shown = screen.getvalue()
    assert "TaskPoisoned" in shown and "\x1b[" in shown and "## " not in shown


def test_without_a_name_all_errors_are_listed() -> None:
    lines = ropewalk("explain").stdout.splitlines()
    assert [line.split()[0] for line in lines] == explain.error_names()
    assert all(line.endswith(".") for line in lines)
    listed = json.loads(ropewalk("explain", "--json").stdout)
    assert [row["name"] for row in listed] == explain.error_names()


def test_a_page_is_json() -> None:
    document = json.loads(ropewalk("explain", "PoolClosed", "--json").stdout)
    assert document["name"] == "PoolClosed" and document["page"].startswith("# PoolClosed\n")
    assert document["meaning"] == "The pool, session or program takes no more work."


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TaskPoisned", "did you mean TaskPoisoned?"),
        ("index", "all names:"),
        ("../__init__", "all names:"),
        ("SIGKILL", "ropewalk explain WorkerLost"),
    ],
)
def test_an_unknown_name_is_refused_with_near_ones(name: str, hint: str) -> None:
    done = ropewalk("explain", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no error of Ropewalk is called" in done.stderr and hint in done.stderr
