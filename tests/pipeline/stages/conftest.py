"""Stages are compared to the last bit, in all files of this folder."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _by_one_thread(one_thread: None) -> None:  # pyright: ignore[reportUnusedFunction]
    pass
