"""Handles: what is counted when, what a call may wait for, and what passes through a depot however its users end."""

from __future__ import annotations

import gc
import itertools
import math
import os
import pickle
import queue
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk import settings
from ropewalk.calls.rpc_connection import MAX_IN_FLIGHT
from ropewalk.sharing import membership, queues
from ropewalk.sharing.arena import NUM_BERTHS
from ropewalk.sharing.locks import Lock
from ropewalk.sharing.membership import member_of
from ropewalk.sharing.queues import Queue
from ropewalk.sharing.synchronize import Event
from ropewalk.transport.ack_page import _NUM_SLOTS
from tests.patience import wait_until


def link_to_depot() -> Any:
    ((_, connection),) = member_of().caller.connections()
    return connection


def start(session: rw.Session, target: Any, *args: Any) -> rw.Process:
    process = rw.get_context(session=session).Process(target=target, args=args)
    process.start()
    return process


# How long


@pytest.mark.parametrize("timeout", [True, np.float32(0.01), -1, -math.inf, math.nan, 0])
def test_any_number_is_a_time_limit_and_none_costs_the_link(session: rw.Session, timeout: Any) -> None:
    items, lock = Queue(session=session), Lock(session=session)
    lock.acquire()
    with pytest.raises(queue.Empty):
        items.get(timeout=timeout)
    assert lock.locked()


@pytest.mark.parametrize("timeout", [10**30, 1e300, math.inf])
def test_a_time_limit_may_be_as_long_as_one_likes(session: rw.Session, timeout: Any) -> None:
    items = Queue(session=session)
    threading.Timer(0.2, items.put, ["here"]).start()
    assert items.get(timeout=timeout) == "here"


# How many at once


def test_threads_that_wait_leave_room_for_what_they_wait_for(session: rw.Session) -> None:
    event, items = Event(session=session), Queue(session=session)
    size = threading.stack_size(256 << 10)
    try:
        waiting = [threading.Thread(target=event.wait, daemon=True) for _ in range(MAX_IN_FLIGHT + NUM_BERTHS + 50)]
        for thread in waiting:
            thread.start()
    finally:
        threading.stack_size(size)
    connection = member_of(session).connection_to(member_of(session).depot())
    wait_until(lambda: connection.num_pending >= MAX_IN_FLIGHT - 1)
    done = threading.Event()

    def go_on() -> None:
        items.put("small items are sent ahead")
        event.set()
        done.set()

    threading.Thread(target=go_on, daemon=True).start()
    assert done.wait(120)
    for thread in waiting:
        thread.join(120)
    assert items.get() == "small items are sent ahead"


def test_handles_come_and_go_while_the_link_is_full(session: rw.Session) -> None:
    # Who waited for room kept the lock that the loop needs to let go of handles; and it is the loop that makes room.
    items, pickled = Queue(session=session), pickle.dumps(Event(session=session))
    num = [0, 0]

    def put() -> None:
        for _ in range(1000):
            items.put(1)
            num[0] += 1

    def come_and_go() -> None:
        for _ in range(1000):
            pickle.loads(pickled)
            num[1] += 1

    threads = [threading.Thread(target=target, daemon=True) for target in (put, put, come_and_go, come_and_go)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), num


# Who holds what


def test_handles_that_arrive_after_the_end_of_their_depot_do_not_count() -> None:
    # They were not counted when they came, but when they went: the session ended under the next object.
    session = rw.Session(settings=replace(settings.current(), session_idle_s=0.2))
    lost = Queue(session=session)
    pickled = pickle.dumps(lost)
    (depot,) = session._services._services
    os.kill(session.processes.pid_of(depot), signal.SIGKILL)
    wait_until(lambda: depot not in session._services._services)
    with pytest.raises(rw.PeerLost):
        lost.qsize()
    for _ in range(3):
        pickle.loads(pickled)
    gc.collect()
    items = Queue(session=session)
    del lost
    gc.collect()
    time.sleep(1)
    items.put("still there")
    assert items.get() == "still there"
    session.close()


def hang_up_and_go_on(items: Queue, ready: Queue, go_on: Queue) -> None:
    link_to_depot().close("as after a silence")
    ready.put("new link")
    go_on.get()
    items.put("counted over the new link")
    assert items.get() == "counted over the new link"


def test_what_a_process_holds_it_holds_over_its_next_link(session: rw.Session) -> None:
    items, ready, go_on = (Queue(session=session) for _ in range(3))
    process = start(session, hang_up_and_go_on, items, ready, go_on)
    assert ready.get(timeout=120) == "new link"
    del items
    gc.collect()
    member = member_of(session)
    wait_until(lambda: not member.loop._calls)
    ready.empty()
    go_on.put(None)
    process.join()
    assert process.exitcode == 0


def test_a_handle_may_go_in_any_moment_of_any_thread(session: rw.Session) -> None:
    items = Queue(session=session)
    done = threading.Event()

    def go() -> None:
        nonlocal items
        with membership._lock:  # as when a garbage collection comes right then
            del items
        done.set()

    threading.Thread(target=go, daemon=True).start()
    assert done.wait(120)


@pytest.mark.parametrize("put", ["with a lambda", "with what cannot be pickled", "into what is full"])
def test_a_handle_in_a_pickle_that_is_not_sent_is_not_under_way(session: rw.Session, put: str) -> None:
    items = Queue(1, session=session)
    member = member_of(session)
    before = member.ask(member.depot(), "num_objects")
    inner = Queue(session=session)
    if put == "with a lambda":  # a second pickler has to be tried
        items.put((inner, lambda: None))
        items.get()
    elif put == "with what cannot be pickled":
        with pytest.raises(rw.NotPicklable):
            items.put((inner, threading.Lock()))
    else:
        items.put(1)
        with pytest.raises(queue.Full):
            items.put(inner, timeout=0.01)
    del inner

    def only_items_are_left() -> bool:
        gc.collect()
        return member.ask(member.depot(), "num_objects") == before

    wait_until(only_items_are_left)


# What was taken


def asleep(connection: Any) -> set[int]:
    """The numbers of the calls whose threads wait beside the one that reads."""
    return {pending.number for pending in list(connection._sleepers.values())}


def take_two_in_one_slot(first: Queue, second: Queue, ready: Queue) -> None:
    queues.depot_client_of = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]  # in memory there are no such pages
    connection = link_to_depot()
    threading.Thread(target=Queue().get, daemon=True).start()  # so that the others are not alone
    wait_until(lambda: connection.reading_thread and not connection._alone and not connection._armed)
    others = asleep(connection)
    threads = [threading.Thread(target=items.get) for items in (first, second)]
    threads[0].start()
    wait_until(lambda: asleep(connection) - others)
    (number,) = asleep(connection) - others
    connection._numbers = itertools.repeat(number + _NUM_SLOTS)  # as after many other calls
    threads[1].start()
    wait_until(lambda: number + _NUM_SLOTS in asleep(connection))
    connection._numbers = itertools.count(number + _NUM_SLOTS + 1)
    ready.put(None)
    for thread in threads:
        thread.join()
    os.kill(os.getpid(), signal.SIGKILL)


def test_nothing_comes_back_that_was_taken_in_the_same_slot_of_the_page(session: rw.Session) -> None:
    first, second, ready = (Queue(session=session) for _ in range(3))
    process = start(session, take_two_in_one_slot, first, second, ready)
    ready.get(timeout=120)
    first.put(1)
    second.put(2)
    process.join()
    time.sleep(0.2)
    assert process.exitcode == -signal.SIGKILL
    assert (first.qsize(), second.qsize()) == (0, 0)
