"""Handlers of signals that use shared objects while the main thread is in the middle of using them."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import Full
from types import FrameType
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.calls.batcher import Batcher
from ropewalk.calls.rpc_connection import RpcConnection
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.sharing import queues
from ropewalk.transport.link import Link
from tests.calls.ends import far

pytestmark = pytest.mark.usefixtures("shared_session")


@contextmanager
def handled(number: int, handler: Callable[[], object]) -> Generator[None]:
    """Run something with a handler of a signal."""
    before = signal.signal(number, lambda *_: handler() and None)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, before)
    assert interrupts_deferred._depth == 0


@pytest.mark.parametrize("maxsize", [0, 40])
def test_a_handler_puts_into_the_queue_that_is_in_put(maxsize: int) -> None:
    queue = rw.Queue(maxsize=maxsize)
    by_handler: list[int] = []

    def handle() -> None:
        try:
            queue.put(-1 - len(by_handler), block=False)
            by_handler.append(-1 - len(by_handler))
        except Full:
            assert maxsize
        signal.setitimer(signal.ITIMER_REAL, 0.002)  # not while this one runs

    received: list[int] = []
    with handled(signal.SIGALRM, handle):
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        number = 0
        while number < 300 or len(by_handler) < 50:
            queue.put(number)
            number += 1
            while queue.qsize() > 20:
                received.append(queue.get())
    while not queue.empty():
        received.append(queue.get())
    assert [one for one in received if one >= 0] == list(range(number))
    assert [one for one in received if one < 0] == by_handler


@pytest.mark.parametrize(
    ("cls", "method"),
    [
        (Batcher, "_send"),
        (Link, "send"),
        (RpcConnection, "begin_now"),
        (RpcConnection, "_hear"),
        (RpcConnection, "_wait"),
    ],
)
def test_a_signal_in_the_middle_of_a_step_is_handled_behind_it(
    cls: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a handler does comes between two operations, or while one waits, and never inside of what one changes."""
    monkeypatch.setattr(queues, "depot_client_of", lambda *_: None)  # in memory of the host there are no such steps
    queue, other, lock = rw.Queue(), rw.Queue(maxsize=500), rw.Lock()
    step: Any = getattr(cls, method)
    inside = came = handled_inside = handling = 0
    calls = itertools.count()

    def struck(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal inside, came
        if inside or handling or threading.current_thread() is not threading.main_thread():
            return step(self, *args, **options)
        inside, came = 1, came + 1
        try:
            signal.raise_signal(signal.SIGUSR1)
            return step(self, *args, **options)
        finally:
            inside = 0

    def handle() -> None:
        nonlocal handled_inside, handling
        handled_inside += inside and method != "_wait"  # while it waits, signals do come
        handling += 1
        if next(calls) < 100:  # each of them brings about further ones
            with lock:
                other.put("from the handler")
            queue.put("from the handler")
        handling -= 1

    with handled(signal.SIGUSR1, handle):
        monkeypatch.setattr(cls, method, struck)
        for number in range(20):
            queue.put(number)
            other.put(number)
            while other.get() != number:
                pass
        monkeypatch.undo()
    assert came and not handled_inside
    received = [queue.get() for _ in range(queue.qsize())]
    assert [one for one in received if one != "from the handler"] == list(range(20))
    assert len(received) > 20


def test_a_handler_uses_what_it_likes_while_the_main_thread_waits_for_an_item() -> None:
    queue, answers, event, lock = rw.Queue(), rw.Queue(), rw.Event(), rw.Lock()
    count = 0

    def handle() -> None:
        nonlocal count
        count += 1
        event.set()
        assert event.is_set()
        answers.put(count)
        with lock:
            assert answers.get() == count
        queue.put(count)

    with handled(signal.SIGALRM, handle):
        for number in range(1, 201):
            signal.setitimer(signal.ITIMER_REAL, 0.0002 * (number % 17) or 0.00001)
            assert queue.get(timeout=60 if number % 2 else None) == number


def test_an_interrupt_and_another_signal_that_come_together_are_both_handled() -> None:
    queue = rw.Queue()
    seen: list[str] = []

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        seen.append("interrupt")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with handled(signal.SIGUSR1, lambda: (seen.append("other"), queue.put("other"))):
            with pytest.raises(KeyboardInterrupt), interrupts_deferred:
                [signal.raise_signal(number) for number in (signal.SIGINT, signal.SIGUSR1)]
            assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(seen) == ["interrupt", "other"] and queue.get() == "other"


def test_a_handler_calls_a_service_that_is_being_called(tmp_path: Any) -> None:
    with far(tmp_path) as (_, _, client):
        answers: list[int] = []

        def handle() -> None:
            answers.append(client.echo(len(answers)))
            signal.setitimer(signal.ITIMER_REAL, 0.001)

        with handled(signal.SIGALRM, handle):
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            number = 0
            while number < 500 or len(answers) < 50:
                assert client.echo(number) == number
                number += 1
        assert answers == list(range(len(answers)))
