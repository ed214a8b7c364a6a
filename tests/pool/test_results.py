"""Results on the caller's side: calls and maps are answered once, and unpickled where they are asked for."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ropewalk.errors import NotPicklable, TaskCancelled
from ropewalk.pool.result_batch import ResultBatch
from ropewalk.pool.results import AsyncResult, MapResult
from ropewalk.processes.page import PICKLED
from ropewalk.transport.serialization import dumps
from tests.patience import PATIENCE_S
from tests.pool.batches import CountsLoads, batch_of


def at_once(call: Callable[[], None]) -> None:
    call()


def single(callback: Any = None, error_callback: Any = None, call_back: Any = at_once) -> AsyncResult[Any]:
    return AsyncResult(callback, error_callback, call_back)


def mapped(count: int, callback: Any = None, error_callback: Any = None, call_back: Any = at_once) -> MapResult[Any]:
    return MapResult(count, callback, error_callback, call_back)


# One answer


def test_a_call_is_ready_when_its_result_is_there() -> None:
    result = single()
    assert not result.ready() and "pending" in repr(result)
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    result.wait(0.001)
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=0)
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=-1)
    result.accept(0, 1, batch_of(1, "mine", 3), 1)
    assert result.ready() and result.successful() and result.get() == "mine" and "done" in repr(result)
    assert result.get(timeout=0) == "mine"


def test_a_result_cannot_be_sent_and_says_what_to_give_instead() -> None:
    """It may be an argument of the next task in Ray. The error named an epoll object in it, and nothing to do."""
    for result in (single(), mapped(2)):
        with pytest.raises(NotPicklable, match=r"stays in the process .* `result.get\(\)`.*\(args\[0\]\)"):
            dumps((result,), what="args")


def test_a_call_that_raised_raises_in_get_each_time() -> None:
    result = single()
    result.accept(0, 1, batch_of(ValueError("bad")), 0)
    assert result.ready() and not result.successful()
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            result.get()


def test_a_result_that_is_an_exception_is_a_value() -> None:
    result = single()
    result.accept(0, 1, ResultBatch.of([ValueError("returned, not raised")]), 0)
    assert isinstance(result.get(), ValueError)


def test_an_abandoned_call_raises_why_and_an_answered_one_stays_answered() -> None:
    result = single()
    result.abandon(TaskCancelled("terminated"))
    result.abandon(TaskCancelled("again"))
    with pytest.raises(TaskCancelled, match="terminated"):
        result.get()
    result = single()
    result.accept(0, 1, batch_of(1), 0)
    result.abandon(TaskCancelled("too late"))
    assert result.get() == 1


def test_all_who_wait_are_woken(executor: ThreadPoolExecutor) -> None:
    result = single()
    waiting = [executor.submit(result.get, PATIENCE_S) for _ in range(6)]
    result.accept(0, 1, batch_of("there"), 0)
    assert [future.result() for future in waiting] == ["there"] * 6


def test_values_are_unpickled_in_the_thread_that_asks() -> None:
    CountsLoads.threads.clear()
    result = single()
    loop = threading.Thread(target=lambda: result.accept(0, 1, batch_of(CountsLoads()), 0))
    loop.start()
    loop.join()
    assert result.ready() and CountsLoads.threads == []
    result.get()
    assert CountsLoads.threads == [threading.current_thread()]


def test_callbacks_have_run_when_the_result_is_released() -> None:
    told: list[Any] = []
    waiting: list[Callable[[], None]] = []
    result = single(told.append, None, waiting.append)
    result.accept(0, 1, batch_of("value"), 0)
    assert not result.ready() and told == []
    waiting.pop()()
    assert result.ready() and told == ["value"] == [result.get()]


@pytest.mark.parametrize("make", [single, lambda *callbacks: mapped(1, *callbacks)])
def test_of_two_callbacks_the_right_one_is_called(make: Callable[..., AsyncResult[Any]]) -> None:
    values: list[Any] = []
    errors: list[BaseException] = []
    make(values.append, errors.append).accept(0, 1, batch_of(5), 0)
    assert values in ([5], [[5]]) and errors == []
    make(values.append, errors.append).accept(0, 1, batch_of(OSError("disk")), 0)
    assert len(values) == 1 and [type(error) for error in errors] == [OSError]


def test_a_callback_that_raises_does_not_keep_the_result() -> None:
    def raises(_value: object) -> None:
        raise ZeroDivisionError

    result = single(raises)
    with pytest.raises(ZeroDivisionError):
        result.accept(0, 1, batch_of(1), 0)
    assert result.get(timeout=0) == 1


# Awaiting


def test_results_can_be_awaited() -> None:
    early, late, failing = single(), mapped(2), single()
    early.accept(0, 1, batch_of("early"), 0)

    def answer() -> None:
        time.sleep(0.01)
        late.accept(0, 2, batch_of("a", "b"), 0)
        failing.accept(0, 1, batch_of(ValueError("bad")), 0)

    async def main() -> None:
        thread = threading.Thread(target=answer)
        thread.start()
        assert await early == "early"
        assert await asyncio.gather(_awaited(late), _awaited(late)) == [["a", "b"], ["a", "b"]]
        with pytest.raises(ValueError, match="bad"):
            await failing
        thread.join()

    asyncio.run(main())


async def _awaited(result: AsyncResult[Any]) -> Any:
    return await result


def test_an_awaiting_task_may_be_cancelled_and_its_loop_may_be_gone() -> None:
    result = single()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(result), 0.01)

    asyncio.run(main())
    result.accept(0, 1, batch_of(1), 0)  # its hook finds the event loop closed
    assert result.get() == 1


# Maps


def test_a_map_is_a_list_in_the_order_of_its_arguments_however_they_come() -> None:
    result = mapped(6)
    result.accept(4, 2, batch_of("x", "e", "f"), 1)
    result.accept(0, 1, batch_of("a"), 0)
    assert not result.ready()
    result.accept(1, 3, batch_of("b", "c", "d"), 0)
    assert result.get() == list("abcdef") and result.successful()


def test_an_empty_map_is_there_at_once() -> None:
    told: list[Any] = []
    result = mapped(0, told.append)
    assert result.ready() and result.get(timeout=0) == [] and told == [[]]


def test_of_several_errors_the_one_of_the_lowest_index_is_shown_when_all_have_ended() -> None:
    result = mapped(4)
    result.accept(2, 2, batch_of(0, ValueError("late"), ValueError("second")), 1)
    assert not result.ready()
    result.accept(1, 1, batch_of(ValueError("not mine"), ValueError("first")), 1)
    result.accept(0, 1, batch_of(1), 0)
    assert not result.successful()
    with pytest.raises(ValueError, match="first"):
        result.get()


def test_an_error_is_found_wherever_it_lies_in_its_batch() -> None:
    result = mapped(4)
    result.accept(3, 1, batch_of(ValueError("fourth")), 0)
    result.accept(0, 3, batch_of("others", "others", 1, 2, 3), 2)
    with pytest.raises(ValueError, match="fourth"):
        result.get()


def test_an_error_beside_the_map_in_its_batch_is_not_its_own() -> None:
    result = mapped(1)
    result.accept(0, 1, batch_of(ValueError("another job's"), "mine", ValueError("another job's")), 1)
    assert result.get() == ["mine"]


def test_an_abandoned_map_raises_why_and_takes_nothing_more() -> None:
    result = mapped(2)
    result.accept(0, 1, batch_of(1), 0)
    result.abandon(TaskCancelled("terminated"))
    result.accept(1, 1, batch_of(2), 0)
    with pytest.raises(TaskCancelled):
        result.get()
    result = mapped(1)
    result.accept(0, 1, batch_of("kept"), 0)
    result.abandon(TaskCancelled("too late"))
    assert result.get() == ["kept"]


def test_a_notebook_shows_how_far_a_map_has_come_without_unpickling_anything() -> None:
    result: MapResult[Any] = MapResult(3, None, None, lambda call: call())
    result.accept(0, 2, ResultBatch.of([1, 2]), 0)
    assert "running" in result._repr_html_() and "2 of 3 tasks" in result._repr_html_()
    CountsLoads.threads.clear()
    result.accept(2, 1, ResultBatch([pickle.dumps(CountsLoads())], {0: PICKLED}, (), "w"), 0)
    assert "done" in result._repr_html_() and not CountsLoads.threads


def test_a_notebook_shows_why_a_call_failed_once_it_is_known() -> None:
    result: AsyncResult[Any] = AsyncResult(None, None, lambda call: call())
    result.abandon(ValueError("<script>"))
    assert not result.successful()
    shown = result._repr_html_()
    assert "failed" in shown and "ValueError" in shown and "<script>" not in shown
