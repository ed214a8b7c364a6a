"""Handlers are added and taken away, also while they are called."""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.processes.listeners import Listeners


def test_a_handler_is_there_until_it_is_taken_away() -> None:
    listeners: Listeners[Callable[[], object]] = Listeners()
    assert not listeners
    first, second = (lambda: 1), (lambda: 2)
    stop_first, stop_second = listeners.add(first), listeners.add(second)
    assert list(listeners) == [first, second]
    stop_first()
    stop_first()
    assert list(listeners) == [second] and listeners
    stop_second()
    assert not listeners


def test_what_is_changed_during_a_call_counts_from_the_next_one_on() -> None:
    listeners: Listeners[Callable[[], object]] = Listeners()
    called: list[str] = []

    def once() -> None:
        called.append("once")
        stop()
        listeners.add(lambda: called.append("later"))

    stop = listeners.add(once)
    for _ in range(2):
        for handler in listeners:
            handler()
    assert called == ["once", "later"]
