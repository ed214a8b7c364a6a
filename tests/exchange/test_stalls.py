"""Stalls: from what members posted, who is waited for and for which gradients."""

import json
import threading

import pytest
import torch
from torch.distributed import FileStore

from ropewalk.errors import ExchangeStalled
from ropewalk.exchange.buckets import Entry, Layout
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.board import MemoryBoard, StoreBoard
from ropewalk.exchange.groups.thread_group import ThreadGroup
from ropewalk.exchange.stalls import Note, Progress, Stalls, describe, diagnose

LAYOUTS = (Layout((Entry("c", (2,)), Entry("b", (2,)))), Layout((Entry("a", (2,)),)))
WAITING = Note(step=7, active=True, beat=9)


def test_a_note_names_what_is_not_ready_until_the_backward_is_over() -> None:
    progress = Progress(["c", "b", "a"])
    assert progress.note() == Note(step=-1, beat=1)
    progress.begin(7)
    progress.ready("b")
    assert progress.note() == Note(step=7, active=True, missing=("c", "a"), beat=2)
    progress.waiting()
    assert progress.note().missing == ()
    progress.finish()
    assert not progress.note().active
    progress.begin(8)
    assert progress.note().missing == ("c", "b", "a")


@pytest.mark.parametrize(
    ("note", "tensors", "words"),
    [
        (None, (), "has never posted"),
        (Note(), (), "has not begun step 7"),
        (Note(step=6), (), "has not begun step 7, its last was 6"),
        (Note(step=6, active=True), (), "is still in step 6"),
        (Note(step=7, active=True, missing=("c", "a")), ("c", "a"), "2 of its gradients not ready: c, a"),
    ],
)
def test_who_has_not_come_as_far_is_missing(note, tensors, words) -> None:
    (missing,) = diagnose([WAITING, note], rank=0)
    assert missing.rank == 1 and missing.tensors == tensors and words in missing.words


@pytest.mark.parametrize("note", [Note(step=7, active=True), Note(step=7), Note(step=8, active=True, missing=("a",))])
def test_who_has_come_as_far_is_not_missing(note) -> None:
    assert diagnose([WAITING, note], rank=0) == ()


def test_a_member_whose_notes_do_not_count_on_has_stopped() -> None:
    behind, beyond = Note(step=6, active=True, beat=3), Note(step=6, active=True, beat=4)
    (missing,) = diagnose([WAITING, behind], 0, earlier=[WAITING, behind])
    assert "stopped posting" in missing.words
    (missing,) = diagnose([WAITING, beyond], 0, earlier=[WAITING, behind])
    assert "stopped posting" not in missing.words


def test_a_stall_in_words_says_who_and_where() -> None:
    notes = [WAITING, Note(step=6), None, Note(step=7, active=True)]
    text = describe(7, 31.26, diagnose(notes, 0), size=4)
    assert text.splitlines() == [
        "step 7 has waited 31.3 s for ranks 1, 2 of 4",
        "  rank 1 has not begun step 7, its last was 6",
        "  rank 2 has not begun: it has never posted how far it is",
    ]
    assert "all 4 members have arrived" in describe(7, 31.0, (), size=4)


def _bound(group, **options):
    stalls = Stalls(**options)
    stalls.bind(LAYOUTS, group)
    return stalls


def test_warnings_come_once_per_period_and_the_error_has_names() -> None:
    groups = ThreadGroup.make(2)
    for group, board in zip(groups, MemoryBoard.make(2), strict=True):
        group.board = board
    warnings: list[str] = []
    here = _bound(groups[0], warn_after_s=2.0, interval_s=0.01, warn=warnings.append)
    there = _bound(groups[1], interval_s=0.01)
    try:
        here.begin(StepRecord(0))
        there.begin(StepRecord(0))
        there.ready("b")
        posted = threading.Event()
        for _ in range(2000):  # until the other's thread has posted that it is in step 0
            if b'"missing":["c","a"]' in (groups[0].board.read()[1] or b""):
                break
            posted.wait(0.005)
        for waited_s in (1.0, 1.9):
            here.waiting(waited_s)
        assert warnings == []
        for waited_s in (2.0, 2.5, 3.9):
            here.waiting(waited_s)
        assert len(warnings) == 1 and "rank 1 2 of its gradients not ready: c, a" in warnings[0]
        here.waiting(4.0)
        assert len(warnings) == 2
        error = here.explained(ExchangeStalled("timed out", waited_s=5.0))
        assert (error.ranks, error.tensors, error.waited_s) == ((1,), ((1, "c"), (1, "a")), 5.0)
        assert "use join()" in str(error)
    finally:
        here.close()
        there.close()
        there.close()


def test_without_a_board_only_the_wait_is_told() -> None:
    (group, _) = ThreadGroup.make(2)
    group.board = None
    warnings: list[str] = []
    stalls = _bound(group, warn_after_s=1.0, warn=warnings.append)
    stalls.begin(StepRecord(3))
    stalls.waiting(1.0)
    assert warnings[0].startswith("step 3 has waited 1.0 s for rank 1 of 2")
    stalls.close()


def test_a_board_on_a_store_keeps_the_last_note_of_each_member(tmp_path) -> None:
    boards = [StoreBoard(FileStore(str(tmp_path / "store"), 2), rank, 2, "stalls/0") for rank in range(2)]
    assert boards[0].read() == [None, None]
    boards[1].post(b"first")
    boards[1].post(json.dumps({"step": 1}).encode())
    assert boards[0].read() == [None, b'{"step": 1}']
    assert torch.distributed.is_initialized() is False
