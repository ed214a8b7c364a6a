"""A copy or a child: whichever keeps calls waiting less, by what the last ones took."""

from __future__ import annotations

from ropewalk.program.snapshot_costs import How, SnapshotCosts

MB = 10**6


def test_what_is_small_is_copied_and_what_is_large_is_written_by_a_child() -> None:
    costs = SnapshotCosts(may_fork=True)
    assert costs.copies(1 * MB) and not costs.copies(200 * MB) and not costs.pickles_in_child


def test_a_process_of_many_pages_copies_more() -> None:
    costs = SnapshotCosts(may_fork=True)
    costs.forked(0.020)
    assert costs.copies(30 * MB) and not costs.copies(50 * MB)
    costs.copied(10 * MB, 0.010)
    assert costs.copies(10 * MB) and not costs.copies(30 * MB)


def test_one_slow_fork_does_not_decide_for_good() -> None:
    """A fork that was held up for 2 s, once, was the last: nothing measured another, and all states were copied."""
    costs = SnapshotCosts(may_fork=True)
    costs.forked(2.0)
    num_copies = 0
    while costs.copies(200 * MB):
        costs.copied(200 * MB, 0.1)
        num_copies += 1
        assert num_copies < 100
    costs.forked(0.001)
    assert num_copies > 50 and not costs.copies(200 * MB)
    assert costs.copies(1 * MB)
    costs.copied(1 * MB, 0.001)
    assert not costs.copies(10 * MB), "a fork faster than is assumed keeps its measured time"


def test_one_slow_copy_does_not_decide_for_good() -> None:
    costs = SnapshotCosts(may_fork=True)
    costs.copied(1 * MB, 1.0)
    num_forks = 0
    while not costs.copies(1 * MB):
        costs.forked(0.002)
        num_forks += 1
        assert num_forks < 200
    assert num_forks > 50 and not costs.copies(200 * MB)


def test_without_a_child_everything_is_copied() -> None:
    costs = SnapshotCosts(may_fork=False)
    costs.pickled(10.0)
    assert costs.copies(10**12) and not costs.pickles_in_child


def test_what_takes_long_to_pickle_is_pickled_by_a_child_unless_that_has_failed() -> None:
    costs = SnapshotCosts(may_fork=True)
    costs.pickled(0.050)
    assert costs.pickles_in_child
    costs.failed(How.PICKLE_IN_CHILD)
    assert not costs.pickles_in_child and not costs.copies(200 * MB)
    costs.failed(How.WRITE_IN_CHILD)
    assert costs.copies(200 * MB)
