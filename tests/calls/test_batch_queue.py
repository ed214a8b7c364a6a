"""When a batch goes: with nobody to wait for, with everybody there, full, or after a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.calls.batch_queue import BatchQueue


def after_a_batch_of(*callers: str, max_size: int = 3, max_wait_s: float = 0.5) -> BatchQueue[str]:
    """A queue whose last batch was of these callers."""
    queue: BatchQueue[str] = BatchQueue(max_size, max_wait_s)
    queue.add("first", callers[0], 0.0)
    for caller in callers:
        queue.add(caller, caller, 0.0)
    assert queue.done(0.0) == list(callers) and queue.done(0.0) == []
    return queue


def test_a_caller_that_is_alone_waits_for_nobody() -> None:
    # It waited for `max_wait_s` in each call.
    queue: BatchQueue[str] = BatchQueue(3, 30.0)
    for now in range(5):
        assert queue.add("a", "alone", now) == ["a"] and queue.done(now) == []


def test_those_who_came_together_last_time_wait_for_each_other_and_go_when_all_are_there() -> None:
    queue = after_a_batch_of("a", "b")
    assert queue.add("1", "a", 1.0) == [] and queue.add("2", "a", 1.1) == [] and queue.next_due == 1.5
    assert queue.add("3", "b", 1.2) == ["1", "2", "3"]


def test_a_batch_goes_when_it_is_full_or_its_first_call_has_waited_long_enough() -> None:
    queue = after_a_batch_of("a", "b", "c")
    assert queue.add("1", "a", 10.0) == [] and queue.add("2", "b", 10.1) == []
    assert queue.next_due == 10.5 and queue.due(10.4) == []
    assert queue.due(10.5) == ["1", "2"]
    assert queue.done(10.6) == []
    assert queue.add("3", "b", 11.0) == [] and queue.add("4", "b", 11.0) == []
    assert queue.add("5", "b", 11.0) == ["3", "4", "5"], "full, though a is not there"


def test_who_is_late_once_is_not_waited_for_again() -> None:
    queue = after_a_batch_of("a", "b")
    assert queue.add("1", "a", 1.0) == [] and queue.due(1.5) == ["1"] and queue.done(1.5) == []
    assert queue.add("2", "a", 2.0) == ["2"]
    assert queue.add("late", "b", 2.1) == [] and queue.done(2.2) == [], "a was there last time"
    assert queue.add("3", "a", 2.3) == ["late", "3"]


def test_who_is_gone_is_not_waited_for() -> None:
    queue = after_a_batch_of("a", "b")
    assert queue.add("1", "a", 1.0) == []
    assert queue.gone("b", 1.1) == ["1"]
    assert queue.gone("a", 1.2) == []


def test_while_a_batch_runs_others_gather_and_their_waiting_counts() -> None:
    queue: BatchQueue[int] = BatchQueue(3, 0.5)
    assert queue.add(0, "a", 0.0) == [0]
    assert [queue.add(item, f"caller {item}", 0.6) for item in range(1, 6)] == [[]] * 5
    assert queue.next_due is None and queue.due(9.0) == [] and queue.held_up == [1, 2, 3, 4, 5]
    assert queue.done(0.7) == [1, 2, 3]  # full
    assert queue.done(0.8) == [] and queue.next_due == 1.1 and queue.held_up == []  # those three may come again
    assert queue.due(1.1) == [4, 5]
    assert queue.add(6, "a", 1.2) == [] and queue.done(1.7) == [6]  # it waited while the others ran


def test_what_comes_together_goes_together() -> None:
    queue: BatchQueue[int] = BatchQueue(3, 0.5)
    assert queue.add(0, "a", 0.0, more=True) == [] and queue.add(1, "a", 0.0, more=True) == []
    assert queue.due(0.0) == [0, 1]
    queue.done(0.0)
    assert [queue.add(item, "a", 0.0, more=True) for item in (2, 3, 4)] == [[], [], [2, 3, 4]], "it is full"


def test_without_a_wait_only_those_gather_that_come_while_a_batch_runs() -> None:
    queue: BatchQueue[int] = BatchQueue(10, 0.0)
    assert queue.add(0, "a", 0.0) == [0]
    assert queue.add(1, "b", 0.0) == [] and queue.add(2, "a", 0.0) == []
    assert queue.done(0.0) == [1, 2] and queue.done(0.0) == []
    assert queue.add(3, "a", 0.0) == [3]


def test_calls_that_are_larger_fill_a_batch_sooner() -> None:
    queue = after_a_batch_of("a", "b", "c", max_size=16)
    queue.sized(8.0)
    assert queue.add("1", "a", 1.0) == [] and queue.add("2", "b", 1.0) == ["1", "2"]


def test_given_up_calls_leave_and_the_rest_is_taken_at_the_end() -> None:
    queue = after_a_batch_of("a", "b", max_size=10)
    for item in ("1", "2", "3"):
        queue.add(item, "a", 0.0)
    assert queue.discard("1") and not queue.discard("1")
    assert len(queue) == 2 and queue.take() == ["2", "3"] and queue.take() == []
    assert queue.next_due is None and queue  # true although it is empty


@given(
    events=st.lists(
        st.tuples(
            st.floats(0, 1), st.sampled_from(["add", "add", "due", "done", "discard", "gone"]), st.sampled_from("abc")
        )
    )
)
def test_every_call_goes_once_in_order_in_one_batch_at_a_time(events: list[tuple[float, str, str]]) -> None:
    queue: BatchQueue[object] = BatchQueue(4, 1.0)
    now, running = 0.0, False
    waiting: list[object] = []
    for gap, event, caller in events:
        now += gap
        batch: list[object] = []
        if event == "add":
            waiting.append(object())
            batch = queue.add(waiting[-1], caller, now)
        elif event == "due":
            batch = queue.due(now)
        elif event == "gone":
            batch = queue.gone(caller, now)
        elif event == "done" and running:
            running = False
            batch = queue.done(now)
        elif event == "discard" and waiting:
            assert queue.discard(waiting.pop())
        if batch:
            assert not running and len(batch) <= 4 and batch == waiting[: len(batch)]
            del waiting[: len(batch)]
            running = True
        assert len(queue) == len(waiting)
        assert running or len(waiting) < 4
        assert running or not waiting or queue.next_due is not None
