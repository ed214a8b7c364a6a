"""Shared memory for the tests of what is kept there, without a session: it is imported in milliseconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from ropewalk.sharing.arena import DepotArena
from tests.sharing import steps


class Lent:
    """An arena that goes with the test, although pytest keeps fixtures for longer."""

    def __init__(self) -> None:
        self.arena: DepotArena | None = DepotArena()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arena, name)


@pytest.fixture
def arena() -> Iterator[Any]:
    gc.freeze()  # only what the test makes is looked through at its end
    lent = Lent()
    yield lent
    lent.arena = None
    gc.collect()


@pytest.fixture(scope="module")
def shared_session() -> None:
    """In place of the one in `tests/conftest.py` where this module is a plugin: what it lends needs none."""
    steps.forks_here = True
