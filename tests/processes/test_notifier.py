"""Notifiers: a change wakes the waiting thread, and an interrupt at any step leaves the notifier to the others."""

from __future__ import annotations

import threading

from ropewalk.processes.notifier import Notifier
from tests.interrupting import interrupts_at_each_step
from tests.patience import PATIENCE_S


def test_who_waits_is_woken_by_a_ring_after_the_change() -> None:
    bell, seen, woken = Notifier(), list[int](), list[bool]()
    threads = [
        threading.Thread(target=lambda at=at: woken.append(bell.wait_until(lambda: len(seen) >= at, PATIENCE_S)))
        for at in (0, 1, 2, 2)
    ]
    for thread in threads:
        thread.start()
    for number in range(2):
        seen.append(number)
        bell.ring()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert woken == [True] * 4
    assert not bell._sleepers


def test_who_waits_gives_up_when_the_time_is_over() -> None:
    bell = Notifier()
    assert not bell.wait_until(lambda: False, 0.01)
    assert not bell.wait_until(lambda: False, -1.0)
    assert bell.wait_until(lambda: True, 0.0)


def test_a_change_without_its_ring_is_seen_all_the_same() -> None:
    # An interrupt may strike between the two.
    bell, seen = Notifier(), list[int]()
    waits = threading.Thread(target=lambda: bell.wait_until(lambda: seen))
    waits.start()
    seen.append(1)
    waits.join(PATIENCE_S)
    assert not waits.is_alive()


def test_an_interrupt_at_any_step_leaves_the_bell_to_others() -> None:
    # With a condition, the one in its `__enter__` left it locked for ever.
    bell, steps = Notifier(), list[str]()

    def beside() -> None:
        seen = 0
        while "end" not in steps:
            bell.wait_until(lambda seen=seen: len(steps) > seen)
            seen = len(steps)

    def act() -> None:
        bell.wait_until(lambda: False, 0.001)
        bell.ring()

    thread = threading.Thread(target=beside)
    thread.start()
    for step in interrupts_at_each_step(act):
        steps.append(step)
        bell.ring()
    steps.append("end")
    bell.ring()
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and len(steps) > 8, steps
