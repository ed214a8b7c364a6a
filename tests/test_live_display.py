"""What is shown live in a notebook is shown again when it has changed, and only then."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.live_display import live
from tests.patience import PATIENCE_S


class Counted:
    """Something with a table, that a test changes."""

    def __init__(self) -> None:
        self.number = 0
        self.fails = False

    def __repr__(self) -> str:
        return f"<Counted {self.number}>"

    def _repr_html_(self) -> str:
        if self.fails:
            raise RuntimeError("it was closed")
        return f"<b>{self.number}</b>"


class Notebook:
    """A front end: what was shown first, and each update."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.updates: list[dict[str, str]] = []
        self.was_updated = threading.Event()

    def display(self, thing: object, *, display_id: bool) -> Notebook:
        assert display_id
        self.shown.append(thing)
        return self

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.updates.append(bundle)
        self.was_updated.set()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    found = Notebook()
    module = types.ModuleType("IPython.display")
    module.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return found


def test_a_change_is_shown_in_the_same_display(notebook: Notebook):
    thing = Counted()
    with live(thing, every_s=0.001):
        assert notebook.shown == [thing]
        assert notebook.was_updated.wait(PATIENCE_S)
        notebook.was_updated.clear()
        thing.number = 1
        assert notebook.was_updated.wait(PATIENCE_S)
    assert notebook.updates == [
        {"text/html": "<b>0</b>", "text/plain": "<Counted 0>"},
        {"text/html": "<b>1</b>", "text/plain": "<Counted 1>"},
    ]


def test_the_end_is_shown_once_and_what_was_closed_keeps_its_last_state(notebook: Notebook):
    thing = Counted()
    shown = live(thing, every_s=1000.0)
    thing.number = 7
    shown.close()
    shown.close()
    assert [update["text/html"] for update in notebook.updates] == ["<b>7</b>"]
    other = live(thing, every_s=1000.0)
    thing.fails = True
    other.close()
    assert len(notebook.updates) == 1


def test_without_a_notebook_it_is_printed_once(capsys: pytest.CaptureFixture[str]):
    with rw.live(Counted(), every_s=0.001):
        pass
    assert capsys.readouterr().out == "<Counted 0>\n"


def test_what_has_no_table_is_refused():
    with pytest.raises(TypeError, match="a session is shown live, not 3"):
        live(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="above 0, not 0"):
        live(Counted(), every_s=0)
