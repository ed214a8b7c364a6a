from __future__ import annotations

import pickle
import threading
import time
from array import array
from typing import Any

import pytest

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.training.recorder import ADMISSION, BACK_PRESSURE, STARVED, SUMS, Recorder, records_of
from tests.training.played_records import player_of, train

ME = PlanWorker(1, 0)
FORWARDS = [Action(ActionKind.FORWARD, 1, 0, number) for number in range(10)]


def test_what_was_recorded_is_taken_in_order() -> None:
    recorder = Recorder(ME, capacity=4)
    recorder.record(FORWARDS[0], 100, 110)
    recorder.record(FORWARDS[1], 130, 150, waited_ns=15)
    record = recorder.take()
    assert record.worker == ME and len(record) == 2
    assert record.actions == tuple(FORWARDS[:2])
    assert (record.start_ns, record.end_ns) == (array("q", [100, 130]), array("q", [110, 150]))
    assert record.waited_ns == array("q", [0, 15])
    assert pickle.loads(pickle.dumps(record)) == record
    assert recorder.take() == record, "taking removes nothing"


@pytest.mark.parametrize("num", [3, 4, 5, 7, 8, 9])
def test_a_full_ring_forgets_the_oldest_and_counts_them(num: int) -> None:
    recorder = Recorder(ME, capacity=4)
    for number in range(num):
        recorder.record(FORWARDS[number], number, number + 1, number)
    kept = range(max(0, num - 4), num)
    record = recorder.take()
    assert record.actions == tuple(FORWARDS[number] for number in kept)
    assert list(record.start_ns) == list(record.waited_ns) == [*kept]
    assert list(record.end_ns) == [number + 1 for number in kept]
    assert record.num_forgotten == num - len(kept) and recorder.num_recorded == num


@pytest.mark.parametrize("last", [0, 1, 3, 4, 9])
def test_the_newest_can_be_taken_alone(last: int) -> None:
    recorder = Recorder(ME, capacity=4)
    for number in range(6):
        recorder.record(FORWARDS[number], number, number + 1)
    record = recorder.take(last)
    assert record.actions == tuple(FORWARDS[max(2, 6 - last) : 6])
    assert len(record) + record.num_forgotten == 6


def test_another_thread_takes_whole_rows_while_actions_are_recorded() -> None:
    recorder, has_ended = Recorder(ME, capacity=8), threading.Event()  # it comes round in the middle of a copy

    def go_on() -> None:
        number = 0
        while not has_ended.is_set():
            recorder.record(FORWARDS[number % 10], number, number + 1)
            number += 1

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        taken = [recorder.take() for _ in range(3000)]
    finally:
        has_ended.set()
        thread.join()
    for record in taken:
        starts = list(record.start_ns)
        assert starts == list(range(starts[0], starts[0] + len(starts))) if starts else True
        assert list(record.end_ns) == [start + 1 for start in starts]
        assert record.actions == tuple(FORWARDS[start % 10] for start in starts)
        assert not starts or record.num_forgotten == starts[0]


@pytest.mark.parametrize("num_meanwhile", range(7))
def test_the_rows_that_are_written_over_during_a_copy_are_left_out(
    num_meanwhile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(ME, capacity=4)
    for number in range(9):
        recorder.record(FORWARDS[number], number, number + 1)

    class Overtaken(list[Action]):
        def __getitem__(self, part: Any) -> Any:
            monkeypatch.undo()
            found = super().__getitem__(part)
            for number in range(9, 9 + num_meanwhile):
                recorder.record(FORWARDS[number % 10], number, number + 1)
            return found

    monkeypatch.setattr(recorder, "_actions", Overtaken(recorder._actions))
    record = recorder.take(3)
    # A fifth slot: one row may be recorded, and a second one begun, before the oldest of three is lost.
    kept = range(max(6, 9 + num_meanwhile - 4), 9)
    assert list(record.start_ns) == [*kept]
    assert record.actions == tuple(FORWARDS[number] for number in kept)
    assert record.num_forgotten == (kept.start if kept else 9)


def test_the_end_of_the_newest_action_is_known() -> None:
    recorder = Recorder(ME, capacity=2)
    assert recorder.last_end_ns == 0
    for number in range(3):
        recorder.record(FORWARDS[number], number, number + 100)
        assert recorder.last_end_ns == number + 100


def test_a_recorder_that_was_cleared_is_as_new() -> None:
    recorder = Recorder(ME, capacity=2)
    for number in range(3):
        recorder.record(FORWARDS[number], 1, 2, 1)
    recorder.clear()
    assert recorder.take() == Recorder(ME, capacity=2).take()
    with pytest.raises(ValueError, match="at least 1"):
        Recorder(ME, capacity=0)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("R1:3<0/relu", (STARVED, 0)),
        ("R1:3<2/relu", (STARVED, 2)),
        ("S1:3>2/relu", (BACK_PRESSURE, 2)),
        ("U1v2", (SUMS, None)),
        ("F1:3", (ADMISSION, None)),
    ],
)
def test_why_a_worker_waited_follows_from_the_action(code: str, cause: tuple[str, int | None]) -> None:
    recorder = Recorder(ME)
    recorder.record(Action.parse(code), 1, 2, 1)
    assert recorder.take().cause(0) == cause


@pytest.mark.timing
def test_recording_an_action_takes_less_than_a_microsecond() -> None:
    recorder, action = Recorder(ME, capacity=1000), FORWARDS[0]
    record, times = recorder.record, []
    for _ in range(5):
        start = time.perf_counter()
        for number in range(2000):
            record(action, number, number, 0)
        times.append((time.perf_counter() - start) / 2000)
    assert min(times) < 1e-6


def test_what_a_player_did_becomes_records() -> None:
    player = player_of("one_f_one_b")
    train(player, 2)
    records = records_of(player.recorded)
    assert list(records) == list(player.plan.workers)
    for worker, record in records.items():
        assert record.actions == tuple(one.action for one in player.recorded if one.worker == worker)
        assert all(start <= end for start, end in zip(record.start_ns, record.end_ns, strict=True))
        assert not any(record.waited_ns)
