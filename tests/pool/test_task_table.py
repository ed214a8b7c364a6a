"""The task table: by lists for every rule, and by hypothesis against a simple model of pool and workers."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.pool.chunking import Pace
from ropewalk.pool.task_table import Finished, GivenUp, ItemSpan, SpanAssignment, TaskTable, TaskUnit

MS = 1_000_000  # nanoseconds


def unit(
    count: int, *, job: str = "job", first: int = 0, code: str = "f", size_bytes: int = 0, patient: bool = False
) -> TaskUnit:
    return TaskUnit(job=job, first_index=first, count=count, code=code, size_bytes=size_bytes, patient=patient)


def table_with(*units: TaskUnit, workers: Sequence[str] = ("a",), **options: object) -> TaskTable:
    table = TaskTable(**options)  # type: ignore[arg-type]
    for id in workers:
        table.worker_up(id, now=0.0)
    table.submit(units)
    return table


def assign(table: TaskTable, now: float = 0.0) -> list[tuple[str, int, int, int]]:
    """(worker, seq, start, stop) of what is given out."""
    return [(worker, seq, span.start, span.stop) for worker, seq, span in table.assign(now)]


def held_by_workers(way_s: float, task_ms: float) -> int:
    """How many tasks a worker holds that has just ended one."""
    table = TaskTable()
    table.worker_up("a", 0.0, way_s=way_s)
    table.submit([unit(1) for _ in range(1000)])
    table.assign(0.0)
    table.done("a", 0, 1, int(task_ms * MS), 0.1)
    table.assign(0.1)
    table.assign(0.1)
    return table.num_items("a")


def counts(table: TaskTable) -> tuple[int, int, int, int]:
    """(pending, running, done, failed)."""
    return table.num_pending, table.num_running, table.num_done, table.num_failed


# Giving out


def test_a_unit_waits_for_a_worker_of_a_host_that_it_does_not_avoid() -> None:
    table = TaskTable()
    table.worker_up("a", 0.0, host="A")
    choosy, other = TaskUnit("job", 0, 1, "f", avoids={"A"}), unit(1)
    table.submit([choosy, other])
    assert assign(table) == [("a", 0, 0, 1)]
    assert table.current_task("a") == (other, 0)
    table.done("a", 0, 1, 0, 0.0)
    assert assign(table) == []
    assert (table.num_pending, table.num_parallel) == (1, 1)
    table.worker_up("b", 0.0, host="B")
    assert assign(table) == [("b", 0, 0, 1)]
    table.taken_back("b", 0, 1, 0.0)
    table.drain("b")
    assert assign(table) == []
    assert table.cancel("job") == []
    assert (table.num_pending, len(table.dropped())) == (0, 1)


def test_each_idle_worker_gets_one_unit_and_the_rest_waits() -> None:
    units = [unit(2), unit(3), unit(1)]
    table = table_with(*units, workers=["a", "b"])
    assert {(worker, seq, span) for worker, seq, span in table.assign(0.0)} == {
        ("b", 0, ItemSpan(units[0], 0, 2)),
        ("a", 0, ItemSpan(units[1], 0, 3)),
    }
    assert table.assign(0.0) == []
    assert counts(table) == (1, 5, 0, 0)
    assert not table.idle


def test_a_worker_that_joins_late_gets_what_waits() -> None:
    table = table_with(unit(1), unit(1), workers=["a"])
    assign(table)
    table.worker_up("b", now=1.0)
    assert assign(table) == [("b", 0, 0, 1)]


def test_nothing_is_sent_ahead_before_the_first_task_has_told_how_long_it_takes() -> None:
    table = table_with(*(unit(1) for _ in range(9)))
    assert assign(table) == [("a", 0, 0, 1)]
    table.done("a", 0, 1, 20 * MS, now=0.1)
    assert assign(table) == [("a", 1, 0, 1)]  # long: one at a time


def test_short_tasks_are_sent_ahead_up_to_ten_milliseconds() -> None:
    table = table_with(*(unit(1) for _ in range(100)))
    assign(table)
    table.done("a", 0, 1, 1 * MS, now=0.1)
    assert len(assign(table)) == 10
    assert assign(table) == []
    table.done("a", 1, 4, 4 * MS, now=0.2)
    assert assign(table) == []  # six milliseconds of work are left: not hungry yet
    table.done("a", 5, 1, 1 * MS, now=0.2)
    assert assign(table) == []  # five are enough
    table.done("a", 6, 1, 1 * MS, now=0.2)
    assert len(assign(table)) == 6
    assert table.num_items("a") == 10


def test_tiny_tasks_are_shared_among_the_workers_and_batches_are_bounded() -> None:
    table = table_with(*(unit(1) for _ in range(40)), workers=["a", "b"])
    for id, *_ in assign(table):
        table.done(id, 0, 1, 1000, now=0.1)
    per_worker = Counter(worker for worker, *_ in assign(table))
    # One each for being idle; then nobody takes more at once than its fair share: 36 // 4, and of those left 27 // 4.
    assert sorted(per_worker.values()) == [1 + 6, 1 + 9]

    table = table_with(*(unit(1) for _ in range(5000)))
    assign(table)
    table.done("a", 0, 1, 1000, now=0.1)
    assert len(assign(table)) <= table.pace.most_items + 1


def test_large_arguments_do_not_travel_in_batches() -> None:
    table = table_with(*(unit(1, size_bytes=20 << 20) for _ in range(10)))
    assign(table)
    table.done("a", 0, 1, 1000, now=0.1)
    assert len(assign(table)) == 2  # one for an idle worker, one more within 32 MiB

    table = table_with(*(unit(1, size_bytes=16 << 20) for _ in range(10)))
    assign(table)
    table.done("a", 0, 1, 1000, now=0.1)
    assert len(assign(table)) == 3  # two more are 32 MiB


def test_a_large_unit_of_short_tasks_is_not_sent_ahead_of_its_time() -> None:
    table = table_with(unit(1), *(unit(12) for _ in range(20)))
    table.pace.observe("f", 1 * MS)
    assert assign(table) == [("a", 0, 0, 1)]  # 12 ms more would be beyond ten


def test_what_is_sent_ahead_goes_to_the_worker_that_ends_soonest() -> None:
    table = table_with(unit(1), unit(4), workers=["a", "b"])
    table.pace.observe("f", 1 * MS)
    assert assign(table) == [("b", 0, 0, 1), ("a", 0, 0, 4)]
    table.submit([unit(1)])
    assert assign(table) == [("b", 1, 0, 1)]


def test_the_next_task_that_waits_says_whether_workers_are_sent_some_ahead() -> None:
    table = table_with(unit(1), unit(1), unit(1, code="g"))
    table.pace.observe("f", 1 * MS)
    assert len(assign(table)) == 2, "f is known, whatever g is"
    table = table_with(unit(1), unit(1, code="g"), unit(1))
    table.pace.observe("f", 1 * MS)
    assert len(assign(table)) == 1, "f does not overtake g"


def test_what_a_worker_holds_is_expected_to_last_as_its_first_task() -> None:
    table = table_with(unit(1), unit(1), unit(1, code="g"), *(unit(1) for _ in range(20)))
    table.pace.observe("f", 1 * MS)
    table.pace.observe("g", 5 * MS)
    table.most_ahead = 3
    assert len(assign(table)) == 3
    table.done("a", 0, 1, 1 * MS, now=0.1)
    assert assign(table) == [("a", 3, 0, 1)], "two tasks of one millisecond"


def test_a_code_that_was_never_seen_is_not_sent_ahead() -> None:
    table = table_with(unit(1), unit(1, code="g"), unit(1, code="g"))
    assign(table)
    table.done("a", 0, 1, 1000, now=0.1)
    assert assign(table) == [("a", 1, 0, 1)]  # one g, because the worker is idle


def test_a_worker_with_a_limit_of_units_is_exhausted_when_it_has_had_them() -> None:
    table = TaskTable()
    table.worker_up("a", 0.0, units_left=2)
    table.submit([unit(3), unit(1), unit(1)])
    assign(table)
    assert not table.exhausted("a")
    table.done("a", 0, 3, 3000, now=0.1)
    assert assign(table) == [("a", 3, 0, 1)]
    assert not table.exhausted("a")
    table.done("a", 3, 1, 1000, now=0.1)
    assert table.exhausted("a") and assign(table) == []
    assert table.num_pending == 1


def test_a_worker_is_used_up_when_it_was_given_all_its_units_whether_or_not_it_has_done_them() -> None:
    table = TaskTable()
    table.worker_up("a", 0.0, units_left=2)
    table.worker_up("b", 0.0)
    table.submit([unit(1) for _ in range(3)])
    assert not table.is_used_up("a")
    assign(table)
    assert not table.is_used_up("a")
    table.done("a", 0, 1, 50 * MS, now=0.1)
    assign(table)
    assert table.is_used_up("a") and not table.exhausted("a")
    assert not table.is_used_up("b") and not table.is_used_up("nobody")


def test_the_last_unit_of_a_worker_is_sent_ahead_like_the_others() -> None:
    table = TaskTable()
    table.worker_up("a", 0.0, units_left=2)
    table.submit([unit(1) for _ in range(9)])
    table.pace.observe("f", 1 * MS)
    assert assign(table) == [("a", 0, 0, 1), ("a", 1, 0, 1)]


def test_a_worker_is_in_its_item_since_it_was_heard_last() -> None:
    table = table_with(unit(1), unit(1))
    table.worker_up("b", now=3.0)
    table.assign(4.0)
    assert (table.since("b"), table.since("nobody")) == (4.0, 0.0)
    table.done("a", 0, 1, 50 * MS, now=5.0)
    assert table.since("a") == 5.0


def test_a_draining_worker_gets_nothing_more() -> None:
    table = table_with(*(unit(1) for _ in range(10)))
    assign(table)
    table.drain("a")
    assert not table.exhausted("a")
    table.done("a", 0, 1, 1000, now=0.1)
    assert assign(table) == [] and table.exhausted("a")
    table.drain("nobody")  # ignored


class CountingPace(Pace):
    """Counts how many workers are looked at to see whether they want more."""

    def __init__(self) -> None:
        super().__init__()
        self.num_looks = 0

    def too_little_ns(self, pace_ns: float, way_ns: float) -> float:
        self.num_looks += 1
        return super().too_little_ns(pace_ns, way_ns)


def test_a_result_makes_the_table_look_at_one_worker_and_not_at_all_of_them() -> None:
    # With 512 workers, looking at all of them for every result took four fifths of the launcher's time.
    workers = [f"w{number}" for number in range(500)]
    table = table_with(*(unit(4) for _ in range(5000)), workers=workers)
    table.pace = pace = CountingPace()
    first = assign(table)
    assert len(first) == 500
    table.done(first[0][0], 0, 1, 20 * MS, now=0.1)
    assign(table)
    before = pace.num_looks
    for worker, *_ in first[1:]:
        table.done(worker, 0, 1, 20 * MS, now=0.1)
        assert assign(table) == []
    assert pace.num_looks - before <= 2 * 500


def test_a_worker_that_joins_short_tasks_gets_a_batch_of_them_at_once() -> None:
    table = table_with(*(unit(1) for _ in range(100)))
    assign(table)
    table.done("a", 0, 1, 1 * MS, now=0.1)
    assign(table)
    table.worker_up("b", now=0.2)
    assert [worker for worker, *_ in assign(table)] == ["b"] * 10


def test_what_is_submitted_makes_the_share_larger_of_workers_that_had_theirs() -> None:
    table = table_with(*(unit(1) for _ in range(8)), unit(5), workers=["a", "b"])
    table.pace.observe("f", 1 * MS)
    while assign(table):
        pass
    assert table.num_pending == 5, "the unit is more than a fair share"
    table.submit([unit(1) for _ in range(80)])
    assert {worker for worker, *_ in assign(table)} == {"a", "b"}, "and no result has come"


def test_a_unit_that_avoids_a_host_is_not_given_to_its_worker_which_is_idle_too() -> None:
    table = TaskTable()
    for host in "BA":
        table.worker_up(host.lower(), 0.0, host=host)
    choosy = TaskUnit("job", 0, 1, "f", avoids={"A"})
    table.submit([choosy])
    assert assign(table) == [("b", 0, 0, 1)]
    assert (table.num_busy, table.num_parallel) == (1, 1)
    table.submit([choosy])
    assert (assign(table), table.num_busy, table.num_parallel) == ([], 1, 2), "one at work, one that waits"


# Where things are


def test_an_item_is_found_by_its_number_and_the_oldest_is_the_one_a_worker_is_in() -> None:
    first, second = unit(3), unit(2)
    table = table_with(first, second, unit(20))
    table.pace.observe("f", 1000)
    assert len(assign(table)) == 2
    table.done("a", 0, 1, 0, now=0.1)
    found = [table.locate("a", seq) for seq in range(6)]
    assert found == [None, (first, 1), (first, 2), (second, 0), (second, 1), None]
    assert table.current_task("a") == (first, 1)


# Results


def test_when_a_task_of_a_code_ended_last_is_noted() -> None:
    table = table_with(unit(1))
    assign(table)
    table.done("a", 0, 1, 0, now=0.1)
    assert table.pace.last_end("f") == 0.1


def test_results_of_a_later_unit_are_no_results_of_the_one_before_it() -> None:
    first, second = unit(3), unit(3)
    table = table_with(first, second, unit(20))
    table.pace.observe("f", 1000)
    assert len(assign(table)) == 2
    assert table.done("a", 3, 3, 0, now=0.1) == [Finished(ItemSpan(second, 0, 3), 0)]
    assert table.done("a", 0, 3, 0, now=0.1) == [Finished(ItemSpan(first, 0, 3), 0)]


def test_what_was_observed_of_a_message_is_the_pace_of_its_last_task() -> None:
    table = table_with(unit(1), unit(1, code="g"))
    for code in ("f", "g"):
        table.pace.observe(code, 1000)
    assert len(assign(table)) == 2
    for code in ("f", "g"):
        table.pace.forget(code)
    table.done("a", 0, 2, 4000, now=0.1)
    assert table.pace.expected_ns("g") == 2000 and table.pace.expected_ns("f") is None


def test_results_are_accepted_once_whatever_comes_twice_late_or_from_others() -> None:
    work = unit(4)
    table = table_with(work, workers=["a"])
    assign(table)
    assert table.done("a", 0, 2, 0, now=0.1) == [Finished(ItemSpan(work, 0, 2), 0)]
    assert table.done("a", 0, 2, 0, now=0.1) == []
    assert table.done("a", 1, 2, 0, now=0.1) == [Finished(ItemSpan(work, 2, 3), 1)]
    assert table.done("b", 3, 1, 0, now=0.1) == []
    assert table.done("a", 3, 9, 0, now=0.1) == [Finished(ItemSpan(work, 3, 4), 0)]
    assert counts(table) == (0, 0, 4, 0) and table.idle


def test_one_message_may_span_units_and_skip_what_the_worker_lost() -> None:
    first, second = unit(3), unit(3, code="g")
    table = table_with(first, second, unit(10))
    table.pace.observe("f", 1000)
    table.pace.observe("g", 1000)
    assert assign(table) == [("a", 0, 0, 3), ("a", 3, 0, 3)]
    table.taken_back("a", 2, 4, now=0.1)  # the last of one, the first of the other
    assert table.done("a", 0, 6, 6000, now=0.2) == [
        Finished(ItemSpan(first, 0, 2), 0),
        Finished(ItemSpan(second, 1, 3), 4),
    ]
    # What was taken back comes first, in its old order.
    assert [span for _, _, span in table.assign(0.3)][:2] == [ItemSpan(first, 2, 3), ItemSpan(second, 0, 1)]


def test_a_result_of_a_worker_that_died_is_not_accepted() -> None:
    table = table_with(unit(1), workers=["a", "b"])
    ((worker, *_),) = assign(table)
    table.died(worker, 0, "killed")
    assert table.done(worker, 0, 1, 0, now=0.1) == []
    other = "a" if worker == "b" else "b"
    assert assign(table) == [(other, 0, 0, 1)]
    assert len(table.done(other, 0, 1, 0, now=0.2)) == 1


# Taking back


def test_what_is_taken_back_goes_to_the_front_in_its_order() -> None:
    table = table_with(unit(4), unit(2))
    assign(table)
    table.taken_back("a", 1, 4, now=0.1)
    assert counts(table) == (5, 1, 0, 0)
    table.worker_up("b", 0.1)
    assert assign(table) == [("b", 0, 1, 4)]
    table.taken_back("a", 1, 4, now=0.1)  # it says so again: they are somebody else's
    table.taken_back("gone", 0, 9, now=0.1)
    assert counts(table) == (2, 4, 0, 0)


def test_a_worker_from_which_all_was_taken_is_idle() -> None:
    table = table_with(unit(2))
    assign(table)
    table.taken_back("a", 0, 2, now=0.1)
    assert assign(table) == [("a", 2, 0, 2)]  # numbers count on


@pytest.mark.parametrize("sizes", [(10, 4), (4, 10)])
def test_tasks_are_recalled_from_the_most_loaded_when_others_idle(sizes: tuple[int, int]) -> None:
    table = table_with(*map(unit, sizes), workers=["a", "b"])
    table.pace.observe("f", 2 * MS)
    given = {stop: worker for worker, _, _, stop in assign(table)}
    long, short = given[10], given[4]
    assert table.recallable(now=1.0) == []  # nobody idles
    table.worker_up("c", 0.0)
    assert table.recallable(now=1.0) == [(long, 10)]
    assert table.recallable(now=1.0) == [(short, 4)]  # the first is under way
    assert table.recallable(now=1.0) == []
    table.taken_back(long, 5, 10, now=1.1)
    assert table.recallable(now=1.1) == []  # there is something for the idle one now
    assert assign(table) == [("c", 0, 5, 10)]


def test_a_worker_is_asked_again_when_it_has_answered_a_recall() -> None:
    table = table_with(unit(10), workers=["a", "b"])
    table.pace.observe("f", 2 * MS)
    ((busy, *_),) = assign(table)
    assert table.recallable(now=1.0) == [(busy, 10)]
    table.taken_back(busy, 10, 10, now=1.0)  # there was nothing to take just then
    assert table.recallable(now=1.0) == [(busy, 10)]
    table.done(busy, 0, 1, 0, now=1.0)
    assert table.recallable(now=1.0) == [(busy, 10)]


def test_a_worker_that_may_get_nothing_is_not_idle() -> None:
    table = TaskTable()
    table.worker_up("a", 0.0, units_left=1)
    table.worker_up("b", 0.0, units_left=1)
    table.pace.observe("f", 2 * MS)
    table.submit([unit(1), unit(4)])
    (short, *_), _ = assign(table)
    table.done(short, 0, 1, 0, now=1.0)
    assert table.exhausted(short) and table.recallable(now=1.0) == []


def test_a_single_task_and_very_short_work_are_not_recalled() -> None:
    table = table_with(unit(1), workers=["a", "b"])
    assign(table)
    assert table.recallable(now=9.0) == []
    table = table_with(unit(4), workers=["a", "b"])
    table.pace.observe("f", 1000)
    assign(table, now=1.0)
    assert table.recallable(now=1.001) == []
    assert table.recallable(now=1.006) == [("b", 4)]  # it should have ended long ago


def test_of_two_tasks_one_is_recalled() -> None:
    table = table_with(unit(2), workers=["a", "b"])
    table.pace.observe("f", 20 * MS)
    ((busy, *_),) = assign(table)
    assert table.recallable(now=0.0) == [(busy, 2)]


def test_a_worker_that_reports_each_task_has_left_what_it_holds_however_long_it_is_silent() -> None:
    table = table_with(unit(10), unit(8), workers=["a", "b"])
    table.pace.observe("f", 2 * MS)
    ((long, *_), _) = assign(table)
    table.worker_up("c", 0.0)
    assert table.recallable(now=0.022) == [(long, 10)], "the other one is late by more of its time"


@pytest.mark.parametrize("num_workers", [32, 33])
def test_a_search_among_many_workers_is_followed_by_a_pause(num_workers: int) -> None:
    workers = [f"w{number}" for number in range(num_workers)]
    table = table_with(*(unit(4) for _ in workers), workers=workers)
    table.pace.observe("f", 2 * MS)
    assert len(assign(table)) == num_workers
    table.worker_up("idle", 0.0)
    pause_s = num_workers * 10e-6 if num_workers > 32 else 0.0
    assert len(table.recallable(now=0.5)) == 1
    assert len(table.recallable(now=0.5 + 0.9 * pause_s)) == (not pause_s)
    assert len(table.recallable(now=0.5 + pause_s)) == 1


def test_no_pause_follows_where_no_worker_was_idle() -> None:
    workers = [f"w{number}" for number in range(33)]
    table = table_with(*(unit(4) for _ in workers), workers=workers)
    table.pace.observe("f", 2 * MS)
    assign(table)
    assert table.recallable(now=0.5) == []
    table.worker_up("idle", 0.5)
    assert len(table.recallable(now=0.5)) == 1


def test_from_a_patient_unit_is_recalled_what_is_expected_not_to_have_begun() -> None:
    table = table_with(unit(4, patient=True), workers=["a", "b"])
    table.pace.observe("f", 20 * MS)
    ((busy, *_),) = assign(table, now=1.0)
    assert table.recallable(now=1.07) == []  # its last task is expected to run: there is nothing to take
    assert table.recallable(now=1.09) == []  # its results are on their way
    assert table.recallable(now=1.03) == [(busy, 4)]
    table.taken_back(busy, 4, 4, now=1.03)
    assert table.recallable(now=1.11) == [(busy, 4)]  # it is late: perhaps it is in its first task still
    table.done(busy, 0, 1, 0, now=1.12)
    assert table.recallable(now=1.13) == [(busy, 4)]  # it has three of twenty milliseconds from here on


def test_the_last_task_of_a_patient_unit_is_not_recalled_when_it_is_expected_to_begin() -> None:
    table = table_with(unit(4, patient=True), workers=["a", "b"])
    table.pace.observe("f", 20 * MS)
    ((busy, *_),) = assign(table)
    assert table.recallable(now=0.06) == []
    assert table.recallable(now=0.059) == [(busy, 4)]


@pytest.mark.parametrize("first_is_patient", [False, True])
def test_the_unit_a_worker_is_in_says_whether_it_reports_each_task(first_is_patient: bool) -> None:
    table = table_with(unit(1, patient=first_is_patient), unit(1, patient=not first_is_patient))
    table.pace.observe("f", 2 * MS)
    assert len(assign(table)) == 2
    table.worker_up("b", 0.0)
    # After 3 of 4 ms a patient worker is expected to be in its last task; one that reports each is asked.
    assert table.recallable(now=0.003) == ([] if first_is_patient else [("a", 2)])


def test_a_worker_that_reports_each_task_and_is_late_is_asked_for_the_patient_unit_behind_it() -> None:
    table = table_with(unit(1), unit(1, patient=True))
    table.pace.observe("f", 0.4 * MS)
    assert len(assign(table)) == 2
    table.worker_up("b", 0.0)
    assert table.recallable(now=0.006) == [("a", 2)]


def test_of_a_patient_unit_of_unknown_tasks_half_is_recalled_soon() -> None:
    table = table_with(unit(4, patient=True), workers=["a", "b"])
    ((busy, *_),) = assign(table, now=1.0)
    assert table.recallable(now=1.004) == []
    assert table.recallable(now=1.006) == [(busy, 4)]


def test_the_silence_of_a_worker_in_a_patient_unit_is_as_it_should_be() -> None:
    table = table_with(unit(3, patient=True), *(unit(1) for _ in range(8)))
    table.pace.observe("f", 1000)
    assert assign(table, now=1.0)[:3] == [("a", 0, 0, 3), ("a", 3, 0, 1), ("a", 4, 0, 1)]
    assert table.silent(now=9.0) == []
    table.done("a", 0, 3, 0, now=9.0)
    assert table.silent(now=9.03) == ["a"]


def test_a_silent_worker_is_named_once_until_it_is_heard() -> None:
    table = table_with(unit(3))
    assert table.silent(now=1.0) == []  # it holds nothing
    assign(table, now=1.0)
    assert table.watchful is True
    assert table.silent(now=1.01) == []
    assert table.silent(now=1.03) == ["a"]
    assert table.silent(now=1.04) == []
    table.done("a", 0, 1, 0, now=1.05)
    assert table.silent(now=1.06) == [] and table.silent(now=1.08) == ["a"]
    table.done("a", 1, 1, 0, now=1.09)
    assert table.silent(now=2.0) == []  # of a single task there is nothing to see: its result comes at once
    assert table.watchful is False


def test_each_silent_worker_is_named_beside_one_whose_silence_is_expected() -> None:
    table = table_with(unit(3, patient=True), unit(3), workers=["a", "b"])
    (patient, *_), (silent, *_) = assign(table)
    assert table.silent(now=0.02) == []
    assert table.silent(now=0.03) == [silent] != [patient]


def test_a_worker_that_is_far_is_silent_for_as_long_as_its_messages_are_under_way() -> None:
    table = TaskTable()
    table.worker_up("far", 0.0, way_s=0.5)
    table.submit([unit(3)])
    assign(table, now=1.0)
    assert table.silent(now=1.03) == table.silent(now=1.5) == []
    assert table.silent(now=1.53) == ["far"]


def test_silence_begins_when_work_is_given_out_not_when_the_worker_was_last_heard() -> None:
    # A worker that had idled for long was looked at once, right after it got work, and never again: what it
    # finished a moment later lay in its page until the slow task behind it ended.
    table = table_with(unit(3))
    assign(table, now=10.0)
    assert table.silent(now=10.001) == []
    assert table.silent(now=10.021) == ["a"]


# Deaths


def test_the_task_that_a_worker_died_in_is_blamed_and_goes_alone() -> None:
    table = table_with(unit(5))
    assign(table)
    table.done("a", 0, 1, 0, now=0.1)
    assert table.died("a", 2, "signal 9") == []
    assert counts(table) == (4, 0, 1, 0) and table.num_retried == 1
    given: list[tuple[str, int, int, int]] = []
    for id in "bcd":
        table.worker_up(id, 0.2)
        given += assign(table)
    assert given == [("b", 0, 1, 2), ("c", 0, 2, 3), ("d", 0, 3, 5)]


def test_a_task_is_given_up_with_its_third_worker_if_nothing_else_is_said() -> None:
    table = TaskTable()
    table.submit([TaskUnit("job", 0, 1, "code")])
    given_up: list[int] = []
    for number in range(3):
        table.worker_up(f"w{number}", 0.0)
        assign(table)
        given_up.append(len(table.died(f"w{number}", 0, "killed")))
    assert given_up == [0, 0, 1]


@pytest.mark.parametrize("num_done", [0, 1])
def test_the_first_task_of_a_unit_is_not_blamed_on_the_unit_before_it(num_done: int) -> None:
    first, second = unit(3), unit(3)
    table = table_with(first, second)
    table.pace.observe("f", 1000)
    table.submit([unit(1) for _ in range(20)])
    assert assign(table)[:2] == [("a", 0, 0, 3), ("a", 3, 0, 3)]
    table.done("a", 0, num_done, 0, now=0.1)
    before = counts(table)[0] + counts(table)[1]
    assert table.died("a", 3, "killed") == []
    assert (first.deaths, second.deaths) == ({}, {0: ["killed"]})
    assert counts(table) == (before, 0, num_done, 0)


def test_a_task_that_kills_max_deaths_workers_is_given_up_with_all_causes() -> None:
    work = unit(3)
    table = table_with(work, workers=[], max_deaths=3)
    answered: list[GivenUp] = []
    for number in range(3):
        table.worker_up(f"w{number}", 0.0)
        ((_, seq, span),) = table.assign(0.0)
        if number:  # alone by now, the task before it being done
            assert span == ItemSpan(work, 1, 2)
        if not number:
            table.done("w0", 0, 1, 0, now=0.1)
        answered += table.died(f"w{number}", seq + 1 - span.start, f"death {number}")
    assert answered == [GivenUp(work, 1, ("death 0", "death 1", "death 2"))]
    table.worker_up("last", 0.0)
    assert assign(table) == [("last", 0, 2, 3)]
    assert work.deaths == {1: ["death 0", "death 1", "death 2"]}
    assert table.num_failed == 1


def test_an_ended_worker_is_innocent_and_so_is_its_task() -> None:
    work = unit(1)
    table = table_with(work, workers=[], max_deaths=1)
    for number in range(4):
        table.worker_up(str(number), 0.0)
        assign(table)
        assert table.died(str(number), 0, "its owner ended it", innocent=True) == []
    assert work.deaths == {} and counts(table) == (1, 0, 0, 0)
    assert table.num_retried == 0  # "retried" counts tasks that killed their workers


def test_a_task_that_ran_out_of_time_ends_at_once() -> None:
    work = unit(2)
    table = table_with(work)
    assign(table)
    assert table.died("a", 0, "too long", final=True) == [GivenUp(work, 0, ("too long",))]
    assert counts(table) == (1, 0, 0, 1)


def test_a_final_death_has_its_cause_even_if_it_was_not_the_tasks_fault() -> None:
    work = unit(1)
    table = table_with(work)
    assign(table)
    assert table.died("a", 0, "too long", final=True, innocent=True) == [GivenUp(work, 0, ("too long",))]


@pytest.mark.parametrize("current", [None, 0, 7])
def test_nobody_is_blamed_for_a_death_between_tasks_or_in_one_that_was_done_or_recalled(current: int | None) -> None:
    work = unit(3)
    table = table_with(work)
    assign(table)
    table.done("a", 0, 1, 0, now=0.1)  # the page told of it after the worker died right behind it
    assert table.died("a", current, "killed") == []
    assert work.deaths == {} and counts(table) == (2, 0, 1, 0)
    assert table.died("a", current, "killed again") == []


def test_at_most_once_gives_up_what_was_begun_and_only_that() -> None:
    work = unit(3)
    table = table_with(work, at_most_once=True)
    assign(table)
    table.done("a", 0, 1, 0, now=0.1)
    assert table.died("a", 1, "ended", innocent=True) == [GivenUp(work, 1, ("ended",))]
    assert counts(table) == (1, 0, 1, 1)


def test_a_vanished_host_blames_nobody() -> None:
    work = unit(3)
    table = table_with(work, max_deaths=1)
    assign(table)
    assert table.vanished("a", "host lost") == []
    assert counts(table) == (3, 0, 0, 0) and work.deaths == {}
    assert table.vanished("a", "host lost") == []


def test_at_most_once_gives_up_all_that_a_vanished_host_may_have_begun() -> None:
    work = unit(3)
    table = table_with(work, at_most_once=True)
    assign(table)
    assert sorted(item for _, item, _ in table.vanished("a", "host lost")) == [0, 1, 2]
    assert counts(table) == (0, 0, 0, 3) and table.idle


# Cancelling


def test_cancelling_drops_what_waits_and_names_who_holds_the_rest() -> None:
    mine, waiting, theirs = unit(2, job="x"), unit(2, job="x"), unit(1, job="y")
    table = table_with(mine, waiting, theirs)
    assign(table)
    assert table.cancel("x") == ["a"]
    assert counts(table) == (1, 2, 0, 0)
    assert mine.cancelled
    assert table.dropped() == [ItemSpan(waiting, 0, 2)]
    table.taken_back("a", 1, 2, now=0.1)  # is not wanted any more
    assert counts(table) == (1, 1, 0, 0)
    assert table.died("a", 0, "killed") == []
    assert counts(table) == (1, 0, 0, 0)
    assert table.dropped() == [ItemSpan(mine, 1, 2), ItemSpan(mine, 0, 1)] and table.dropped() == []
    assert table.num_retried == 0
    table.worker_up("b", 0.2)
    assert [span for _, _, span in table.assign(0.2)] == [ItemSpan(theirs, 0, 1)]
    assert table.cancel("unheard of") == []


def test_cancelling_all_drops_what_waits_of_every_job() -> None:
    held, *waiting = [unit(2, job=str(number)) for number in range(50)]
    table = table_with(held, *waiting)
    assign(table)
    table.cancel_all()
    assert held.cancelled and table.holds_only_cancelled("a")
    assert counts(table) == (0, 2, 0, 0)
    assert table.dropped() == [ItemSpan(each, 0, 2) for each in waiting]
    assert table.cancelled_behind() == ["a"]
    assert table.died("a", 0, "killed") == [] and counts(table) == (0, 0, 0, 0)


def test_a_worker_holds_only_cancelled_tasks_if_no_other_is_behind_them() -> None:
    table = table_with(unit(1, job="x"), unit(1, job="y"))
    table.pace.observe("f", 1000)
    assign(table)
    assert table.num_items("a") == 2
    assert not table.is_in_cancelled("a") and not table.holds_only_cancelled("a")
    table.cancel("x")
    assert table.is_in_cancelled("a") and not table.holds_only_cancelled("a")
    table.taken_back("a", 1, 2, now=0.1)
    assert table.holds_only_cancelled("a")
    table.done("a", 0, 1, 0, now=0.2)
    assert not table.is_in_cancelled("a") and not table.holds_only_cancelled("a"), "it holds nothing"
    assert not table.holds_only_cancelled("unheard of")


# Looking


def test_what_a_worker_holds_can_be_asked() -> None:
    work = unit(3)
    table = table_with(work)
    assert table.current_task("a") is None and table.next_seq("a") == 0
    assign(table)
    table.done("a", 0, 1, 0, now=0.1)
    assert table.current_task("a") == (work, 1)
    assert table.locate("a", 2) == (work, 2)
    assert table.locate("a", 0) is None and table.locate("b", 0) is None and table.current_task("b") is None
    assert (table.next_seq("a"), table.num_items("a"), table.next_seq("b"), table.num_items("b")) == (3, 2, 0, 0)


# A model: pool, workers, and the links between them


@dataclass(eq=False)
class Task:
    """One item of a unit, as the model knows it."""

    unit: TaskUnit
    item: int
    killer: bool
    where: str = "pending"
    """"pending", the id of the worker that holds it, "ended" or "dropped"."""
    num_started: int = 0
    deaths: int = 0


@dataclass(eq=False)
class Message:
    """What a worker (or its agent) says: results, then tasks that are given back."""

    first: int = 0
    results: Sequence[Task] = ()
    back_from: int = 0
    back_until: int = 0


@dataclass(eq=False)
class Walker:
    """A worker that walks through its tasks as `worker.py` does, with its page and its two ways home."""

    id: str
    units_left: int | None
    draining: bool = False
    next_seq: int = 0
    held: dict[int, Task] = field(default_factory=dict[int, Task])
    """What the table should think that it holds."""
    spans: deque[tuple[int, list[Task]]] = field(default_factory=deque[tuple[int, list[Task]]])
    at: int = 0
    """Position in the first span."""
    current: int | None = None
    running: Task | None = None
    base: int = 0
    finished: list[Task] = field(default_factory=list[Task])
    fence: tuple[int, int] = (0, 0)
    said: deque[Message] = field(default_factory=deque[Message])
    reported: deque[Message] = field(default_factory=deque[Message])
    recalling: bool = False


class TableAgainstModel(RuleBasedStateMachine):
    """Any interleaving of what can happen to a pool; in the end each task is answered once."""

    @initialize(max_deaths=st.integers(1, 3), at_most_once=st.booleans(), random=st.randoms(use_true_random=False))
    def begin(self, max_deaths: int, at_most_once: bool, random: random.Random) -> None:
        self.table = TaskTable(max_deaths=max_deaths, at_most_once=at_most_once)
        self.random = random
        self.tasks: dict[tuple[TaskUnit, int], Task] = {}
        self.pending: list[Task] = []
        self.workers: dict[str, Walker] = {}
        self.past: list[tuple[str, Message]] = []
        self.dropped: Counter[Task] = Counter()
        """Those that the table must tell at the next look, and never again."""
        self.now = 0.0
        self.num_workers = self.num_done = self.num_failed = 0
        self.num_blamed = 0
        for _ in range(3):
            self.join(None)

    def pick(self, number: int) -> Walker:
        return list(self.workers.values())[number % len(self.workers)]

    # What the pool does

    @rule(
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
        job=st.sampled_from("xyz"),
        code=st.sampled_from("fg"),
        killer=st.integers(0, 60),
        patient=st.booleans(),
    )
    def submit(self, sizes: list[int], job: str, code: str, killer: int, patient: bool) -> None:
        units = [
            unit(size, job=job, code=code, first=10 * number, patient=patient) for number, size in enumerate(sizes)
        ]
        self.table.submit(units)
        for one in units:
            for item in range(one.count):
                task = Task(one, item, killer=killer == 0)
                killer -= 1
                self.tasks[one, item] = task
                self.pending.append(task)

    @rule(units_left=st.one_of(st.none(), st.none(), st.integers(1, 3)))
    def join(self, units_left: int | None) -> None:
        id = f"w{self.num_workers}"
        self.num_workers += 1
        self.workers[id] = Walker(id, units_left)
        self.table.worker_up(id, self.now, units_left)

    @rule()
    def assign(self) -> None:
        for assignment in self.table.assign(self.now):
            self.take(assignment)
        if self.pending:
            for worker in self.workers.values():
                assert worker.held or worker.draining or worker.units_left == 0, f"{worker.id} idles beside work"

    def take(self, assignment: SpanAssignment) -> None:
        worker = self.workers[assignment.worker]
        span = assignment.span
        tasks = [self.tasks[span.unit, item] for item in range(span.start, span.stop)]
        assert tasks and tasks == self.pending[: len(tasks)], "work is given out from the front"
        del self.pending[: len(tasks)]
        assert assignment.seq == worker.next_seq
        assert not worker.draining
        if worker.units_left is not None:
            worker.units_left -= 1
            assert worker.units_left >= 0
        for number, task in enumerate(tasks):
            assert not task.unit.cancelled
            assert not (self.table.at_most_once and task.num_started), "begun, and given out again"
            worker.held[assignment.seq + number] = task
            task.where = worker.id
        worker.spans.append((assignment.seq, tasks))
        worker.next_seq += len(tasks)

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 9))
    def drain(self, number: int) -> None:
        worker = self.pick(number)
        worker.draining = True
        self.table.drain(worker.id)

    @rule(job=st.sampled_from("xyz"))
    def cancel(self, job: str) -> None:
        holders = {task.where for task in self.tasks.values() if task.unit.job == job} & set(self.workers)
        units = {task.unit for task in self.tasks.values() if task.unit.job == job and task.where in self.workers}
        assert sorted(self.table.cancel(job)) == sorted(holders)
        for task in self.pending:
            if task.unit.job == job:
                self.drop(task)
        self.pending = [task for task in self.pending if task.unit.job != job]
        assert all(one.cancelled for one in units)

    @rule(passed_s=st.sampled_from([0.001, 0.006, 0.03]))
    def recall_for_idle_workers(self, passed_s: float) -> None:
        self.now += passed_s
        num_idle = sum(
            not worker.held and not worker.draining and worker.units_left != 0 for worker in self.workers.values()
        )
        victims = self.table.recallable(self.now)
        assert len(victims) <= num_idle and not (victims and self.pending)
        for id, until in victims:
            worker = self.workers[id]
            assert len(worker.held) > 1 and until == worker.next_seq and not worker.recalling
            worker.recalling = True
            self.fence(worker, until)

    @rule()
    def look_at_silent_workers(self) -> None:
        for id in self.table.silent(self.now):
            worker = self.workers[id]
            assert len(worker.held) > 1
            assert not next(iter(worker.held.values())).unit.patient
            worker.reported.append(Message(worker.base, list(worker.finished)))

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 9))
    def recall_all(self, number: int) -> None:
        worker = self.pick(number)
        self.fence(worker, worker.next_seq)

    def fence(self, worker: Walker, until: int) -> None:
        """What the agent does; how much of it is taken is the fence's own business."""
        current = worker.current
        first = until
        if current is not None and current + 1 < until:
            standing = worker.fence if worker.fence[1] > current else (until, until)
            first = self.random.randint(min(current + 1, standing[0]), standing[0])
            worker.fence = first, max(until, standing[1])
            first = max(first, current + 1)
        worker.reported.append(Message(worker.base, list(worker.finished), first, until))

    # What a worker does

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 9), steps=st.integers(1, 12))
    def walk(self, number: int, steps: int) -> None:
        worker = self.pick(number)
        for _ in range(steps):
            if worker.id in self.workers:
                self.step(worker)

    def step(self, worker: Walker) -> None:
        if worker.running:
            worker.finished.append(worker.running)
            worker.running = None
        elif worker.spans:
            seq, tasks = worker.spans[0]
            worker.current = current = seq + worker.at
            if worker.fence[0] <= current < worker.fence[1]:
                self.flush(worker)
                worker.said.append(Message(back_from=current, back_until=seq + len(tasks)))
                worker.base = seq + len(tasks)
                worker.spans.popleft()
                worker.at = 0
                return
            task = worker.running = tasks[worker.at]
            task.num_started += 1
            assert not (self.table.at_most_once and task.num_started > 1)
            worker.at += 1
            if worker.at == len(tasks):
                worker.spans.popleft()
                worker.at = 0
            if task.killer:
                self.die(worker)
        else:
            worker.current = None
            self.flush(worker)

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 9))
    def flush_now(self, number: int) -> None:
        self.flush(self.pick(number))

    def flush(self, worker: Walker) -> None:
        if worker.finished:
            worker.said.append(Message(worker.base, worker.finished))
            worker.base += len(worker.finished)
            worker.finished = []

    # What reaches the pool

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 9), report=st.booleans(), how_many=st.integers(1, 5))
    def deliver(self, number: int, report: bool, how_many: int) -> None:
        worker = self.pick(number)
        queue = worker.reported if report else worker.said
        for _ in range(min(how_many, len(queue))):
            message = queue.popleft()
            self.past.append((worker.id, message))
            self.hear(worker.id, message)

    @precondition(lambda self: self.past)
    @rule(number=st.integers(0, 999))
    def deliver_again(self, number: int) -> None:
        self.hear(*self.past[number % len(self.past)])

    @rule(first=st.integers(0, 9), until=st.integers(0, 9))
    def hear_a_stranger(self, first: int, until: int) -> None:
        assert self.table.done("stranger", first, until, 0, self.now) == []
        self.table.taken_back("stranger", first, until, self.now)
        assert self.table.died("stranger", first, "") == self.table.vanished("stranger", "") == []

    def hear(self, id: str, message: Message) -> None:
        worker = self.workers.get(id)
        if message.results:
            expected: list[tuple[Task, int]] = []
            for offset, task in enumerate(message.results):
                if worker and message.first + offset in worker.held:
                    assert worker.held.pop(message.first + offset) is task
                    expected.append((task, offset))
            finished = self.table.done(id, message.first, len(message.results), 1000, self.now)
            if worker:
                worker.recalling = False
            actual = [
                (self.tasks[unit, item], offset + item - start)
                for (unit, start, stop), offset in finished
                for item in range(start, stop)
            ]
            assert actual == expected
            for task, _ in expected:
                self.end(task)
                self.num_done += 1
        if message.back_from < message.back_until:
            self.table.taken_back(id, message.back_from, message.back_until, self.now)
            if worker:
                worker.recalling = False
                back = [
                    worker.held.pop(seq) for seq in range(message.back_from, message.back_until) if seq in worker.held
                ]
                self.again(back)
        elif worker and not message.results:
            self.table.taken_back(id, message.back_from, message.back_until, self.now)
            worker.recalling = False

    def again(self, tasks: list[Task]) -> None:
        for task in tasks:
            if task.unit.cancelled:
                self.drop(task)
            else:
                task.where = "pending"
        self.pending[:0] = [task for task in tasks if not task.unit.cancelled]

    def drop(self, task: Task) -> None:
        task.where = "dropped"
        self.dropped[task] += 1

    def end(self, task: Task) -> None:
        assert task.where in self.workers, f"answered while it is {task.where}"
        task.where = "ended"

    # Deaths

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 9), kind=st.sampled_from(["by itself", "by itself", "innocent", "final"]))
    def kill(self, number: int, kind: str) -> None:
        self.die(self.pick(number), innocent=kind == "innocent", final=kind == "final")

    def die(self, worker: Walker, *, innocent: bool = False, final: bool = False) -> None:
        """All that it said is heard first, then what its page says."""
        for queue in (worker.said, worker.reported):
            while queue:
                self.hear(worker.id, queue.popleft())
        self.hear(worker.id, Message(worker.base, list(worker.finished)))
        blamed = worker.held.get(worker.current) if worker.current is not None else None
        back = [task for _, task in sorted(worker.held.items(), key=lambda entry: entry[0])]
        expected: list[Task] = []
        if blamed:
            if not innocent or self.table.at_most_once or final:
                blamed.deaths += 1
            if final or self.table.at_most_once or blamed.deaths >= self.table.max_deaths:
                back.remove(blamed)
                if blamed.unit.cancelled:
                    self.drop(blamed)
                else:
                    self.end(blamed)
                    expected.append(blamed)
            elif not innocent and not blamed.unit.cancelled:
                self.num_blamed += 1
        given_up = self.table.died(worker.id, worker.current, "cause", final=final, innocent=innocent)
        self.check_given_up(given_up, expected)
        del self.workers[worker.id]
        self.again(back)

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 9))
    def lose_host(self, number: int) -> None:
        worker = self.pick(number)  # what it said last is lost with it
        back = [task for _, task in sorted(worker.held.items(), key=lambda entry: entry[0])]
        expected: list[Task] = []
        if self.table.at_most_once:
            for task in back:
                task.deaths += 1
                if task.unit.cancelled:
                    self.drop(task)
                else:
                    self.end(task)
                    expected.append(task)
            back = []
        self.check_given_up(self.table.vanished(worker.id, "cause"), expected)
        del self.workers[worker.id]
        self.again(back)

    def check_given_up(self, given_up: list[GivenUp], expected: list[Task]) -> None:
        assert {self.tasks[unit, item] for unit, item, _ in given_up} == set(expected)
        assert len(given_up) == len(expected)
        for unit, item, deaths in given_up:
            assert len(deaths) == self.tasks[unit, item].deaths
        self.num_failed += len(expected)

    # What must hold

    @invariant()
    def counters_are_right(self) -> None:
        if not hasattr(self, "table"):
            return
        table = self.table
        num_held = sum(len(worker.held) for worker in self.workers.values())
        assert counts(table) == (len(self.pending), num_held, self.num_done, self.num_failed)
        assert table.num_retried == self.num_blamed
        told = Counter(self.tasks[one, item] for one, start, stop in table.dropped() for item in range(start, stop))
        assert told == self.dropped
        self.dropped.clear()
        assert table.idle == (not self.pending and not num_held)
        assert table.num_deep == sum(len(worker.held) > 1 for worker in self.workers.values())
        for worker in self.workers.values():
            assert table.num_items(worker.id) == len(worker.held)
            assert table.next_seq(worker.id) == worker.next_seq
            assert table.exhausted(worker.id) == (not worker.held and (worker.draining or worker.units_left == 0))

    def teardown(self) -> None:
        """Let all come to an end: nothing is lost, nothing is answered twice, only killers die."""
        if not hasattr(self, "table"):
            return
        for _ in range(10_000):
            if self.table.idle:
                break
            if not any(not worker.draining and worker.units_left != 0 for worker in self.workers.values()):
                self.join(None)
            self.assign()
            for worker in list(self.workers.values()):
                for _ in range(3):
                    if worker.id in self.workers:
                        self.step(worker)
                for queue in (worker.said, worker.reported):
                    while queue:
                        self.hear(worker.id, queue.popleft())
            self.counters_are_right()
        assert self.table.idle, "some task never ends"
        for task in self.tasks.values():
            assert task.where in ("ended", "dropped")
            assert len(task.unit.deaths.get(task.item, ())) == task.deaths
            assert task.deaths <= self.table.max_deaths
        assert sum(task.where == "ended" for task in self.tasks.values()) == self.num_done + self.num_failed


TestTableAgainstModel = TableAgainstModel.TestCase
TestTableAgainstModel.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def walk_long(model: TableAgainstModel, draw: random.Random, num_steps: int) -> None:
    """Longer ways than hypothesis goes, with little death, so that workers hold a lot."""
    numbers = range(99)
    for _ in range(num_steps):
        number, chance = draw.choice(numbers), draw.random()
        model.now += 0.001
        if not model.workers or chance < 0.05:
            model.join(draw.choice([None, None, 2]))
        elif chance < 0.15:
            sizes = [draw.randint(1, 7) for _ in range(draw.randint(1, 9))]
            killer, patient = draw.randint(0, 300), draw.random() < 0.5
            model.submit(sizes, draw.choice("xyz"), draw.choice("ffg"), killer, patient)
        elif chance < 0.30:
            model.walk(number, draw.randint(1, 12))
        elif chance < 0.50:
            model.deliver(number, draw.random() < 0.4, 3)
        elif chance < 0.75:
            model.assign()
        elif chance < 0.85:
            model.recall_all(number) if draw.random() < 0.6 else model.recall_for_idle_workers(0.006)
        elif chance < 0.93:
            model.look_at_silent_workers()
        elif chance < 0.96 and model.past:
            model.deliver_again(draw.randrange(1000))
        elif chance < 0.97:
            model.drain(number)
        elif chance < 0.98:
            model.lose_host(number)
        elif chance < 0.99:
            model.kill(number, draw.choice(["by itself", "innocent", "final"]))
        elif chance < 0.992:
            model.cancel(draw.choice("xyz"))
        model.counters_are_right()


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 40))])
def test_on_long_ways_each_task_is_answered_once(seed: int, at_most_once: bool) -> None:
    draw = random.Random(seed)
    model = TableAgainstModel()
    model.begin(draw.randint(1, 3), at_most_once, draw)
    walk_long(model, draw, num_steps=1500)
    model.teardown()


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_poisoned_task_has_max_deaths_deaths_and_its_neighbours_none(seed: int, at_most_once: bool) -> None:
    model = TableAgainstModel()
    model.begin(3, at_most_once, random.Random(seed))
    model.submit([5, 5, 5, 5, 5], "x", "f", killer=12, patient=False)
    model.assign()
    model.teardown()
    deaths = {(task.unit.first_index, task.item): task.deaths for task in model.tasks.values() if task.deaths}
    assert deaths == {(20, 2): 1 if at_most_once else 3}
    # The neighbours in its chunk that came before it had finished: nobody runs twice but the killer.
    assert {task.num_started for task in model.tasks.values() if not task.killer} == {1}
    assert (model.num_done, model.num_failed) == (24, 1)


@pytest.mark.parametrize("task_ms", [0.5, 1, 5, 20, 30, 100, 300])
def test_a_far_worker_holds_what_it_does_while_messages_are_under_way(task_ms: float) -> None:
    held = held_by_workers(0.04, task_ms)
    assert (held - 1) * task_ms >= min(40, task_ms) or held * task_ms >= 40
    assert held >= 2, "it would stand still between two tasks"
    assert held * task_ms <= max(50, 2 * task_ms), "others could have had these"


def test_tasks_that_last_much_longer_than_the_way_are_given_out_one_by_one() -> None:
    assert held_by_workers(0.04, 1000) == 1
    assert held_by_workers(0.0, 20) == 1
    assert held_by_workers(0.0, 1) == 10


def test_a_job_that_does_not_begin_any_more_is_dropped_and_its_worker_stays_idle() -> None:
    begun: list[str] = []

    def begins(job: str) -> bool:
        begun.append(job)
        return job != "withdrawn"

    table = TaskTable(begins=begins)
    table.worker_up("w", 0.0)
    withdrawn, wanted = TaskUnit("withdrawn", 0, 2, "code"), TaskUnit("wanted", 0, 1, "code")
    table.submit([withdrawn])
    assert table.assign(0.0) == [] and table.idle and table.dropped() == [ItemSpan(withdrawn, 0, 2)]
    table.submit([withdrawn, wanted])
    assert [assignment.span.unit for assignment in table.assign(0.0)] == [wanted]
    assert begun == ["withdrawn", "withdrawn", "wanted"] and (table.num_pending, table.num_running) == (0, 1)


def test_a_job_that_does_not_begin_any_more_is_left_out_of_what_is_sent_ahead() -> None:
    table = TaskTable(begins=lambda job: job != "withdrawn")
    table.worker_up("w", 0.0)
    table.pace.observe("code", 1 * MS)
    table.submit([TaskUnit(job, 0, 1, "code") for job in ("first", "withdrawn", "wanted")])
    assert [assignment.span.unit.job for assignment in table.assign(0.0)] == ["first", "wanted"]


def test_a_job_is_asked_again_when_its_task_is_given_out_again() -> None:
    begun: list[str] = []
    table = TaskTable(begins=lambda job: begun.append(job) is None)
    table.submit([TaskUnit("job", 0, 1, "code")])
    for number in range(2):
        table.worker_up(f"w{number}", 0.0)
        assert table.assign(0.0)
        table.died(f"w{number}", 0, "killed")
    assert begun == ["job", "job"]


def test_what_waits_of_withdrawn_jobs_is_swept_away() -> None:
    table = TaskTable()
    units = [TaskUnit(job, 0, 2, "code") for job in ("a", "b", "a")]
    table.submit(units)
    table.sweep(lambda job: job == "a")
    assert table.dropped() == [ItemSpan(units[0], 0, 2), ItemSpan(units[2], 0, 2)] and table.num_pending == 2


def test_what_waits_of_others_stays_when_some_is_swept_away() -> None:
    table = table_with(unit(4, job="old"), unit(2, job="new"))
    assign(table)
    table.taken_back("a", 1, 4, now=0.1)
    table.sweep(lambda job: job == "old")
    assert counts(table) == (2, 1, 0, 0)
    assert table.num_dropped == 0
    assert [(span.start, span.stop) for span in table.dropped()] == [(1, 4)]
    assert table.num_dropped == 3
    table.worker_up("b", 0.1)
    assert assign(table) == [("b", 0, 0, 2)] and counts(table) == (0, 3, 0, 0)


def test_cancelled_tasks_behind_the_one_that_runs_are_named_until_they_are_back() -> None:
    table = TaskTable()
    table.worker_up("w", 0.0)
    table.submit([TaskUnit("cancelled", 0, 4, "code")])
    table.assign(0.0)
    assert table.cancelled_behind() == []
    assert table.cancel("cancelled") == ["w"] and table.cancelled_behind() == ["w"]
    table.taken_back("w", 1, 4, 0.0)
    assert table.cancelled_behind() == [] and table.num_items("w") == 1


def test_only_what_is_behind_the_task_that_runs_is_cancelled_behind_it() -> None:
    table = TaskTable()
    table.worker_up("w", 0.0)
    table.pace.observe("code", 1000)  # so fast that it holds several
    table.submit([TaskUnit(job, 0, 1, "code") for job in ("first", "second", "third")])
    while table.assign(0.0):
        pass
    assert table.num_items("w") == 3
    assert table.cancel("first") == ["w"] and table.cancelled_behind() == [], "it runs already"
    assert table.cancel("third") == ["w"] and table.cancelled_behind() == ["w"]
    assert table.cancelled_behind() == ["w"], "until it is back"


@pytest.mark.parametrize(
    ("counts_of_first", "num_done", "others", "names"),
    [
        (2, 0, ["other"], ["w"]),  # the second task of the cancelled unit
        (2, 1, ["other"], []),  # it is in the last one
        (1, 0, ["cancelled"], ["w"]),
        (1, 0, ["other"], []),
        (2, 0, [], ["w"]),
    ],
)
def test_a_cancelled_unit_is_named_for_its_tasks_that_have_not_begun(
    counts_of_first: int, num_done: int, others: list[str], names: list[str]
) -> None:
    table = TaskTable()
    table.worker_up("w", 0.0)
    table.pace.observe("code", 1000)
    units = [TaskUnit("cancelled", 0, counts_of_first, "code"), *(TaskUnit(job, 0, 1, "code") for job in others)]
    table.submit([*units, *(TaskUnit("later", 0, 1, "code") for _ in range(20))])
    table.most_ahead = len(units)
    table.assign(0.0)
    assert table.num_items("w") == counts_of_first + len(others)
    table.done("w", 0, num_done, 0, 0.0)
    assert table.cancel("cancelled") == ["w"]
    assert table.cancelled_behind() == names


def test_a_unit_begins_with_no_deaths_and_its_worker_tells_of_each_task() -> None:
    new = TaskUnit("job", 0, 2, "code")
    assert (new.size_bytes, new.content, new.patient) == (0, None, False)
    assert (new.deaths, new.cancelled, new.num_ended) == ({}, False, 0)


def test_a_worker_is_given_no_more_units_ahead_than_allowed() -> None:
    table = TaskTable()
    table.most_ahead = 3
    table.worker_up("w", 0.0)
    table.submit([TaskUnit("job", at, 1, "code") for at in range(100)])
    table.assign(0.0)
    table.done("w", 0, 1, 1000, 0.0)  # a microsecond: without a limit many would be sent ahead
    assert len(table.assign(0.0)) == 3
