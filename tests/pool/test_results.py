"""Results on the caller's side: what arrives is filed as bytes, and unpickled once, where it is asked for."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any

import pytest

from ropewalk.errors import RemoteError, TaskCancelled
from ropewalk.pool.messages import ENCODE
from ropewalk.pool.results import AsyncResult, IMapIterator, ImapJob, MapResult, RaisedEntry, ResultBatch
from ropewalk.processes.page import ERROR, PICKLED
from ropewalk.transport.failures import Failure, rebuild_error


class TwoArguments(Exception):
    """Cannot be rebuilt: its arguments are not those of __init__."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class CountsLoads:
    """Tells how often, and in which threads, it was unpickled."""

    threads: list[threading.Thread] = []  # noqa: RUF012

    def __setstate__(self, state: object) -> None:
        CountsLoads.threads.append(threading.current_thread())
        time.sleep(0.01)  # so that another thread that asks as well would be seen

    def __getstate__(self) -> object:
        return {"some": "state"}


class RaisesWhenLoaded:
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def failure_of(error: Exception, text: str = "Traceback: there\n") -> Failure:
    return Failure(f"{type(error).__module__}.{type(error).__qualname__}", str(error), text, pickle.dumps(error), [])


def batch_of(*values: Any, where: str = "worker 1 on host a") -> ResultBatch:
    """A batch as a worker sends it: plain values, pickles and failures."""
    filed: list[Any] = []
    nested: dict[int, int] = {}
    for at, value in enumerate(values):
        if isinstance(value, Exception | Failure):
            filed.append(ENCODE(value if isinstance(value, Failure) else failure_of(value)))
            nested[at] = ERROR
        elif type(value) in (int, float, bool, type(None)):
            filed.append(value)
        else:
            filed.append(pickle.dumps(value, 5))
            nested[at] = PICKLED
    return ResultBatch(filed, nested, (), where)


def at_once(call: Callable[[], None]) -> None:
    call()


def single(callback: Any = None, error_callback: Any = None, call_back: Any = at_once) -> AsyncResult[Any]:
    return AsyncResult(callback, error_callback, call_back)


def mapped(count: int, callback: Any = None, error_callback: Any = None, call_back: Any = at_once) -> MapResult[Any]:
    return MapResult(count, callback, error_callback, call_back)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


# Batches


def test_a_batch_gives_values_and_errors_in_their_places() -> None:
    batch = batch_of(1, None, "text", ValueError("bad"), 2.5, True)
    entries = batch.entries()
    assert entries[:3] == [1, None, "text"] and entries[4:] == [2.5, True]
    assert type(entries[3]) is RaisedEntry and isinstance(entries[3].error, ValueError)
    assert not batch.all_values
    assert batch.entries() is entries


def test_a_batch_without_errors_knows_so_once_unpickled() -> None:
    batch = batch_of(1, "two")
    batch.entries()
    assert batch.all_values


def test_buffers_belong_to_the_last_entry() -> None:
    data = bytearray(b"x" * 10_000)
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(pickle.PickleBuffer(data), 5, buffer_callback=buffers.append)
    small = pickle.dumps("small", 5)
    batch = ResultBatch([1, small, b""], {1: PICKLED, 2: PICKLED}, [pickled, bytearray(data)], "")
    assert batch.share_bytes > 3000
    one, two, three = batch.entries()
    assert (one, two, bytes(three)) == (1, "small", bytes(data))


def test_a_result_that_cannot_be_unpickled_here_is_an_error_of_its_own_place() -> None:
    first, second, third = batch_of(1, RaisesWhenLoaded(), 3).entries()
    assert (first, third) == (1, 3)
    assert isinstance(second.error, ValueError)
    assert "while a result from worker 1 on host a was unpickled" in second.error.__notes__[0]


def test_a_batch_is_unpickled_once_whoever_asks_first(executor: ThreadPoolExecutor) -> None:
    CountsLoads.threads.clear()
    batch = batch_of(CountsLoads(), 7)
    start = threading.Barrier(8)

    def ask() -> list[Any]:
        start.wait()
        return batch.entries()

    answers = [future.result() for future in [executor.submit(ask) for _ in range(8)]]
    assert len(CountsLoads.threads) == 1
    assert all(answer is answers[0] for answer in answers)


def test_an_exception_comes_home_as_itself_with_the_remote_traceback_as_its_cause() -> None:
    error = rebuild_error(failure_of(KeyError("name"), "Traceback: over there\n"), "worker 3 on host b")
    assert type(error) is KeyError and error.args == ("name",)
    assert isinstance(error.__cause__, RemoteTraceback) and "over there" in str(error.__cause__)
    assert error.__notes__ == ["It was raised in worker 3 on host b; the remote traceback is above."]


@pytest.mark.parametrize(
    "pickled", [pickle.dumps(TwoArguments(1, 2)), b"no pickle", pickle.dumps("not an exception"), b""]
)
def test_an_exception_that_cannot_be_rebuilt_still_says_all_it_said(pickled: bytes) -> None:
    error = rebuild_error(Failure("lib.Odd", "1 and 2", "Traceback: there\n", pickled, []), "")
    assert isinstance(error, RemoteError) and error.type_name == "lib.Odd"
    assert "lib.Odd: 1 and 2" in str(error) and "there" in str(error.__cause__)


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
    waiting = [executor.submit(result.get, 10) for _ in range(6)]
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


# Iterating


def imap(
    num_workers: int = 1, items: int = 100, num_bytes: int = 1 << 20, *, ordered: bool = True
) -> tuple[ImapJob, IMapIterator[Any]]:
    job = ImapJob(num_workers, items, num_bytes, ordered=ordered)
    return job, IMapIterator(job, lambda: None)


def send_all(job: ImapJob, most: int = 10_000) -> int:
    """Send arguments as long as there is room; returns how many."""
    for number in range(most):
        if not job._has_room():
            return number
        assert job.wait_for_room()
        job.sent(1)
    return most


def wait_for_room(job: ImapJob, executor: ThreadPoolExecutor) -> Future[bool]:
    """A feeder that waits for room, being sure that it waits."""
    future = executor.submit(job.wait_for_room)
    time.sleep(0.01)
    assert not future.done()
    return future


@pytest.mark.parametrize("ordered", [True, False])
def test_results_are_iterated_in_order_or_as_they_come(ordered: bool) -> None:
    job, iterator = imap(ordered=ordered)
    assert [job.sent(1), job.sent(2), job.sent(1)] == [0, 1, 3]
    job.end(None)
    order = [(3, ["d"]), (1, ["b", "c"]), (0, ["a"])]
    for first, values in order:
        job.accept(first, len(values), batch_of("other", *values), 1)
    assert "".join(iterator) == ("abcd" if ordered else "dbca")
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_error_is_raised_in_its_place_and_the_next_can_be_asked_for() -> None:
    job, iterator = imap()
    job.sent(3)
    job.end(None)
    job.accept(0, 3, batch_of(1, ValueError("second"), 3), 0)
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="second"):
        next(iterator)
    assert list(iterator) == [3]


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_of_the_iterable_comes_after_the_results_of_what_was_sent(ordered: bool) -> None:
    job, iterator = imap(ordered=ordered)
    job.sent(2)
    job.end(OSError("the file ended"))
    job.end(None)  # an end that was said stays
    job.accept(0, 2, batch_of("a", "b"), 0)
    assert [next(iterator), next(iterator)] == ["a", "b"]
    with pytest.raises(OSError, match="the file ended"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_chunk_that_could_not_be_sent_is_not_waited_for() -> None:
    job, iterator = imap()
    job.sent(2)
    job.sent(3)
    job.sent(-3)
    job.end(TypeError("cannot be pickled"))
    job.accept(0, 2, batch_of("a", "b"), 0)
    assert [iterator.next(1), iterator.next(1)] == ["a", "b"]
    with pytest.raises(TypeError):
        iterator.next(1)


def test_a_result_that_is_late_times_out_and_is_not_lost() -> None:
    job, iterator = imap()
    job.sent(2)
    job.accept(1, 1, batch_of("second"), 0)
    for timeout in (0, 0.01):
        with pytest.raises(multiprocessing.TimeoutError):
            iterator.next(timeout)
    job.accept(0, 1, batch_of("first"), 0)
    assert [iterator.next(0), iterator.next(0)] == ["first", "second"]


def test_a_consumer_that_waits_is_woken_by_a_result_and_by_the_end(executor: ThreadPoolExecutor) -> None:
    job, iterator = imap()
    job.sent(1)
    future = executor.submit(iterator.next, 10)
    job.accept(0, 1, batch_of("there"), 0)
    assert future.result() == "there"
    future = executor.submit(lambda: next(iterator, "end"))
    job.end(None)
    assert future.result(120) == "end"


def test_before_the_first_result_only_a_few_are_under_way() -> None:
    job, _ = imap(num_workers=2)
    assert send_all(job) == 8
    job.accept(0, 1, batch_of("x"), 0)
    assert send_all(job) == 92  # up to the window, now that their size is known


def test_the_window_counts_items_that_were_not_consumed(executor: ThreadPoolExecutor) -> None:
    job, iterator = imap(items=10)
    send_all(job)
    job.accept(0, 1, batch_of(0), 0)
    send_all(job)
    assert job._num_sent == 10
    job.accept(1, 9, batch_of(*range(1, 10)), 0)
    waiting = wait_for_room(job, executor)  # all have arrived; none is consumed
    assert next(iterator) == 0
    assert waiting.result(120)
    assert send_all(job) == 1


def test_the_window_counts_bytes_that_wait_and_those_that_are_expected(executor: ThreadPoolExecutor) -> None:
    job, iterator = imap(items=1000, num_bytes=100_000)
    text = "x" * 10_000
    job.sent(1)
    job.accept(0, 1, batch_of(text), 0)
    sent = 1 + send_all(job)
    assert 9 <= sent <= 11
    for first in range(1, sent):
        job.accept(first, 1, batch_of(text), 0)
    waiting = wait_for_room(job, executor)
    for _ in range(3):
        assert len(next(iterator)) == 10_000
    assert waiting.result(120)
    assert 2 <= send_all(job) <= 4


def test_a_result_larger_than_the_window_does_not_stop_everything() -> None:
    job, iterator = imap(num_bytes=100)
    job.sent(1)
    job.accept(0, 1, batch_of("x" * 10_000), 0)
    assert send_all(job) == 0
    next(iterator)
    assert send_all(job) == 1  # one at a time


def test_lifting_the_window_reads_on_and_keeps_every_result(executor: ThreadPoolExecutor) -> None:
    job, iterator = imap(items=2)
    send_all(job)
    waiting = wait_for_room(job, executor)
    job.lift_window()
    assert waiting.result(120)
    for _ in range(50):
        assert job.wait_for_room()
        job.sent(1)
    job.end(None)
    job.accept(0, 52, batch_of(*range(52)), 0)
    assert list(iterator) == list(range(52))


def test_a_dropped_iterator_wants_no_more(executor: ThreadPoolExecutor) -> None:
    told: list[str] = []
    job = ImapJob(1, 1, 1 << 20, ordered=True)
    iterator: IMapIterator[Any] = IMapIterator(job, lambda: told.append("dropped") or job.drop())
    job.sent(1)
    waiting = wait_for_room(job, executor)
    del iterator
    assert told == ["dropped"] and waiting.result(120) is False and job.dropped
    job.lift_window()
    assert not job.wait_for_room()


@pytest.mark.parametrize("ordered", [True, False])
def test_an_abandoned_iteration_raises_why_once_and_ends(ordered: bool) -> None:
    job, iterator = imap(ordered=ordered)
    job.sent(3)
    job.accept(0, 1, batch_of("a"), 0)
    assert next(iterator) == "a"
    job.accept(1, 1, batch_of("b"), 0)
    job.abandon(TaskCancelled("terminated"))
    with pytest.raises(TaskCancelled):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert not job.wait_for_room()


def test_an_iteration_whose_results_are_all_here_is_not_abandoned() -> None:
    job, iterator = imap()
    job.sent(2)
    job.end(None)
    job.accept(0, 2, batch_of("a", "b"), 0)
    job.abandon(TaskCancelled("terminated"))
    assert list(iterator) == ["a", "b"]


@pytest.mark.parametrize("ordered", [True, False])
def test_feeder_dispatcher_and_consumers_in_threads_of_their_own(ordered: bool, executor: ThreadPoolExecutor) -> None:
    job, iterator = imap(num_workers=3, items=17, num_bytes=1500, ordered=ordered)
    total, most = 2000, 0
    lock = threading.Lock()
    under_way: list[int] = []
    consumed: list[int] = []

    def feed() -> None:
        nonlocal most
        while job._num_sent < total and job.wait_for_room():
            with lock:
                under_way.append(job.sent(1))
            most = max(most, job._num_sent - job._num_consumed)
        job.end(None)

    def answer() -> None:
        draw = random.Random(1)
        for _ in range(total):
            while not under_way:
                time.sleep(0)
            with lock:
                index = under_way.pop(draw.randrange(len(under_way)))
            job.accept(index, 1, batch_of(index), 0)

    def consume() -> None:
        for index in iterator:
            consumed.append(index)

    futures = [executor.submit(call) for call in (feed, answer, *[consume] * (1 if ordered else 3))]
    for future in futures:
        future.result(120)
    assert most <= 17
    assert (consumed if ordered else sorted(consumed)) == list(range(total))


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
