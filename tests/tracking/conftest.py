"""Stores for tests: the tables are made once, and each test has a copy of the file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.store import RunStore


@pytest.fixture(scope="session")
def _store_with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    open_store(path).close()
    return path


@pytest.fixture
def store_path(tmp_path: Path, _store_with_tables: Path) -> Path:
    """The file of a store without runs."""
    return Path(shutil.copy(_store_with_tables, tmp_path / "runs.db"))


@pytest.fixture
def store(store_path: Path) -> Iterator[RunStore]:
    """A store without runs."""
    with open_store(store_path) as opened:
        yield opened
