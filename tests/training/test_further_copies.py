"""When the launcher has a copy of the newest snapshots, and when training may go on from it."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from ropewalk.errors import ServiceLost
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.training.assignment import PeerSnapshot
from ropewalk.training.further_copies import AUTO_BYTES, FurtherCopies, Where
from ropewalk.training.stored_snapshots import StoredSnapshot

ONE, OTHER = PlanWorker(0, 0), PlanWorker(1, 0)
CUT, LATER = Cut(0, 8, (0, 0)), Cut(0, 16, (0, 0))


class Fetched:
    """The calls that ask processes for snapshots."""

    def __init__(self) -> None:
        self.futures: dict[tuple[int, PlanWorker], Future[Any]] = {}

    def __call__(self, seat: int, worker: PlanWorker) -> Future[Any]:
        return self.futures.setdefault((seat, worker), Future())


def kept(size_bytes: int = 10, cut: Cut = CUT, **stored: StoredSnapshot) -> dict[PlanWorker, PeerSnapshot]:
    """Each by the other one."""
    return {
        worker: PeerSnapshot(cut, 0.0, size_bytes, seat, stored.get(name))
        for name, worker, seat in (("one", ONE, 1), ("other", OTHER, 0))
    }


def test_the_launcher_has_a_copy_when_all_snapshots_have_come() -> None:
    copies, fetch = FurtherCopies("launcher"), Fetched()
    assert not copies.are_here(CUT, kept(), fetch, is_alone=False)
    assert list(fetch.futures) == [(1, ONE), (0, OTHER)], "from their keepers, whose memory is not used again"
    fetch.futures[1, ONE].set_result("that of one")
    assert not copies.are_here(CUT, kept(), fetch, is_alone=False)
    fetch.futures[0, OTHER].set_result("that of the other")
    assert copies.are_here(CUT, kept(), fetch, is_alone=False)
    assert copies.newest == {}, "training goes on from an older cut as yet"
    copies.became_whole(CUT, kept())
    assert copies.newest == {ONE: "that of one", OTHER: "that of the other"}
    copies.clear()
    assert copies.newest == {}


def test_a_snapshot_that_cannot_be_had_holds_up_nothing() -> None:
    copies, fetch = FurtherCopies("launcher"), Fetched()
    copies.are_here(CUT, kept(), fetch, is_alone=False)
    fetch.futures[1, ONE].set_exception(ServiceLost("its keeper is gone"))
    fetch.futures[0, OTHER].set_result("that of the other")
    assert copies.are_here(CUT, kept(), fetch, is_alone=False)
    copies.became_whole(CUT, kept())
    assert copies.newest == {OTHER: "that of the other"}


@pytest.mark.parametrize(
    ("where", "size_bytes", "is_alone", "fetches"),
    [
        ("auto", AUTO_BYTES // 2, False, True),
        ("auto", AUTO_BYTES // 2 + 1, False, False),
        ("auto", AUTO_BYTES, True, True),
        ("launcher", AUTO_BYTES, False, True),
        (None, 1, True, False),
    ],
)
def test_what_is_small_or_has_no_other_keeper_is_copied_without_being_asked(
    where: Where, size_bytes: int, is_alone: bool, fetches: bool
) -> None:
    copies, fetch = FurtherCopies(where), Fetched()
    assert copies.are_here(CUT, kept(size_bytes), fetch, is_alone=is_alone) is not fetches
    assert bool(fetch.futures) is fetches
    assert copies.folder is None


def test_after_a_restart_snapshots_are_asked_for_anew() -> None:
    copies, first, second = FurtherCopies("launcher"), Fetched(), Fetched()
    copies.are_here(CUT, kept(), first, is_alone=False)
    copies.restarted()
    for future in first.futures.values():
        future.set_result("of the epoch that was given up")
    assert not copies.are_here(CUT, kept(), second, is_alone=False)
    assert second.futures.keys() == first.futures.keys()


def test_files_are_there_when_processes_say_so(tmp_path: Path) -> None:
    copies, fetch = FurtherCopies(tmp_path), Fetched()
    assert copies.folder is not None
    path = Path(copies.folder, "0.0-1-8-0")
    path.touch()
    stored = StoredSnapshot(str(path), 0, "digest")
    assert copies.are_here(CUT, kept(one=stored), fetch, is_alone=True)
    assert not fetch.futures
    copies.became_whole(CUT, kept(one=stored))
    assert copies.newest == {ONE: stored}, "the other one could not be written"
    assert path.exists()
    copies.became_whole(LATER, kept(cut=LATER))
    assert not path.exists()
    copies.close()
    copies.close()
    assert list(tmp_path.iterdir()) == []
