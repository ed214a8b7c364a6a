"""Futures over a pool: what concurrent.futures promises, and what happens to them when workers die."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from ropewalk import errors
from ropewalk.compat.executor import Executor
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("shared_session")


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(2) as executor:
        yield executor


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[str]:
    """Tasks that wait for this file end at the end of the test at the latest."""
    path = tmp_path / "gate"
    yield str(path)
    path.touch()


def wait_for_file(path: str, value: object = None) -> object:
    while not os.path.exists(path):
        time.sleep(0.002)
    return value


def note(path: str) -> None:
    with open(path, "a") as file:
        file.write("x")


def run_program(source: str, *args: str) -> subprocess.CompletedProcess[str]:
    # Newer Pythons warn of any fork of a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", source, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


# --- calls ------------------------------------------------------------------------------------------------------------


def test_nothing_is_started_before_the_first_call() -> None:
    before = set(threading.enumerate())
    executor = Executor(2)
    assert set(threading.enumerate()) == before and executor.status() is None
    executor.shutdown()


def test_libraries_that_ask_for_the_class_find_how_many_workers_there_are() -> None:
    """adaptive's `_get_ncores`: of other executors than this class, and a few that it names, it knows nothing."""
    assert isinstance(Executor(3), concurrent.futures.ProcessPoolExecutor)
    assert Executor(3)._max_workers == 3


def test_a_call_is_made_with_all_its_arguments(executor: Executor) -> None:
    def capture(*args: object, **kwargs: object) -> object:
        return args, kwargs

    assert executor.submit(capture, 1, self=2, fn=3).result() == ((1,), {"self": 2, "fn": 3})
    assert executor.submit(lambda: os.getpid()).result() != os.getpid()


def test_arguments_are_copied_before_submit_returns(executor: Executor) -> None:
    data = bytearray(4 << 20)
    future = executor.submit(sum, data)
    data[:] = b"\1" * len(data)
    assert future.result() == 0


def test_an_exception_keeps_its_type_and_has_the_remote_traceback_as_its_cause(executor: Executor) -> None:
    def fail() -> None:
        raise LookupError("in the worker")  # a comment of the worker's source

    future = executor.submit(fail)
    with pytest.raises(LookupError, match="in the worker"):
        future.result()
    assert "a comment of the worker's source" in str(future.exception().__cause__)  # type: ignore[union-attr]


def test_an_exit_in_a_call_is_its_answer_and_leaves_the_worker_alone(executor: Executor) -> None:
    pids = set(executor.map(lambda _: os.getpid(), range(50)))
    for _ in range(4):
        future = executor.submit(sys.exit, 3)
        assert isinstance(future.exception(), SystemExit) and future.exception().code == 3  # type: ignore[union-attr]
    with pytest.raises(SystemExit):
        list(executor.map(sys.exit, [0]))
    status = executor.status()
    assert status and status.num_deaths == 0 and {worker.pid for worker in status.workers} >= pids


def test_what_cannot_be_sent_is_told_by_its_future(executor: Executor) -> None:
    future = executor.submit(id, threading.Lock())
    with pytest.raises(errors.NotPicklable, match=r"args\[0\]"):
        future.result()
    with pytest.raises(pickle.PicklingError):
        executor.submit(threading.Lock).result()
    with pytest.raises(TypeError, match="cannot pickle"):
        list(executor.map(id, [threading.Lock()]))
    assert executor.submit(abs, -1).result() == 1


class ExitsWhenUnpickled:
    def __reduce__(self) -> tuple[object, ...]:
        return sys.exit, (5,)


def test_a_result_that_exits_while_it_is_unpickled_does_not_end_the_callbacks(executor: Executor) -> None:
    # It ended the thread of callbacks, and no other future heard of its result any more.
    with pytest.raises(SystemExit):
        executor.submit(ExitsWhenUnpickled).result(120)
    assert executor.submit(abs, -2).result(120) == 2


# --- futures ----------------------------------------------------------------------------------------------------------


def test_futures_work_with_wait_and_as_completed(executor: Executor, gate: str) -> None:
    slow: concurrent.futures.Future[Any] = executor.submit(wait_for_file, gate)
    quick: concurrent.futures.Future[Any] = executor.submit(abs, -3)
    done, left = concurrent.futures.wait([slow, quick], return_when=concurrent.futures.FIRST_COMPLETED)
    assert done == {quick} and left == {slow} and slow.running()
    order = concurrent.futures.as_completed([slow, quick])
    assert next(order) is quick
    Path(gate).touch()
    assert next(order) is slow


def test_a_failure_is_the_first_exception_of_wait(executor: Executor, gate: str) -> None:
    slow: concurrent.futures.Future[Any] = executor.submit(wait_for_file, gate)
    failing: concurrent.futures.Future[Any] = executor.submit(divmod, 1, 0)
    done, _ = concurrent.futures.wait([slow, failing], return_when=concurrent.futures.FIRST_EXCEPTION)
    assert done == {failing}


def test_asyncio_can_wait_for_calls(executor: Executor) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        first = loop.run_in_executor(executor, pow, 2, 5)
        return [await first, await asyncio.wrap_future(executor.submit(pow, 2, 6))]

    assert asyncio.run(main()) == [32, 64]


def test_callbacks_run_in_another_thread_and_may_submit(executor: Executor) -> None:
    seen: list[object] = []
    chained: concurrent.futures.Future[object] = concurrent.futures.Future()

    def on_done(future: concurrent.futures.Future[int]) -> None:
        seen.extend([threading.current_thread().name, future.result()])
        executor.submit(abs, -5).add_done_callback(lambda second: chained.set_result(second.result()))

    executor.submit(abs, -4).add_done_callback(on_done)
    assert chained.result(120) == 5 and seen == ["ropewalk-callbacks", 4]


def test_a_call_can_be_cancelled_until_it_begins_and_is_not_made_then(
    executor: Executor, gate: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    blocking = [executor.submit(wait_for_file, gate) for _ in range(2)]
    wait_until(lambda: all(future.running() for future in blocking), "both workers are busy")
    waiting = [executor.submit(note, str(notes)) for _ in range(20)]
    assert not blocking[0].cancel()
    assert waiting[3].cancel() and waiting[3].cancel() and waiting[3].cancelled()
    # Who waits hears of it at once, though all workers are busy.
    assert concurrent.futures.wait(waiting, PATIENCE_S, concurrent.futures.FIRST_COMPLETED).done == {waiting[3]}
    with pytest.raises(CancelledError):
        waiting[3].result()
    Path(gate).touch()
    # One worker may make all of these calls before the other one sees the file.
    assert not concurrent.futures.wait(waiting, PATIENCE_S).not_done
    assert not concurrent.futures.wait(blocking, PATIENCE_S).not_done
    assert notes.read_text() == "x" * 19


def test_a_cancelled_call_gives_its_arguments_back_while_workers_are_busy(executor: Executor, gate: str) -> None:
    blocking = [executor.submit(wait_for_file, gate) for _ in range(2)]
    wait_until(lambda: all(future.running() for future in blocking), "both workers are busy")
    future = executor.submit(len, b"x")
    assert future.cancel()
    wait_until(lambda: (status := executor.status()) is not None and status.queued == 0, "the call is forgotten")


@pytest.mark.timing
def test_cancelling_thousands_takes_no_time_for_each_of_all_others(executor: Executor, gate: str) -> None:
    blocking = [executor.submit(wait_for_file, gate) for _ in range(2)]
    wait_until(lambda: all(future.running() for future in blocking), "both workers are busy")

    def cancelling_s(num: int) -> float:
        waiting = [executor.submit(abs, 1) for _ in range(num)]
        began = time.monotonic()
        assert all(future.cancel() for future in waiting)
        return time.monotonic() - began

    assert cancelling_s(8000) < 3 * 8 * cancelling_s(1000)  # 64 times as long, if each looked at all others
    Path(gate).touch()
    assert executor.submit(abs, -7).result() == 7


def test_a_value_lives_no_longer_than_its_future_wants(executor: Executor) -> None:
    class Value:
        pass

    for value in executor.map(lambda _: Value(), range(10)):
        alive = weakref.ref(value)
        del value
        gc.collect()
        assert alive() is None


def test_after_short_calls_long_ones_can_still_be_cancelled(executor: Executor, gate: str) -> None:
    # The pool guessed from the short ones how many it could send ahead, and all of these counted as running.
    concurrent.futures.wait([executor.submit(wait_for_file, __file__) for _ in range(200)])
    waiting = [executor.submit(wait_for_file, gate) for _ in range(2000)]
    wait_until(lambda: any(future.running() for future in waiting), "one runs")
    assert sum(future.cancel() for future in waiting) >= 2000 - 2 * 16


# --- map --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_map_gives_results_in_order(executor: Executor, chunksize: int) -> None:
    expected = [a * b for a, b in zip(range(50), range(7, 60), strict=False)]
    assert list(executor.map(lambda a, b: a * b, range(50), range(7, 60), chunksize=chunksize)) == expected
    assert list(executor.map(abs, [])) == []


def test_map_yields_what_is_there_before_the_rest_is(executor: Executor, gate: str) -> None:
    results = executor.map(wait_for_file, [__file__, gate], [1, 2])
    assert next(results) == 1
    Path(gate).touch()
    assert list(results) == [2]


def test_map_ends_with_the_first_exception_and_cancels_what_has_not_begun(
    executor: Executor, gate: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"

    def act(number: int) -> int:
        if number == 1:
            raise LookupError
        if number > 1:
            wait_for_file(gate)
            note(str(notes))
        return number

    results = executor.map(act, range(50))
    assert next(results) == 0
    with pytest.raises(LookupError):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    # What was sent ahead to the workers is taken back as well.
    wait_until(lambda: (s := executor.status()) is not None and s.queued + s.running <= 2, "the rest is cancelled")
    Path(gate).touch()
    executor.shutdown()
    assert len(notes.read_text()) <= 2


def test_closing_the_iterator_cancels_the_rest(executor: Executor, gate: str) -> None:
    results = executor.map(wait_for_file, [__file__, *[gate] * 50])
    next(results)
    results.close()  # type: ignore[attr-defined]
    wait_until(lambda: (status := executor.status()) is not None and status.queued == 0, "the rest is cancelled")


def test_map_has_a_deadline(executor: Executor, gate: str) -> None:
    assert executor.submit(abs, -1).result(PATIENCE_S) == 1  # a worker is there before the time begins
    results = executor.map(wait_for_file, [__file__, gate], timeout=2)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="1 of 2 results"):
        list(results)
    assert time.monotonic() - began > 1


def test_wrong_arguments_are_refused() -> None:
    for number in (0, -1):
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            Executor(number)
    with pytest.raises(TypeError, match="max_workers must be a whole number"):
        Executor(2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="initializer must be a callable"):
        Executor(initializer=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_tasks_per_child must be an integer"):
        Executor(max_tasks_per_child=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_tasks_per_child must be >= 1"):
        Executor(max_tasks_per_child=0)
    with pytest.raises(ValueError, match="chunksize must be >= 1"):
        Executor().map(abs, [], chunksize=0)
    with pytest.raises(NotImplementedError, match="make one inside the task"):
        pickle.dumps(Executor())


# --- workers that die or never live -----------------------------------------------------------------------------------


def die_once(path: str) -> str:
    if not os.path.exists(path):
        Path(path).touch()
        os._exit(9)
    return "done"


def test_a_call_whose_worker_dies_is_made_again(executor: Executor, tmp_path: Path) -> None:
    assert executor.submit(die_once, str(tmp_path / "died")).result() == "done"


def test_a_call_that_kills_its_workers_is_a_broken_pool_for_its_future_alone() -> None:
    with Executor(2, max_deaths=2) as executor:
        deadly, good = executor.submit(os._exit, 9), executor.submit(abs, -1)
        with pytest.raises(BrokenProcessPool, match="killed 2 workers") as caught:
            deadly.result()
        assert isinstance(caught.value, errors.TaskPoisoned) and len(caught.value.deaths) == 2
        assert pickle.loads(pickle.dumps(caught.value)).deaths == caught.value.deaths
        assert good.result() == 1 and executor.submit(abs, -2).result() == 2
        with pytest.raises(BrokenProcessPool):
            list(executor.map(os._exit, [9]))


def test_a_call_that_may_run_once_only_is_lost_with_its_worker() -> None:
    with Executor(1, at_most_once=True) as executor, pytest.raises(BrokenProcessPool) as caught:
        executor.submit(os._exit, 9).result()
    assert isinstance(caught.value, errors.WorkerLost)


def fail_to_begin() -> None:
    raise LookupError("no such licence")


@pytest.mark.filterwarnings("ignore")
def test_an_initializer_that_raises_breaks_the_executor() -> None:
    with Executor(2, initializer=fail_to_begin) as executor:
        with pytest.raises(BrokenProcessPool, match="no such licence") as caught:
            executor.submit(abs, 1).result()  # whichever of the two comes after it
        assert isinstance(caught.value, errors.InitializerFailed) and isinstance(caught.value.__cause__, LookupError)
        with pytest.raises(BrokenProcessPool, match="no such licence"):
            executor.submit(abs, 1)
        with pytest.raises(BrokenProcessPool, match="no such licence"):
            executor.map(abs, [1])


def test_workers_are_replaced_after_so_many_calls() -> None:
    with Executor(1, max_tasks_per_child=3) as executor:
        pids = [executor.submit(os.getpid).result() for _ in range(6)]
    assert pids[0] == pids[2] != pids[3] == pids[5]


# --- the end ----------------------------------------------------------------------------------------------------------


def test_shutdown_runs_what_was_submitted_and_may_be_called_again(tmp_path: Path) -> None:
    executor = Executor(2)
    futures = [executor.submit(note, str(tmp_path / "notes")) for _ in range(30)]
    results = executor.map(abs, range(-5, 5))
    executor.shutdown()
    executor.shutdown(wait=False)
    executor.shutdown()
    assert (tmp_path / "notes").read_text() == "x" * 30 and all(future.done() for future in futures)
    assert list(results) == [5, 4, 3, 2, 1, 0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(abs, 1)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.map(abs, [1])


def test_an_executor_that_never_started_cannot_be_started_after_shutdown() -> None:
    executor = Executor()
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, 1)


def test_shutdown_need_not_wait_and_two_can_wait_for_it(gate: str) -> None:
    executor = Executor(1)
    future = executor.submit(wait_for_file, gate, 7)
    executor.shutdown(wait=False)
    waiting = [threading.Thread(target=executor.shutdown) for _ in range(2)]
    for thread in waiting:
        thread.start()
    assert not future.done()
    Path(gate).touch()
    assert future.result() == 7
    for thread in waiting:
        thread.join(120)
        assert not thread.is_alive()


def test_shutdown_can_cancel_what_has_not_begun(gate: str) -> None:
    executor = Executor(2)
    running = [executor.submit(wait_for_file, gate) for _ in range(2)]
    wait_until(lambda: all(future.running() for future in running), "both workers are busy")
    waiting = [executor.submit(abs, 1) for _ in range(50)]
    results = executor.map(abs, range(3))
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting) and not any(future.done() for future in running)
    with pytest.raises(CancelledError):
        next(results)
    Path(gate).touch()
    executor.shutdown()
    assert all(future.done() and not future.cancelled() for future in running)


def test_a_dropped_executor_runs_what_was_submitted() -> None:
    executor = Executor(2)
    future, results = executor.submit(abs, -9), executor.map(abs, range(-3, 3))
    dropped = weakref.ref(executor)
    del executor
    gc.collect()
    assert dropped() is None and future.result() == 9 and list(results) == [3, 2, 1, 0, 1, 2]


def test_workers_can_be_terminated(gate: str) -> None:
    executor = Executor(1)
    running = executor.submit(wait_for_file, gate)
    wait_until(running.running, "it runs")
    waiting = executor.submit(abs, 1)
    executor.terminate_workers()
    executor.terminate_workers()
    with pytest.raises(errors.TaskCancelled):
        running.result(120)
    assert waiting.cancelled()
    executor.shutdown()


def test_leaving_by_an_interrupt_does_not_wait_for_the_work(gate: str) -> None:
    executor = Executor(1)
    future = executor.submit(wait_for_file, gate)
    wait_until(future.running, "it runs")

    def interrupted() -> None:
        with executor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(errors.TaskCancelled):
        future.result(120)


def test_a_program_that_ends_without_shutdown_waits_for_what_it_submitted(tmp_path: Path) -> None:
    source = """
import sys, time
from pathlib import Path
from ropewalk.compat.executor import Executor

def work(path):
    time.sleep(0.3)
    Path(path).touch()

executor = Executor(2)
executor.submit(work, sys.argv[1]).add_done_callback(lambda future: print("called back", flush=True))
"""
    ended = run_program(source, str(tmp_path / "done"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "called back\n", "")
    assert (tmp_path / "done").exists()


def test_nothing_can_be_submitted_while_the_interpreter_ends() -> None:
    source = """
import atexit
from ropewalk.compat.executor import Executor

@atexit.register
def at_exit():
    for each in (executor, Executor(1)):
        try:
            each.submit(abs, 1)
        except RuntimeError as error:
            print(error)

executor = Executor(1)
executor.submit(abs, 1).result()
"""
    ended = run_program(source)
    assert ended.stdout == "cannot schedule new futures after interpreter shutdown\n" * 2, ended.stderr
    assert ended.returncode == 0


def test_a_forked_child_is_told_that_the_executor_is_its_parents() -> None:
    source = """
import os
from ropewalk.compat.executor import Executor

with Executor(1) as executor:
    future = executor.submit(__import__("time").sleep, 1)
    if not os.fork():
        for ask in (lambda: executor.submit(abs, 1), future.result):
            try:
                ask()
            except (RuntimeError, ValueError) as error:
                print(type(error).__name__, "forked" in str(error), flush=True)
        executor.shutdown()
        raise SystemExit(0)  # by the hooks of the exit, which must not wait for what is the parent's
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    assert future.result() is None
"""
    ended = run_program(source)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    assert ended.stdout == "RuntimeError True\nPoolClosed True\n"


def test_executors_can_be_nested(executor: Executor) -> None:
    def inner() -> list[int]:
        nested = Executor(1)
        return list(nested.map(abs, [-1, -2]))  # left open: it ends with the worker

    assert executor.submit(inner).result() == [1, 2]


def test_a_worker_that_has_done_all_it_may_is_none_of_the_executors_processes_any_more() -> None:
    # It lasts for a moment beside its successor.
    with Executor(1, max_tasks_per_child=3, initializer=atexit.register, initargs=(time.sleep, 0.5)) as executor:
        assert len({executor.submit(os.getpid).result() for _ in range(4)}) == 2
        assert len(executor._processes) == 1
