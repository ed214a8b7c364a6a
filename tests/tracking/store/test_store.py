"""A store in a SQLite file does what every store does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.store import RunStore
from tests.tracking.store.making import new_store
from tests.tracking.store.suite import StoreSuite


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with new_store(tmp_path) as store:
        yield store


@pytest.fixture
def again(store: RunStore) -> Callable[[], RunStore]:
    return lambda: open_store(store.where)


class TestSqlite(StoreSuite):
    pass
