"""A session, a pool and shared memory for the tests of shared objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.pool.pool import Pool
from ropewalk.sharing.arena import DepotArena
from tests.shared_session import kept


@pytest.fixture
def session(shared_depot: None) -> Iterator[rw.Session]:
    """That of the module; for a test that is marked `cold`, its own."""
    if kept.session:
        yield kept.session
    else:
        with rw.Session() as session:
            yield session


@pytest.fixture
def pool(session: rw.Session) -> Iterator[Pool]:
    """Three workers; a task that kills its worker is not run again."""
    with Pool(3, session=session, max_deaths=1) as pool:
        yield pool


class Lent:
    """An arena that goes with the test, although pytest keeps fixtures for longer."""

    def __init__(self) -> None:
        self.arena: DepotArena | None = DepotArena()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arena, name)


@pytest.fixture
def arena() -> Iterator[Any]:
    lent = Lent()
    yield lent
    lent.arena = None
    gc.collect()
