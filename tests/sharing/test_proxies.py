"""Proxies: the types of every manager, nesting, other processes, reference counting, and calls that do not wait."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import queue
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from typing import Any

import numpy as np
import pytest

from ropewalk.compat.process import Process
from ropewalk.managers import Manager
from ropewalk.pool.pool import Pool
from tests.patience import PATIENCE_S, wait_until
from tests.sharing import managed_types as types

pytestmark = pytest.mark.usefixtures("shared_depot")


@pytest.fixture
def manager() -> Iterator[Any]:
    with types.ReaderManager() as manager:
        yield manager


@pytest.fixture
def simulator() -> Iterator[Any]:
    manager: Any = types.SimulatorManager()
    with manager:
        yield manager.Simulator(0.2)


@pytest.fixture
def simulators() -> Iterator[list[Any]]:
    managers: list[Any] = [types.SimulatorManager() for _ in range(4)]
    for each in managers:
        each.start()
    yield [each.Simulator(0.2) for each in managers]
    for each in managers:
        each.shutdown()


def is_ever_within(seconds: float, act: Callable[[], object]) -> bool:
    """Whether something takes less than `seconds`, one time of five: a busy machine may hold up the others."""
    for _ in range(5):
        began = time.monotonic()
        act()
        if time.monotonic() - began < seconds:
            return True
    return False


def test_a_list_is_a_list(manager: Any) -> None:
    numbers = manager.list(range(5))
    assert numbers[1:3] == [1, 2]
    numbers += [5]
    numbers *= 2
    assert type(numbers).__name__ == "ListProxy"
    assert len(numbers) == 12
    assert 5 in numbers
    assert [*numbers][:6] == list(range(6))
    assert numbers.pop() == 5
    with pytest.raises(IndexError):
        numbers[99]


def test_a_dictionary_is_a_dictionary(manager: Any) -> None:
    ages = manager.dict(ada=36)
    ages["alan"] = 41
    assert (ages.keys(), ages.values(), dict(ages.items())) == (["ada", "alan"], [36, 41], {"ada": 36, "alan": 41})
    assert list(ages) == ["ada", "alan"]
    walk = iter(ages)
    ages.clear()
    with pytest.raises(RuntimeError, match="changed size"):
        next(walk)
    with pytest.raises(KeyError, match="ada"):
        ages["ada"]


def test_namespaces_values_and_arrays(manager: Any) -> None:
    space = manager.Namespace(x=1)
    space.y = [2]
    del space.x
    assert (space.y, hasattr(space, "x"), str(space)) == ([2], False, "Namespace(y=[2])")
    value = manager.Value("i", 3)
    value.value += 1
    value.set(value.get() + 1)
    assert value.value == 5
    array = manager.Array("d", [1.0, 2.0])
    array[0] = 3.5
    assert (list(array), len(array)) == ([3.5, 2.0], 2)


def test_copies_and_texts_are_those_of_the_referent(manager: Any) -> None:
    numbers = manager.list([1, 2])
    assert str(numbers) == "[1, 2]"
    assert repr(numbers).startswith("<ListProxy object, typeid 'list' at 0x")
    copied = copy.deepcopy(numbers)
    assert (type(copied), copied) == (list, [1, 2])


def test_large_values_travel_both_ways(manager: Any) -> None:
    images = manager.dict()
    images["a"] = np.arange(3_000_000.0)
    back = images["a"]
    back[0] = 7
    assert (images["a"][:2].tolist(), back.size) == ([0.0, 1.0], 3_000_000)


def test_proxies_inside_proxies_stay_proxies(manager: Any) -> None:
    rows = manager.list([manager.list([0, 0]) for _ in range(2)])
    rows[0][1] = 5
    row = rows[0]
    rows[0][0] = 4
    assert row[:] == [4, 5]
    table = manager.dict(rows=rows)
    del rows, row
    gc.collect()
    assert [row[:] for row in table["rows"]] == [[4, 5], [0, 0]]
    shelf = manager.dict(table=table)
    del table
    assert shelf["table"]["rows"][0].pop() == 5


def test_queues_and_locks_of_the_manager_can_be_kept_in_it(manager: Any) -> None:
    shelf = manager.list([manager.Queue(), manager.Lock()])
    shelf[0].put("x")
    assert shelf[0].get(timeout=PATIENCE_S) == "x"
    with shelf[1]:
        assert not shelf[1].acquire(False)


def test_a_proxy_is_used_inside_its_own_manager(manager: Any) -> None:
    numbers = manager.list([[1], 2])
    reader = manager.Reader(numbers)
    assert reader.first() == [1]
    assert reader.append(3) == 3
    assert numbers[:] == [[1], 2, 3]


def test_what_nobody_refers_to_is_let_go_with_what_it_refers_to(manager: Any) -> None:
    before = manager._number_of_objects()
    outer = manager.list([manager.list([1]), manager.dict(), manager.Queue()])
    assert outer[0][0] == 1
    outer[2].put("x")
    assert manager._number_of_objects() > before
    del outer
    wait_until(lambda: manager._number_of_objects() == before)


def test_circles_inside_a_manager_are_collected(manager: Any) -> None:
    before = manager._number_of_objects()
    outer = manager.list([manager.Queue()])
    outer.append(manager.dict(outer=outer))
    del outer
    wait_until(lambda: manager._number_of_objects() == before + 1)  # the queue, which the circle refers to
    manager.collect()
    wait_until(lambda: manager._number_of_objects() == before)


def test_a_proxy_that_is_under_way_keeps_its_object(manager: Any) -> None:
    numbers = manager.list([1])
    pickled = pickle.dumps(numbers)
    del numbers
    time.sleep(0.2)  # in which the manager hears that nobody has it
    assert pickle.loads(pickled)[0] == 1  # our own


def test_proxies_go_to_other_processes_and_to_nested_ones(manager: Any, simulator: Any) -> None:
    results = manager.list()
    children = [Process(target=types.step_and_put, args=(simulator, results)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    with Pool(1) as pool:
        pool.apply(types.step_and_put, (simulator, results))
    assert len({pid for pid, _ in results}) == 3
    assert sorted(total for _, total in results) == [1, 2, 3]


def test_what_a_killed_process_referred_to_is_let_go(manager: Any) -> None:
    before = manager._number_of_objects()
    inner, pids = manager.list([1]), manager.list()
    holder = Process(target=types.hold_and_wait, args=(inner, pids))
    holder.start()
    wait_until(lambda: len(pids) == 1)
    del inner
    time.sleep(0.2)  # in which the manager hears of it
    assert manager._number_of_objects() == before + 2
    os.kill(pids[0], signal.SIGKILL)
    holder.join()
    wait_until(lambda: manager._number_of_objects() == before + 1)


def test_many_simulators_step_at_once(simulators: list[Any]) -> None:
    for simulator in simulators:
        simulator.step(0)

    def step_all() -> None:
        futures = [simulator.step.future(1) for simulator in simulators]
        assert all(future.result() >= 1 for future in as_completed(futures))

    assert is_ever_within(0.6, step_all)  # one after the other: 0.8 s


def test_calls_can_be_awaited_in_both_ways(simulators: list[Any]) -> None:
    async def step_all() -> list[int]:
        return [*await asyncio.gather(*(each.step.aio(1) for each in simulators)), await simulators[0].step.future(1)]

    assert asyncio.run(step_all()) == [1, 1, 1, 1, 2]


def test_a_failure_is_in_the_future(simulator: Any) -> None:
    future = simulator.fail.future("gear")
    assert isinstance(future.exception(), types.SimulatorBroken)
    with pytest.raises(types.SimulatorBroken, match="gear"):
        asyncio.run(_awaited(simulator.fail.future("gear")))


def test_a_call_that_is_sent_is_made_and_not_waited_for(simulator: Any) -> None:
    total, sent = simulator.step(0), list[int]()

    def send() -> None:
        sent.append(10)
        simulator.step.send(10)

    assert is_ever_within(0.2, send)  # the call itself takes as long
    wait_until(lambda: simulator.step(0) == total + sum(sent))


def test_several_calls_of_one_object_run_at_once(simulator: Any) -> None:
    def step_four_times() -> None:
        for future in [simulator.step.future(0) for _ in range(4)]:
            future.result()

    assert is_ever_within(0.6, step_four_times)  # one after the other: 0.8 s


def test_methods_of_proxies_are_values(manager: Any) -> None:
    numbers = manager.list()
    append = pickle.loads(pickle.dumps(numbers.append))  # our own
    append(3)
    assert numbers[:] == [3]
    assert numbers.append == numbers.append != numbers.pop


def test_a_pool_of_a_manager_works_for_all_who_have_its_proxy(manager: Any) -> None:
    with manager.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
        assert pool.apply_async(divmod, (7, 2)).get(120) == (3, 1)
        assert list(pool.imap(abs, range(-3, 0))) == [3, 2, 1]
        seen = manager.list()
        pool.map_async(abs, [-4], callback=seen.append).wait()
        wait_until(lambda: seen[:] == [[4]])
        with pytest.raises(ZeroDivisionError):
            pool.apply(divmod, (1, 0))


def test_queues_of_a_manager_are_those_of_the_standard_library(manager: Any) -> None:
    items = manager.JoinableQueue(1)
    items.put(1)
    assert items.full()
    with pytest.raises(queue.Full):
        items.put(2, timeout=0.01)
    assert items.get_nowait() == 1
    with pytest.raises(queue.Empty):
        items.get_nowait()
    items.task_done()
    items.join()
    with pytest.raises(ValueError, match="too many times"):
        items.task_done()


def test_locks_of_a_manager_have_the_manners_of_threading(manager: Any) -> None:
    for lock in (manager.Lock(), manager.RLock(), manager.Condition()):
        assert lock.acquire(blocking=True, timeout=PATIENCE_S)
        lock.release()
        with pytest.raises(RuntimeError):
            lock.release()
    with pytest.raises(RuntimeError, match="un-acquired"):
        manager.Condition().notify()
    with pytest.raises(ValueError, match="too many times"):
        manager.BoundedSemaphore(1).release()
    barrier = manager.Barrier(1, timeout=5)
    assert (barrier.wait(), barrier.parties, barrier.broken) == (0, 1, False)
    event = manager.Event()
    assert not event.wait(0.01)
    event.set()
    assert event.wait()


def test_a_condition_takes_locks_of_its_own_manager_only(manager: Any) -> None:
    lock = manager.Lock()
    condition = manager.Condition(lock)
    with condition:
        assert not lock.acquire(False)
    with Manager() as other, pytest.raises(TypeError, match="of the same manager"):
        other.Condition(lock)


async def _awaited(future: Any) -> Any:
    return await future
