"""A loop that runs user code goes on while that code lasts, in a deputy's thread."""

from __future__ import annotations

import threading
from typing import Any

from ropewalk.transport.loop_with_deputies import LoopWithDeputies
from tests.patience import PATIENCE_S
from tests.transport.ends import Note, on_loop, pair


def test_a_call_that_lasts_loses_the_loop_to_a_deputy_and_messages_behind_it_are_still_heard() -> None:
    ours, theirs = pair()
    heard: dict[int, int] = {}
    still_there: list[bool] = []
    go_on, all_heard = threading.Event(), threading.Event()
    loop = LoopWithDeputies()

    def hear(received: Any) -> None:
        number = received.message.number
        heard[number] = threading.get_ident()
        if number == 0:
            entered = loop.enter()
            assert go_on.wait(PATIENCE_S)
            still_there.append(loop.leave(entered))
        if number == 9:
            all_heard.set()

    for number in range(10):  # they arrive in one piece, so that no event of the kernel tells of the later ones
        ours.send(Note(number))
    loop.start("served")
    loop.call_soon(lambda: loop.add_link(theirs, hear, lambda _: None))
    assert all_heard.wait(PATIENCE_S)
    assert heard[0] != heard[9]
    go_on.set()
    while not still_there:
        on_loop(loop, lambda: True)
    assert still_there == [False]
    loop.stop()
    assert loop.ended.wait(PATIENCE_S)
    ours.close()


def test_a_short_call_keeps_the_loop() -> None:
    loop = LoopWithDeputies()
    loop.start("served")
    assert on_loop(loop, lambda: loop.leave(loop.enter())) is True
    loop.stop()
    assert loop.ended.wait(PATIENCE_S)


def test_many_long_calls_at_once_leave_no_more_threads_than_calls() -> None:
    before = threading.active_count()
    loop = LoopWithDeputies()
    loop.start("served")
    go_on = threading.Event()
    num_inside = threading.Semaphore(0)

    def stay() -> None:
        entered = loop.enter()
        num_inside.release()
        loop.hand_over()
        go_on.wait(PATIENCE_S)
        loop.leave(entered)

    for _ in range(8):
        loop.call_soon(stay)
    for _ in range(8):
        assert num_inside.acquire(timeout=PATIENCE_S)
    assert threading.active_count() - before <= 8 + 2
    go_on.set()
    loop.stop()
    assert loop.ended.wait(PATIENCE_S)
    for thread in threading.enumerate():
        if thread.name.startswith("served"):
            thread.join(PATIENCE_S)
    assert threading.active_count() == before
