"""Commands of these tests come from one server, which has imported what they need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli import command
from tests.cli.command_server import CommandServer


@pytest.fixture(scope="package", autouse=True)
def _server() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with CommandServer() as command.server:
        yield
    command.server = None
