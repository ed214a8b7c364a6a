"""Locks of values and arrays, between real processes and threads, of which some are killed, forked or interrupted."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.pool.pool import Pool
from ropewalk.sharing.host_lock import HostLock
from ropewalk.sharing.locks import RLock
from ropewalk.sharing.memory import Array, RawValue, Value
from tests.patience import PATIENCE_S, wait_until


@pytest.fixture
def pool(session: rw.Session) -> Iterator[Pool]:
    """Four workers; a task that kills its worker is not run again."""
    with Pool(4, session=session, max_deaths=1) as pool:
        yield pool


def in_threads(call: Callable[[], object], num: int = 1) -> list[Any]:
    """What calls in threads of their own return, or the exceptions they raise."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def in_forked_child(call: Callable[[], object]) -> bool:
    """Whether a call returns true in a forked child."""
    pid = os.fork()
    if pid == 0:
        os._exit(not call())
    return os.waitpid(pid, 0)[1] == 0


def add_ones(value: Any, num: int) -> None:
    def add() -> None:
        for _ in range(num):
            with value.get_lock():
                value.value += 1

    in_threads(add, 2)


def hold(value: Any, pid: Any) -> None:
    value.acquire()
    pid.value = os.getpid()
    time.sleep(60)


def hold_until(value: Any, gate: Any) -> None:
    with value:
        gate.value = 1
        wait_until(lambda: gate.value == 2)


@contextlib.contextmanager
def held_elsewhere(session: rw.Session, pool: Pool, value: Any) -> Generator[None]:
    gate = RawValue("i", session=session)
    holding = pool.apply_async(hold_until, (value, gate))
    wait_until(lambda: gate.value == 1)
    try:
        yield
    finally:
        gate.value = 2
        holding.get(120)


def test_four_processes_with_two_threads_each_count_right(session: rw.Session, pool: Pool) -> None:
    value = Value("i", session=session)
    pool.starmap(add_ones, [(value, 2000)] * 4, chunksize=1)
    assert value.value == 4 * 2 * 2000


def test_it_is_the_default_lock_and_no_other(session: rw.Session) -> None:
    for made in [Value("i", session=session), Array("d", 3, session=session), Value("i", lock=None, session=session)]:
        assert type(made.get_lock()) is HostLock
    lock = RLock(session=session)
    assert Value("i", lock=lock, session=session).get_lock() is lock
    with pytest.raises(TypeError, match=r"ropewalk\.RLock"):
        rw.Condition(Value("i", session=session).get_lock())


@pytest.mark.parametrize("timeout", [None, 3600])
def test_a_lock_whose_holder_is_killed_is_free_and_the_next_owner_logs_that(
    session: rw.Session, pool: Pool, caplog: pytest.LogCaptureFixture, timeout: float | None
) -> None:
    value, pid = Value("i", session=session), RawValue("i", session=session)
    holding = pool.apply_async(hold, (value, pid))
    wait_until(lambda: pid.value)
    assert value.get_lock().holder() == f"pid {pid.value}"
    assert not value.acquire(False)
    killer = threading.Timer(0.2, os.kill, (pid.value, signal.SIGKILL))
    began = time.monotonic()
    killer.start()
    with caplog.at_level(logging.WARNING):
        assert value.acquire(timeout=timeout) is True
    assert time.monotonic() - began >= 0.2
    assert f"was held by pid {pid.value}, which is gone; what it guards may be half done" in caplog.text
    caplog.clear()
    value.release()
    assert value.acquire()
    assert not caplog.text
    value.release()
    with pytest.raises(rw.TaskPoisoned):
        holding.get(120)


def test_its_owner_may_acquire_it_again_and_releases_it_as_often(session: rw.Session, pool: Pool) -> None:
    value = Value("i", session=session)
    lock = value.get_lock()
    with lock, lock, value:
        value.value += 1
        assert pool.apply(try_it, (value,)) is False
    assert pool.apply(try_it, (value,)) is True
    assert lock.acquire()
    assert lock.acquire(False)
    lock.release()
    assert pool.apply(try_it, (value,)) is False
    lock.release()
    assert pool.apply(try_it, (value,)) is True


def try_it(value: Any) -> bool:
    got = value.acquire(False)
    if got:
        value.release()
    return got


def test_nobody_else_releases_it(session: rw.Session, pool: Pool) -> None:
    lock = Value("i", session=session).get_lock()
    message = "attempt to release recursive lock not owned by thread"
    with pytest.raises(AssertionError, match=message):
        lock.release()
    with lock:
        assert in_threads(lambda: lock.acquire(False)) == [False]
        assert [repr(error) for error in in_threads(lock.release)] == [repr(AssertionError(message))]
        with pytest.raises(AssertionError, match=message):
            pool.apply(lock.release)
        assert not pool.apply(lock.acquire, (False,)), "still owned"


@pytest.mark.parametrize("of", ["process", "thread"])
def test_a_time_limit_ends_the_wait(session: rw.Session, pool: Pool, of: str) -> None:
    value = Value("i", session=session)
    with held_elsewhere(session, pool, value) if of == "process" else held_by_thread(value):
        assert value.acquire(False) is False
        assert value.acquire(block=False, timeout=60) is False
        assert value.acquire(True, -1) is False
        began = time.monotonic()
        assert value.acquire(timeout=0.2) is False
        assert time.monotonic() - began >= 0.2
    assert value.acquire(timeout=10**12) is True
    value.release()


@contextlib.contextmanager
def held_by_thread(value: Any) -> Generator[None]:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with value:
            held.set()
            done.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(120)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_who_waits_with_a_time_limit_gets_it_when_it_is_released(session: rw.Session, pool: Pool) -> None:
    value = Value("i", session=session)
    got: list[bool] = []
    with held_elsewhere(session, pool, value):
        waiting = threading.Thread(target=lambda: got.append(value.acquire(timeout=120)))
        waiting.start()
    waiting.join()
    assert got == [True]


def test_what_it_shows_is_as_in_multiprocessing(session: rw.Session, pool: Pool) -> None:
    value, theirs = Value("i", session=session), multiprocessing.RLock()
    ours = value.get_lock()

    def shown() -> str:
        assert repr(ours).removeprefix("<HostLock") == repr(theirs).removeprefix("<RLock")
        return repr(ours)

    assert shown() == "<HostLock(None, 0)>"
    assert (ours.locked(), ours.holder()) == (False, "")
    with ours, ours, theirs, theirs:
        assert shown() == "<HostLock(MainProcess, 2)>"
        assert in_threads(shown) == ["<HostLock(SomeOtherThread, nonzero)>"]
        assert pool.apply(repr, (ours,)) == "<HostLock(SomeOtherProcess, nonzero)>"
        assert (ours.locked(), ours.holder()) == (True, f"pid {os.getpid()}")
    assert shown() == "<HostLock(None, 0)>"


def test_copies_in_one_process_are_one_lock(session: rw.Session) -> None:
    value = Value("i", session=session)
    again, lock = pickle.loads(pickle.dumps((value, value.get_lock())))
    assert again.get_lock() is lock is value.get_lock()
    with value:
        assert again.acquire(False)
        again.release()
        assert in_threads(lambda: again.acquire(False)) == [False]


def test_a_forked_child_does_not_own_what_its_parent_owns(session: rw.Session) -> None:
    value, other = Value("i", session=session), Value("i", session=session)
    lock = value.get_lock()

    def own_nothing() -> bool:
        with contextlib.suppress(AssertionError):
            lock.release()
            return False
        return not lock.acquire(False) and not lock.acquire(timeout=0.01) and other.acquire(False)

    with value:
        assert in_forked_child(own_nothing)
        assert in_forked_child(lambda: not value.acquire(False)), "it is owned after the end of a child as well"
    with held_by_thread(value):
        assert in_forked_child(own_nothing)
    assert in_forked_child(lambda: value.acquire(False))
    assert other.acquire(timeout=PATIENCE_S)
    other.release()


def test_a_forked_child_does_not_keep_what_its_dead_parent_owned(session: rw.Session) -> None:
    value, grandchild = Value("i", session=session), RawValue("i", session=session)

    def acquire_and_fork() -> None:
        value.acquire()
        if os.fork() == 0:
            grandchild.value = os.getpid()
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    in_forked_child(acquire_and_fork)
    try:
        assert value.acquire(timeout=PATIENCE_S)
        value.release()
    finally:
        os.kill(grandchild.value, signal.SIGKILL)


def press_ctrl_c_until(over: threading.Event) -> None:
    """Press it once, and again after half a minute: Python drops one that comes while an object is being deleted."""
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
    while not over.wait(30):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("timeout", [None, PATIENCE_S])
@pytest.mark.parametrize("of", ["process", "thread"])
def test_a_wait_that_ctrl_c_ends_leaves_it_usable(
    session: rw.Session, pool: Pool, of: str, timeout: float | None
) -> None:
    value = Value("i", session=session)
    for _ in range(5):
        with held_elsewhere(session, pool, value) if of == "process" else held_by_thread(value):
            over = threading.Event()
            press = threading.Thread(target=press_ctrl_c_until, args=(over,))
            press.start()
            with pytest.raises(KeyboardInterrupt):
                value.acquire(timeout=timeout)
            over.set()
            press.join()
            with pytest.raises(AssertionError, match="not owned"):
                value.release()
        assert in_threads(lambda: (value.acquire(timeout=PATIENCE_S), value.release())) == [(True, None)]
        assert pool.apply(try_it, (value,)) is True


def test_a_signal_handler_may_use_it_while_its_thread_waits_for_it(session: rw.Session, pool: Pool) -> None:
    value, gate = Value("i", session=session), RawValue("i", session=session)
    holding = pool.apply_async(hold_until, (value, gate))
    wait_until(lambda: gate.value == 1)

    def handler(*_: object) -> None:
        gate.value = 2
        with value:
            value.value += 1

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with value:
            value.value += 1
            assert pool.apply(try_it, (value,)) is False, "the handler's release was not ours"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert value.value == 2
    assert in_threads(lambda: value.acquire(False)) == [True]
    holding.get(120)


def test_values_in_one_sheet_do_not_block_each_other(session: rw.Session, pool: Pool) -> None:
    empty = Array("i", 0, session=session)
    values = [empty, Array("c", 63, session=session), *(Value("i", session=session) for _ in range(50))]
    files = len(os.listdir("/proc/self/fd"))
    for held in values:
        with held:
            assert pool.map(try_it, values, chunksize=20) == [value is not held for value in values]
    assert len(os.listdir("/proc/self/fd")) <= files + 5


def test_the_lock_is_no_part_of_the_value(session: rw.Session, pool: Pool) -> None:
    array = Array("B", 100, session=session)
    array[:] = [255] * 100
    with array:
        assert array[:] == [255] * 100
    assert pool.apply(try_it, (array,)) is True
    assert array[:] == [255] * 100


def test_a_lock_that_goes_while_it_is_owned_is_free(
    session: rw.Session, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    value, other = Value("i", session=session), Value("i", session=session)
    pool.apply(acquire_only, (value, other))
    gc.collect()
    assert value.acquire(timeout=PATIENCE_S)
    value.release()
    assert "which is gone" in caplog.text


def acquire_only(value: Any, other: Any) -> None:
    global kept
    kept = other  # the memory file stays open
    value.acquire()


kept: Any = None
