"""When inserters and samplers wait for each other, both reasons are given with their counts."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.rl.replay.limiters.deadlock import LimitedTable, explain_deadlock
from ropewalk.rl.replay.limiters.limiter import RateLimiter, TableCounts
from ropewalk.rl.replay.limiters.waiting import why_insert_waits, why_sample_waits

LIMITER = RateLimiter(1.0, 5, 2.0, 8.0)
TABLES = {"a": LimitedTable(LIMITER, TableCounts(9, 0, 1)), "b": LimitedTable(LIMITER, TableCounts(3))}


def test_an_insertion_into_a_table_that_no_one_samples_blocks_the_samplers_of_another_one() -> None:
    assert explain_deadlock(TABLES, [{"a": 1, "b": 1}], {"b": 4}) == (
        "inserters and samplers wait for each other, and nothing can go on:\n"
        "    inserting waits for table 'a': 9 items were inserted and 1 sampled; 1 item more would make 9 samples "
        "owed, and at most max_diff=8 may be\n"
        "    sampling waits for table 'b': the table has 3 of min_size=5 items\n"
        "sample from every table that is inserted into, in batches that its limiter allows, or change a limiter"
    )


def test_a_batch_that_is_larger_than_the_limiter_allows_is_named() -> None:
    words = explain_deadlock(TABLES, [{"a": 1}], {"a": 64})
    assert "64 items more would leave -56 samples owed, and at least min_diff=2 must be" in words


def test_there_is_no_deadlock_while_one_side_may_go_on_or_nothing_waits_there() -> None:
    assert explain_deadlock(TABLES, [{"a": 1, "b": 1}], {"a": 4}) == ""
    assert explain_deadlock(TABLES, [{"a": 1, "b": 1}], {"a": 4, "b": 1}) == ""
    assert explain_deadlock(TABLES, [{"a": 1}, {"b": 1}], {"b": 4}) == ""
    assert explain_deadlock(TABLES, [], {"b": 4}) == ""
    assert explain_deadlock(TABLES, [{"a": 1}], {}) == ""


@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(1, 9),
    st.sampled_from([math.inf, 8.0, 11.0]),
)
def test_words_are_given_exactly_where_the_formula_says_no(
    inserts: int, deletes: int, samples: int, num: int, largest: float
) -> None:
    limiter, counts = RateLimiter(1.0, 5, 2.0, largest), TableCounts(inserts, min(deletes, inserts), samples)
    assert (why_insert_waits(limiter, counts, num) == "") is limiter.admits(counts, num)
    assert (why_sample_waits(limiter, counts, num) == "") is limiter.may_sample(counts, num)
