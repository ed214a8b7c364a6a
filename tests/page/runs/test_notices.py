"""Changes are carried out for owners alone, whatever buttons a browser has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ropewalk.page.actions import ActionOutcome, NumberedActions
from ropewalk.page.frame import Visit
from ropewalk.page.gate import Role
from ropewalk.page.runs import notices
from ropewalk.page.runs.store_reader import StoreReader
from ropewalk.page.style import Style
from ropewalk.tracking.store.opening import open_store
from tests.tracking.store.making import begin, new_store


class Shown:
    """What a visitor was told, in place of the page."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcomes: list[ActionOutcome] = []
        monkeypatch.setattr(notices, "notify", self.outcomes.append)
        monkeypatch.setattr(notices.ui, "notification", lambda *words, **options: self)

    def dismiss(self) -> None: ...


def carry_out(reader: StoreReader, role: Role, change: Any) -> bool:
    visit = Visit(Style(), role, "tab")
    return asyncio.run(notices.carry_out(visit, reader, NumberedActions(), "archive a", change))


def test_a_reader_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, reader = Shown(monkeypatch), StoreReader(lambda: new_store(tmp_path))
    reader.read_now(lambda store: begin(store, "a"))
    assert not carry_out(reader, "reader", lambda store: store.archive("a") or "archived")
    assert not reader.read_now(lambda store: store.run("a")).archived
    assert "Only an owner may do this" in shown.outcomes[0].text and not shown.outcomes[0].done
    assert carry_out(reader, "owner", lambda store: store.archive("a") or "archived")
    assert reader.read_now(lambda store: store.run("a")).archived
    assert shown.outcomes[1].text == "Action 1: archived"
    reader.close()


def test_a_store_that_cannot_be_read_is_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch)
    reader = StoreReader(lambda: open_store(tmp_path / "no.db", create=False))
    assert not carry_out(reader, "owner", lambda store: store.archive("a") or "archived")
    assert "could not archive a: there is no store at" in shown.outcomes[0].text
