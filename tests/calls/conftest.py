"""A client and a served target in one process, with a real loop and real sockets between them."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.calls.incoming import Served
from tests.calls.ends import End, ends
from tests.calls.objects import Target


@pytest.fixture
def end(tmp_path: Path) -> Generator[End]:
    with ends(tmp_path, "client") as made:
        yield made


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def served(end: End, target: Target) -> Served:
    return end.serve(target, "target")


@pytest.fixture
def client(end: End, served: Served) -> Any:
    return end.client("target", Target)
