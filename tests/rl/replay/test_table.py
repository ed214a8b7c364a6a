"""Settings of tables that contradict each other."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ropewalk.rl.replay.limiters import MinSize, QueueLimiter, SampleToInsertRatio, StackLimiter
from ropewalk.rl.replay.table import ReplayTable
from tests.rl.replay.insertions import table


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_size": 0, "limiter": MinSize(1)}, "max_size=0; it must be at least 1"),
        ({"max_size": 1 << 28}, "max_size=268435456; at most 134217728"),
        ({"max_times_sampled": -1}, "max_times_sampled=-1; it must be at least 0"),
        ({"max_bytes": 0}, "max_bytes=0; it must be at least 1"),
        ({"limiter": MinSize(101)}, "max_size=100 items .* min_size=101"),
        ({"limiter": MinSize(0)}, "min_size is 0"),
        ({"limiter": SampleToInsertRatio(8.0, 10, 1.0)}, "2 wide"),
        ({"limiter": QueueLimiter(5)}, r"QueueLimiter\(size=5\), max_times_sampled=0 and max_size=100; .* at least 5"),
        ({"limiter": StackLimiter(500), "max_times_sampled": 1}, "a max_size of at least 500"),
        ({"name": "a/b"}, "'a/b'; it must be a name without slashes"),
        ({"name": ""}, "''; it must be a name"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_starts(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        table(**changes)


def test_queues_and_stacks_are_tables_of_items_that_are_sampled_once() -> None:
    for made, limiter in ((ReplayTable.queue("q", 4), QueueLimiter(4)), (ReplayTable.stack("q", 4), StackLimiter(4))):
        assert (made.max_size, made.max_times_sampled, made.limiter) == (4, 1, limiter)


def test_settings_are_compared_and_pickled_by_value() -> None:
    settings = table(max_bytes=5)
    assert pickle.loads(pickle.dumps(settings)) == settings != table()
