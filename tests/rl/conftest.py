"""All modules of this folder share one session, whose processes are forked from one that has imported torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.left_behind import Snapshot
from tests.shared_session import kept


@pytest.fixture(scope="package")
def shared_session() -> Iterator[None]:
    """See `tests/shared_session.py`; here with a depot, which isolated environments need."""
    before = Snapshot.take()
    kept.module, kept.only, kept.with_depot = "tests.rl.preloaded", True, True
    yield
    kept.module, kept.only, kept.with_depot = "", False, False
    kept.close()
    assert not before.what_stays()


@pytest.fixture(scope="package")
def shared_depot(shared_session: None) -> None:
    """The same."""
