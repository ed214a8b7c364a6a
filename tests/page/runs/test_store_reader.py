"""The store is opened once, and a store that cannot be read says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.page.runs.store_reader import StoreReader, StoreUnreadable
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.store import RunStore
from tests.tracking.store.making import begin, new_store


def test_a_store_that_is_missing_is_opened_when_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    reader = StoreReader(lambda: open_store(path, create=False))
    with pytest.raises(StoreUnreadable, match=r"there is no store at .*; the first run makes it: `with ropewalk.track"):
        reader.read_now(lambda store: store.runs())
    open_store(path).close()
    assert reader.read_now(lambda store: store.runs()) == []
    reader.close()


def test_a_store_is_opened_once(tmp_path: Path) -> None:
    opened: list[RunStore] = []

    def opener() -> RunStore:
        opened.append(new_store(tmp_path))
        return opened[-1]

    reader = StoreReader(opener)
    begin(reader.read_now(lambda store: store), "a")
    assert len(reader.read_now(lambda store: store.runs())) == 1 and len(opened) == 1
    reader.close()


def test_a_missing_package_says_what_to_install() -> None:
    def opener() -> RunStore:
        raise ModuleNotFoundError("No module named 'sqlalchemy'")

    with pytest.raises(StoreUnreadable, match=r"sqlalchemy'; pip install 'ropewalk\[tracking\]'"):
        StoreReader(opener).read_now(lambda store: None)


def test_an_unknown_run_is_told_with_the_near_one(tmp_path: Path) -> None:
    reader = StoreReader(lambda: new_store(tmp_path))
    reader.read_now(lambda store: begin(store, "abc", name="brisk"))
    with pytest.raises(StoreUnreadable, match="did you mean brisk"):
        reader.read_now(lambda store: store.run("brisc"))
    reader.close()
