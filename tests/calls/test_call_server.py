"""The numbers that `CallServer` gives to objects."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ropewalk.calls.server import CallServer
from tests.calls.ends import End


def test_objects_that_are_numbered_at_the_same_time_have_different_numbers(end: End) -> None:
    """Another thread may ask between any two lines of `next_target`; here it does so before each of them."""
    server = end.server
    numbers: list[int] = []

    def interrupting(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not CallServer.next_target.__code__:
            return None
        if event == "line":
            numbers.append(server.next_target())  # nothing is traced while a tracer runs
        return interrupting

    before = sys.gettrace()
    sys.settrace(interrupting)
    try:
        mine = server.next_target()
    finally:
        sys.settrace(before)
    assert numbers and len({mine, *numbers}) == 1 + len(numbers)
