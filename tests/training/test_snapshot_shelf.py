"""A shelf keeps what a death in any moment leaves as the newest snapshots that all have, and not much more."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from ropewalk.pipeline.plans import Worker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.training.snapshot_shelf import NUM_KEPT, SnapshotShelf


@dataclass
class Kept:
    worker: Worker
    cut: Cut
    size_bytes: int = 10
    note: str = ""
    is_released: bool = False

    def release(self) -> None:
        assert not self.is_released
        self.is_released = True


def cut(num: int) -> Cut:
    return Cut(0, num, (0, 0))


ONE, OTHER = Worker(0, 0), Worker(1, 0)


def test_the_newest_two_of_each_worker_are_kept() -> None:
    shelf: SnapshotShelf[Kept] = SnapshotShelf()
    for num in range(5):
        shelf.put(0, Kept(ONE, cut(num)))
    shelf.put(0, Kept(OTHER, cut(4)))
    assert shelf.contents() == [(0, ONE, cut(3)), (0, ONE, cut(4)), (0, OTHER, cut(4))]
    assert shelf.get(ONE, cut(3)).cut == cut(3)
    assert shelf.size_bytes == 30
    with pytest.raises(KeyError, match=r"of worker 0\.0 there is no snapshot at Cut\(.* num_since=2"):
        shelf.get(ONE, cut(2))


def test_the_memory_of_what_goes_is_given_back() -> None:
    shelf: SnapshotShelf[Kept] = SnapshotShelf()
    first, again, second, third, late = (Kept(ONE, cut(num)) for num in (1, 1, 2, 3, 4))
    shelf.begin(1, None)
    for snapshot in (first, again, second, third):
        shelf.put(1, snapshot)
    shelf.put(0, late)
    assert [one.is_released for one in (first, again, second, third, late)] == [True, True, False, False, True]
    shelf.begin(2, cut(3))
    assert [one.is_released for one in (second, third)] == [True, False]


def test_a_snapshot_that_comes_again_is_replaced() -> None:
    shelf: SnapshotShelf[Kept] = SnapshotShelf()
    for num, note in ((1, "a"), (2, "b"), (2, "c")):
        shelf.put(0, Kept(ONE, cut(num), note=note))
    assert [shelf.get(ONE, cut(num)).note for num in (1, 2)] == ["a", "c"]
    shelf.put(1, Kept(ONE, cut(2), note="d"))
    assert shelf.get(ONE, cut(2)).note == "d", "of the newest epoch"


def test_equal_cuts_of_two_plans_are_two_places() -> None:
    # Found by reading: a plan that follows another one counts from 0 again, and its snapshots were taken for those of
    # the plan before when somebody died before all of them were there.
    shelf: SnapshotShelf[Kept] = SnapshotShelf()
    shelf.put(0, Kept(ONE, cut(2), note="of the first plan"))
    shelf.begin(1, cut(2), {0})
    shelf.put(1, Kept(ONE, cut(2), note="of the second plan"))
    assert [shelf.get(ONE, cut(2), {epoch}).note for epoch in (0, 1)] == ["of the first plan", "of the second plan"]
    shelf.begin(2, cut(2), {0})
    assert shelf.contents() == [(0, ONE, cut(2))]


def test_the_snapshot_that_an_epoch_goes_on_from_is_not_the_first_that_it_took() -> None:
    # Two deaths one after the other were too many: those of others were forgotten when there was one new cut.
    shelf: SnapshotShelf[Kept] = SnapshotShelf()
    own, others = Kept(ONE, cut(4)), Kept(OTHER, cut(4))
    for snapshot in (own, others):
        shelf.put(0, snapshot)
    shelf.begin(1, cut(4), {0})
    shelf.put(1, own)
    shelf.put(1, Kept(ONE, cut(6)))
    assert shelf.get(OTHER, cut(4)) is others
    assert not own.is_released


def test_what_an_old_epoch_sends_late_drives_out_nothing_newer() -> None:
    shelf: SnapshotShelf[Kept] = SnapshotShelf()
    for num in (10, 20, 30):
        shelf.put(0, Kept(ONE, cut(num)))
    shelf.begin(1, cut(20))
    shelf.put(0, Kept(ONE, cut(40)))
    assert shelf.contents() == [(0, ONE, cut(20))]


def test_workers_of_an_earlier_plan_are_forgotten_when_the_present_ones_are_safe() -> None:
    shelf: SnapshotShelf[Kept] = SnapshotShelf()
    shelf.put(0, Kept(OTHER, cut(10)))
    shelf.begin(1, cut(10))
    shelf.put(1, Kept(ONE, cut(20)))
    assert (0, OTHER, cut(10)) in shelf.contents(), "cut 20 may not have come to the other shelves"
    shelf.put(1, Kept(ONE, cut(30)))
    assert shelf.contents() == [(1, ONE, cut(20)), (1, ONE, cut(30))]
    shelf.begin(2, None)
    assert (shelf.contents(), shelf.size_bytes) == ([], 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_whole_cut_is_never_lost(seed: int) -> None:
    """Snapshots come in any order, epochs are given up in the middle; a cut begins when the last is whole."""
    chance = random.Random(seed)
    workers = [Worker(group, 0) for group in range(3)]
    shelves: dict[Worker, SnapshotShelf[Kept]] = {worker: SnapshotShelf() for worker in workers}
    epoch, number = 0, 0
    whole: Cut | None = None
    for _ in range(40):
        number += 1
        order = chance.sample(workers, 3)
        num_in_time = 3 if chance.random() < 0.7 else chance.randrange(3)
        for worker in order[:num_in_time]:
            shelves[worker].put(epoch, Kept(worker, cut(number)))
        if num_in_time == 3:
            whole = cut(number)
        else:
            for shelf in shelves.values():
                shelf.begin(epoch + 1, whole)
            for worker in order[num_in_time:]:
                shelves[worker].put(epoch, Kept(worker, cut(number)))
            epoch, number = epoch + 1, 0 if whole is None else whole.num_since
        if whole is not None:
            assert all(shelves[worker].get(worker, whole).cut == whole for worker in workers)
        assert all(len(shelf.contents()) <= NUM_KEPT for shelf in shelves.values())
