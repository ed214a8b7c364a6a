"""Queues between real processes: order, bounds, time limits, deaths, large items, code that goes along."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import pickle
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.pool.pool import Pool
from ropewalk.sharing import membership, shared_object
from ropewalk.sharing.locks import Lock
from ropewalk.sharing.membership import member_of
from ropewalk.sharing.queues import JoinableQueue, Queue, SimpleQueue
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.launchers import wait_until_asleep


@pytest.fixture
def pool(session: rw.Session) -> Iterator[Pool]:
    with Pool(3, session=session) as pool:
        yield pool


def square_all(numbers: Queue, squares: Queue) -> int:
    num = 0
    while (number := numbers.get()) is not None:
        squares.put((os.getpid(), number * number))
        num += 1
    return num


def take_and_wait(items: Queue, taken: Queue) -> None:
    taken.put((os.getpid(), items.get()))
    time.sleep(60)


def wait_for_item(items: Queue, pids: Queue) -> object:
    pids.put(os.getpid())
    return items.get()


def take_one_and_wait(items: Queue, taken: Queue) -> None:
    """Be busy with the second item: with the first one come many others."""
    taken.put((os.getpid(), [items.get(), items.get()]))
    time.sleep(60)


def take_some(items: Queue, taken: Queue) -> None:
    """Take each item and say so, until there are no more."""
    while (item := items.get()) is not None:
        taken.put((os.getpid(), item))


def wait_for_two(items: Queue, pids: Queue) -> list[object]:
    pids.put(os.getpid())
    return [items.get(), items.get()]


def fork_between(items: Queue, answers: Queue) -> list[int]:
    taken = [items.get(), items.get()]
    pid = os.fork()
    if not pid:
        code = 1
        try:
            answers.put([items.get(), items.get()])
            answers.close()
            answers.join_thread()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    return [*taken, items.get(), items.get()]


def put_some(items: Queue, first: int, num: int) -> None:
    for number in range(first, first + num):
        items.put(number)


def finish_some(items: JoinableQueue, num: int) -> None:
    for _ in range(num):
        items.get()
        items.task_done()


def test_items_come_out_in_the_order_in_which_they_went_in(session: rw.Session) -> None:
    items = Queue(session=session)
    for number in range(100):
        items.put(number)
    assert items.qsize() == 100
    assert [items.get() for _ in range(100)] == list(range(100))
    assert items.empty()


def test_many_processes_put_and_get(session: rw.Session, pool: Pool) -> None:
    numbers, squares = Queue(session=session), Queue(session=session)
    working = pool.starmap_async(square_all, [(numbers, squares)] * 3, chunksize=1)
    for number in range(300):
        numbers.put(number)
    for _ in range(3):
        numbers.put(None)
    assert sum(working.get(120)) == 300
    answers = [squares.get() for _ in range(300)]
    assert sorted(square for _, square in answers) == [number * number for number in range(300)]


def test_readers_are_served_first_come_first_served(session: rw.Session, pool: Pool) -> None:
    items, pids = Queue(session=session), Queue(session=session)
    order: list[int] = []
    waiting = []
    for _ in range(3):
        waiting.append(pool.apply_async(wait_for_item, (items, pids)))
        order.append(pids.get())
        wait_until_asleep(order[-1])  # its `get` has reached the queue
    for number in range(3):
        items.put(number)
    assert [result.get(120) for result in waiting] == [0, 1, 2]


def test_bounds_and_time_limits(session: rw.Session) -> None:
    items = Queue(2, session=session)
    with pytest.raises(queue.Empty):
        items.get_nowait()
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        items.get(timeout=0.2)
    assert time.monotonic() - began >= 0.2
    items.put(1)
    items.put(2)
    assert items.full()
    with pytest.raises(queue.Full):
        items.put_nowait(3)
    with pytest.raises(queue.Full):
        items.put(3, timeout=0.1)
    with pytest.raises(queue.Full):
        items.put(3, True, -1)
    assert [items.get(), items.get()] == [1, 2]


def test_a_put_that_waits_goes_on_when_there_is_room(session: rw.Session) -> None:
    items = Queue(1, session=session)
    items.put("first")
    thread = threading.Thread(target=items.put, args=("second",))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert items.get() == "first"
    thread.join(120)
    assert items.get() == "second"


def test_a_closed_handle_says_so_and_others_go_on(session: rw.Session) -> None:
    items = Queue(session=session)
    other = pickle.loads(pickle.dumps(items))
    with pytest.raises(ValueError, match="not closed"):
        items.join_thread()
    items.close()
    items.join_thread()
    for act in (lambda: items.put(1), items.get):
        with pytest.raises(ValueError, match="is closed"):
            act()
    other.put(5)
    assert other.get() == 5


def test_what_cannot_be_pickled_raises_where_it_is_put(session: rw.Session) -> None:
    items = Queue(session=session)
    with pytest.raises(rw.NotPicklable, match="lock"):
        items.put({"a": [threading.Lock()]})
    assert items.empty()


@pytest.mark.parametrize("size", [0, 1000, 600_000, 10_000_000, 200_000_000])
def test_arrays_of_any_size_arrive_whole_and_writable(session: rw.Session, size: int) -> None:
    items = Queue(session=session)
    sent = np.arange(size, dtype=np.uint8)
    items.put(sent)
    received = items.get()
    assert np.array_equal(received, sent)
    if size:
        received[0] = 7
        assert sent[0] == 0


def test_the_item_of_a_reader_that_died_before_it_had_it_goes_to_the_next(session: rw.Session, pool: Pool) -> None:
    items, pids = Queue(session=session), Queue(session=session)
    lost = pool.apply_async(wait_for_item, (items, pids))
    pid = pids.get()
    time.sleep(0.05)
    os.kill(pid, signal.SIGSTOP)  # its item will lie in its socket
    items.put("once")
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    assert items.get(timeout=120) == "once"
    items.put("again")  # the task runs again elsewhere
    assert lost.get(120) == "again"


def test_what_a_reader_has_taken_is_not_given_out_again(session: rw.Session) -> None:
    items, taken = Queue(session=session), Queue(session=session)
    with Pool(1, session=session, max_deaths=1) as pool:
        failing = pool.apply_async(take_and_wait, (items, taken))
        items.put("mine")
        pid, item = taken.get()
        assert item == "mine"
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(rw.TaskPoisoned):
            failing.get(120)
    with pytest.raises(queue.Empty):
        items.get(timeout=0.2)


def test_items_never_wait_at_a_reader_that_is_busy(session: rw.Session, pool: Pool) -> None:
    items, taken = Queue(session=session), Queue(session=session)
    for number in range(50):
        items.put(number)
    pool.apply_async(take_one_and_wait, (items, taken))
    assert taken.get()[1] == [0, 1]
    assert items.qsize() == 48
    assert not items.empty()
    assert [items.get_nowait() for _ in range(48)] == list(range(2, 50))
    assert items.empty()
    with pytest.raises(queue.Empty):
        items.get_nowait()


def test_a_killed_reader_leaves_what_it_had_not_begun(session: rw.Session) -> None:
    items, taken = Queue(session=session), Queue(session=session)
    for number in range(50):
        items.put(number)
    with Pool(1, session=session, max_deaths=1) as pool:
        failing = pool.apply_async(take_one_and_wait, (items, taken))
        pid, _ = taken.get()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(rw.TaskPoisoned):
            failing.get(120)
    assert [items.get(timeout=120) for _ in range(48)] == list(range(2, 50))
    assert items.empty()


def test_a_stopped_reader_keeps_nobody_waiting(session: rw.Session, pool: Pool) -> None:
    items, taken = Queue(session=session), Queue(session=session)
    for number in range(10):
        items.put(number)
    pool.apply_async(take_one_and_wait, (items, taken))
    pid, _ = taken.get()
    os.kill(pid, signal.SIGSTOP)
    assert [items.get(timeout=PATIENCE_S) for _ in range(8)] == list(range(2, 10))
    os.kill(pid, signal.SIGKILL)


def test_each_item_is_taken_once_while_readers_are_killed(session: rw.Session) -> None:
    items, taken = Queue(session=session), Queue(session=session)
    num = 4000
    with Pool(3, session=session, max_deaths=50) as pool:
        readers = [pool.apply_async(take_some, (items, taken)) for _ in range(3)]
        seen: list[tuple[int, int]] = []
        for first in range(0, num, 500):
            put_some(items, first, 500)
            while len(seen) < first + 250:
                seen.append(taken.get(timeout=120))
            if first % 1000 == 0:
                os.kill(seen[-1][0], signal.SIGKILL)
        num_killed = num // 1000
        for _ in readers:
            items.put(None)
        for reader in readers:
            reader.get(120)
        with contextlib.suppress(queue.Empty):
            while len(seen) < num:
                seen.append(taken.get(timeout=3))
    numbers = [number for _, number in seen]
    assert len(set(numbers)) == len(numbers), "an item was taken twice"
    # A killed reader may have taken an item and not said so, or said so in words that it had not yet sent.
    assert num - len(numbers) <= num_killed * 200


def test_no_reader_sees_a_later_item_first(session: rw.Session, pool: Pool) -> None:
    items, taken = Queue(session=session), Queue(session=session)
    readers = [pool.apply_async(take_some, (items, taken)) for _ in range(3)]
    put_some(items, 0, 3000)
    seen = [taken.get(timeout=120) for _ in range(3000)]
    for _ in readers:
        items.put(None)
    for reader in readers:
        reader.get(120)
    assert sorted(number for _, number in seen) == list(range(3000))
    for pid in {pid for pid, _ in seen}:
        mine = [number for by, number in seen if by == pid]
        assert mine == sorted(mine)


def test_threads_share_what_one_of_them_was_given(session: rw.Session) -> None:
    items = Queue(session=session)
    for number in range(2000):
        items.put(number)
    found: list[list[int]] = [[] for _ in range(4)]

    def take(mine: list[int]) -> None:
        while (item := items.get()) is not None:
            mine.append(item)

    threads = [threading.Thread(target=take, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for _ in threads:
        items.put(None)
    for thread in threads:
        thread.join(120)
    assert sorted(itertools.chain(*found)) == list(range(2000))
    assert all(mine == sorted(mine) for mine in found)


def test_a_forked_child_does_not_take_what_its_parent_was_given(session: rw.Session, pool: Pool) -> None:
    items, answers = Queue(session=session), Queue(session=session)
    for number in range(20):
        items.put(number)
    assert pool.apply(fork_between, (items, answers)) == [0, 1, 4, 5]
    assert answers.get(timeout=120) == [2, 3]
    assert [items.get() for _ in range(14)] == list(range(6, 20))


def test_handles_in_one_process_are_readers_like_others(session: rw.Session) -> None:
    items = Queue(session=session)
    for number in range(20):
        items.put(number)
    other = pickle.loads(pickle.dumps(items))
    assert [items.get(), items.get(), other.get(), items.get(), other.get()] == [0, 1, 2, 3, 4]
    del items
    gc.collect()
    again = pickle.loads(pickle.dumps(other))  # has the place of the one that is gone
    assert [again.get(), other.get(), again.get()] == [5, 6, 7]


def test_items_put_one_after_the_other_arrive_before_what_is_asked_next(session: rw.Session) -> None:
    one, other = Queue(session=session), Queue(session=session)
    for number in range(300):
        one.put(number)
        other.put(number)
        if number % 7 == 0:
            assert (one.qsize(), other.qsize()) == (number + 1, number + 1)
    assert [one.get_nowait() for _ in range(300)] == [other.get_nowait() for _ in range(300)] == list(range(300))


def test_an_item_that_is_put_alone_does_not_wait_for_others(session: rw.Session, pool: Pool) -> None:
    items, pids = Queue(session=session), Queue(session=session)
    waiting = pool.apply_async(wait_for_two, (items, pids))
    pids.get()
    items.put(1)
    items.put(2)  # gathered, perhaps; and nothing comes after it
    assert waiting.get(120) == [1, 2]


def test_a_joinable_queue_is_waited_for(session: rw.Session, pool: Pool) -> None:
    items = JoinableQueue(session=session)
    for number in range(20):
        items.put(number)
    working = pool.starmap_async(finish_some, [(items, 10)] * 2, chunksize=1)
    items.join()
    working.get(120)
    with pytest.raises(ValueError, match="task_done"):
        items.task_done()


def test_a_simple_queue_has_the_simple_signatures(session: rw.Session) -> None:
    items = SimpleQueue(session=session)
    assert items.empty()
    items.put(None)
    assert items.get() is None
    with pytest.raises(TypeError):
        items.put(1, False)  # type: ignore[call-arg]


def test_a_closed_handle_of_a_simple_queue_raises_as_in_multiprocessing(session: rw.Session) -> None:
    items = SimpleQueue(session=session)
    items.close()
    items.close()
    for use in (items.empty, items.get, lambda: items.put(1)):
        with pytest.raises(OSError, match="handle is closed"):
            use()


def test_an_object_is_reaped_with_its_last_handle(session: rw.Session) -> None:
    items = Queue(session=session)
    before = num_objects(session)
    copy = pickle.loads(pickle.dumps(items))
    reference = items._reference
    del items
    gc.collect()
    assert num_objects(session) == before
    copy.put(1)
    del copy
    gc.collect()
    wait_until(lambda: num_objects(session) == before - 1, what="the queue is gone")
    with pytest.raises(rw.PeerLost, match="nothing referred to it"):
        shared_object.SharedObject(reference)._ask("qsize")


def num_objects(session: rw.Session) -> int:
    member = member_of(session)
    return member.ask(member.depot(), "num_objects")


def test_an_item_brings_the_class_that_its_reader_has_never_heard_of() -> None:
    script = """
        import dataclasses
        import ropewalk as rw
        from ropewalk.sharing.queues import Queue

        SCALE = 3

        @dataclasses.dataclass
        class Point:
            x: int
            def scaled(self):
                return Point(self.x * SCALE)

        def pass_on(source, target):
            target.put(source.get())

        def scale(source, target):
            target.put(source.get().scaled())

        a, b, c = Queue(), Queue(), Queue()
        with rw.Pool(2) as pool:
            results = [pool.apply_async(pass_on, (a, b)), pool.apply_async(scale, (b, c))]
            a.put([Point(5)][0])
            point = c.get()
            print(point, isinstance(point, Point))
            [result.get() for result in results]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "Point(x=15) True\n", done.stderr


def test_a_forked_child_uses_the_queue_of_its_parent(session: rw.Session) -> None:
    items, answers = Queue(session=session), Queue(session=session)
    items.put(20)
    child = os.fork()
    if not child:
        try:
            answers.put(items.get(timeout=120) + 1)
            answers.close()
            answers.join_thread()
        finally:
            os._exit(0)
    assert answers.get(timeout=120) == 21
    os.waitpid(child, 0)
    items.put("still here")
    assert items.get(timeout=120) == "still here"


def test_what_a_child_that_multiprocessing_forked_has_put_is_not_lost_at_its_end(session: rw.Session) -> None:
    # Such a child ends without atexit, and what it had only sent ahead went with it.
    items = Queue(session=session)
    child = multiprocessing.get_context("fork").Process(target=put_some, args=(items, 0, 20))
    child.start()
    child.join(timeout=120)
    assert child.exitcode == 0
    assert [items.get(timeout=PATIENCE_S) for _ in range(20)] == list(range(20))


def use_it(pickled: bytes, answers: Any) -> None:
    try:
        pickle.loads(pickled).get(timeout=PATIENCE_S)
    except rw.PeerLost as error:
        answers.send(str(error))


@pytest.mark.cold  # leaves handles that nobody will ever hold
def test_a_process_that_multiprocessing_has_spawned_is_told_that_it_is_not_of_the_run(session: rw.Session) -> None:
    # It was told that the queue belonged to another run.
    items = Queue(session=session)
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        spawn = multiprocessing.get_context("spawn")
        child = spawn.Process(target=use_it, args=(pickle.dumps(items), theirs))
        child.start()
        assert ours.poll(120)
        assert re.search("multiprocessing has started it; start it with ropewalk.Process", ours.recv())
        child.join()


@pytest.mark.parametrize("maxsize", [1.5, "8", None])
def test_a_bound_that_is_no_number_is_refused(session: rw.Session, maxsize: Any) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        Queue(maxsize, session=session)


def hold_and_sleep(lock: Lock, held: Queue) -> None:
    lock.acquire()
    held.put(os.getpid())
    time.sleep(60)


@pytest.mark.cold  # leaves handles that nobody will ever hold
def test_what_is_struck_off_is_heard_no_more(session: rw.Session) -> None:
    lock, held = Lock(session=session), Queue(session=session)
    process = rw.Process(target=hold_and_sleep, args=(lock, held))
    process.start()
    held.get(timeout=120)
    id = cast("Any", process)._popen._id
    session.retirements.note(id, None, is_cut=True)
    assert lock.acquire(timeout=PATIENCE_S)  # though its holder lives
    assert process.is_alive()
    process.kill()
    process.join()


def test_a_queue_that_is_in_use_waits_for_no_lock_of_its_process(session: rw.Session) -> None:
    # A signal handler that put into a queue waited for ever if its signal came while `put` held this lock.
    queue = Queue(session=session)
    queue.put(1)
    done = threading.Event()

    def put_and_get() -> None:
        queue.put(2)
        assert [queue.get(), queue.get()] == [1, 2]
        done.set()

    thread = threading.Thread(target=put_and_get)
    with membership._lock:
        thread.start()
        is_done = done.wait(60)
    thread.join()
    assert is_done
