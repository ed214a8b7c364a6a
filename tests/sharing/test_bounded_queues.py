"""Queues with bounds between real processes: never more than fits, also where nobody asks for each item."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.calls import batcher
from ropewalk.pool.pool import Pool
from ropewalk.sharing import queues
from ropewalk.sharing.queues import JoinableQueue, Queue
from ropewalk.sharing.shared_object import SharedObject


@pytest.fixture
def pool(session: rw.Session) -> Iterator[Pool]:
    with Pool(3, session=session) as pool:
        yield pool


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often which method was called and waited for, in this process."""
    calls: Counter[str] = Counter()
    call = SharedObject._call

    def count(self: SharedObject, connection: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        calls[method] += 1
        return call(self, connection, method, *args, **kwargs)

    monkeypatch.setattr(SharedObject, "_call", count)
    return calls


def is_full(items: Queue) -> bool:
    """Whether one more is refused."""
    try:
        items.put_nowait("more")
    except queue.Full:
        return True
    return False


def put_one(items: Queue, told: Queue, go: Queue) -> bool:
    """Put the first item, which brings room for more; and then see whether there is room."""
    items.put("first")
    told.put(os.getpid())
    go.get()
    return is_full(items)


def put_numbers(items: Queue, who: int, num: int) -> None:
    for number in range(num):
        items.put((who, number))


def take_all(items: Queue, taken: Queue, most: int) -> None:
    while (item := items.get()) is not None:
        assert items.qsize() <= most
        taken.put((os.getpid(), *item))


handles: list[Queue] = []


def put_without_a_timer(items: Queue, num: int) -> None:
    """While the first items are on their way, others are gathered; the end of the task has to send these."""
    batcher._WAIT_S = 1e6
    handles.append(items)  # the last handle of a process sends as well
    for number in range(num):
        items.put(number)


def take_when_told(items: Queue, told: Queue, go: Queue) -> None:
    while go.get():
        told.put(items.get())


def fork_between(items: Queue) -> int:
    items.put("parent")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            items.put("child")
            items.close()
            items.join_thread()
            code = 0
        finally:
            os._exit(code)
    items.put("parent again")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_process_asks_nobody_for_items_and_room(session: rw.Session, asked: Counter[str]) -> None:
    items = Queue(50, session=session)
    for number in range(50):
        items.put(number)
    assert (items.full(), items.qsize()) == (True, 50)
    assert is_full(items)
    assert [items.get() for _ in range(50)] == list(range(50))
    assert (items.full(), items.qsize(), items.empty()) == (False, 0, True)
    assert not asked


def test_a_lone_putter_asks_its_depot_once_for_many_items(
    session: rw.Session, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "depot_client_of", lambda *_: None)
    items = Queue(50, session=session)
    for number in range(50):
        items.put(number)
    assert asked["put"] == 1
    assert (items.full(), items.qsize()) == (True, 50)
    assert is_full(items)
    assert [items.get() for _ in range(50)] == list(range(50))
    assert asked["get"] < 10
    assert (items.full(), items.qsize(), items.empty()) == (False, 0, True)


def test_room_that_a_putter_does_not_use_is_there_for_others(session: rw.Session, pool: Pool) -> None:
    items, told, go = Queue(5, session=session), Queue(session=session), Queue(session=session)
    putter = pool.apply_async(put_one, (items, told, go))
    told.get()
    for number in range(4):
        assert not items.full()
        items.put_nowait(number)
    assert items.full()
    assert is_full(items)
    go.put(None)
    assert putter.get(120), "more was in it than fits"
    assert [items.get_nowait() for _ in range(5)] == ["first", 0, 1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_putter_that_is_killed_or_stopped_keeps_no_room(session: rw.Session, number: signal.Signals) -> None:
    items, told, go = Queue(5, session=session), Queue(session=session), Queue(session=session)
    with Pool(1, session=session, max_deaths=1) as pool:
        failing = pool.apply_async(put_one, (items, told, go))
        pid = told.get()
        os.kill(pid, number)
        for other in range(4):
            items.put(other, timeout=120)
        assert is_full(items)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(rw.TaskPoisoned):
            failing.get(120)
    assert [items.get() for _ in range(5)] == ["first", 0, 1, 2, 3]
    for other in range(5):
        items.put(other, timeout=120)


def test_a_putter_goes_on_when_a_reader_takes_an_item_of_those_it_has_at_hand(session: rw.Session, pool: Pool) -> None:
    items, told, go = Queue(5, session=session), Queue(session=session), Queue(session=session)
    for number in range(5):
        items.put(number)
    reader = pool.apply_async(take_when_told, (items, told, go))
    go.put(True)
    assert told.get() == 0
    items.put(5)
    assert is_full(items), "what is at hand has not been taken"
    for number in range(6, 9):
        putter = threading.Thread(target=items.put, args=(number,))
        putter.start()
        putter.join(0.1)
        assert putter.is_alive()
        go.put(True)
        putter.join(120)
        assert not putter.is_alive()
        assert told.get() == number - 5
    go.put(False)
    reader.get(120)
    assert [items.get() for _ in range(5)] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("maxsize", [1, 2, 7, 200])
def test_each_item_comes_once_and_in_order_and_there_are_never_too_many(session: rw.Session, maxsize: int) -> None:
    items, taken, num = Queue(maxsize, session=session), Queue(session=session), 400
    with Pool(5, session=session) as pool:
        readers = [pool.apply_async(take_all, (items, taken, maxsize)) for _ in range(2)]
        putters = [pool.apply_async(put_numbers, (items, who, num)) for who in range(3)]
        for putter in putters:
            putter.get(120)
        for _ in readers:
            items.put(None)
        for reader in readers:
            reader.get(120)
    seen = [taken.get(timeout=120) for _ in range(3 * num)]
    assert sorted(item for _, *item in seen) == [[who, number] for who in range(3) for number in range(num)]
    for reader, who in itertools.product({by for by, _, _ in seen}, range(3)):
        mine = [number for by, of, number in seen if (by, of) == (reader, who)]
        assert mine == sorted(mine)


def test_what_a_task_has_put_outlives_a_worker_that_is_killed_once_its_result_is_there(session: rw.Session) -> None:
    items = Queue(session=session)
    with Pool(1, session=session) as pool:
        pool.apply(put_without_a_timer, (items, 50))
        (worker,) = pool.status().workers
        os.kill(worker.pid, signal.SIGKILL)
    assert [items.get(timeout=120) for _ in range(50)] == list(range(50))


def test_threads_of_a_putter_share_its_room(session: rw.Session) -> None:
    items = Queue(10, session=session)
    threads = [threading.Thread(target=put_numbers, args=(items, who, 300)) for who in range(4)]
    for thread in threads:
        thread.start()
    seen: list[tuple[int, int]] = []
    while len(seen) < 1200:
        assert items.qsize() <= 10
        seen.append(items.get(timeout=120))
    for thread in threads:
        thread.join(120)
    for who in range(4):
        assert [number for other, number in seen if other == who] == list(range(300))


def test_a_forked_child_does_not_fill_its_parents_room(session: rw.Session, pool: Pool) -> None:
    items = Queue(3, session=session)
    assert pool.apply(fork_between, (items,)) == 0
    assert sorted(items.get(timeout=120) for _ in range(3)) == ["child", "parent", "parent again"]
    for number in range(3):
        items.put(number, timeout=120)
    assert is_full(items)


def test_large_and_small_items_of_one_putter_stay_in_order(session: rw.Session) -> None:
    items = Queue(4, session=session)
    large = b"x" * 300_000
    for some in ([1, large, 2, 3], [large, 4, 5, large], [6, 7, 8, large]):
        for item in some:
            items.put_nowait(item)
        assert is_full(items)
        assert [items.get() for _ in some] == some


def test_a_joinable_queue_with_bounds_is_waited_for(session: rw.Session) -> None:
    items = JoinableQueue(20, session=session)
    put_numbers(items, 0, 20)
    for _ in range(19):
        items.get()
        items.task_done()
    waiting = threading.Thread(target=items.join)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    items.get()
    items.task_done()
    waiting.join(120)
    assert not waiting.is_alive()
