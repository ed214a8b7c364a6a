"""Arguments that cannot work, results that are odd, and pools that are used in the wrong order: nothing hangs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import threading
from collections.abc import Iterator
from multiprocessing.pool import MaybeEncodingError  # pyright: ignore[reportAttributeAccessIssue]
from pathlib import Path
from typing import Any

import psutil
import pytest

import ropewalk
from ropewalk.engines.resources import usable_memory
from ropewalk.errors import NotPicklable, PoolClosed, ProcessLimit, TaskCancelled
from ropewalk.quantities import shown_size
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.tasks import (
    megabyte,
    note,
    noted,
    nothing,
    raise_value_error,
    square,
    wait_for_file,
)

pytestmark = pytest.mark.usefixtures("shared_session")


def counting(until: int) -> Iterator[int]:
    """Numbers, and then trouble."""
    yield from range(until)
    raise LookupError(f"no number {until}")


def imap_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.endswith("-imap")]


# --- arguments ---


@pytest.mark.parametrize("processes", [0, -1])
def test_a_pool_of_no_workers_is_refused(processes: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, not {processes}"):
        ropewalk.Pool(processes)


@pytest.mark.parametrize("processes", ["2", 1.5])
def test_a_number_of_workers_that_is_no_int_is_refused(processes: Any) -> None:
    with pytest.raises(TypeError):
        ropewalk.Pool(processes)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"maxtasksperchild": 0}, ValueError),
        ({"maxtasksperchild": 1.5}, ValueError),
        ({"max_deaths": 0}, ValueError),
        ({"task_timeout_s": 0}, ValueError),
        ({"task_timeout_s": -1.0}, ValueError),
        ({"task_timeout_s": float("nan")}, ValueError),
        ({"initializer": 3}, TypeError),
        ({"preload": "numpy"}, TypeError),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        ropewalk.Pool(1, **options)


@pytest.mark.parametrize("resources", [ropewalk.Resources(memory="900TB"), ropewalk.Resources(cpus=0.1, memory=2**60)])
def test_memory_that_no_host_has_is_refused_with_both_numbers(resources: ropewalk.Resources) -> None:
    # It was accepted, as though it had been reserved.
    has = re.escape(shown_size(usable_memory()))
    with ropewalk.Pool(1, resources=resources) as pool, pytest.raises(ProcessLimit, match=f"memory=.*has {has}"):
        pool.map(square, range(2))


def test_arguments_of_calls_that_cannot_work_are_refused_and_leave_the_pool_usable() -> None:
    with ropewalk.Pool(1) as pool:
        for chunksize in (0, -1):
            with pytest.raises(ValueError, match="Chunksize"):
                pool.map(square, [1], chunksize)
            with pytest.raises(ValueError, match="Chunksize"):
                pool.imap(square, [1], chunksize)
        for processes in (0, -1):
            with pytest.raises(ValueError, match="at least 1"):
                pool.resize(processes)
        with pytest.raises(TypeError, match="3 cannot be called"):
            pool.map(3, [1])  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="not iterable"):
            pool.map(square, 3)  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError):
            pool.imap(square, 3).next(5)  # pyright: ignore[reportArgumentType]
        assert pool.map(square, []) == []
        assert list(pool.imap(square, [])) == []
        assert pool.map(square, [3]) == [9]


def test_functions_and_arguments_that_cannot_be_sent_are_named_and_leave_the_pool_usable() -> None:
    lock: Any = threading.Lock()

    def locked(number: int) -> int:
        with lock:
            return number

    with ropewalk.Pool(2) as pool:
        with pytest.raises(NotPicklable) as info:
            pool.map(locked, range(10))
        assert "lock" in info.value.path
        with pytest.raises(NotPicklable):
            pool.imap(locked, range(10))
        with pytest.raises(NotPicklable) as info:
            pool.apply(square, (lock,))
        assert info.value.path == "args[0]" and str(info.value).startswith("args[0] cannot be sent")
        # It was told twice: below the same of "args[0][0]", a path that nobody wrote.
        assert type(info.value.__cause__) is TypeError and info.value.__suppress_context__
        with pytest.raises(NotPicklable) as info:
            pool.apply_async(square, (1,), {"inner": [lock]})
        assert info.value.path == "kwds['inner'][0]"
        with pytest.raises(NotPicklable) as info:
            pool.apply_async(square, (1, lock), {"inner": 1})
        assert info.value.path == "args[1]"
        # In the middle: what came before it is not left behind to run, nor counted.
        with pytest.raises(NotPicklable):
            pool.map(square, [*range(1000), lock, *range(1000)], chunksize=1)
        failures: list[BaseException] = []
        with pytest.raises(NotPicklable):
            pool.map_async(square, [1, lock], error_callback=failures.append)
        results = pool.imap(square, [1, 2, lock, 4])
        assert [next(results), next(results)] == [1, 4]
        with pytest.raises(NotPicklable):
            next(results)
        assert list(results) == []
        assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
        wait_until(lambda: pool.status().queued == 0)


def test_results_and_exceptions_that_cannot_be_sent_are_errors_of_their_task_alone() -> None:
    def make_lock(number: int) -> object:
        return threading.Lock() if number == 3 else number

    def raise_lock(number: int) -> int:
        if number == 3:
            raise ValueError("held by", threading.Lock())
        return number

    def raise_unprintable(_: int) -> None:
        class Unprintable:
            def __repr__(self) -> str:
                raise RuntimeError("no words")

        raise ValueError(Unprintable())

    with ropewalk.Pool(2) as pool:
        for function in (make_lock, raise_lock):
            with pytest.raises(MaybeEncodingError, match="lock"):
                pool.map(function, range(6))
            with pytest.raises(MaybeEncodingError, match="lock"):
                pool.apply(function, (3,))
            results = pool.imap(function, range(6))
            assert [next(results) for _ in range(3)] == [0, 1, 2]
            with pytest.raises(MaybeEncodingError, match="lock"):
                next(results)
            assert list(results) == [4, 5]
        with pytest.raises(MaybeEncodingError, match="raised in task 3; this exception cannot be pickled"):
            pool.map(raise_lock, range(6))
        with pytest.raises(MaybeEncodingError) as info:
            pool.apply(raise_lock, (3,))
        assert "held by" in str(info.value.__cause__) and "in raise_lock" in str(info.value.__cause__)
        with pytest.raises(Exception):  # noqa: B017  # whatever it is, it arrives
            pool.apply_async(raise_unprintable, (1,)).get(120)
        assert pool.map(square, range(3)) == [0, 1, 4]


def test_an_iterable_that_raises_half_way_gives_its_results_first() -> None:
    with ropewalk.Pool(2) as pool:
        with pytest.raises(LookupError, match="no number 7"):
            pool.map(square, counting(7))
        with pytest.raises(LookupError, match="no number 7"):
            pool.map_async(square, counting(7))
        for chunksize, num_whole in ((1, 7), (3, 6)):
            for imap in (pool.imap, pool.imap_unordered):
                results = imap(square, counting(7), chunksize)
                values = sorted(results.next(PATIENCE_S) for _ in range(num_whole))
                assert values == [number**2 for number in range(num_whole)]
                with pytest.raises(LookupError, match="no number 7"):
                    results.next(PATIENCE_S)
                with pytest.raises(StopIteration):
                    results.next(PATIENCE_S)
        assert pool.map(square, range(3)) == [0, 1, 4]


def test_locks_and_queues_in_initargs_are_named_with_what_to_use_instead() -> None:
    context = multiprocessing.get_context("fork")  # whose locks leave no name behind
    queue = context.Queue()
    try:
        values = {"Lock": context.Lock(), "Queue": queue, "Event": context.Event(), "Value": context.Value("i")}
        for name, value in values.items():
            with pytest.raises(NotPicklable) as info:
                ropewalk.Pool(1, print, ("first", {"inner": value}))
            assert info.value.path == "initargs[1]['inner']"
            assert "initargs[1]['inner']" in str(info.value)
            assert f"use ropewalk.{name}() instead of multiprocessing.{name}()" in str(info.value)
    finally:
        queue.close()
        queue.join_thread()
    with pytest.raises(NotPicklable) as info:
        ropewalk.Pool(1, print, (threading.Lock(),))
    assert info.value.path == "initargs[0]"


# --- results ---


def test_results_may_be_none_even_out_of_order(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    def late_first(number: int) -> None:
        if number == 0:
            wait_for_file(gate)

    with ropewalk.Pool(2) as pool:
        assert pool.map(nothing, range(1000)) == [None] * 1000
        assert list(pool.imap_unordered(nothing, range(100))) == [None] * 100
        assert pool.apply(nothing) is None
        results = pool.imap(late_first, range(50))
        wait_until(lambda: pool.status().done >= 1000 + 100 + 1 + 49, what="the other 49 end first")
        with pytest.raises(multiprocessing.TimeoutError):
            results.next(0)
        Path(gate).touch()
        assert list(results) == [None] * 50


def test_a_result_of_a_gigabyte_arrives_whole() -> None:
    if psutil.virtual_memory().available < 6 << 30:
        pytest.skip("needs 6 GB of free memory")
    numpy = pytest.importorskip("numpy")

    def gigabyte() -> Any:
        value = numpy.zeros(1 << 30, dtype="u1")
        value[0], value[-1] = 3, 7
        return value

    with ropewalk.Pool(1) as pool:
        value = pool.apply(gigabyte)
        assert value.nbytes == 1 << 30 and value[0] == 3 and value[-1] == 7 and value[1 << 29] == 0
        value[0] = 1  # ours to change
        del value
        gc.collect()


def test_a_hundred_thousand_tiny_results_arrive_in_order() -> None:
    with ropewalk.Pool(2) as pool:
        assert pool.map(square, range(100_000)) == [number**2 for number in range(100_000)]
        assert list(pool.imap(square, range(20_000), chunksize=50)) == [number**2 for number in range(20_000)]
        status = pool.status()
    assert (status.done, status.failed, status.num_deaths) == (120_000, 0, 0)


def test_get_gives_up_after_its_timeout_and_may_be_called_again(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    def after_the_gate(number: int) -> int:
        wait_for_file(gate)
        return number

    with ropewalk.Pool(1) as pool:
        result = pool.apply_async(after_the_gate, (5,))
        mapped = pool.map_async(after_the_gate, [6])
        results = pool.imap(after_the_gate, [7])
        for timeout in (0, -1, 0.01):
            with pytest.raises(multiprocessing.TimeoutError):
                result.get(timeout)
            with pytest.raises(multiprocessing.TimeoutError):
                mapped.get(timeout)
            with pytest.raises(multiprocessing.TimeoutError):
                results.next(timeout)
        result.wait(0.01)
        assert not result.ready()
        with pytest.raises(ValueError, match="not ready"):
            result.successful()
        Path(gate).touch()
        assert (result.get(120), mapped.get(120), results.next(PATIENCE_S)) == (5, [6], 7)
        assert result.ready() and result.successful()


# --- the wrong moment ---


@pytest.mark.parametrize("how", ["close", "terminate"])
def test_a_pool_that_has_ended_takes_nothing_more(how: str) -> None:
    pool = ropewalk.Pool(1)
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    getattr(pool, how)()
    calls: list[Any] = [
        lambda: pool.apply(square, (1,)),
        lambda: pool.apply_async(square, (1,)),
        lambda: pool.map(square, [1]),
        lambda: pool.map_async(square, []),
        lambda: pool.starmap(square, [(1,)]),
        lambda: pool.imap(square, [1]),
        lambda: pool.imap_unordered(square, [1]),
        lambda: pool.put(1),
        lambda: pool.resize(2),
        lambda: pool.__enter__(),
    ]
    for joined in (False, True):
        for call in calls:
            with pytest.raises(PoolClosed, match=r"Pool not running: pool-.* was (closed|terminated)") as info:
                call()
            assert isinstance(info.value, ValueError)
        if not joined:
            pool.join()
    pool.close()
    pool.terminate()
    pool.join()
    assert pool.status().workers == ()


def test_an_imap_that_nobody_consumes_is_run_to_its_end_by_close_and_join() -> None:
    pool = ropewalk.Pool(2)
    results = pool.imap(nothing, range(10_000), chunksize=20)  # more than the window holds
    pool.close()
    with pytest.raises(PoolClosed):
        pool.map(nothing, [1])
    pool.join()
    assert pool.status().done == 10_000
    assert sum(1 for _ in results) == 10_000


def test_terminate_ends_an_endless_imap_and_who_waits_for_it() -> None:
    def endless() -> Iterator[int]:
        number = 0
        while True:
            yield (number := number + 1)

    pool = ropewalk.Pool(2)
    results = pool.imap(square, endless())
    unordered = pool.imap_unordered(square, endless(), chunksize=10)
    assert results.next(PATIENCE_S) == 1
    assert unordered.next(PATIENCE_S) >= 1
    outcome: list[BaseException] = []

    def consume() -> None:
        try:
            for _ in results:
                pass
        except TaskCancelled as error:
            outcome.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    pool.terminate()
    pool.join()
    consumer.join(120)
    assert not consumer.is_alive() and len(outcome) == 1
    with pytest.raises(TaskCancelled):
        for _ in unordered:
            pass
    wait_until(lambda: not imap_threads(), what="the feeders end")


def test_terminate_wakes_everyone_who_waits(tmp_path: Path) -> None:
    gate = str(tmp_path / "never")
    pool = ropewalk.Pool(1)
    single = pool.apply_async(wait_for_file, (gate,))
    many = pool.map_async(wait_for_file, [gate] * 10)
    wait_until(lambda: pool.status().running > 0)
    pool.terminate()
    for result in (single, many):
        with pytest.raises(TaskCancelled, match="terminated"):
            result.get(120)
    pool.join()


# --- back-pressure ---


def held_bytes() -> int:
    """Memory of this process, and memory files of results that it has mapped and not touched yet."""
    mapped = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "ropewalk-result" in line:
            low, high = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line).groups()  # pyright: ignore
            mapped += int(high, 16) - int(low, 16)
    return psutil.Process().memory_info().rss + mapped


@pytest.mark.parametrize("name", ["imap", pytest.param("imap_unordered", marks=pytest.mark.soak)])
def test_a_slow_consumer_of_large_results_holds_little_memory(name: str) -> None:
    with ropewalk.Pool(2) as pool:
        pool.map(nothing, range(10))
        before = held_bytes()
        results = getattr(pool, name)(megabyte, range(300))
        assert len(next(results)) == 1 << 20
        wait_until(lambda: pool.status().done > 10 + 5)
        seen = 0
        while seen != (seen := pool.status().done):  # it stops by itself, though nobody consumes
            threading.Event().wait(0.1)
        assert seen < 10 + 60, "about as many as 32 MB hold, and not all 300"
        peak = held_bytes()
        for value in results:
            del value
            peak = max(peak, held_bytes())
        assert peak - before < 80 << 20
        assert pool.status().done == 310


def test_dropping_an_iterator_cancels_what_has_not_started(tmp_path: Path) -> None:
    gate, started = str(tmp_path / "gate"), str(tmp_path / "started")

    def gated(number: int) -> int:
        note(started, number)
        wait_for_file(gate)
        return number

    with ropewalk.Pool(2) as pool:
        for imap in (pool.imap, pool.imap_unordered):
            already = len(noted(started))
            results = imap(gated, range(100))
            wait_until(lambda already=already: len(noted(started)) >= already + 2, what="both workers are in a task")
            del results
            wait_until(lambda: not imap_threads(), what="the feeder ends")
            Path(gate).touch()
            assert pool.map(square, range(10)) == [number**2 for number in range(10)]  # behind what is left
            wait_until(lambda: pool.status().queued == pool.status().running == 0)
            assert len(noted(started)) - already < 20
            os.unlink(gate)


def test_a_dropped_iterator_of_endless_input_leaves_no_thread() -> None:
    ended = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.set()

    with ropewalk.Pool(2) as pool:
        for _, value in zip(range(3), pool.imap(square, endless()), strict=False):
            assert value == 1
        wait_until(lambda: not imap_threads(), what="the feeder ends")
        assert ended.wait(120), "the generator is closed"
        assert pool.map(square, range(3)) == [0, 1, 4]


def test_an_iterator_is_dropped_while_its_iterable_blocks() -> None:
    """The feeder stands in the user's code, where nothing can reach it: it ends when that returns."""
    let_go = threading.Event()

    def blocking() -> Iterator[int]:
        yield 1
        let_go.wait()
        yield 2

    with ropewalk.Pool(1) as pool:
        results = pool.imap(square, blocking())
        assert results.next(PATIENCE_S) == 1
        del results
        assert pool.map(square, [3]) == [9]
        let_go.set()
        wait_until(lambda: not imap_threads())


def test_errors_of_tasks_do_not_stop_an_iterator() -> None:
    with ropewalk.Pool(2) as pool:
        results = pool.imap(raise_value_error, range(20))
        for number in range(20):
            with pytest.raises(ValueError, match=rf"^{number}\b"):
                results.next(PATIENCE_S)
        with pytest.raises(StopIteration):
            results.next(PATIENCE_S)


def test_arguments_and_results_of_every_size_arrive() -> None:
    # A read that ends with the very end of a large frame once looked as if more were there, and the results waited.
    edges = [0, 1, 4096, 65_000, 65_536, 70_000, 1 << 17, 1 << 20, 3 << 20]
    sizes = [max(0, edge + step) for edge in edges for step in (-1, 0, 1)]
    with ropewalk.Pool(1) as pool:
        for size in sizes:
            for make in (bytes, bytearray):
                assert pool.apply_async(len, (make(size),)).get(120) == size
                assert pool.apply_async(make, (size,)).get(120) == make(size)
        assert [len(value) for value in pool.map(bytes, sizes)] == sizes
