"""Joining pages never changes what lies in them, and harms nothing where it cannot be done."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from ropewalk.program.large_pages import join_pages


def test_memory_is_the_same_afterwards() -> None:
    values = np.arange(1_500_000)
    child = memoryview(values.data).cast("B")
    join_pages([child, memoryview(bytearray(10)), memoryview(bytes(8 << 20))])
    assert np.array_equal(values, np.arange(1_500_000))
    child.release()


def test_a_system_without_it_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(_name: Any) -> Any:
        return object()

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    join_pages([memoryview(bytearray(8 << 20))])
