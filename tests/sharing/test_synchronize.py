"""Locks, semaphores, conditions, events and barriers between real processes, of which some are killed."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.pool.pool import Pool
from ropewalk.sharing.connections import Connection
from ropewalk.sharing.membership import member_of
from ropewalk.sharing.queues import Queue
from ropewalk.sharing.synchronize import Barrier, BoundedSemaphore, Condition, Event, Lock, RLock, Semaphore
from tests.patience import PATIENCE_S, wait_until


def in_thread(call: Callable[[], object]) -> Any:
    """What a call in a thread of its own returns, or the exception it raises."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    return results[0]


def interrupt_when(holds: Callable[[], bool]) -> threading.Thread:
    """Press Ctrl-C as soon as something is so."""

    def press() -> None:
        wait_until(holds)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


# Locks


def add_ones(start: Barrier, lock: Lock, path: Path, num: int) -> int:
    start.wait(120)
    for _ in range(num):
        with lock:
            path.write_text(str(int(path.read_text()) + 1))
    return os.getpid()


def hold(lock: Lock, pids: Queue) -> None:
    lock.acquire()
    pids.put(os.getpid())
    time.sleep(60)


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_one_process_at_a_time_has_the_lock(session: rw.Session, pool: Pool, tmp_path: Path, kind: type[Lock]) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    start, lock = Barrier(3, session=session), kind(session=session)
    pids = pool.starmap(add_ones, [(start, lock, path, 50)] * 3, chunksize=1)
    assert len(set(pids)) == 3
    assert path.read_text() == "150"


def test_a_lock_whose_holder_is_killed_is_free_and_the_next_owner_logs_that(
    session: rw.Session, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    lock, pids = Lock(session=session), Queue(session=session)
    holding = pool.apply_async(hold, (lock, pids))
    pid = pids.get(timeout=120)
    assert f"pid {pid}" in lock.holder()
    assert not lock.acquire(False)
    os.kill(pid, signal.SIGKILL)
    with caplog.at_level(logging.WARNING):
        assert lock.acquire(timeout=120) is True
    assert re.search(
        rf"Lock \d+.* was held by .*pid {pid}.*, which is gone; what it guards may be half done", caplog.text
    )
    caplog.clear()
    lock.release()
    assert lock.acquire(False) is True
    assert not caplog.text
    with pytest.raises(rw.TaskPoisoned):
        holding.get(120)


def test_locks_have_the_signature_and_the_errors_of_multiprocessing(session: rw.Session) -> None:
    lock = Lock(session=session)
    assert lock.acquire() is True
    assert lock.locked()
    assert lock.acquire(False) is False
    assert lock.acquire(block=False, timeout=60) is False
    began = time.monotonic()
    assert lock.acquire(timeout=0.2) is False
    assert time.monotonic() - began >= 0.2
    assert lock.acquire(True, -1) is False
    assert in_thread(lock.release) is None  # A plain lock may be released by anybody.
    assert not lock.locked()
    assert lock.holder() == ""
    with pytest.raises(ValueError, match="semaphore or lock released too many times"):
        lock.release()


def test_a_recursive_lock_belongs_to_a_thread(session: rw.Session) -> None:
    lock = RLock(session=session)
    with lock, lock:
        assert in_thread(lambda: lock.acquire(False)) is False
        refused = in_thread(lock.release)
        assert isinstance(refused, AssertionError)
        assert str(refused) == "attempt to release recursive lock not owned by thread"
    assert in_thread(lambda: lock.acquire(False)) is True
    with pytest.raises(AssertionError, match="not owned by thread"):
        lock.release()


def test_a_copy_of_a_handle_is_the_same_lock(session: rw.Session) -> None:
    lock = Lock(session=session)
    copy = pickle.loads(pickle.dumps(lock))
    lock.acquire()
    assert not copy.acquire(False)
    copy.release()
    assert lock.acquire(False)


def test_ctrl_c_while_waiting_for_a_lock_leaves_it_to_the_others(session: rw.Session) -> None:
    lock, about_to_wait = Lock(session=session), threading.Event()

    def wait_for_it() -> None:
        about_to_wait.set()
        lock.acquire()

    lock.acquire()
    thread = interrupt_when(about_to_wait.is_set)
    with pytest.raises(KeyboardInterrupt):
        wait_for_it()
    thread.join()
    lock.release()
    assert lock.acquire(timeout=120)


def test_ctrl_c_at_any_moment_leaves_the_objects_of_a_process_alone(session: rw.Session) -> None:
    # An interrupt in the middle of a frame once closed the link, which the depot took for the end of this process.
    lock, condition, num_interrupts = Lock(session=session), Condition(session=session), 0
    for _ in range(100):
        started = threading.Event()
        thread = interrupt_when(started.is_set)
        try:
            with condition:
                started.set()
                while True:
                    condition.notify_all()
                    lock.locked()
        except KeyboardInterrupt:
            num_interrupts += 1
        thread.join()
    assert num_interrupts == 100
    assert repr((lock, condition)) == "(<Lock(owner=None)>, <Condition(<RLock(None, 0)>, 0)>)"


def test_names_of_locks_and_semaphores_are_those_of_multiprocessing(session: rw.Session) -> None:
    lock, recursive = Lock(session=session), RLock(session=session)
    assert (repr(lock), repr(recursive)) == ("<Lock(owner=None)>", "<RLock(None, 0)>")
    with lock, recursive, recursive:
        assert (repr(lock), repr(recursive)) == ("<Lock(owner=MainProcess)>", "<RLock(MainProcess, 2)>")
        assert in_thread(lambda: repr(lock)) == "<Lock(owner=SomeOtherThread)>"
        assert in_thread(lambda: repr(recursive)) == "<RLock(SomeOtherThread, nonzero)>"
    semaphores = Semaphore(3, session=session), BoundedSemaphore(session=session)
    assert repr(semaphores) == "(<Semaphore(value=3)>, <BoundedSemaphore(value=1, maxvalue=1)>)"
    assert repr(Condition(lock)) == "<Condition(<Lock(owner=None)>, 0)>"
    assert re.fullmatch(r"<Event at 0x[0-9a-f]+ unset>", repr(Event(session=session)))
    assert re.fullmatch(r"<.*\.Barrier at 0x[0-9a-f]+: waiters=0/2>", repr(Barrier(2, session=session)))


def acquire_once(lock: Lock, pids: Queue) -> bool:
    pids.put(os.getpid())
    with lock:
        return True


def num_claims(lock: Lock) -> int:
    assert lock._calls, "locks of this host are in shared memory"
    return lock._calls.record.look(lambda states: len(states.parts[0].plain()[4]))


def test_a_lock_passes_over_a_process_that_was_killed_while_it_waited(session: rw.Session, pool: Pool) -> None:
    lock, pids = Lock(session=session), Queue(session=session)
    lock.acquire()
    first = pool.apply_async(acquire_once, (lock, pids))
    doomed = pids.get(timeout=120)
    wait_until(lambda: num_claims(lock) == 1)
    second = pool.apply_async(acquire_once, (lock, pids))
    wait_until(lambda: num_claims(lock) == 2)
    os.kill(doomed, signal.SIGKILL)
    wait_until(lambda: num_claims(lock) == 1)
    lock.release()
    assert second.get(120) is True
    with pytest.raises(rw.TaskPoisoned):
        first.get(120)


def test_a_forked_child_owns_nothing_of_what_its_parent_owns(session: rw.Session) -> None:
    lock = RLock(session=session)
    with lock:
        lock.acquire()
        pid = os.fork()
        if pid == 0:
            os._exit(int(lock.acquire(False)))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lock.release()
        assert repr(lock) == "<RLock(MainProcess, 1)>"


# Semaphores


def pass_turn(mine: Semaphore, next_one: Semaphore, order: Queue, number: int) -> None:
    mine.acquire()
    order.put(number)
    next_one.release()


def test_semaphores_carry_signals_between_processes(session: rw.Session, pool: Pool) -> None:
    turns = [Semaphore(0, session=session) for _ in range(4)]
    order = Queue(session=session)
    working = pool.starmap_async(pass_turn, [(turns[i], turns[i + 1], order, i) for i in (2, 1, 0)], chunksize=1)
    turns[0].release()
    assert turns[3].acquire(timeout=120)
    working.get(120)
    assert [order.get() for _ in range(3)] == [0, 1, 2]


def test_semaphores_count(session: rw.Session) -> None:
    semaphore = Semaphore(2, session=session)
    assert semaphore.acquire() and semaphore.acquire(timeout=PATIENCE_S)
    assert not semaphore.acquire(False)
    for _ in range(3):
        semaphore.release()
    assert semaphore.get_value() == 3
    with pytest.raises(ValueError, match="must be >= 0, not -1"):
        Semaphore(-1, session=session)


def acquire_and_stay(semaphore: Semaphore, pids: Queue) -> None:
    semaphore.acquire()
    pids.put(os.getpid())
    time.sleep(60)


def test_the_permit_of_a_process_that_is_killed_stays_acquired(session: rw.Session, pool: Pool) -> None:
    semaphore, pids = Semaphore(1, session=session), Queue(session=session)
    doomed = pool.apply_async(acquire_and_stay, (semaphore, pids))
    os.kill(pids.get(timeout=120), signal.SIGKILL)
    with pytest.raises(rw.TaskPoisoned):
        doomed.get(120)
    assert not semaphore.acquire(timeout=0.2)


def test_a_bounded_semaphore_is_not_released_too_often(session: rw.Session) -> None:
    semaphore = pickle.loads(pickle.dumps(BoundedSemaphore(2, session=session)))
    with semaphore:
        assert repr(semaphore) == "<BoundedSemaphore(value=1, maxvalue=2)>"
    with pytest.raises(ValueError, match="semaphore or lock released too many times"):
        semaphore.release()


# Conditions


def sleep_at(condition: Condition, pids: Queue) -> bool:
    with condition:
        pids.put(os.getpid())
        return condition.wait(120)


def wait_for_start(condition: Condition, pids: Queue, num: int) -> list[int]:
    """The processes of tasks that sleep at a condition by the time at which this returns."""
    found = [pids.get(timeout=120) for _ in range(num)]
    with condition:  # the last one has released the lock, so it sleeps
        assert condition._ask("num_waiters") == num
    return found


def test_processes_wait_for_each_other_at_a_condition(session: rw.Session, pool: Pool) -> None:
    condition, pids = Condition(session=session), Queue(session=session)
    sleeping = pool.starmap_async(sleep_at, [(condition, pids)] * 3, chunksize=1)
    wait_for_start(condition, pids, 3)
    with condition:
        condition.notify(2)
        assert condition._ask("num_waiters") == 1
        condition.notify_all()
    assert sleeping.get(120) == [True, True, True]


def test_a_notification_is_not_lost_with_a_process_that_is_killed(session: rw.Session, pool: Pool) -> None:
    condition, pids = Condition(session=session), Queue(session=session)
    first = pool.apply_async(sleep_at, (condition, pids))
    (doomed,) = wait_for_start(condition, pids, 1)
    second = pool.apply_async(sleep_at, (condition, pids))
    wait_until(lambda: condition._ask("num_waiters") == 2)
    with condition:
        condition.notify()  # the first, which needs the lock for waking up
        os.kill(doomed, signal.SIGKILL)
        wait_until(lambda: condition._ask("num_waiters") == 0)
    assert second.get(120) is True
    with pytest.raises(rw.TaskPoisoned):
        first.get(120)


def test_conditions_have_the_errors_of_multiprocessing(session: rw.Session) -> None:
    condition = Condition(Lock(session=session))
    with pytest.raises(AssertionError, match=r"must acquire\(\) condition before using wait\(\)"):
        condition.wait()
    for notify in (condition.notify, condition.notify_all):
        with pytest.raises(AssertionError, match="lock is not owned"):
            notify()


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, multiprocessing.get_context("fork").Lock, str])
def test_a_lock_of_the_standard_library_is_refused_with_what_to_use(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"ropewalk\.Lock\(\) or ropewalk\.RLock\(\)"):
        Condition(make())


def test_a_wait_whose_time_is_over_owns_the_lock_as_often_as_before(session: rw.Session) -> None:
    condition = Condition(session=session)
    with condition, condition:
        assert condition.wait(0.05) is False
        assert condition.wait_for(lambda: 0, timeout=0.05) == 0
        assert condition.wait_for(lambda: "yes") == "yes"
        assert repr(condition) == "<Condition(<RLock(MainProcess, 2)>, 0)>"
    assert in_thread(lambda: condition.acquire(False)) is True


def test_ctrl_c_while_waiting_at_a_condition_gives_the_lock_back(session: rw.Session) -> None:
    condition = Condition(session=session)
    thread = interrupt_when(lambda: condition._ask("num_waiters") == 1)
    with pytest.raises(KeyboardInterrupt), condition, condition:
        condition.wait()
    thread.join()
    assert repr(condition) == "<Condition(<RLock(None, 0)>, 0)>"


# Events


def wait_for_event(event: Event, ready: Semaphore) -> bool:
    ready.release()
    return event.wait(120)


def test_an_event_wakes_all_processes_that_wait(session: rw.Session, pool: Pool) -> None:
    event, ready = Event(session=session), Semaphore(0, session=session)
    waiting = pool.starmap_async(wait_for_event, [(event, ready)] * 3, chunksize=1)
    for _ in range(3):
        assert ready.acquire(timeout=120)
    assert not event.is_set()
    event.set()
    assert waiting.get(120) == [True, True, True]
    assert event.wait() is True
    event.clear()
    assert event.wait(0.05) is False


# Barriers


def go_through(barrier: Barrier, num: int) -> list[int]:
    return [barrier.wait(120) for _ in range(num)]


def wait_at(barrier: Barrier, pids: Queue) -> int:
    pids.put(os.getpid())
    return barrier.wait(120)


def fail() -> None:
    raise LookupError("the action found nothing")


def test_processes_pass_a_barrier_together_round_after_round(session: rw.Session, pool: Pool) -> None:
    acted = Semaphore(0, session=session)
    barrier = Barrier(3, action=acted.release, session=session)
    rounds = pool.starmap(go_through, [(barrier, 20)] * 3, chunksize=1)
    assert [sorted(places) for places in zip(*rounds, strict=True)] == [[0, 1, 2]] * 20
    assert acted.get_value() == 20
    assert (barrier.parties, barrier.n_waiting, barrier.broken) == (3, 0, False)


def test_a_barrier_names_the_party_that_was_killed(session: rw.Session, pool: Pool) -> None:
    barrier, pids = Barrier(3, session=session), Queue(session=session)
    doomed = pool.apply_async(wait_at, (barrier, pids))
    pid = pids.get(timeout=120)
    wait_until(lambda: barrier.n_waiting == 1)
    left = pool.apply_async(wait_at, (barrier, pids))
    wait_until(lambda: barrier.n_waiting == 2)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(BrokenBarrierError, match=rf"pid {pid}.* is gone"):
        left.get(120)
    assert barrier.broken
    assert ": broken>" in repr(barrier)
    with pytest.raises(BrokenBarrierError, match="is gone"):
        barrier.wait()
    barrier.reset()
    assert not barrier.broken
    with pytest.raises(rw.TaskPoisoned):
        doomed.get(120)


def test_an_action_that_fails_breaks_the_barrier(session: rw.Session) -> None:
    barrier = Barrier(1, action=fail, session=session)
    with pytest.raises(LookupError, match="found nothing"):
        barrier.wait()
    assert barrier.broken


def test_a_barrier_keeps_its_own_time(session: rw.Session) -> None:
    barrier = pickle.loads(pickle.dumps(Barrier(2, timeout=0.05, session=session)))
    with pytest.raises(BrokenBarrierError, match="waited for too long"):
        barrier.wait()
    barrier.reset()
    with pytest.raises(BrokenBarrierError, match="waited for too long"):
        barrier.wait(0.01)
    with pytest.raises(ValueError, match="parties must be > 0, not 0"):
        Barrier(0, session=session)


# What is lost


def test_waits_end_with_an_error_when_their_depot_is_gone(session: rw.Session) -> None:
    lock, event = Lock(session=session), Event(session=session)
    member = member_of(session)
    link = member.connection_to(member.depot()).link
    with socket.socket(fileno=os.dup(link.stream.fileno())) as end:
        depot = int.from_bytes(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
    killing = threading.Timer(0.3, os.kill, (depot, signal.SIGKILL))
    killing.start()
    with pytest.raises(rw.PeerLost, match=r"the Event .* is gone"):
        event.wait()
    killing.join()
    with pytest.raises(rw.PeerLost):
        lock.acquire()
    assert repr(lock) == "<Lock(owner=unknown)>"


# Tracebacks

SLEEPING = {"sleep_at", "wait_at", "receive", "poll"}
"""Functions of ours in which a thread waits."""


def held(lock: Lock) -> Lock:
    lock.acquire()
    return lock


def entering(lock: Lock | Condition) -> Callable[[], None]:
    def enter() -> None:
        with lock:
            pass

    return enter


def waiting_at(condition: Condition, wait: Callable[[Condition], object]) -> Callable[[], None]:
    def enter_and_wait() -> None:
        with condition:
            wait(condition)

    return enter_and_wait


def at_a_pipe(wait: Callable[[Connection], object]) -> Callable[[], None]:
    ends = rw.Pipe()

    def use() -> None:
        with ends[0] as end, ends[1]:
            wait(end)

    return use


def put_into(queue: Queue) -> Queue:
    queue.put(1)
    return queue


@pytest.mark.parametrize(
    "prepare",
    [
        lambda: held(Lock()).acquire,
        lambda: functools.partial(held(Lock()).acquire, timeout=PATIENCE_S),
        lambda: entering(held(Lock())),
        lambda: entering(Condition(held(Lock()))),
        lambda: Condition(held(Lock())).acquire,
        lambda: Semaphore(0).acquire,
        lambda: Event().wait,
        lambda: functools.partial(Event().wait, PATIENCE_S),
        lambda: waiting_at(Condition(), lambda condition: condition.wait()),
        lambda: waiting_at(Condition(), lambda condition: condition.wait_for(bool)),
        lambda: Barrier(2).wait,
        lambda: Queue().get,
        lambda: rw.SimpleQueue().get,
        lambda: functools.partial(put_into(Queue(1)).put, [1]),
        lambda: put_into(rw.JoinableQueue()).join,  # type: ignore[attr-defined]
        lambda: at_a_pipe(lambda end: end.recv()),
        lambda: at_a_pipe(lambda end: end.recv_bytes()),
        lambda: at_a_pipe(lambda end: end.poll(PATIENCE_S)),
    ],
)
@pytest.mark.usefixtures("shared_session")
def test_ctrl_c_in_a_wait_is_told_without_our_frames(prepare: Callable[[], Callable[[], object]]) -> None:
    """One to seven of them stood below the line of the user."""
    wait, main = prepare(), threading.main_thread().ident or 0
    thread = interrupt_when(lambda: sys._current_frames()[main].f_code.co_name in SLEEPING)
    with pytest.raises(KeyboardInterrupt) as caught:
        wait()
    thread.join()
    assert {entry.frame.f_globals["__name__"] for entry in caught.traceback} == {__name__}
