"""A session, a pool and shared memory for the tests of shared objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ropewalk as rw
from ropewalk.pool.pool import Pool
from tests.shared_session import kept
from tests.sharing.lent_arena import arena as arena


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
