"""A store keeps what a death in any moment leaves as the newest snapshots that all have, and not much more."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.training.snapshot_store import NUM_KEPT, SnapshotStore


@dataclass
class Kept:
    worker: PlanWorker
    cut: Cut
    size_bytes: int = 10
    note: str = ""
    is_released: bool = False
    is_pinned: bool = False

    def release(self) -> None:
        assert not self.is_released
        self.is_released = True

    def pin(self) -> None:
        assert not self.is_released
        self.is_pinned = True


def cut(num: int) -> Cut:
    return Cut(0, num, (0, 0))


ONE, OTHER = PlanWorker(0, 0), PlanWorker(1, 0)


def test_the_newest_two_of_each_worker_are_kept() -> None:
    shelf: SnapshotStore[Kept] = SnapshotStore()
    for num in range(5):
        shelf.put(0, Kept(ONE, cut(num)))
    shelf.put(0, Kept(OTHER, cut(4)))
    assert shelf.contents() == [(0, ONE, cut(3)), (0, ONE, cut(4)), (0, OTHER, cut(4))]
    assert shelf.get(ONE, cut(3), 0).cut == cut(3)
    assert shelf.size_bytes == 30
    with pytest.raises(KeyError, match=r"of worker 0\.0 there is no snapshot at Cut\(.* num_since=2.* of epoch 0 here"):
        shelf.get(ONE, cut(2), 0)
    with pytest.raises(KeyError, match=r"of epoch 1 here; there are: Cut\(.* of epoch 0, Cut"):
        shelf.get(ONE, cut(3), 1)


def test_the_memory_of_what_goes_is_given_back() -> None:
    shelf: SnapshotStore[Kept] = SnapshotStore()
    first, again, second, third, late = (Kept(ONE, cut(num)) for num in (1, 1, 2, 3, 4))
    shelf.begin(1, None)
    for snapshot in (first, again, second, third):
        shelf.put(1, snapshot)
    shelf.put(0, late)
    assert [one.is_released for one in (first, again, second, third, late)] == [True, True, False, False, True]
    shelf.begin(2, (1, cut(3)))
    assert [one.is_released for one in (second, third)] == [True, False]


def test_a_snapshot_that_comes_again_is_replaced() -> None:
    shelf: SnapshotStore[Kept] = SnapshotStore()
    for num, note in ((1, "a"), (2, "b"), (2, "c")):
        shelf.put(0, Kept(ONE, cut(num), note=note))
    assert [shelf.get(ONE, cut(num), 0).note for num in (1, 2)] == ["a", "c"]


def test_a_snapshot_that_leaves_the_process_is_not_overwritten_by_a_later_one() -> None:
    # The call that sends it reads its memory after `get` has returned, perhaps when the next one is taken.
    shelf: SnapshotStore[Kept] = SnapshotStore()
    shelf.put(0, Kept(ONE, cut(1)))
    assert not shelf.get(ONE, cut(1), 0).is_pinned
    assert shelf.get(ONE, cut(1), 0, to_send=True).is_pinned


def test_equal_cuts_of_two_plans_are_two_places() -> None:
    # Found by reading: a plan that follows another one counts from 0 again, and its snapshots were taken for those of
    # the plan before when somebody died before all of them were there.
    shelf: SnapshotStore[Kept] = SnapshotStore()
    shelf.put(0, Kept(ONE, cut(2), note="of the first plan"))
    shelf.begin(1, (0, cut(2)))
    shelf.put(1, Kept(ONE, cut(2), note="of the second plan"))
    assert [shelf.get(ONE, cut(2), epoch).note for epoch in (0, 1)] == ["of the first plan", "of the second plan"]
    shelf.begin(2, (0, cut(2)))
    assert shelf.contents() == [(0, ONE, cut(2))]


def test_the_snapshot_that_an_epoch_goes_on_from_is_not_the_first_that_it_took() -> None:
    # Two deaths one after the other were too many: those of others were forgotten when there was one new cut.
    shelf: SnapshotStore[Kept] = SnapshotStore()
    own, others = Kept(ONE, cut(4)), Kept(OTHER, cut(4))
    for snapshot in (own, others):
        shelf.put(0, snapshot)
    shelf.begin(1, (0, cut(4)))
    shelf.put(0, own)
    shelf.put(1, Kept(ONE, cut(6)))
    assert shelf.get(OTHER, cut(4), 0) is others
    assert not own.is_released


def test_a_copy_of_what_an_epoch_goes_on_from_may_come_late() -> None:
    shelf: SnapshotStore[Kept] = SnapshotStore()
    shelf.begin(3, (1, cut(4)))
    shelf.put(3, Kept(ONE, cut(6)))
    copy, late = Kept(ONE, cut(4)), Kept(ONE, cut(5))
    shelf.put(1, copy)
    shelf.put(1, late)
    assert late.is_released
    assert shelf.contents() == [(1, ONE, cut(4)), (3, ONE, cut(6))]
    shelf.put(3, Kept(ONE, cut(8)))
    assert copy.is_released
    assert shelf.contents() == [(3, ONE, cut(6)), (3, ONE, cut(8))]


def test_what_peers_take_in_an_epoch_may_come_before_it_begins_here() -> None:
    shelf: SnapshotStore[Kept] = SnapshotStore()
    shelf.put(1, Kept(OTHER, cut(6)))
    shelf.begin(1, (0, cut(4)))
    assert shelf.contents() == [(1, OTHER, cut(6))]


def test_what_an_old_epoch_sends_late_drives_out_nothing_newer() -> None:
    shelf: SnapshotStore[Kept] = SnapshotStore()
    for num in (10, 20, 30):
        shelf.put(0, Kept(ONE, cut(num)))
    shelf.begin(1, (0, cut(20)))
    shelf.put(0, Kept(ONE, cut(40)))
    assert shelf.contents() == [(0, ONE, cut(20))]


def test_workers_of_an_earlier_plan_are_forgotten_when_the_present_ones_are_safe() -> None:
    shelf: SnapshotStore[Kept] = SnapshotStore()
    shelf.put(0, Kept(OTHER, cut(10)))
    shelf.begin(1, (0, cut(10)))
    shelf.put(1, Kept(ONE, cut(20)))
    assert (0, OTHER, cut(10)) in shelf.contents(), "cut 20 may not have come to the other stores"
    shelf.put(1, Kept(ONE, cut(30)))
    assert shelf.contents() == [(1, ONE, cut(20)), (1, ONE, cut(30))]
    shelf.begin(2, None)
    assert (shelf.contents(), shelf.size_bytes) == ([], 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_whole_cut_is_never_lost(seed: int) -> None:
    """Snapshots come in any order, epochs are given up in the middle; a cut begins when the last is whole."""
    chance = random.Random(seed)
    workers = [PlanWorker(group, 0) for group in range(3)]
    shelves: dict[PlanWorker, SnapshotStore[Kept]] = {worker: SnapshotStore() for worker in workers}
    epoch, number = 0, 0
    whole: tuple[int, Cut] | None = None
    for _ in range(40):
        number += 1
        order = chance.sample(workers, 3)
        num_in_time = 3 if chance.random() < 0.7 else chance.randrange(3)
        for worker in order[:num_in_time]:
            shelves[worker].put(epoch, Kept(worker, cut(number)))
        if num_in_time == 3:
            whole = epoch, cut(number)
        else:
            for shelf in shelves.values():
                shelf.begin(epoch + 1, whole)
            for worker in order[num_in_time:]:
                shelves[worker].put(epoch, Kept(worker, cut(number)))
            epoch, number = epoch + 1, 0 if whole is None else whole[1].num_since
        if whole is not None:
            assert all(shelves[worker].get(worker, whole[1], whole[0]).cut == whole[1] for worker in workers)
        assert all(len(shelf.contents()) <= NUM_KEPT for shelf in shelves.values())
