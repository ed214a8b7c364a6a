"""What a pool does beyond a plain map: callbacks, asyncio, threads, resize, constants, seeds, forks, nesting."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import ropewalk
from ropewalk import settings
from ropewalk.control.view import EventView
from ropewalk.errors import PoolClosed
from ropewalk.pool.constant_store import MAX_CONSTANTS
from ropewalk.pool.task_ledger import TaskLedger
from ropewalk.processes import open_sessions
from tests.control.looking import looks
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.tasks import note, noted, nothing, pid, raise_own_error, raise_value_error, square, wait_for_file

pytestmark = pytest.mark.usefixtures("shared_session")


def slow_square(number: int) -> int:
    time.sleep(0.001)
    return number * number


# --- output ---


class SlowTerminal(io.StringIO):
    """Takes a few pieces of output a second, as a terminal behind a slow link does."""

    def write(self, text: str) -> int:
        time.sleep(0.01)
        return super().write(text)


def print_lines(number: int) -> None:
    for line in range(250):
        print("task", number, "line", line)


def test_what_the_workers_have_printed_comes_before_what_follows_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    # The output of a pool's end came among the next lines of the program, or was lost at the end of the script.
    terminal = SlowTerminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(
        "ropewalk.processes.output_relay._STUCK_S", 0.2
    )  # it takes longer, but never stands still for this time
    with ropewalk.Pool(2) as pool:
        pool.map(print_lines, range(4), chunksize=1)
    assert terminal.getvalue().count("\n") == 1000


# --- callbacks, threads, asyncio ---


def test_a_callback_that_exits_keeps_no_later_one_from_its_result() -> None:
    # `sys.exit` ended the thread of callbacks, and results with a callback never came again.
    with ropewalk.Pool(1) as pool:
        assert pool.apply_async(square, (2,), callback=sys.exit).get(PATIENCE_S) == 4
        found: list[int] = []
        assert pool.apply_async(square, (3,), callback=found.append).get(PATIENCE_S) == 9
        assert found == [9]


def test_callbacks_run_before_the_result_is_there_and_one_of_both_only() -> None:
    seen: list[Any] = []
    with ropewalk.Pool(2) as pool:
        results = [
            pool.apply_async(square, (3,), callback=seen.append, error_callback=lambda _: seen.append("wrong")),
            pool.map_async(square, [1, 2], callback=seen.append),
            pool.starmap_async(divmod, [(7, 2)], callback=seen.append),
            pool.map_async(square, [], callback=seen.append),
        ]
        for result in results:
            result.wait(120)
            assert result.successful()
        assert sorted(seen, key=str) == sorted([9, [1, 4], [(3, 1)], []], key=str)

        errors: list[BaseException] = []
        failed = pool.apply_async(raise_own_error, (7,), callback=seen.append, error_callback=errors.append)
        mapped = pool.map_async(raise_value_error, "ab", callback=seen.append, error_callback=errors.append)
        failed.wait(120)
        mapped.wait(120)
        assert not failed.successful() and not mapped.successful()
        assert len(seen) == 4 and {type(error).__name__ for error in errors} == {"OwnError", "ValueError"}
        assert all("Traceback" in str(error.__cause__) for error in errors)


def test_callbacks_may_use_the_pool_and_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    inner: list[Any] = []
    with ropewalk.Pool(2) as pool:

        def chain(value: int) -> None:
            inner.append(pool.apply_async(square, (value,)))
            raise RuntimeError("of the callback")

        assert pool.apply_async(square, (2,), callback=chain).get(120) == 4
        assert inner[0].get(120) == 16
        assert pool.apply(square, (5,)) == 25
    assert "of the callback" in caplog.text


def test_callbacks_of_a_closed_pool_have_run_when_join_returns() -> None:
    seen: list[int] = []
    pool = ropewalk.Pool(2)
    for number in range(50):
        pool.apply_async(slow_square, (number,), callback=seen.append)
    pool.close()
    pool.join()
    assert sorted(seen) == [number**2 for number in range(50)]


def test_results_can_be_awaited_many_at_once_and_again() -> None:
    async def main(pool: ropewalk.Pool) -> None:
        result = pool.apply_async(square, (3,))
        assert (await result, await result) == (9, 9)
        assert await pool.map_async(square, range(5)) == [0, 1, 4, 9, 16]
        with pytest.raises(ValueError, match="sorry"):
            await pool.apply_async(raise_value_error, ("sorry",))
        many = [pool.apply_async(slow_square, (number,)) for number in range(20)]
        assert await asyncio.gather(*map(wait_for, many)) == [number**2 for number in range(20)]
        never = pool.apply_async(time.sleep, (1000,))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait_for(never), 0.05)

    async def wait_for(result: Any) -> Any:
        return await result

    with ropewalk.Pool(2) as pool:
        asyncio.run(main(pool))


def test_the_event_loop_runs_while_a_result_is_awaited(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main(pool: ropewalk.Pool) -> None:
        async def open_gate() -> None:
            gate.touch()

        waiting = asyncio.ensure_future(awaited(pool.apply_async(wait_for_file, (str(gate),))))
        await open_gate()
        await asyncio.wait_for(waiting, PATIENCE_S)

    async def awaited(result: Any) -> Any:
        return await result

    with ropewalk.Pool(1) as pool:
        asyncio.run(main(pool))


def test_several_threads_wait_for_one_result_and_map_at_once(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    def gated(number: int) -> int:
        wait_for_file(gate)
        return number

    answers: list[Any] = []
    with ropewalk.Pool(2) as pool:
        result = pool.apply_async(gated, (5,))

        def work(number: int) -> None:
            answers.append(result.get(120))
            values = pool.map(lambda item: (number, item), range(500), chunksize=1 + number)
            assert values == [(number, item) for item in range(500)]
            assert sum(pool.imap_unordered(square, range(100))) == sum(item**2 for item in range(100))
            answers.append("done")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        Path(gate).touch()
        for thread in threads:
            thread.join(120)
    assert Counter(answers) == {5: 6, "done": 6}


def test_several_threads_share_one_iterator() -> None:
    seen: list[int] = []
    with ropewalk.Pool(2) as pool:
        results = pool.imap(square, range(2000), chunksize=10)

        def consume() -> None:
            for value in results:
                seen.append(value)

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert sorted(seen) == [number**2 for number in range(2000)]


def test_every_kind_of_map_gives_the_same_with_every_chunksize() -> None:
    def add(left: int, right: int = 100) -> int:
        return left + right

    with ropewalk.Pool(3) as pool:
        for chunksize in (1, 2, 7, 1000):
            assert pool.map(square, range(100), chunksize) == [number**2 for number in range(100)]
            assert pool.starmap(add, [(n, n) for n in range(50)], chunksize) == [2 * n for n in range(50)]
            assert pool.starmap(add, [(n,) for n in range(5)], chunksize) == [100 + n for n in range(5)]
            assert list(pool.imap(square, range(100), chunksize)) == [number**2 for number in range(100)]
            unordered = list(pool.imap_unordered(square, iter(range(100)), chunksize))
            assert sorted(unordered) == [number**2 for number in range(100)]
        assert pool.apply(add, (1,), {"right": 2}) == 3
        assert pool.apply(add, [1, 2]) == 3
        assert pool.map(square, (number for number in range(3))) == [0, 1, 4]
        assert pool.map(str.upper, "abc") == ["A", "B", "C"]
        assert pool.map(int("7").__add__, {1: 2}.keys()) == [8]


# --- workers come and go ---


def test_a_worker_is_replaced_after_so_many_chunks() -> None:
    with ropewalk.Pool(1, maxtasksperchild=2) as pool:
        pids = pool.map(pid, range(8), chunksize=1)
        assert [count for _, count in Counter(pids).items()] == [2, 2, 2, 2]
        assert len(set(pool.map(pid, range(9), chunksize=3))) == 2
        assert pool.status().num_deaths == 0, "they ended as planned"
        assert pool.map(square, range(30), chunksize=1) == [number**2 for number in range(30)]


def test_a_planned_replacement_is_an_event_and_ends_the_log_of_the_worker() -> None:
    name = f"planned-{os.getpid()}"
    with ropewalk.Pool(1, name=name, maxtasksperchild=2) as pool:
        pool.map(print, range(4), chunksize=1)
        pool.map(print, [4])  # by the third worker, so the first one is gone

        def replacements() -> list[EventView]:
            return [event for view in looks("pool") for event in view.events if event.kind == "replacement"]

        wait_until(lambda: len(replacements()) == 2, what="the pool is announced in a thread of its own")
        first, second = replacements()
        assert first.text == f"{name}.0 has run its 2 chunks of tasks (maxtasksperchild), and is replaced"
        assert second.process.startswith(f"{name}.")
        (log,) = settings.current().run_folder.glob(f"ropewalk-*/output/{name}.0.log")
        assert log.read_text().startswith(f"0\n1\n--- ropewalk: {name}.0 ended as planned ---\n")


def test_a_pool_grows_while_it_works_and_new_workers_have_work_at_once(tmp_path: Path) -> None:
    gate, started = str(tmp_path / "gate"), str(tmp_path / "started")

    def gated(_: int) -> None:
        note(started, os.getpid())
        wait_for_file(gate)

    with ropewalk.Pool(1) as pool:
        result = pool.map_async(gated, range(8), chunksize=8)  # in one piece, at the only worker
        wait_until(lambda: len(noted(started)) == 1)
        pool.resize(4)
        wait_until(lambda: len(set(noted(started))) == 4, what="the new ones take from the one that had it all")
        Path(gate).touch()
        result.get(120)
        assert len(noted(started)) == 8, "each began once"
        assert len(pool.status().workers) == 4


def test_a_pool_shrinks_after_the_tasks_it_is_in(tmp_path: Path) -> None:
    gate, started = str(tmp_path / "gate"), str(tmp_path / "started")

    def gated(number: int) -> int:
        note(started, number)
        wait_for_file(gate)
        return number

    with ropewalk.Pool(4) as pool:
        result = pool.map_async(gated, range(40), chunksize=5)
        wait_until(lambda: len(noted(started)) == 4)
        pool.resize(1)
        assert pool.status().num_deaths == 0 and not result.ready()
        Path(gate).touch()
        assert result.get(120) == list(range(40))
        assert sorted(map(int, noted(started))) == list(range(40)), "nothing was cut off and nothing ran twice"
        wait_until(lambda: len(pool.status().workers) == 1)
        assert len(set(pool.map(pid, range(50), chunksize=1))) == 1
        pool.resize(3)
        pool.wait_until_ready(120)
        assert len(pool.status().workers) == 3 and pool.status().num_deaths == 0


def test_a_pool_of_changing_size_loses_nothing() -> None:
    with ropewalk.Pool(2) as pool:
        result = pool.map_async(slow_square, range(2000))
        for size in (5, 1, 4, 2, 6, 1, 3):
            pool.resize(size)
            time.sleep(0.02)
        assert result.get(120) == [number**2 for number in range(2000)]
        assert pool.status().num_deaths == 0


def test_status_says_what_the_pool_does(tmp_path: Path) -> None:
    gate, started = str(tmp_path / "gate"), str(tmp_path / "started")

    def gated(number: int) -> int:
        note(started, number)
        wait_for_file(gate)
        return number

    pool = ropewalk.Pool(2, name="crew")
    with pool:
        pool.wait_until_ready(120)
        status = pool.status()
        assert (status.name, status.state, status.queued, status.running, status.done) == ("crew", "RUN", 0, 0, 0)
        assert [worker.name for worker in status.workers] == ["crew.0", "crew.1"]
        assert {worker.pid for worker in status.workers} == set(pool.map(pid, range(100), chunksize=1))
        assert all(worker.state == "idle" and worker.host for worker in pool.status().workers)
        pool.map_async(gated, range(10), chunksize=1)
        wait_until(lambda: len(noted(started)) == 2)
        assert [worker.state for worker in pool.status().workers] == ["running"] * 2
        status = pool.status()
        assert status.queued + status.running == 10 and status.done == 100
        assert sorted(worker.task for worker in status.workers if worker.task is not None)[0] == 0
        assert "crew RUN: 2 workers" in str(status) and "crew.1" in status._repr_html_()
        os.kill(status.workers[0].pid, signal.SIGKILL)
        wait_until(lambda: pool.status().num_deaths == 1)
        assert "SIGKILL" in str(pool.status()) and pool.status().deaths[0].name == "crew.0"
        Path(gate).touch()
        wait_until(lambda: pool.status().done == 110)
        assert pool.status().retried == 1
        assert repr(pool) == "<ropewalk.Pool crew RUN with 2 workers>"
    assert pool.status().state == "TERMINATE" and pool.status().workers == ()


# --- constants and arrays ---


def test_a_constant_arrives_as_its_value_and_is_sent_once(tmp_path: Path) -> None:
    loads = str(tmp_path / "loads")

    class Weights:
        def __init__(self) -> None:
            self.name = "w"

        def __setstate__(self, state: dict[str, Any]) -> None:
            note(loads, os.getpid())
            self.__dict__.update(state)

    def use(weights: Any, number: int) -> tuple[str, int]:
        return weights.name, number

    with ropewalk.Pool(2) as pool:
        weights = pool.put(Weights())
        assert "constant of" in repr(weights)
        assert pool.starmap(use, [(weights, number) for number in range(50)]) == [("w", n) for n in range(50)]
        assert pool.apply(use, (weights, 1)) == ("w", 1)
        assert pool.apply(use, (), {"weights": weights, "number": 2}) == ("w", 2)
        assert pool.map(lambda number: use(weights, number), [3]) == [("w", 3)]
        assert next(pool.imap(functools.partial(use, weights), [4])) == ("w", 4)
        assert pool.map(lambda pair: pair[0]["deep"].name, [(cast("dict[str, Any]", {"deep": weights}), 1)]) == ["w"]
        other: Any = pool.put([1, 2, 3])
        for _ in range(3):  # closed over only, for workers that do not have it yet
            assert pool.map(lambda number: (other[0], number), range(8), chunksize=1) == [(1, n) for n in range(8)]
            assert pool.map(functools.partial(use, pool.put(Weights())), range(4), chunksize=1)[0] == ("w", 0)
        third: Any = pool.put((7,))
        assert pool.map(lambda each: third[0] + each["n"], [{"n": 1}] * 4, chunksize=1) == [8] * 4
        assert max(Counter(noted(loads)).values()) <= 2, "each of the two is unpickled once in each worker"


def test_constants_are_read_only_and_the_error_says_copy() -> None:
    numpy = pytest.importorskip("numpy")

    def change(weights: Any, _: int) -> None:
        weights[0] = 1

    def change_a_copy(weights: Any, number: int) -> float:
        weights = weights.copy()
        weights[0] = number
        return float(weights.sum())

    for size in (1000, 1_000_000):  # in the frame, and as a blob of the host
        values = numpy.zeros(size)
        with ropewalk.Pool(2) as pool:
            constant = pool.put(values)
            values[:] = 7  # the pool has its own
            for call in (
                lambda: pool.apply(change, (constant, 0)),  # noqa: B023
                lambda: pool.map(functools.partial(change, numpy.ones(size)), range(2)),  # noqa: B023
            ):
                with pytest.raises(ValueError, match="read-only") as info:
                    call()
                assert "copy()" in str(info.value.__cause__) or "copy()" in "".join(info.value.__notes__)
            assert pool.map(functools.partial(change_a_copy, constant), [5, 6]) == [5.0, 6.0]


def test_large_arguments_and_results_are_writable_and_independent() -> None:
    numpy = pytest.importorskip("numpy")

    def add_one(array: Any) -> Any:
        array += 1
        return array

    def twice(array: Any) -> tuple[Any, Any]:
        return array, array

    with ropewalk.Pool(2) as pool:
        for size in (10, 10_000, 1_000_000):
            array = numpy.zeros(size)
            result = pool.apply(add_one, (array,))
            assert array.sum() == 0 and result.sum() == size
            result[:] = 5
            mapped = pool.map(add_one, [array] * 4)
            for each in mapped:
                assert each.sum() == size
                each[:] = 9
            both = pool.imap(add_one, [array, array.copy()], chunksize=2)
            assert [each.sum() for each in both] == [size, size]
            left, right = pool.apply(twice, (array,))
            left[0] = 3
            assert right[0] == 3, "one object stays one object"
            pending = pool.apply_async(add_one, (array,))
            array[:] = 100  # it was copied when it was given
            assert pending.get(120).sum() == size
        assert pool.map(len, [bytes(2_000_000), bytearray(3_000_000)]) == [2_000_000, 3_000_000]


def test_a_function_with_large_weights_is_sent_once_for_all_tasks() -> None:
    numpy = pytest.importorskip("numpy")
    weights = numpy.arange(4_000_000, dtype="f8")  # 32 MB

    def where(weights: Any, number: int) -> tuple[int, float]:
        return os.getpid(), float(weights[number])

    with ropewalk.Pool(2) as pool:
        values = pool.map(functools.partial(where, weights), range(200), chunksize=1)
        assert [value for _, value in values] == list(range(200))
        shared = pool.apply(lambda: Path("/proc/self/maps").read_text())
        files = set(re.findall(r"memfd:(ropewalk-\w+)", shared)) - {"ropewalk-page"}
        assert len(files) == 1, "one memory file that all processes of the host map"


# --- seeds ---


def test_seeds_of_tasks_depend_on_the_map_and_the_index_alone(tmp_path: Path) -> None:
    died = str(tmp_path / "died")

    def seed(number: int) -> int:
        if number == 13 and not noted(died):
            note(died, number)
            os._exit(1)
        return ropewalk.task_seed()

    def plain(_: int) -> int:
        return ropewalk.task_seed()

    with ropewalk.Pool(1) as pool:
        expected = pool.map(plain, range(40), seed=7)
        assert len(set(expected)) == 40
        assert pool.map(plain, range(40), seed=8) != expected
        first, second = pool.map(plain, range(3)), pool.map(plain, range(3))
        assert not set(first) & set(second), "each map has its own"
        single = pool.apply_async(plain, (0,), seed=7).get(120)
        assert single == expected[0]
    with ropewalk.Pool(3) as pool:
        assert pool.map(seed, range(40), chunksize=3, seed=7) == expected
        assert list(pool.imap(plain, range(40), chunksize=7, seed=7)) == expected
        assert sorted(pool.imap_unordered(plain, range(40), seed=7)) == sorted(expected)
        assert pool.starmap(plain, [(n,) for n in range(40)], seed=7) == expected
        assert pool.status().num_deaths == 1
    with pytest.raises(RuntimeError, match="inside a task"):
        ropewalk.task_seed()


# --- balance ---


def test_tasks_behind_a_slow_one_are_taken_over_by_others(tmp_path: Path) -> None:
    gate, ran = str(tmp_path / "gate"), str(tmp_path / "ran")

    def run(number: int) -> int:
        if number == 0:
            wait_for_file(gate)  # opened when all others are through
        else:
            time.sleep(0.001)
        note(ran, f"{number}:{os.getpid()}")
        return number

    with ropewalk.Pool(2) as pool:
        for chunksize in (None, 1, 201):
            Path(ran).unlink(missing_ok=True)
            Path(gate).unlink(missing_ok=True)
            result = pool.map_async(run, range(201), chunksize)
            wait_until(lambda: len(noted(ran)) == 200, what=f"200 finish though the first hangs, {chunksize=}")
            Path(gate).touch()
            assert result.get(120) == list(range(201))
            assert Counter(line.split(":")[0] for line in noted(ran)) == {str(n): 1 for n in range(201)}


# --- the end of a pool ---


def test_a_with_block_ends_its_workers_whatever_happens() -> None:
    pids: set[int] = set()

    def work() -> None:
        with ropewalk.Pool(2) as pool:
            pool.wait_until_ready(120)
            pids.update(worker.pid for worker in pool.status().workers)
            pool.map_async(time.sleep, [1000] * 4)
            raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        work()
    assert pids and not any(Path(f"/proc/{each}").exists() for each in pids)


def memory_files() -> int:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("memfd:ropewalk" in os.readlink(link) for link in links if os.path.islink(link))


class NeverSent:
    def __reduce__(self) -> Any:
        raise ValueError("it stays here")


def test_a_map_that_cannot_be_sent_frees_what_was_packed_before() -> None:
    with ropewalk.Pool(1) as pool:
        before = memory_files()
        large = pickle.PickleBuffer(bytearray(1 << 20))
        with pytest.raises(ValueError, match="it stays here"):
            pool.map(nothing, [large, large, NeverSent()], chunksize=1)
        assert memory_files() == before


def test_a_pool_that_has_ended_frees_the_arguments_of_its_initializer() -> None:
    before = memory_files()
    for _ in range(2):
        with ropewalk.Pool(1, len, (bytearray(1 << 20),)) as pool:
            pool.map(nothing, [1])
    assert memory_files() == before


def test_a_constant_is_refused_by_another_pool() -> None:
    # The pool that ended first freed it for both.
    with ropewalk.Pool(1) as pool:
        reference = pool.put(bytearray(1 << 20))
        with ropewalk.Pool(1) as other, pytest.raises(ropewalk.NotPicklable, match="put the value into the other pool"):
            other.map(len, [reference])
        pool.resize(2)
        assert pool.map(len, [reference] * 8, chunksize=1) == [1 << 20] * 8


def test_a_pool_that_nobody_closed_says_so_and_ends() -> None:
    pool = ropewalk.Pool(1)
    pool.map(nothing, [1])
    with pytest.warns(ResourceWarning, match="unclosed running"):  # noqa: PT031  # the collector runs when it likes
        del pool
        gc.collect()


def test_a_pool_may_be_collected_while_a_message_to_it_is_handled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The loop holds the pool's lock then, and is the loop of all other pools."""
    gate, began = str(tmp_path / "gate"), str(tmp_path / "began")
    handled = threading.Event()

    def collecting(ledger: TaskLedger, *arguments: Any) -> None:
        if not handled.is_set():
            gc.collect()
            handled.set()
        done(ledger, *arguments)

    def work(_: int) -> None:
        note(began, "began")
        wait_for_file(gate)

    done = TaskLedger.done
    pool = ropewalk.Pool(1)
    pool.of_itself = pool  # type: ignore[attr-defined]  # a cycle, as an exception that was caught may be in
    pool.map_async(work, [0])
    wait_until(lambda: noted(began))
    monkeypatch.setattr(TaskLedger, "done", collecting)
    with pytest.warns(ResourceWarning, match="unclosed"):  # noqa: PT031  # by the collector
        gc.disable()
        try:
            del pool
            Path(gate).touch()
            assert handled.wait(PATIENCE_S)
        finally:
            gc.enable()
    with ropewalk.Pool(1) as other:
        assert other.apply_async(square, (3,)).get(PATIENCE_S) == 9


def test_a_call_that_waits_goes_through_what_a_subclass_makes_of_the_one_that_does_not() -> None:
    """As in multiprocessing, where libraries count or wrap tasks in this way."""
    asked: list[str] = []

    class Counting(ropewalk.Pool):
        def apply_async(self, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
            asked.append(func.__name__)
            return super().apply_async(func, *args, **options)

    with Counting(1) as pool:
        assert pool.apply(square, (3,)) == 9
    assert asked == ["square"]


def test_a_pool_whose_making_is_interrupted_ends_without_a_second_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr("ropewalk.pool.parts.PoolTarget", interrupted)
    with pytest.warns(ResourceWarning, match="unclosed"):  # noqa: PT031  # by the collector
        with pytest.raises(KeyboardInterrupt):
            ropewalk.Pool(1)
        gc.collect()
    assert not unraisable


def test_a_pool_that_is_not_closed_lets_its_script_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import ropewalk; pool = ropewalk.Pool(2); print(pool.map(abs, [-1])); pool.map_async(abs, [1])")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "[1]\n"), done.stderr
    assert "Traceback" not in done.stderr


# --- forks and nesting ---


def in_child(action: Callable[[], object]) -> int:
    """Fork, run, and exit like a script: with what `atexit` and destructors do. Returns the exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with contextlib.suppress(SystemExit):
                action()
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_cannot_use_the_pool_and_does_it_no_harm() -> None:
    with ropewalk.Pool(2) as pool:
        assert pool.map(square, range(3)) == [0, 1, 4]
        running = pool.map_async(slow_square, range(300))
        results = pool.imap(slow_square, range(300))

        def use() -> None:
            for call in (
                lambda: pool.map(square, [1]),
                lambda: pool.apply_async(square, (1,)),
                lambda: pool.imap(square, [1]),
                lambda: pool.put(1),
                lambda: pool.resize(1),
            ):
                with pytest.raises(PoolClosed, match=r"belongs to process .* make a pool here"):
                    call()
            nonlocal results
            del results  # ends nothing in the parent
            pool.terminate()
            pool.close()
            pool.join()

        assert in_child(use) == 0
        assert running.get(120) == [number**2 for number in range(300)]
        assert list(results) == [number**2 for number in range(300)]

        def enter_the_block() -> None:
            with pytest.raises(PoolClosed), pool:
                pass

        assert in_child(enter_the_block) == 0
        assert in_child(lambda: pool.__exit__(None, None, None)) == 0
        assert pool.map(square, range(3)) == [0, 1, 4]


def test_a_forked_child_may_have_a_pool_of_its_own() -> None:
    with ropewalk.Pool(1) as pool:
        pool.map(square, range(3))

        def own() -> None:
            with ropewalk.Pool(2) as inner:
                assert inner.map(square, range(5)) == [0, 1, 4, 9, 16]
            open_sessions.close_all()  # as atexit would

        assert in_child(own) == 0
        assert pool.map(square, range(3)) == [0, 1, 4]


def test_what_the_child_of_a_fork_waits_for_is_refused_there() -> None:
    with ropewalk.Pool(1) as pool:
        never = pool.apply_async(time.sleep, (1000,))
        results = pool.imap(time.sleep, [1000])

        def wait() -> None:
            for call in (never.get, never.wait, results.next):
                with pytest.raises(PoolClosed, match="forked"):
                    call()

        assert in_child(wait) == 0
        assert never.ready() is False


def test_pools_inside_workers_join_the_session_and_keep_out_of_each_others_way(tmp_path: Path) -> None:
    # Their processes once had the same names at the agent they share, and the second of each was never heard.
    met = str(tmp_path / "met")

    def meet(times: int) -> None:
        note(met, "x")
        wait_until(lambda: len(noted(met)) >= 2 * times, what="both are here")

    def outer(number: int) -> tuple[list[int], set[int], int]:
        with ropewalk.Pool(2) as inner:
            inner.wait_until_ready(120)
            meet(1)
            values, pids = inner.map(square, range(number), chunksize=1), set(inner.map(pid, range(20)))
            meet(2)
            return values, pids | {os.getpid()}, os.getppid()

    with ropewalk.Pool(2) as pool:
        (first, these, agent), (second, those, other) = pool.map(outer, [3, 5], chunksize=1)
        assert (first, second) == ([0, 1, 4], [0, 1, 4, 9, 16])
        assert not these & those
        assert [agent] == [other] == pool._session.agent_pids()
        wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in (these | those) - worker_pids(pool)))


def worker_pids(pool: ropewalk.Pool) -> set[int]:
    return {worker.pid for worker in pool.status().workers}


def test_a_pool_cannot_be_sent_and_says_what_to_do() -> None:
    with ropewalk.Pool(1) as pool:
        with pytest.raises((NotImplementedError, TypeError), match="make a pool inside the task"):
            pool.apply(square, (pool,))
        assert pool.apply(square, (2,)) == 4


def crowd_out(pool: ropewalk.Pool) -> None:
    """More constants than a pool keeps, none of which anybody needs any more."""
    for number in range(MAX_CONSTANTS + 2):
        assert pool.apply(lambda number=number: number) == number


def test_a_function_is_sent_again_after_others_have_crowded_it_out() -> None:
    """What was made of an imported function was remembered, but its bytes were gone: every task of it failed."""
    with ropewalk.Pool(1) as pool:
        weights = [1.0, 2.0]
        known = functools.partial(sum, weights)
        assert pool.map(abs, [-1, -2]) == [1, 2] and pool.apply(known) == 3.0
        crowd_out(pool)
        assert pool.map(abs, [-1, -2]) == [1, 2] and pool.apply(known) == 3.0


def test_a_value_that_was_put_lives_as_long_as_its_reference() -> None:
    """Each generation of an evolution strategy puts its parameters: all of them stayed until the pool's end."""
    with ropewalk.Pool(1) as pool:
        kept = pool.put(bytes(500_000))
        for number in range(8):
            assert pool.apply(len, (pool.put(bytes([number]) * 500_000),)) == 500_000
        crowd_out(pool)
        wait_until(lambda: large_constants(pool) == 1)
        assert pool.apply(len, (kept,)) == 500_000
        for _ in range(2):  # the same value again, in the same code
            again: Any = pool.put(bytes([3]) * 500_000)
            assert pool.apply(functools.partial(len, again)) == 500_000
            del again
            crowd_out(pool)
            wait_until(lambda: large_constants(pool) == 1)


def large_constants(pool: ropewalk.Pool) -> int:
    pool.apply(abs, (-1,))  # what is forgotten is forgotten when another constant comes
    return sum(constant.size_bytes > 400_000 for constant in pool._dispatcher.constants)


def test_the_initializer_can_be_mapped_as_well() -> None:
    """Workers forget it when it has returned; the pool went on to think that they had it."""
    with ropewalk.Pool(1, initializer=slow_square, initargs=(3,)) as pool:
        assert pool.map(slow_square, [2, 3]) == [4, 9]
        assert pool.apply(len, ((3,),)) == 1


def test_what_a_pool_is_called_acts_nowhere() -> None:  # S19, S32
    """A name is often made of what somebody else has typed."""
    with ropewalk.Pool(1, name="../a\x1b[31m\n[other 0@here] \u202e<b>") as pool:
        shown = "../a\\x1b[31m\\n[other 0@here] \\u202e<b>"
        assert pool.name == shown and repr(pool).startswith(f"<ropewalk.Pool {shown} RUN")
        status = pool.status()
        assert len(str(status).splitlines()) == 2 + len(status.ways) and "<b>" not in status._repr_html_()
    with pytest.raises(PoolClosed) as refused:
        pool.apply(abs, (1,))
    assert shown in str(refused.value) and "\n" not in str(refused.value)
