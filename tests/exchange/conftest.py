"""Tests of this folder whose programs run in processes share one session, forked from one that has imported torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.left_behind import Snapshot
from tests.shared_session import kept


@pytest.fixture(scope="package")
def shared_session() -> Iterator[None]:
    """See `tests/shared_session.py`; here for single tests, and until the last one of the folder."""
    before = Snapshot.take()
    kept.module, kept.only = "tests.exchange.preloaded", True
    yield
    kept.module, kept.only = "", False
    kept.close()
    assert not before.what_stays()
