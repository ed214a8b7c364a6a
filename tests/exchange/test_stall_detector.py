"""Stalls: from what members posted, who is waited for and for which gradients."""

import json
import threading

import msgspec
import pytest
import torch
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from ropewalk.errors import ExchangeStalled
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.board import MemoryBoard, StoreBoard
from ropewalk.exchange.groups.thread_group import ThreadGroup
from ropewalk.exchange.stall_detector import ProgressNote, StallDetector, StepProgress, describe, diagnose

LAYOUTS = (Layout((BucketEntry("c", (2,)), BucketEntry("b", (2,)))), Layout((BucketEntry("a", (2,)),)))
WAITING = ProgressNote(step=7, active=True, beat=9)


def test_a_note_names_what_is_not_ready_until_the_backward_is_over() -> None:
    progress = StepProgress(["c", "b", "a"])
    assert progress.note() == ProgressNote(step=-1, beat=1)
    progress.begin(7)
    progress.ready("b")
    assert progress.note() == ProgressNote(step=7, active=True, missing=("c", "a"), beat=2)
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
        (ProgressNote(), (), "has not begun step 7"),
        (ProgressNote(step=6), (), "has not begun step 7, its last was 6"),
        (ProgressNote(step=6, active=True), (), "is still in step 6"),
        (ProgressNote(step=7, active=True, missing=("c", "a")), ("c", "a"), "2 of its gradients not ready: c, a"),
    ],
)
def test_who_has_not_come_as_far_is_missing(note, tensors, words) -> None:
    (missing,) = diagnose([WAITING, note], rank=0)
    assert missing.rank == 1 and missing.tensors == tensors and words in missing.words


@pytest.mark.parametrize(
    "note", [ProgressNote(step=7, active=True), ProgressNote(step=7), ProgressNote(step=8, active=True, missing=("a",))]
)
def test_who_has_come_as_far_is_not_missing(note) -> None:
    assert diagnose([WAITING, note], rank=0) == ()


def test_a_member_whose_notes_do_not_count_on_has_stopped() -> None:
    behind, beyond = ProgressNote(step=6, active=True, beat=3), ProgressNote(step=6, active=True, beat=4)
    (missing,) = diagnose([WAITING, behind], 0, earlier=[WAITING, behind])
    assert "stopped posting" in missing.words
    (missing,) = diagnose([WAITING, beyond], 0, earlier=[WAITING, behind])
    assert "stopped posting" not in missing.words


def test_a_stall_in_words_says_who_and_where() -> None:
    notes = [WAITING, ProgressNote(step=6), None, ProgressNote(step=7, active=True)]
    text = describe(7, 31.26, diagnose(notes, 0), size=4)
    assert text.splitlines() == [
        "step 7 has waited 31.3 s for ranks 1, 2 of 4",
        "  rank 1 has not begun step 7, its last was 6",
        "  rank 2 has not begun: it has never posted how far it is",
    ]
    assert "all 4 members have arrived" in describe(7, 31.0, (), size=4)


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def _pair() -> tuple[ThreadGroup, ThreadGroup]:
    first, second = ThreadGroup.make(2)
    first.board, second.board = MemoryBoard.make(2)
    return first, second


def _post(group: ThreadGroup, note: ProgressNote) -> None:
    assert group.board is not None
    group.board.post(msgspec.json.encode(note))


class Unread:
    """A board that cannot be read, because the process that keeps it is frozen."""

    num_reads = 0

    def post(self, note: bytes) -> None:
        pass

    def read(self) -> list[bytes | None]:
        self.num_reads += 1
        raise TimeoutError


def test_warnings_come_once_per_period_and_the_error_has_names() -> None:
    here, there = _pair()
    warnings: list[str] = []
    clock = Clock()
    stalls = StallDetector(warn_after_s=2.0, interval_s=60.0, warn=warnings.append, clock=clock)
    stalls.bind(LAYOUTS, here)
    stalls.begin(StepRecord(0))
    _post(there, ProgressNote(0, active=True, missing=("c", "a"), beat=1))
    stalls.waiting(0.0)
    for now in (101.0, 101.9):
        clock.now = now
        stalls.look()
    assert warnings == []
    for now in (102.0, 102.5, 103.9):
        clock.now = now
        stalls.waiting(now - 100.0)
        stalls.look()
    assert len(warnings) == 1 and "rank 1 2 of its gradients not ready: c, a" in warnings[0]
    clock.now = 104.0
    stalls.look()
    assert len(warnings) == 2 and "stopped posting" in warnings[1]
    error = stalls.explained(ExchangeStalled("timed out", waited_s=5.0))
    assert (error.ranks, error.tensors, error.waited_s) == ((1,), ((1, "c"), (1, "a")), 5.0)
    assert "use join()" in str(error)
    stalls.close()
    stalls.close()


def test_a_thread_posts_and_warns_by_itself() -> None:
    here, there = _pair()
    warned = threading.Event()
    stalls, other = StallDetector(0.02, warn=lambda text: warned.set()), StallDetector(60.0, 0.01)
    stalls.bind(LAYOUTS, here)
    other.bind(LAYOUTS, there)
    stalls.begin(StepRecord(0))
    other.begin(StepRecord(0))
    stalls.waiting(0.0)
    assert warned.wait(120)
    assert here.board is not None
    posted = threading.Event()
    for _ in range(2000):
        if b'"step":0' in (here.board.read()[1] or b""):
            posted.set()
            break
        threading.Event().wait(0.005)
    assert posted.is_set()
    stalls.close()
    other.close()


def test_other_buckets_within_a_step_do_not_make_it_forgotten() -> None:
    here, there = _pair()
    stalls = StallDetector()
    stalls.bind(LAYOUTS, here)
    _post(there, ProgressNote(beat=1))
    stalls.begin(StepRecord(3))
    stalls.bind(LAYOUTS[:1], here)
    stalls.waiting(0.0)
    error = stalls.explained(ExchangeStalled("timed out", waited_s=5.0))
    assert error.ranks == (1,) and "rank 1 has not begun step 3" in str(error)
    stalls.close()


def test_a_wait_that_is_short_does_not_read_the_board() -> None:
    here, _ = _pair()
    here.board = board = Unread()
    clock = Clock()
    stalls = StallDetector(30.0, clock=clock)
    stalls.begin(StepRecord(0))
    stalls.bind(LAYOUTS, here)
    stalls.waiting(0.0)
    clock.now += 0.9
    stalls.look()
    assert board.num_reads == 0
    stalls.close()


def test_a_board_that_cannot_be_read_is_named_instead_of_a_rank() -> None:
    here, _ = _pair()
    here.board = Unread()
    stalls = StallDetector()
    stalls.bind(LAYOUTS, here)
    stalls.begin(StepRecord(3))
    error = stalls.explained(ExchangeStalled("timed out", ranks=(1,), waited_s=5.0))
    assert error.ranks == (1,) and "step 3 has waited 5.0 s, and how far the others are cannot be read" in str(error)
    stalls.close()


def test_without_a_board_only_the_wait_is_told() -> None:
    group, _ = ThreadGroup.make(2)
    group.board = None
    warnings: list[str] = []
    clock = Clock()
    stalls = StallDetector(warn_after_s=1.0, interval_s=60.0, warn=warnings.append, clock=clock)
    stalls.bind(LAYOUTS, group)
    stalls.begin(StepRecord(3))
    stalls.waiting(0.0)
    clock.now += 1.0
    stalls.look()
    assert warnings[0].startswith("step 3 has waited 1.0 s for rank 1 of 2")
    stalls.close()


def test_a_read_of_a_store_that_does_not_answer_ends_soon() -> None:
    class Frozen:
        def set(self, key: str, value: str, /) -> None:
            pass

        def check(self, keys: list[str], /) -> bool:
            return thawed.wait(60.0)

        def get(self, key: str, /) -> bytes:
            return key.encode()

    thawed = threading.Event()
    board = StoreBoard(Frozen(), 0, 2, "stalls/0", patience_s=0.05)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            board.read()
    assert [thread.name for thread in threading.enumerate()].count("ropewalk-board") == 1
    thawed.set()
    assert StoreBoard(Frozen(), 0, 2, "stalls/0").read() == [b"stalls/0/note/0", b"stalls/0/note/1"]


def test_a_board_on_a_store_keeps_the_last_note_of_each_member(tmp_path) -> None:
    boards = [StoreBoard(FileStore(str(tmp_path / "store"), 2), rank, 2, "stalls/0") for rank in range(2)]
    assert boards[0].read() == [None, None]
    boards[1].post(b"first")
    boards[1].post(json.dumps({"step": 1}).encode())
    assert boards[0].read() == [None, b'{"step": 1}']
    assert torch.distributed.is_initialized() is False
