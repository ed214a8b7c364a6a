"""The loop: calls, timers, descriptors and links take their turns, and none of them can stop the others."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.transport import loop as loop_module
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop
from tests.patience import PATIENCE_S
from tests.transport.ends import Note, on_loop, pair, running_loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    with running_loop() as loop:
        yield loop


def add(loop: Loop, link: Link, hear: Any = lambda _: None, end: Any = lambda _: None) -> None:
    on_loop(loop, lambda: loop.add_link(link, hear, end) or True)


def test_calls_are_made_in_order_from_any_thread(loop: Loop) -> None:
    made: list[int] = []
    threads = [
        threading.Thread(target=lambda: [loop.call_soon(lambda: made.append(1)) for _ in range(2000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for number in range(100):
        loop.call_soon(lambda number=number: made.append(-number))
    for thread in threads:
        thread.join()
    on_loop(loop, lambda: True)
    assert made.count(1) == 8000
    assert [m for m in made if m <= 0] == [-number for number in range(100)]


def test_a_call_wakes_a_loop_that_sleeps(loop: Loop) -> None:
    for _ in range(200):
        on_loop(loop, lambda: True)


def test_a_call_that_the_loop_itself_makes_needs_no_system_call(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each batch of a service wrote a byte to the thread that ran it, which had to wait for it once more and to read it.
    over, num_written = threading.Event(), 0

    def note() -> None:
        nonlocal num_written
        num_written += 1

    def again(left: int) -> None:
        loop.call_soon((lambda: again(left - 1)) if left else over.set)

    def begin() -> None:
        patch.setattr(loop._wake_pipe, "write", note)
        again(100)

    with monkeypatch.context() as patch:
        loop.call_soon(begin)
        assert over.wait(PATIENCE_S)
    assert num_written == 0


def test_a_signal_handler_wakes_the_loop_of_its_thread() -> None:
    # It comes while the thread waits, which is then not about to look for calls.
    loop, asked = Loop(), threading.Event()

    def ask() -> None:
        while not loop.ended.wait(0.01) and not asked.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)

    def come(_number: int, _frame: object) -> None:
        asked.set()  # once: a second signal would wake what the first one did not
        loop.call_soon(loop.stop)

    before = signal.signal(signal.SIGUSR1, come)
    guard = threading.Timer(PATIENCE_S, loop.stop)
    thread = threading.Thread(target=ask)
    try:
        guard.start()
        loop.call_soon(thread.start)
        loop.run()
        assert guard.is_alive(), "the call was not made"
    finally:
        guard.cancel()
        guard.join()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_calls_made_by_calls_do_not_starve_descriptors(loop: Loop) -> None:
    reader, writer = os.pipe()
    seen = threading.Event()
    over = threading.Event()

    def again() -> None:
        if not over.is_set():
            loop.call_soon(again)

    loop.call_soon(again)
    on_loop(loop, lambda: loop.watch(reader, seen.set) or True)
    os.write(writer, b"x")
    assert seen.wait(PATIENCE_S)
    over.set()
    on_loop(loop, lambda: loop.unwatch(reader) or True)
    os.close(reader)
    os.close(writer)


def test_timers_fire_in_order_of_time_and_not_when_cancelled(loop: Loop) -> None:
    fired: list[str] = []
    done = threading.Event()

    def plan() -> bool:
        loop.call_later(0.06, lambda: fired.append("late"))
        loop.call_later(0.02, lambda: fired.append("early"))
        cancelled = loop.call_later(0.04, lambda: fired.append("never"))
        loop.call_later(0.08, done.set)
        loop.call_later(0.0, lambda: fired.append("now"))
        cancelled.cancel()
        cancelled.cancel()
        return True

    on_loop(loop, plan)
    assert done.wait(PATIENCE_S)
    assert fired == ["now", "early", "late"]


def test_what_raises_is_logged_and_the_loop_goes_on(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = pair()

    def fail(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    with caplog.at_level(logging.ERROR, loop_module.__name__):
        loop.call_soon(fail)
        on_loop(loop, lambda: loop.call_later(0, fail))
        add(loop, theirs, fail)
        ours.send(Note(1))
        ours.send(Note(2))
        deadline = time.monotonic() + PATIENCE_S
        while caplog.text.count("a mistake of ours") < 4:
            assert time.monotonic() < deadline
            on_loop(loop, lambda: True)
    on_loop(loop, lambda: loop.remove_link(theirs) or True)
    ours.close()


def test_a_busy_link_leaves_the_others_their_turn_and_no_calls_pile_up(loop: Loop) -> None:
    """Each turn of a link with more to say used to plan one more reading than it made."""
    busy, busy_end = pair()
    calm, calm_end = pair()
    most = 0
    count = 0
    over = threading.Event()

    def hear(_: Any) -> None:
        nonlocal most, count
        count += 1
        most = max(most, len(loop._calls))

    add(loop, busy_end, hear)
    add(loop, calm_end, lambda received: calm_end.send(Note(received.message.number)))

    def flood() -> None:
        while not over.is_set():
            busy.send(Note(1))

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        number = 0
        while number < 100 or count < 100:  # a busy host may run the flood late
            calm.send(Note(number))
            received = calm.receive()
            assert received and received.message.number == number
            number += 1
    finally:
        over.set()
        thread.join()
    assert most < 50
    for link in (busy_end, calm_end):
        on_loop(loop, lambda link=link: loop.remove_link(link) or True)
    busy.close()
    calm.close()


def test_events_of_a_descriptor_that_another_call_closed_are_not_handled(loop: Loop) -> None:
    """Both were readable in one turn; the first handler closes both, and the number of the second is new already."""
    pipes = [os.pipe() for _ in range(2)]
    handled: list[int] = []

    def close_both(fd: int) -> None:
        handled.append(fd)
        for reader, _ in pipes:
            loop.unwatch(reader)
            os.close(reader)

    def plan() -> bool:
        for reader, writer in pipes:
            os.write(writer, b"x")
            loop.watch(reader, lambda reader=reader: close_both(reader))
        return True

    on_loop(loop, plan)
    on_loop(loop, lambda: True)
    on_loop(loop, lambda: True)
    assert len(handled) == 1
    for _, writer in pipes:
        os.close(writer)


def test_whoever_serves_a_link_hears_of_its_end_once(loop: Loop) -> None:
    ends: list[str] = []
    ours, theirs = pair()
    add(loop, theirs, end=ends.append)
    ours.close()
    deadline = time.monotonic() + PATIENCE_S
    while not ends:
        assert time.monotonic() < deadline
        on_loop(loop, lambda: True)
    on_loop(loop, lambda: loop.remove_link(theirs) or True)
    assert ends == ["the peer closed the link"]
    assert theirs.closed


def test_garbage_on_a_link_ends_that_link_only(loop: Loop) -> None:
    ends: list[str] = []
    ours, theirs = pair()
    add(loop, theirs, end=ends.append)
    ours.stream.send([memoryview(b"garbage, and more of it")])
    deadline = time.monotonic() + PATIENCE_S
    while not ends:
        assert time.monotonic() < deadline
        on_loop(loop, lambda: True)
    assert "not a Ropewalk frame" in ends[0]
    ours.close()


def test_a_link_that_is_added_closed_ends_at_once(loop: Loop) -> None:
    ends: list[str] = []
    ours, theirs = pair()
    theirs.close()
    add(loop, theirs, end=ends.append)
    assert ends == ["the link was closed here"]
    ours.close()


def test_the_end_of_a_loop_closes_its_links_and_later_calls_write_into_no_strangers_file() -> None:
    ours, theirs = pair()
    with running_loop() as loop:
        add(loop, theirs)
    assert theirs.closed
    fds = [os.open(os.devnull, os.O_RDWR) for _ in range(4)]  # they get the numbers of the loop's own pipe
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    loop.call_soon(lambda: None)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    for fd in (*fds, reader, writer):
        os.close(fd)
    with contextlib.suppress(Exception):
        ours.send(Note(1))
    ours.close()


def test_a_thread_that_is_about_to_wake_a_loop_which_ends_writes_into_no_strangers_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has seen that the loop sleeps, and loses its core until the loop has ended and the numbers are reused."""
    loop = Loop()
    loop.call_later(0.1, lambda: loop.stop())
    writes, go_on = threading.Event(), threading.Event()
    write = os.write

    def write_late(fd: int, data: bytes) -> int:
        if threading.current_thread() is late:
            writes.set()
            assert go_on.wait(PATIENCE_S)
        return write(fd, data)

    late = threading.Thread(target=lambda: loop.call_soon(lambda: None))
    monkeypatch.setattr(os, "write", write_late)
    late.start()
    assert writes.wait(PATIENCE_S)
    loop.run()
    files = [(tmp_path / str(number)).open("wb") for number in range(4)]
    go_on.set()
    late.join()
    for file in files:
        file.close()
    assert [Path(file.name).read_bytes() for file in files] == [b""] * 4


def test_a_forked_child_can_forget_a_loop_and_the_parent_goes_on(loop: Loop) -> None:
    ours, theirs = pair()
    add(loop, theirs, lambda received: theirs.send(received.message))
    pid = os.fork()
    if pid == 0:
        loop.forget()
        loop.call_soon(lambda: None)
        os._exit(theirs.stream.fileno() != -1)
    assert os.waitpid(pid, 0)[1] == 0
    ours.send(Note(3))
    received = ours.receive()
    assert received and received.message == Note(3)
    on_loop(loop, lambda: loop.remove_link(theirs) or True)
    ours.close()


def test_timers_that_were_cancelled_do_not_stay_until_they_would_have_been_due(loop: Loop) -> None:
    due = threading.Event()

    def set_many() -> bool:
        loop.call_later(0.05, due.set)
        for _ in range(20_000):
            loop.call_later(3600.0, lambda: None).cancel()
        return True

    on_loop(loop, set_many)
    assert len(loop._timers) < 1000
    assert due.wait(PATIENCE_S)


@pytest.mark.parametrize("delay_s", [float("inf"), 1e9])
def test_a_timer_may_be_due_in_a_time_for_which_the_kernel_cannot_wait(loop: Loop, delay_s: float) -> None:
    # The loop ended, and with it everything that it served.
    on_loop(loop, lambda: loop.call_later(delay_s, lambda: None))
    assert not loop.ended.wait(0.1)
    assert on_loop(loop, lambda: "goes on") == "goes on"
