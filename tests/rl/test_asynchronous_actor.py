"""How the groups of one actor step in turn; programs of actors are tested in `test_experiment.py`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from ropewalk.rl.asynchronous_actor import drive


class Choosing:
    """Answers each request with it, and notes which came together."""

    def __init__(self) -> None:
        self.together: list[list[Any]] = []

    def choose(self, requests: Any) -> Any:
        self.together.append(list(requests))
        return list(requests)


def group(name: str, num: int, seen: list[Any], error: Exception | None = None) -> Generator[Any, Any, None]:
    try:
        for number in range(num):
            choice, seconds = yield f"{name}{number}"
            assert seconds >= 0
            seen.append(choice)
        if error:
            raise error
    finally:
        seen.append(f"{name} ended")


def test_groups_ask_together_until_each_has_ended() -> None:
    acting, seen = Choosing(), list[Any]()
    drive([group("a", 3, seen), group("b", 1, seen), group("c", 0, seen)], acting)  # type: ignore[arg-type]
    assert acting.together == [["a0", "b0"], ["a1"], ["a2"]]
    assert seen == ["c ended", "a0", "b0", "b ended", "a1", "a2", "a ended"]


def test_an_error_of_one_group_ends_the_others() -> None:
    acting, seen = Choosing(), list[Any]()
    with pytest.raises(ZeroDivisionError):
        drive([group("a", 9, seen), group("b", 1, seen, ZeroDivisionError())], acting)  # type: ignore[arg-type]
    assert seen == ["a0", "b0", "b ended", "a ended"]
