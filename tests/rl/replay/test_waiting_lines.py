"""Lines of calls at limiters: each call keeps its place, in all lines that it is in."""

from __future__ import annotations

import threading

from ropewalk.rl.replay.waiting_lines import LimiterWait, Side, WaitingLines


def wait(side: Side, *tables: str) -> LimiterWait:
    return LimiterWait(side, tables, 0.0, threading.Condition(), lambda: True)


def test_the_call_that_came_first_is_first_until_it_leaves() -> None:
    lines = WaitingLines(["a", "b"])
    first, second = wait("insert", "a"), wait("insert", "a")
    lines.join(first)
    lines.join(second)
    assert lines.is_first(first) and not lines.is_first(second)
    lines.leave(first)
    assert lines.is_first(second)
    lines.leave(second)
    assert lines.are_empty("insert", ["a", "b"])


def test_a_call_for_two_tables_is_first_only_where_it_is_first_for_both() -> None:
    lines = WaitingLines(["a", "b"])
    for_a, for_both, for_b = wait("insert", "a"), wait("insert", "a", "b"), wait("insert", "b")
    for each in (for_a, for_both, for_b):
        lines.join(each)
    assert lines.is_first(for_a) and not lines.is_first(for_both) and not lines.is_first(for_b)
    lines.leave(for_a)
    assert lines.is_first(for_both) and not lines.is_first(for_b)


def test_the_sides_do_not_wait_for_each_other() -> None:
    lines = WaitingLines(["a"])
    inserting, sampling = wait("insert", "a"), wait("sample", "a")
    lines.join(inserting)
    lines.join(sampling)
    assert lines.is_first(inserting) and lines.is_first(sampling)
    assert lines.all_of("insert") == [inserting] and lines.all_of("sample") == [sampling]
    assert list(lines.firsts()) == [inserting, sampling]


def test_a_call_in_two_lines_is_listed_once() -> None:
    lines = WaitingLines(["a", "b"])
    both = wait("insert", "a", "b")
    lines.join(both)
    assert lines.all_of("insert") == [both]
