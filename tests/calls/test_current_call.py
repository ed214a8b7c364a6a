"""A method that waits hears that its call is over: its caller died, gave up or is out of time, or the service stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.calls import call_context
from ropewalk.calls.incoming import Served
from ropewalk.errors import CallCancelled, DeadlineExceeded, ServiceLost
from tests.calls.ends import End, ends
from tests.patience import PATIENCE_S, wait_until


class Limiter:
    """Lets in when it is open."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.is_open = False
        self.num_admitted = 0
        self.num_waits = 0
        self.ended: list[str] = []
        self.passed = 0

    def _wait(self) -> None:
        try:
            with self.changed:
                self.num_waits += 1
                rw.wait_for(self.changed, lambda: self.is_open or self.num_admitted)
                self.num_admitted -= not self.is_open
                self.passed += 1
        except Exception as error:
            self.ended.append(f"{type(error).__name__}: {error}")
            raise

    @rw.concurrent(2)
    def insert(self) -> int:
        self._wait()
        return self.passed

    @rw.concurrent(2)
    @rw.idempotent
    def look(self) -> int:
        self._wait()
        return self.passed

    def plain(self) -> int:
        self._wait()
        return self.passed

    @rw.batched(max_size=2, max_wait_s=30.0)
    def both(self, x: Any) -> Any:
        self._wait()
        return x

    @rw.concurrent(2)
    def items(self) -> Iterator[int]:
        yield 0
        self._wait()
        yield 1

    @rw.concurrent(2)
    def open(self) -> None:
        with self.changed:
            self.is_open = True
            self.changed.notify_all()

    def compute(self) -> str:
        """Until its call is over."""
        call = rw.current_call()
        told: list[str] = []
        call.on_over(lambda: told.append(threading.current_thread().name))
        while not call.over:
            pass
        wait_until(lambda: told)
        with pytest.raises(CallCancelled) as caught:
            call.check()
        self.ended.append(f"{call.label}: {caught.value.reason}")
        return "never seen"


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[tuple[Limiter, Served, Any, Any]]:
    with ends(tmp_path, "server", "client", "other") as (server, client, other):
        limiter = Limiter()
        served = server.serve(limiter, "limiter", callers="client")
        other.caller._process_id = "client"  # it shows the same token
        yield limiter, served, client.client("limiter", Limiter), (client, other)


def gone(end: End) -> None:
    """As if the process of the end had died."""
    end.caller.close()


def test_a_call_that_waits_ends_with_its_caller_and_frees_its_place(limited: Any) -> None:
    # Two dead actors at a closed limiter ended `insert` for all.
    limiter, served, client, (_, other) = limited
    dead = [other.client("limiter", Limiter).insert.future() for _ in range(2)]
    wait_until(lambda: len(served.running) == 2)
    alive = client.insert.future()
    wait_until(lambda: served.num_waiting == 1)
    gone(other)
    wait_until(
        lambda: (
            limiter.ended == ["CallCancelled: limiter.insert is over before it has returned: its caller is gone"] * 2
        )
    )
    limiter.open()
    assert alive.result(PATIENCE_S) == 1, "nothing was inserted for those that are gone"
    assert all(future.exception(PATIENCE_S) for future in dead)


def test_a_call_that_waits_ends_when_its_caller_gives_it_up(limited: Any) -> None:
    limiter, served, client, _ = limited
    for method in (client.insert, client.plain):
        future = method.future()
        wait_until(lambda: served.running)
        assert future.cancel()
        wait_until(lambda: not served.running)
        with pytest.raises(CancelledError):
            future.result(0)
    assert [text.rpartition(": ")[2] for text in limiter.ended] == ["its caller gave it up"] * 2


def test_a_call_that_waits_ends_with_its_deadline_also_when_the_caller_is_gone(limited: Any) -> None:
    limiter, served, client, _ = limited
    with pytest.raises(DeadlineExceeded), rw.deadline(0.05):
        client.insert()
    wait_until(lambda: not served.running)
    (text,) = limiter.ended
    assert text.startswith(("DeadlineExceeded: the deadline of limiter.insert has passed", "CallCancelled: "))


def test_a_stream_that_waits_for_its_next_item_ends_with_its_reader(limited: Any) -> None:
    limiter, served, client, _ = limited
    stream = client.items()
    assert next(stream) == 0
    wait_until(lambda: limiter.num_waits)
    stream.close()
    wait_until(lambda: not served.running and limiter.ended)


def test_a_batch_that_waits_goes_on_for_the_callers_that_are_left(limited: Any) -> None:
    limiter, served, client, (_, other) = limited

    def two_in_one_batch(one: Any, another: Any) -> tuple[Any, Any]:
        first = client.both.future(0)  # the others gather while it runs
        wait_until(lambda: served.running)
        calls = one.both.future(1), another.both.future(2)
        wait_until(lambda: served.num_waiting == 2)
        with limiter.changed:
            limiter.num_admitted = 1
            limiter.changed.notify_all()
        assert first.result(PATIENCE_S) == 0
        wait_until(lambda: any(len(turn.calls) == 2 for turn in served.running))
        return calls

    dead, alive = two_in_one_batch(other.client("limiter", Limiter), client)
    gone(other)
    wait_until(lambda: dead.done())
    assert limiter.ended == [] and served.running
    limiter.open()
    assert alive.result(PATIENCE_S) == 2
    limiter.is_open = False
    for call in two_in_one_batch(client, client):
        call.cancel()
    wait_until(lambda: not served.running)
    assert len(limiter.ended) == 1


def test_when_its_service_is_stopped_a_call_that_waits_ends_and_what_may_run_twice_did_not_run(limited: Any) -> None:
    _, served, client, (end, _) = limited
    waiting = [client.insert.future(), client.plain.future()]
    wait_until(lambda: len(served.running) == 2)
    end.server.refuse(served, "limiter is being stopped")  # any server: it is the object that is closed
    assert end.server.wait_idle(served, PATIENCE_S)
    for call in waiting:
        with pytest.raises(ServiceLost, match=r"limiter is being stopped while limiter.* waited there") as caught:
            call.result(PATIENCE_S)
        assert caught.value.started
    served.closed = ""
    again = client.look.future()
    wait_until(lambda: served.running)
    end.server.refuse(served, "limiter is being stopped")
    with pytest.raises(ServiceLost) as caught:
        again.result(PATIENCE_S)
    assert not caught.value.started, "it goes to the next one, if there is one"


def test_a_method_that_computes_can_look_whether_anybody_waits(limited: Any) -> None:
    limiter, served, client, _ = limited
    future = client.compute.future()
    wait_until(lambda: served.running)
    future.cancel()
    wait_until(lambda: limiter.ended == ["limiter.compute: its caller gave it up"])


def test_nothing_is_left_of_a_watched_call(limited: Any) -> None:
    limiter, served, client, _ = limited
    waiting = client.insert.future()
    wait_until(lambda: served.running)
    limiter.open()
    assert waiting.result(PATIENCE_S) == 1
    computing = client.compute.future()
    wait_until(lambda: served.running)
    computing.cancel()
    wait_until(lambda: not served.running)
    assert call_context._watchers == {}


def test_outside_of_a_call_only_the_limits_count() -> None:
    condition, call = threading.Condition(), rw.current_call()
    assert not call.over and call.label == "" and call.time_left_s() is None
    call.check()
    call.on_over(lambda: pytest.fail("it is no call"))
    with condition:
        assert rw.wait_for(condition, lambda: [1]) == [1]
        assert rw.wait_for(condition, lambda: 0, 0.001) == 0
        with pytest.raises(DeadlineExceeded), rw.deadline(0.001):
            rw.wait_for(condition, lambda: 0)


@pytest.mark.parametrize(("given", "error"), [("1", TypeError), (-1, ValueError), (float("nan"), ValueError)])
def test_what_is_no_number_of_seconds_is_no_deadline(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"a deadline (must be|is of type str; give) a number of seconds, 0 or more"):
        with rw.deadline(given):
            raise AssertionError("it was taken")


def test_a_deadline_inside_a_call_is_one_of_that_call() -> None:
    outer = call_context.CallContext((), None, "learner.step")
    token = call_context.current.set(outer)
    try:
        with rw.deadline(30.0):
            call = rw.current_call()
            assert call.label == "learner.step" and 0 < (call.time_left_s() or 0) <= 30
            outer.cancelled = "its caller is gone"
            assert call.over
    finally:
        call_context.current.reset(token)


class Books:
    """Says where in which stream a call stands."""

    @rw.concurrent(2)
    def place(self) -> tuple[str, int]:
        return rw.current_call().stream, rw.current_call().sequence


def test_a_method_hears_which_stream_its_call_belongs_to_and_where_it_stands_there(tmp_path: Path) -> None:
    with ends(tmp_path, "client", "server") as (end, server):
        server.serve(Books(), "books")
        retrying, plain = end.client("books", Books, retries=True), end.client("books", Books)
        places = [retrying.place(), retrying.place.future().result(), retrying.place()]
        assert len({stream for stream, _ in places}) == 1 and [number for _, number in places] == [1, 2, 3]
        assert places[0][0].startswith("client") and plain.place() == ("", 0)
