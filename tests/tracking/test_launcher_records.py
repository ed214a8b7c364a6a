"""Records that processes have written are checked in their launcher; what is wrong with them is said once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ropewalk.processes.messages import Records, RecordsSeen
from ropewalk.processes.record_relay import RecordBatch, RecordRelay
from ropewalk.tracking import launcher_records, record_decoder
from ropewalk.tracking.launcher_records import LauncherRecords
from ropewalk.tracking.record_frames import frames_of
from ropewalk.tracking.records import MetricColumns, Metrics, NoteAdded, OwnerIs, Record, RunCreated


class Sink:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.num_settled = 0

    def put(self, run: str, record: Record) -> None:
        self.records.append(record)

    def flush(self, timeout_s: float) -> bool:
        raise AssertionError("a transaction for each 256 KiB would cost more than all else")

    def settle(self, timeout_s: float) -> bool:
        self.num_settled += 1
        return True


class Sent:
    """A pretended agent's link, which keeps what it is to send."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    send_if_open = send


class Launcher:
    """A launcher with one pretended agent, whose processes "a" and "b" were given the runs "run-a" and "run-b"."""

    def __init__(self) -> None:
        self.relay, self.sink = RecordRelay(), Sink()
        self.problems: list[str] = []
        self.link = Sent()
        self.agent: Any = SimpleNamespace(link=self.link, host="n1", label="agent-0 on n1")
        self.records = LauncherRecords(self.relay.listen, self.sink, runs_of, self.problems.append)

    def take(self, process: str, data: bytes, *, source: str = "", is_last: bool = False) -> None:
        self.relay.take(self.agent, Records(process, source or process, data, is_last), None)


def runs_of(batch: RecordBatch) -> set[str] | None:
    return {f"run-{batch.process}"} if batch.process in "ab" else None


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.records.close()
    launcher.records.close()


def written(run: str, *records: object) -> bytes:
    return b"".join(frame for record in records for frame in frames_of(msgspec.msgpack.encode((run, record))))


def note(text: str) -> NoteAdded:
    return NoteAdded(text, 1.0)


CREATED = RunCreated("project", "name", "script", 1.0, {}, {}, folder="/home")


def test_records_of_each_process_come_whole_though_batches_end_anywhere(launcher: Launcher) -> None:
    one, two = written("run-a", note("of a")), written("run-a", note("of a guest"))
    launcher.take("a", one[:5])
    launcher.take("a", two[:9], source="guest")
    launcher.take("b", written("run-b", note("of b")))
    launcher.take("a", one[5:])
    launcher.take("a", two[9:], source="guest")
    assert launcher.sink.records == [note("of b"), note("of a"), note("of a guest")]
    assert launcher.problems == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (written("run-b", note("x")), "a on n1 wrote to the run 'run-b', which it was not given; this was refused"),
        (written("run\n\x1b[2J", note("x")), r"to the run 'run\n\x1b[2J', which it was not given"),
        (written("run-a", CREATED), "wrote RunCreated, which only its launcher may"),
        (written("run-a", OwnerIs("n1", 1, 1, "boot")), "wrote OwnerIs, which only its launcher may"),
        (written("run-a", Metrics("", ["loss"], [], 1, 1.0)), "wrote 1 names of metrics with 0 values"),
        (written("run-a", Metrics("", ["loss"], bytes(12), 1, 1.0)), "wrote 1 names of metrics with 1.5 values"),
    ],
    ids=["of others", "forged", "RunCreated", "OwnerIs", "uneven", "odd bytes"],
)
def test_a_record_that_a_process_may_not_write_is_refused_once_and_others_are_taken(
    launcher: Launcher, data: bytes, words: str
) -> None:
    launcher.take("a", data + data + written("run-a", note("mine")))
    launcher.take("a", data)
    launcher.take("b", written("run-b", note("of b")))
    (problem,) = launcher.problems
    assert words in problem and problem.isprintable()
    assert launcher.sink.records == [note("mine"), note("of b")]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 9,
        b"\x03\x00\x00abc",
        written("run-a", "no record"),
        written("run-a", [127, "", 1.0]),
        written("run-a", MetricColumns("", ["loss"], bytes(8), bytes(8), bytes(8))),
    ],
    ids=["no frame", "no msgpack", "no struct", "no such tag", "columns"],
)
def test_bytes_that_are_no_records_end_the_stream_of_their_process_alone(launcher: Launcher, data: bytes) -> None:
    launcher.take("a", written("run-a", note("before")) + data)
    launcher.take("a", written("run-a", note("after")))
    launcher.take("b", written("run-b", note("of b")))
    (problem,) = launcher.problems
    assert "a on n1 wrote what is not a record (" in problem
    assert launcher.sink.records == [note("before"), note("of b")]
    launcher.take("a", b"", is_last=True)
    launcher.take("a", written("run-a", note("of its successor")))
    assert launcher.sink.records[-1] == note("of its successor")


def test_records_of_processes_that_nobody_knows_are_dropped_and_make_room(launcher: Launcher) -> None:
    data = written("run-c", note("x"))
    launcher.take("c", data)
    assert launcher.sink.records == [] and launcher.link.sent == [RecordsSeen(len(data))]


def test_metrics_with_the_same_names_have_one_list_of_them(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store finds the records of one list at once, and a hundred names would take more memory than their values."""
    monkeypatch.setattr(record_decoder, "_MOST_LISTS", 2)
    both, one = ["loss", "accuracy"], ["loss"]
    sent = [
        Metrics("", names, [0.5] * len(names), step, 0.25) for step, names in enumerate([both, one, both, ["x"], both])
    ]
    for record in sent:
        launcher.take("a", written("run-a", record))
    assert launcher.sink.records == sent
    first, second, third, _, fifth = [one.names for one in launcher.sink.records if isinstance(one, Metrics)]
    assert first is third and first is not second
    assert fifth == first and fifth is not first, "names that change all the time pile up"


@pytest.mark.parametrize("names", [5, ["loss", 5], "loss", None])
def test_metrics_whose_names_are_no_texts_are_no_records(launcher: Launcher, names: object) -> None:
    data = msgspec.msgpack.encode(("run-a", [4, "", names, [0.5], 1, 0.25]))
    launcher.take("a", b"".join(frames_of(data)))
    launcher.take("a", written("run-a", note("x")))
    assert launcher.sink.records == [] and "not a record" in launcher.problems[0]


def test_an_agent_may_send_more_at_once_until_the_sink_has_much_to_store(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_records, "_AHEAD_BYTES", 100)
    small, large = written("run-a", note("x")), written("run-a", note("x" * 100))
    launcher.take("a", small)
    assert launcher.link.sent == [RecordsSeen(len(small))] and launcher.sink.num_settled == 0
    launcher.take("a", large)
    launcher.records.close()
    assert launcher.link.sent == [RecordsSeen(len(small)), RecordsSeen(len(large))]
    assert launcher.sink.num_settled > 0


def test_a_listener_that_fails_takes_nothing_and_harms_no_other(
    launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(batch: RecordBatch) -> bool:
        raise LookupError("nothing known")

    launcher.relay._here._handlers = (fail, *launcher.relay._here)
    launcher.take("a", written("run-a", note("x")))
    assert launcher.sink.records == [note("x")] and "could not be handled" in caplog.text


def test_a_listener_that_has_stopped_is_not_asked(launcher: Launcher) -> None:
    asked: list[str] = []

    def take(batch: RecordBatch) -> bool:
        asked.append(batch.process)
        return True

    stop: Callable[[], None] = launcher.relay.listen(take)
    launcher.take("c", b"x")
    stop()
    launcher.take("c", b"x")
    assert asked == ["c"] and launcher.relay.has_listeners
