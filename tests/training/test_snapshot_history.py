"""What becomes of the snapshots of a training."""

from __future__ import annotations

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.training.assignment import PeerSnapshot
from ropewalk.training.snapshot_history import SnapshotHistory, size_bytes

WORKERS = PlanWorker(0, 0), PlanWorker(1, 0)


def cut(step: int) -> Cut:
    return Cut(0, 0, (step, step))


def taken(history: SnapshotHistory, step: int, *, whole: bool = True) -> None:
    history.asked(step, cut(step), WORKERS, 10.0 * step)
    for worker in WORKERS[: 2 if whole else 1]:
        history.arrived(worker, PeerSnapshot(cut(step), 0.5, 100, 1 - worker.group))
    if whole:
        history.became_whole(cut(step), 10.0 * step + 1)


def states(history: SnapshotHistory) -> list[tuple[int, str]]:
    return [(one.step, one.state) for one in history.entries]


def test_the_newest_whole_one_supersedes_the_one_before_it() -> None:
    history = SnapshotHistory()
    taken(history, 2)
    taken(history, 4)
    assert states(history) == [(2, "superseded"), (4, "whole")]
    newest = history.newest_whole()
    assert newest and (newest.step, newest.whole, history.num_whole) == (4, 41.0, 2)
    assert size_bytes(newest.parts) == 200


def test_after_a_death_what_was_under_way_is_dropped_and_the_whole_one_is_what_training_goes_on_from() -> None:
    history = SnapshotHistory()
    taken(history, 2)
    taken(history, 4, whole=False)
    history.restarted()
    assert states(history) == [(2, "whole"), (4, "dropped")]
    taken(history, 4)
    assert states(history)[1:] == [(4, "dropped"), (4, "whole")], "the same cut, taken once more"
    assert len(history.entries[1].parts) == 1


def test_another_state_makes_all_of_them_useless() -> None:
    history = SnapshotHistory()
    taken(history, 2)
    history.clear()
    assert states(history) == [(2, "dropped")] and history.newest_whole() is None
