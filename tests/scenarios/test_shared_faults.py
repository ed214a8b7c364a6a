"""Deaths, interrupts and sheer numbers around shared objects on one host: nothing hangs, nothing is lost or left."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import psutil
import pytest

import ropewalk as rw
from ropewalk.compat.process import Process, ProcessSource
from ropewalk.processes.session import Session
from ropewalk.sharing.connections import Connection, Pipe
from ropewalk.sharing.membership import member_of
from ropewalk.sharing.queues import Queue
from ropewalk.sharing.synchronize import Barrier, Condition, Event, Lock, Semaphore
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.launchers import is_alive, suspend, wait_until_asleep
from tests.shared_session import kept
from tests.sharing.listeners import listener_pid

pytestmark = pytest.mark.usefixtures("shared_depot")


@pytest.fixture
def session() -> Session:
    assert kept.session is not None
    return kept.session


@pytest.fixture
def process_of(session: Session) -> Iterator[Callable[..., Process]]:
    """Starts processes of the session, which are ended with the test."""
    bound = type("Process", (Process,), {"_source": ProcessSource(session=session)})
    started: list[Process] = []

    def start(target: Callable[..., object], *args: object) -> Process:
        started.append(bound(target=target, args=args))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.join()
        process.close()


def num_objects(session: Session) -> int:
    member = member_of(session)
    return member.ask(member.depot(), "num_objects")


def depot_of(session: Session) -> psutil.Process:
    """The process that is the depot."""
    return psutil.Process(listener_pid(member_of(session).depot()))


# Deaths of the depot


def test_all_that_wait_at_a_depot_that_is_killed_hear_of_it_and_a_new_one_takes_its_place(
    session: Session, process_of: Callable[..., Process]
) -> None:
    items, full, lock, event = (
        Queue(session=session),
        Queue(1, session=session),
        Lock(session=session),
        Event(session=session),
    )
    barrier, semaphore = Barrier(2, session=session), Semaphore(0, session=session)
    one, other = Pipe(session=session)
    one.send("before")
    assert other.recv() == "before"
    full.put(1)
    lock.acquire()
    waits: list[Callable[[], Any]] = [
        items.get, lambda: full.put(2), lock.acquire, event.wait,
        barrier.wait, semaphore.acquire,
    ]  # fmt: skip
    inside = process_of(wait_and_exit, items, full)
    with ThreadPoolExecutor(len(waits)) as threads:
        waiting = [threads.submit(wait) for wait in waits]
        full.get()  # both of them put now
        wait_until(full.full)
        depot_of(session).kill()
        for future in waiting[:1] + waiting[2:]:
            error = future.exception(20)
            assert isinstance(error, rw.PeerLost)
            assert " is gone: nobody answers at unix:" in str(error)
        items = Queue(session=session)
        items.put("again")
        assert items.get() == "again"
    inside.join(120)
    assert inside.exitcode == 7
    one.send("a pipe goes on between those who have it")
    assert other.recv().startswith("a pipe")
    one.close()
    with pytest.raises(rw.PeerLost, match="Pipe"):
        other.recv()
    with pytest.raises(rw.PeerLost, match="Lock"):
        lock.release()


def test_the_death_of_a_depot_is_told_once_with_its_cause_and_its_silence_once_in_each_error(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    lock, depot = Lock(session=session), depot_of(session)
    depot.kill()
    depot.wait(120)
    errors: set[str] = set()

    def is_told() -> bool:
        try:
            lock.acquire()  # it may be done in memory once more, before this process hears of the death
        except rw.PeerLost as error:
            errors.add(str(error))
        return bool(caplog.messages and errors)

    wait_until(is_told)
    (event,) = caplog.messages
    assert re.match(
        rf"the depot on host .* \(pid {depot.pid}\) was killed by SIGKILL after .*what it held is gone", event
    )
    for error in errors:
        assert error.count("nobody answers") == 1 and error.count(".sock") == 1, error


def wait_and_exit(items: Queue, full: Queue) -> None:
    try:
        full.put("from inside")
        items.get()
    except rw.PeerLost:
        sys.exit(7)


# Deaths of those who use it


def pass_on(source: Queue, target: Queue) -> None:
    while True:
        target.put((os.getpid(), source.get()))


def put_numbers(source: Queue, first: int, num: int, done: Queue) -> None:
    for number in range(first, first + num):
        source.put(number)
    done.put(os.getpid())
    time.sleep(60)


def test_readers_and_writers_that_are_killed_lose_at_most_what_they_held(
    session: Session, process_of: Callable[..., Process]
) -> None:
    num, mortal, chance = 5000, 1_000_000, random.Random(5)
    source, target, done = Queue(64, session=session), Queue(session=session), Queue(session=session)
    for first in range(0, num, num // 2):
        process_of(put_numbers, source, first, num // 2, done)
    writer = process_of(put_numbers, source, mortal, mortal, done)
    readers = [process_of(pass_on, source, target) for _ in range(4)]
    num_killed, seen = 0, Counter[int]()

    def see(most: int, timeout_s: float) -> bool:
        """Take `most` answers; whether there were as many."""
        try:
            for _ in range(most):
                seen[target.get(timeout=timeout_s)[1]] += 1
        except queue.Empty:
            return False
        return True

    assert see(100, 20.0)
    while see(500, 1.0):
        victim = readers.pop(chance.randrange(len(readers)))
        os.kill(victim.pid or 0, signal.SIGKILL)
        num_killed += 1
        readers.append(process_of(pass_on, source, target))
        if num_killed == 5:
            os.kill(writer.pid or 0, signal.SIGKILL)
    assert source.empty()
    assert {done.get(timeout=PATIENCE_S) for _ in range(2)}
    assert num_killed >= 10
    assert max(seen.values()) == 1, "an item came twice"
    # Between its get and the arrival of its put a reader holds one item; only that dies with it.
    put = [*range(num), *range(mortal, max(seen) + 1)]
    missing = [number for number in put if number not in seen]
    assert max(seen) > mortal + 100
    assert len(missing) <= num_killed, f"{missing} are lost by {num_killed} deaths"


def own_many(num: int, ready: Queue) -> None:
    objects = [make() for _ in range(num // 4) for make in (Queue, Lock, Event, Condition)]
    ready.put(len(objects))
    time.sleep(60)


def test_the_objects_of_an_owner_that_is_killed_are_reaped(
    session: Session, process_of: Callable[..., Process]
) -> None:
    ready = Queue(session=session)
    before = num_objects(session)
    owner = process_of(own_many, 1000, ready)
    assert ready.get(timeout=120) == 1000
    assert num_objects(session) >= before + 1000
    os.kill(owner.pid or 0, signal.SIGKILL)
    wait_until(lambda: num_objects(session) == before, what="all of them are gone")


def take_one(items: Queue, taken: Queue) -> None:
    taken.put(os.getpid())
    taken.put(items.get())


def test_a_reader_that_stands_still_holds_up_nobody_else(session: Session, process_of: Callable[..., Process]) -> None:
    items, taken = Queue(session=session), Queue(session=session)
    process_of(take_one, items, taken)
    pid = taken.get(timeout=120)
    wait_until_asleep(pid)  # its `get` has reached the queue
    suspend(pid)
    items.put("its own")
    for number in range(1000):
        items.put(number)
        assert items.get(timeout=PATIENCE_S) == number
    os.kill(pid, signal.SIGCONT)
    assert taken.get(timeout=PATIENCE_S) == "its own"


# Interrupts


@pytest.mark.parametrize("what", ["get", "acquire", "recv"])
def test_ctrl_c_while_waiting_loses_nothing(session: Session, what: str) -> None:
    items, (one, other), semaphore = Queue(session=session), Pipe(session=session), Semaphore(0, session=session)
    put, get = {
        "get": (items.put, items.get),
        "acquire": (lambda _number: semaphore.release(), semaphore.acquire),
        "recv": (one.send, other.recv),
    }[what]
    chance = random.Random(7)
    num_got = num_interrupts = num_put = 0
    main = threading.main_thread().ident or 0
    armed = list[bool]()  # not an event, which an interrupt could leave locked
    over = threading.Event()

    def disturb() -> None:
        nonlocal num_put
        while not over.is_set():
            time.sleep(0.0005)
            if armed:
                time.sleep(chance.random() * 0.002)
                if chance.random() < 0.5:
                    put(num_put)
                    num_put += 1
                armed.clear()
                signal.pthread_kill(main, signal.SIGINT)

    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        got: list[Any] = []
        while num_interrupts < 100:
            try:
                armed.append(True)
                got.append(get())
                num_got += 1
                while armed:
                    time.sleep(0.001)
                time.sleep(0.5)  # the interrupt comes now
            except KeyboardInterrupt:
                num_interrupts += 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, old)
    left = 0
    if what == "get":
        left = items.qsize()
        got += [items.get(timeout=PATIENCE_S) for _ in range(left)]
    elif what == "recv":
        while other.poll(0.1):
            got.append(other.recv())
    else:
        left = semaphore.get_value()
        assert num_put - left in range(num_got, num_interrupts + num_got + 1)
        return
    assert len(got) == len(set(got))
    # One that has arrived is lost with the call that an interrupt ends between its arrival and the assignment.
    assert num_put - len(got) <= num_interrupts // 10


# Sheer numbers


def wait_for(event: Event, ready: Queue) -> None:
    ready.put(os.getpid())
    assert event.wait(60)


@pytest.mark.soak
def test_200_processes_wait_for_one_event(session: Session, process_of: Callable[..., Process]) -> None:
    event, ready = Event(session=session), Queue(session=session)
    waiting = [process_of(wait_for, event, ready) for _ in range(200)]
    assert len({ready.get(timeout=120) for _ in waiting}) == 200
    event.set()
    for process in waiting:
        process.join(120)
        assert process.exitcode == 0


def echo(source: Queue, target: Queue, connection: Connection) -> None:
    while (item := source.get()) is not None:
        target.put(item)
        connection.send(connection.recv())


SIZES = [1000, 64_000, 1_000_000, 30_000_000, pytest.param(2_000_000_000, marks=pytest.mark.soak)]


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_any_size_go_there_and_back(
    session: Session, process_of: Callable[..., Process], size: int
) -> None:
    if size > 10**9 and psutil.virtual_memory().available < 16 << 30:
        pytest.skip("2 GB messages in both directions need 16 GiB of memory")
    source, target, (one, other) = Queue(session=session), Queue(session=session), Pipe(session=session)
    process = process_of(echo, source, target, other)
    sent = np.arange(size, dtype=np.uint8)
    source.put(sent)
    received = target.get()
    assert np.array_equal(received, sent)
    del received
    one.send(sent)
    received = one.recv()
    assert np.array_equal(received, sent)
    source.put(None)
    process.join(120)
    assert process.exitcode == 0


@pytest.mark.parametrize("num", [1000, pytest.param(9000, marks=pytest.mark.soak)])
def test_after_thousands_of_large_items_the_depot_is_as_it_was(session: Session, num: int) -> None:
    items, block = Queue(session=session), bytes(200_000)

    def run(num: int) -> None:
        for _ in range(num // 20):
            for _ in range(20):
                items.put(block)
            for _ in range(20):
                assert len(items.get()) == len(block)

    run(1000)
    depot = depot_of(session)
    num_fds, mib = depot.num_fds(), depot.memory_info().rss >> 20
    run(num)
    wait_until(lambda: depot.num_fds() <= num_fds, what="the descriptors are closed")
    assert depot.memory_info().rss >> 20 <= mib + 20


# Handles


def test_a_forked_child_uses_its_parents_queue(session: Session) -> None:
    items, answers, lock = Queue(session=session), Queue(session=session), Lock(session=session)
    lock.acquire()
    items.put("for the child")
    pid = os.fork()
    if pid == 0:
        try:
            answers.put(("child", items.get(timeout=PATIENCE_S), lock.holder(), lock.acquire(timeout=0)))
            answers.close()
            answers.join_thread()
        finally:
            os._exit(0)
    who, item, holder, acquired = answers.get(timeout=120)
    os.waitpid(pid, 0)
    assert (who, item, acquired) == ("child", "for the child", False)
    assert f"pid {os.getpid()}" in holder
    assert lock.locked(), "the lock is still the parent's"
    lock.release()
    items.put(1)
    assert items.get(timeout=PATIENCE_S) == 1


def test_a_handle_that_outlived_its_object_says_so(session: Session) -> None:
    items = Queue(session=session)
    pickled = pickle.dumps(items)
    copy = pickle.loads(pickled)
    before = num_objects(session)
    del items, copy
    gc.collect()
    wait_until(lambda: num_objects(session) == before - 1, what="nobody refers to it")
    late = pickle.loads(pickled)
    with pytest.raises(rw.PeerLost, match=r"the Queue \d+ on .* is gone: its depot no longer has it"):
        late.get()


def test_a_handle_of_another_run_says_so(session: Session) -> None:
    with Session() as other:
        items = Queue(session=other)
        items.put(1)
        assert items.get() == 1
    with pytest.raises(rw.PeerLost, match="another run, or to a session that has ended"):
        items.get()
    mine = Queue(session=session)
    mine.put(items)
    with pytest.raises(rw.PeerLost, match="another run"):
        mine.get().qsize()


def test_a_depot_that_has_ended_comes_back_when_it_is_needed(session: Session) -> None:
    items = Queue(session=session)
    first = depot_of(session)
    os.kill(first.pid, signal.SIGTERM)
    wait_until(lambda: not is_alive(first.pid))
    items = Queue(session=session)
    items.put(1)
    assert items.get() == 1
    assert depot_of(session).pid != first.pid


def test_a_depot_may_end_long_before_its_launcher_hears_of_that(session: Session) -> None:
    # On a busy machine the news took longer than the half second for which a new depot was asked for: PeerLost.
    Queue(session=session)
    first = depot_of(session)
    (agent,) = session.hosts()
    suspend(agent.pid)
    first.kill()
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(Queue, session=session)
        wait([made], 0.8)
        os.kill(agent.pid, signal.SIGCONT)
        items = made.result(120)
    items.put(1)
    assert items.get() == 1
    assert depot_of(session).pid != first.pid


@pytest.mark.soak
def test_a_depot_without_objects_and_callers_ends_by_itself() -> None:
    script = """
        import os, psutil, sys, time
        import ropewalk as rw

        def depots(pid):
            children = psutil.Process(pid).children(recursive=True)
            return [child.pid for child in children if "depot" in child.name()]

        def make_one(pid):
            queue = rw.Queue()
            queue.put(1)
            sys.exit(queue.get() + len(depots(pid)))

        with rw.Session() as session:
            process = rw.get_context().Process(target=make_one, args=(os.getpid(),))
            process.start()
            process.join()
            print(process.exitcode)
            while depots(os.getpid()):
                time.sleep(0.1)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "2\n", done.stderr
