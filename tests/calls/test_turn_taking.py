"""One at a time, beside, inside, merged and in pieces: what a served object sees of its callers."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.calls import call_context
from ropewalk.calls.incoming import Served
from ropewalk.calls.remote_stream import STREAM_CREDIT
from ropewalk.calls.streams import ServedGenerator
from ropewalk.calls.waits import waiting_calls
from ropewalk.errors import CallCycle, DeadlineExceeded, ServiceLost
from ropewalk.transport.streams.plain import PlainStream
from tests.calls.ends import End, ends, num_memory_files
from tests.calls.objects import Brief, Relay, Target
from tests.patience import PATIENCE_S, wait_until


@pytest.fixture
def relays(tmp_path: Path) -> Generator[Any]:
    """Two relays in two loops that call each other, and a client of the first."""
    with ends(tmp_path, "client", "a", "b") as (end, a, b):
        first, second = Relay(), Relay()
        a.serve(first, "a", callers="client")
        b.serve(second, "b", callers="client")
        # All ends show the client's token here: who may call whom is the directory's business.
        first.other, second.other = end.client("b", Relay), end.client("a", Relay)
        yield end.client("a", Relay), first, second, (end, a, b)


def test_calls_run_one_at_a_time_in_the_order_in_which_they_came(client: Any, target: Target, served: Served) -> None:
    waiting = client.wait.future()
    client.wait_until_entered()
    notes = [client.note.future(number) for number in range(50)]
    wait_until(lambda: served.num_waiting == 50)
    assert [call.label for call in served.running] == ["target.wait"] and served.running[0].since > 0
    assert not any(note.done() for note in notes)
    client.open()
    assert waiting.result() == "through"
    assert client.noted() == list(range(50)) and target.most_inside == 1
    wait_until(lambda: not served.running)
    assert served.num_waiting == 0 and served.num_done == 54


def test_concurrent_methods_are_answered_while_another_one_waits(client: Any) -> None:
    waiting = client.wait.future()
    client.wait_until_entered()
    assert client.beside() == "beside" and not waiting.done()
    client.open()
    assert waiting.result() == "through"


def test_a_method_marked_for_one_call_at_a_time_does_not_block_its_object(client: Any, target: Target) -> None:
    # @concurrent(1) was once no mark at all.
    waiting = client.wait_beside.future()
    assert client.echo(1) == 1 and not waiting.done()
    target.gate.set()
    assert waiting.result() == "beside"


def test_as_many_calls_of_a_concurrent_method_run_as_it_says(client: Any, target: Target) -> None:
    assert [future.result() for future in [client.beside.future() for _ in range(20)]] == ["beside"] * 20
    assert target.most_inside == 2


def test_brief_calls_run_on_the_loop_until_one_of_them_waits(end: End) -> None:
    target = Brief()
    end.serve(target, "brief")
    client = end.client("brief", Brief)
    own = "ropewalk-call"
    assert {client.thread(False) for _ in range(9)}.isdisjoint({own})
    waiting = client.thread.future(True)
    wait_until(lambda: target.has_entered)
    assert client.thread(False) and not waiting.done()  # the loop goes on
    client.open()
    assert waiting.result() != own
    wait_until(lambda: client.thread(False) == own)
    wait_until(lambda: client.thread(False) != own)


def test_a_brief_call_that_waits_ends_with_its_caller_or_its_object(end: End) -> None:
    # Calls of free methods run on the loop too, but nobody knows of them when their object is stopped.
    target = Brief()
    served = end.serve(target, "brief")
    client = end.client("brief", Brief)
    waiting = client.thread.future(True)
    wait_until(lambda: target.has_entered)
    assert [call.label for call in served.running] == ["brief.thread"]
    end.server.refuse(served, "it was stopped")
    with pytest.raises(ServiceLost, match="it was stopped"):
        waiting.result()
    wait_until(lambda: not served.running)


# Cancel


def test_a_cancelled_call_that_waits_does_not_run(client: Any, served: Served) -> None:
    waiting = client.wait.future()
    client.wait_until_entered()
    never = client.note.future("never")
    wait_until(lambda: served.num_waiting == 1)
    assert never.cancel() and never.cancelled()
    wait_until(lambda: served.num_waiting == 0)
    client.open()
    waiting.result()
    assert client.noted() == []


def test_a_cancelled_call_that_runs_is_forgotten(client: Any) -> None:
    running = client.wait.future()
    client.wait_until_entered()
    assert running.cancel()
    client.open()
    assert client.echo(1) == 1


def test_what_cancelled_calls_carried_is_closed(client: Any, target: Target, served: Served) -> None:
    # A memory file came with each of these calls; those of cancelled calls were once never closed.
    np = pytest.importorskip("numpy")
    waiting = client.wait.future()
    client.wait_until_entered()
    large = np.zeros(1_000_000)
    futures = [client.note.future(large) for _ in range(5)]
    wait_until(lambda: served.num_waiting == 5)
    for future in futures:
        future.cancel()
    wait_until(lambda: served.num_waiting == 0)
    echo = client.echo.future(large)
    echo.cancel()
    client.open()
    waiting.result()
    futures.clear()
    del future, echo  # type: ignore[possibly-undefined]
    wait_until(lambda: num_memory_files() == 0, "memory files are open")
    assert target.seen == []


def test_what_refused_calls_carried_is_closed(client: Any, end: End, served: Served) -> None:
    np = pytest.importorskip("numpy")
    client.empty()
    end.server.refuse(served, "it is being stopped")
    end.places.put("target", end.places.find("target", 0))
    with pytest.raises(ServiceLost, match="it is being stopped"):
        client.note(np.zeros(1_000_000))
    wait_until(lambda: num_memory_files() == 0, "memory files are open")


def test_calls_of_a_lost_caller_that_wait_do_not_run(tmp_path: Path) -> None:
    with ends(tmp_path, "client", "server") as (end, server):
        target = Target()
        served = server.serve(target, "target")
        client = end.client("target", Target)
        client.wait.future()
        target.entered.wait(120)
        for _ in range(5):
            client.note.send("never")
        wait_until(lambda: served.num_waiting == 5)
        end.caller.close()
        wait_until(lambda: served.num_waiting == 0)
        target.gate.set()
        wait_until(lambda: not served.running)
        assert target.seen == []


# Deadlines


def test_a_deadline_ends_a_call_and_the_client_goes_on(client: Any, target: Target) -> None:
    waiting = client.wait.future()
    client.wait_until_entered()
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"target\.note\(\) was not answered"), call_context.deadline(0.1):
        client.note("never")
    assert time.monotonic() - start > 0.09
    with call_context.deadline(0.1):
        future = client.note.future("never")
        with pytest.raises(DeadlineExceeded):
            client.items(3).__next__()
    with pytest.raises(DeadlineExceeded):
        future.result()
    with call_context.deadline(0.1):
        future = client.note.future("never")
    wait_until(future.done, "nobody waited for it, and it did not end")
    client.open()
    waiting.result()
    assert client.noted() == []


def test_a_deadline_does_not_shorten_the_life_of_a_call_that_is_in_time(client: Any) -> None:
    with call_context.deadline(600):
        assert client.add(1) == 1 and client.add.future(1).result() == 2
        assert list(client.items(5)) == list(range(5))
        left_s = client.time_left()
    assert 480 < left_s <= 600 and client.time_left() is None


def test_deadlines_travel_with_the_calls_that_a_call_makes(relays: Any) -> None:
    client, _first, _, (end, a, _b) = relays
    last = Target()
    a.serve(last, "c")
    relays[2].other = end.client("c", Target)
    with call_context.deadline(600):
        assert 480 < client.time_left() <= 600  # the client calls a, a calls b, b calls c
    with pytest.raises(DeadlineExceeded), call_context.deadline(0.1):
        client.sleep(1.0)
    assert client.time_left() is None


# Chains


def test_a_call_back_into_the_caller_is_admitted(relays: Any) -> None:
    client, first, second, _ = relays
    assert client.round(9) == 9
    assert (first.calls, second.calls) == (5, 5)


def test_endless_recursion_ends_as_a_cycle_that_names_the_chain(relays: Any) -> None:
    client, *_ = relays
    with pytest.raises(CallCycle, match=r"a\.for_ever → b\.for_ever → a\.for_ever") as caught:
        client.for_ever()
    assert set(caught.value.chain) == {"a.for_ever", "b.for_ever"}
    assert client.echo(1) == 1


def test_a_batch_of_many_short_chains_may_call_on(relays: Any) -> None:
    # A batch joined the chains of its calls, and 64 callers one call deep were taken for a circle. After that the
    # method never ran another batch.
    _client, _first, second, (end, a, _b) = relays
    blocked = threading.Event()
    callers = [Relay() for _ in range(64)]
    for number, caller in enumerate(callers):
        caller.other = end.client("b", Relay)
        caller.echo = caller.other.batch_and_call  # type: ignore[method-assign]
        a.serve(caller, f"caller{number}")
    second.other = end.client("gate", Target)
    gate = Target()
    gate.echo = lambda value: blocked.wait(120) and value  # type: ignore[method-assign]
    served = a.serve(gate, "gate")
    # One call is inside `gate.echo`, so that the batch's own call finds a busy lane.
    inside = end.client("gate", Target).echo.future(0)
    wait_until(lambda: served.running)
    futures = [end.client(f"caller{number}", Relay).echo.future(number) for number in range(64)]
    wait_until(lambda: served.num_waiting, "the batch does not call")
    blocked.set()
    assert [future.result(120) for future in futures] == list(range(64)) and inside.result() == 0
    assert end.client("b", Relay).batch_and_call(7) == 7


def test_a_batched_method_that_is_called_from_within_its_object_does_not_wait_for_itself(relays: Any) -> None:
    pytest.importorskip("numpy")
    # A taken batch waits behind the call that runs; a call of that one's own chain must not wait for the batch.
    client, first, _, (_end, a, _b) = relays
    hold = threading.Event()
    first.echo = lambda value: (hold.wait(120), first.other.call_double(value))[1]  # type: ignore[method-assign]
    served = a.serve(first, "a")
    outer = client.echo.future(21)
    wait_until(lambda: served.running)
    batch = [client.double.future(number) for number in range(3)]
    wait_until(lambda: any(type(turn).__name__ == "CallBatch" for turn in served.lane.waiting), "no batch waits")
    hold.set()
    assert outer.result(120) == 42
    assert [future.result(120) for future in batch] == [0, 2, 4]


# Batches


def test_concurrent_calls_become_one(client: Any, target: Target, served: Served) -> None:
    pytest.importorskip("numpy")
    waiting = client.wait.future()
    client.wait_until_entered()
    futures = [client.double.future(number) for number in range(16)]
    wait_until(lambda: len(waiting_calls(served)) == 16)
    client.open()
    assert [future.result() for future in futures] == list(range(0, 32, 2)) and waiting.result()
    assert sum(client.sizes()) == 16 and max(client.sizes()) == 8 and len(client.sizes()) <= 3
    assert client.double(4) == 8 and client.sizes()[-1] == 1


def test_a_caller_that_is_alone_does_not_wait_for_others(client: Any) -> None:
    # It waited for `max_wait_s`, here 30 s, in each call.
    np = pytest.importorskip("numpy")
    for number in range(3):
        assert client.patient(np.full(2, number)).tolist() == [number, number]
    assert client.sizes() == [1, 1, 1]


def test_calls_with_any_number_of_rows_become_one(client: Any, served: Served) -> None:
    np = pytest.importorskip("numpy")
    waiting = client.wait.future()
    client.wait_until_entered()
    futures = [client.rows.future(np.full((rows, 2), rows), scale=3) for rows in (1, 4, 8, 2)]
    wait_until(lambda: len(waiting_calls(served)) == 4)
    client.open()
    results = [future.result() for future in futures]
    assert [result.tolist() for result in results] == [[[3 * rows] * 2] * rows for rows in (1, 4, 8, 2)]
    assert sum(client.sizes()) == 15 and max(client.sizes()) <= 12 and waiting.result()
    with pytest.raises(ValueError, match="needs an array among its arguments"):
        client.rows(1)


def test_who_leaves_a_default_out_or_asks_for_something_else_ends_nobody(client: Any, served: Served) -> None:
    # Calls with another `scale`, or without one, were refused, or had the others refused if they were more.
    np = pytest.importorskip("numpy")
    client.rows(np.ones((1, 2)))  # so that the next ones gather
    waiting = client.wait.future()
    client.wait_until_entered()
    scales: list[dict[str, Any]] = [{}, {"scale": 1}, {"scale": 3}, {}, {"scale": 3}]
    futures = [client.rows.future(np.full((1, 2), row), **scale) for row, scale in enumerate(scales)]
    wait_until(lambda: len(waiting_calls(served)) == 5)
    client.open()
    scaled = [row * scale.get("scale", 1) for row, scale in enumerate(scales)]
    assert [future.result().tolist() for future in futures] == [[[row] * 2] for row in scaled]
    assert waiting.result() and sum(client.sizes()) == 6


def test_keywords_and_positions_fit_into_one_batch(client: Any, target: Target, served: Served) -> None:
    # f(1) and f(x=1) are the same call, and were once refused as different ones.
    pytest.importorskip("numpy")
    waiting = client.wait.future()
    client.wait_until_entered()
    first = client.double.future(0)
    wait_until(lambda: len(waiting_calls(served)) == 1)
    futures = [client.double.future(1), client.double.future(x=2), client.double.future(3)]
    wait_until(lambda: len(waiting_calls(served)) == 4)
    client.open()
    assert [future.result() for future in futures] == [2, 4, 6] and client.sizes() == [1, 3]
    assert first.result() == 0 and waiting.result()
    with pytest.raises(TypeError, match="missing a required argument"):
        client.double(y=1)


def test_a_call_waits_no_longer_because_an_earlier_one_was_cancelled(
    client: Any, target: Target, served: Served
) -> None:
    pytest.importorskip("numpy")
    # The timer was set for the first call. When that was cancelled, the timers of the others had all fired too early,
    # and they waited for ever.
    batch: Any = served.ways["double"].batch
    batch._queue._expected = {"a caller that does not come"}
    first = client.double.future(1)
    wait_until(lambda: served.num_waiting == 1)
    second = client.double.future(2)
    first.cancel()
    assert second.result(120) == 4


def test_calls_of_a_batch_whose_deadline_has_passed_do_not_run(client: Any, target: Target) -> None:
    pytest.importorskip("numpy")
    waiting = client.wait.future()
    client.wait_until_entered()
    with call_context.deadline(0.1):
        late = client.double.future(1)
    rest = client.double.future(2)
    with pytest.raises(DeadlineExceeded):
        late.result()
    client.open()
    assert rest.result() == 4 and waiting.result() and client.sizes() == [1]


def test_the_calls_that_a_batch_makes_have_the_latest_of_its_deadlines(relays: Any) -> None:
    pytest.importorskip("numpy")
    client, first, _second, (end, a, _b) = relays
    a.serve(Target(), "c")
    first.other = end.client("c", Target)
    with call_context.deadline(60):
        sooner = client.batch_time_left.future(1)
    with call_context.deadline(180):
        later = client.batch_time_left.future(1)
    lefts = {sooner.result(), later.result()}
    assert max(lefts) <= 180 and (len(lefts) > 1 or lefts.pop() > 60)
    assert client.batch_time_left(1) is None


# Streams


def closings(target: Target) -> int:
    return sum(isinstance(seen, tuple) and seen[0] == "closed" for seen in target.seen)


def test_a_stream_is_sent_no_faster_than_it_is_read(client: Any, target: Target) -> None:
    stream = client.items(100_000)
    assert next(stream) == 0
    for num_read in (0, 8, 16):
        ahead = num_read + STREAM_CREDIT - 1
        wait_until(lambda ahead=ahead: target.count >= ahead)
        time.sleep(0.05)
        assert client.echo(1) == 1 and target.count == ahead, "it ran ahead of its reader"
        assert [next(stream) for _ in range(8)] == list(range(num_read + 1, num_read + 9))
    del stream
    wait_until(lambda: closings(target) == 1)


@pytest.mark.timeout(120)
def test_a_stream_may_be_collected_while_its_link_sends(
    client: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector runs in the middle of whatever a thread does, also where that holds the lock of the link."""
    collected: list[int] = []

    def sending(stream: PlainStream, data: bytes) -> int:
        if not collected:
            collected.append(0)
            collected.append(gc.collect())
        return send_bytes(stream, data)

    send_bytes = PlainStream.send_bytes
    stream: Any = client.items(100_000)
    assert next(stream) == 0
    cycle = [stream]
    cycle.append(cycle)
    gc.disable()
    try:
        del stream, cycle
        monkeypatch.setattr(PlainStream, "send_bytes", sending)
        assert client.echo(1) == 1
    finally:
        gc.enable()
    assert collected
    wait_until(lambda: closings(target) == 1)


def test_what_a_reader_asks_for_adds_to_what_it_has_not_been_sent_yet(client: Any, target: Target, end: End) -> None:
    def credits() -> list[int]:
        return [
            call.credit
            for calls in end.server._calls.values()
            for call in calls.values()
            if type(call) is ServedGenerator
        ]

    stream = client.paced_items(100)
    target.pace.release(STREAM_CREDIT // 2)
    assert [next(stream) for _ in range(STREAM_CREDIT // 2)] == list(range(STREAM_CREDIT // 2))
    wait_until(lambda: credits() == [STREAM_CREDIT])  # half of it was left, and half has been asked for
    stream.close()
    target.pace.release(100)


def test_items_of_a_stream_whose_deadline_has_passed_are_not_made(client: Any, target: Target) -> None:
    with call_context.deadline(2.0):  # in which the first items come, on a busy host too
        stream = client.items(100_000)
        assert next(stream) == 0
        wait_until(lambda: target.count == STREAM_CREDIT - 1)
        time.sleep(2.05)
        with pytest.raises(DeadlineExceeded):
            list(stream)  # those that are here, and asks for more
    wait_until(lambda: closings(target) == 1)
    assert target.count == STREAM_CREDIT - 1


@pytest.mark.parametrize("when", ["idle", "unread", "in its turn", "lost", "deadline"])
def test_a_stream_that_is_given_up_is_closed_once_and_beside_nothing(tmp_path: Path, when: str) -> None:
    # Its `finally` once ran in a thread beside the methods of its object, and twice if the cancel came in its turn.
    with ends(tmp_path, "client", "server") as (end, server):
        target = Target()
        server.serve(target, "target")
        client = end.client("target", Target)
        running = threading.Event()
        closed: list[bool] = []

        def items(count: int) -> Any:
            try:
                for number in range(count):
                    if number and when == "in its turn":
                        running.set()
                        time.sleep(0.1)
                    yield number
            finally:
                closed.append(target.inside > 0)

        target.items = items  # type: ignore[method-assign]
        server.serve(target, "target")
        if when == "deadline":
            with call_context.deadline(2.0):
                stream = client.items(1_000)
        else:
            stream = client.items(1_000)
        if when != "unread":
            assert next(stream) == 0
        if when == "in its turn":
            assert running.wait(120)
        blocking = client.wait.future()
        wait_until(target.entered.is_set)
        if when == "lost":
            end.caller.close()
        elif when == "deadline":
            with pytest.raises(DeadlineExceeded):
                list(stream)
        else:
            stream.close()
        time.sleep(0.05)
        assert not closed or when == "in its turn", "it was closed beside another method"
        target.gate.set()
        if when == "lost":
            wait_until(lambda: closed)
        else:
            blocking.result()
            wait_until(lambda: closed or when == "unread")
            assert client.echo(1) == 1
        time.sleep(0.02)
        assert closed.count(False) == len(closed) <= 1


def test_a_stream_with_an_item_that_cannot_travel_ends_and_is_closed(client: Any, target: Target) -> None:
    stream = client.unpicklable_items()
    assert next(stream) == 1
    with pytest.raises(Exception, match="lock"):
        next(stream)
    wait_until(lambda: target.seen == ["closed"])


# The end of a service


def test_a_withdrawn_object_ends_what_waits_and_its_streams(
    client: Any, end: End, target: Target, served: Served
) -> None:
    pytest.importorskip("numpy")
    stream = client.items(1_000)
    next(stream)
    wait_until(lambda: target.count == 15)  # until it has no more credit, so that it does not wait for turns itself
    running = client.wait.future()
    client.wait_until_entered()
    waiting = [client.note.future("never"), client.patient.future(1)]
    wait_until(lambda: served.num_waiting == 2)
    from ropewalk.calls.directory import ReplicaLocation

    end.places.put("target", ReplicaLocation("completed", cause="all is done"))
    end.server.withdraw(served)
    for future in waiting:
        with pytest.raises(ServiceLost, match="all is done"):
            future.result(120)
    with pytest.raises(ServiceLost):
        list(stream)
    target.gate.set()
    assert running.result(120) == "through"
    wait_until(lambda: closings(target) == 1)
    assert "never" not in target.seen
    assert end.server.wait_idle(served, PATIENCE_S)


def test_an_answer_does_not_wait_for_a_longer_call_that_came_with_it(client: Any, target: Target) -> None:
    # Answers to calls that came together are sent together, but not if one of them lasts.
    client.empty()
    first = client.sleep.future(0.05)
    quick, long, called = client.echo.future(1), client.wait.future(), threading.Event()
    assert first.result(120) and quick.result(120) == 1 and not long.done()
    client.echo.future(2).add_done_callback(lambda _: called.set())
    assert not called.is_set()
    client.open()
    assert called.wait(120) and long.result() == "through"


# A turn for a thread of ours


def test_a_thread_has_the_turn_of_an_object_between_two_calls(
    client: Any, target: Target, served: Served, end: End
) -> None:
    waiting = client.wait.future()
    client.wait_until_entered()
    had: list[bool] = []

    def take() -> None:
        with end.server.turn(served) as granted:
            had.append(granted)
            wait_until(lambda: later.running() or served.num_waiting == 1)
            had.append(target.count == 0)

    thread = threading.Thread(target=take)
    thread.start()
    wait_until(lambda: served.num_waiting == 1)
    later = client.add.future(1)
    wait_until(lambda: served.num_waiting == 2)
    assert had == []
    client.open()
    thread.join(120)
    assert waiting.result() == "through" and later.result() == 1 and had == [True, True]


def test_a_thread_that_waits_for_a_turn_is_told_when_there_will_be_none(
    client: Any, target: Target, served: Served, end: End
) -> None:
    waiting = client.wait.future()
    client.wait_until_entered()
    had: list[bool] = []

    def take() -> None:
        with end.server.turn(served) as granted:
            had.append(granted)

    thread = threading.Thread(target=take)
    thread.start()
    wait_until(lambda: served.num_waiting == 1)
    end.server.withdraw(served)
    thread.join(120)
    take()
    assert had == [False, False]
    target.gate.set()
    assert waiting.result() == "through"


def test_a_method_has_the_turn_of_its_own_object_already(client: Any, served: Served, end: End) -> None:
    def take(expected: bool) -> bool:
        with end.server.turn(served) as granted:
            return granted is expected

    served.ways["echo"].method = lambda expected: take(expected)
    assert client.echo(True)
    # While one of its calls waits for this very thread, there is no moment between two calls.
    inner = served.ways["beside"]
    inner.method = lambda: take(False)
    served.ways["echo"].method = lambda _: client.beside()
    assert client.echo(1)
    assert client.add(0) == 0


# Who waits for whom


def test_calls_that_wait_for_others_and_for_their_turn_are_known_at_both_ends(relays: Any) -> None:
    client, _, _, (_, a, b) = relays
    gate = threading.Event()
    b.server._served[1].ways["echo"].method = lambda value: gate.wait(PATIENCE_S) and value
    outer = client.pass_on.future("x")
    waiting = client.echo.future("y")
    (here,) = wait_until(lambda: [lane for lane in a.server.waits() if lane.waiting])
    (running,), (held_up,) = here.running, here.waiting
    assert (running.label, running.address, held_up.label) == ("a.pass_on", b.address, "a.echo")
    assert here.limit == 1 and here.is_held_up
    assert b.server.waits() == [], "what runs there waits for no call"
    inner = next(iter(b.server._served[1].lane.running.values()))
    assert (inner.chain[-1].key, inner.number) == (running.key, running.number)
    gate.set()
    assert (outer.result(), waiting.result()) == ("x", "y")
    assert a.server.waits() == [] and running.key not in call_context._watchers


def test_waits_with_a_limit_are_none(relays: Any) -> None:
    client, _, _, (_, a, b) = relays
    gate = threading.Event()
    b.server._served[1].ways["echo"].method = lambda value: gate.wait(PATIENCE_S) and value
    with rw.deadline(30):
        outer = client.pass_on.future("x")
    wait_until(lambda: b.server._served[1].running)
    assert a.server.waits() == []
    gate.set()
    assert outer.result() == "x"


def test_a_call_that_waits_for_its_turn_can_be_ended(client: Any, target: Target, served: Served, end: End) -> None:
    running = client.wait.future()
    client.wait_until_entered()
    waiting = [
        client.note.future("never"),
        client.double.future(1),
        client.double.future(2),
        client.note.future("once"),
    ]
    stream = client.items(3)
    wait_until(lambda: len(waiting_calls(served)) == 5)
    keys = {call.label: call.key for call in waiting_calls(served)}
    for label in ("target.note", "target.double", "target.items"):
        key = next(call.key for call in waiting_calls(served) if call.label == label)
        assert end.server.fail(served.target, key, CallCycle(f"{label} is in a circle"))
        assert not end.server.fail(served.target, key, CallCycle("twice"))
    assert not end.server.fail(served.target, served.running[0].key, CallCycle("it runs")) and len(keys) == 3
    assert not end.server.fail(99, 1, CallCycle("no object"))
    for ended, label in ((waiting[0], "note"), (waiting[1], "double")):
        with pytest.raises(CallCycle, match=f"target.{label} is in a circle"):
            ended.result(PATIENCE_S)
    with pytest.raises(CallCycle, match="items is in a circle"):
        next(stream)
    client.open()
    assert running.result() == "through" and waiting[2].result() == 4
    waiting[3].result()
    assert target.seen == ["once"] and end.server.wait_idle(served, PATIENCE_S)
