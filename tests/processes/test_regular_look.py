"""Looks on a pretended loop: when they are taken, and when they end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ropewalk.processes.regular_look import RegularLook


class LoopOfTimers:
    """Makes calls at once, except those that are due later, which `go_on` makes."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_soon(self, call: Callable[[], object]) -> None:
        call()

    def call_later(self, delay_s: float, call: Callable[[], object]) -> None:
        self.later.append((delay_s, call))

    def go_on(self) -> float:
        delay_s, call = self.later.pop(0)
        call()
        return delay_s


def test_looks_are_taken_under_the_lock_until_one_finds_nothing() -> None:
    loop: Any = LoopOfTimers()
    lock = threading.Lock()
    answers: list[float | None] = [2.0, 3.0, None, None]
    looks: list[bool] = []

    def look() -> float | None:
        looks.append(lock.locked())
        return answers.pop(0)

    regular = RegularLook(loop, lock, 1.0, look)
    regular.begin()
    regular.begin()
    assert [loop.go_on() for _ in range(3)] == [1.0, 2.0, 3.0], "a second beginning changes nothing"
    assert looks == [True, True, True] and not loop.later and not lock.locked()
    regular.begin()
    assert loop.go_on() == 1.0 and len(looks) == 4, "it begins again after its end"


def test_an_error_in_a_look_does_not_end_those_of_a_later_beginning() -> None:
    loop: Any = LoopOfTimers()
    answers = iter([True, False])

    def look() -> float | None:
        if next(answers):
            raise RuntimeError("once")
        return None

    regular = RegularLook(loop, threading.Lock(), 1.0, look)
    regular.begin()
    with pytest.raises(RuntimeError, match="once"):
        loop.go_on()
    regular.begin()
    assert loop.go_on() == 1.0
