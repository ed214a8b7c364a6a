"""All modules of this folder share one session, whose processes are forked from one that has imported torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.shared_session import one_session


@pytest.fixture(scope="package")
def shared_session() -> Iterator[None]:
    """See `tests/shared_session.py`; here with a depot, which isolated environments need."""
    yield from one_session("tests.rl.preloaded", with_depot=True)


@pytest.fixture(scope="package")
def shared_depot(shared_session: None) -> None:
    """The same."""
