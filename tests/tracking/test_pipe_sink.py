"""What a process puts into its sink arrives: all of it, in order, and before the end of the process is reported."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.record_relay import RecordBatch
from ropewalk.processes.session import Session
from ropewalk.tracking.launcher_records import LauncherRecords
from ropewalk.tracking.pipe_sink import sink_here
from ropewalk.tracking.records import Metrics, NoteAdded, Record
from tests.patience import wait_until
from tests.processes.entries import WORDS, Word
from tests.processes.test_session import Listener
from tests.shared_session import kept
from tests.tracking.entries import Counter, here, metrics

pytestmark = pytest.mark.usefixtures("shared_session")


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Record]] = []
        self.batches: list[RecordBatch] = []
        self.problems: list[str] = []

    def put(self, run: str, record: Record) -> None:
        self.records.append((run, record))

    def flush(self, timeout_s: float) -> bool:
        return True

    def settle(self, timeout_s: float) -> bool:
        return True

    def runs_of(self, batch: RecordBatch) -> set[str]:
        self.batches.append(batch)
        return {"run"}

    @property
    def steps(self) -> list[float]:
        assert all(run == "run" for run, _ in self.records)
        return [record.step for _, record in self.records if isinstance(record, Metrics)]


@pytest.fixture
def session() -> Session:
    assert kept.session
    return kept.session


@pytest.fixture
def sink(session: Session) -> Iterator[Kept]:
    sink = Kept()
    records = LauncherRecords(session.records.listen, sink, sink.runs_of, sink.problems.append)
    yield sink
    records.close()


def start(session: Session, owner: Listener, entry: str, **environment: str) -> str:
    spec = ProcessSpec("trial", 0, f"tests.tracking.entries:{entry}", WORDS, environment=environment)
    return session.processes.start(spec, owner)


def end_of(owner: Listener) -> None:
    while owner.heard.get(timeout=120)[0] != "exited":
        pass


def test_a_launcher_has_no_sink_of_a_process() -> None:
    assert sink_here() is None


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_put_has_returned_from_is_lost_when_the_process_is_killed(
    session: Session, sink: Kept, tmp_path: Path, seed: int
) -> None:
    counter, owner = Counter(tmp_path / "counter"), Listener()
    enough = random.Random(seed).randrange(10_000)
    id = start(session, owner, "count", COUNTER=str(tmp_path / "counter"), RECORDS="10000")
    wait_until(lambda: counter.value >= enough and session.processes.pid_of(id))
    os.kill(session.processes.pid_of(id), signal.SIGKILL)
    end_of(owner)
    assert len(sink.records) >= counter.value >= enough
    assert sink.steps == list(range(len(sink.records)))
    assert sink.records[0] == ("run", metrics(0))
    counter.close()


def test_the_end_of_a_process_is_reported_after_its_last_record(session: Session, sink: Kept) -> None:
    for _ in range(3):
        sink.records.clear()
        owner = Listener()
        id = start(session, owner, "count_and_die")
        end_of(owner)
        assert sink.steps == list(range(1000))
        assert {batch.owner for batch in sink.batches} == {owner} and not sink.problems
        assert {(batch.process, batch.source) for batch in sink.batches} == {(id, id)}
        assert [batch.is_last for batch in sink.batches].count(True) == 1 and sink.batches[-1].is_last
        assert {batch.host for batch in sink.batches} == {os.uname().nodename}
        sink.batches.clear()


def test_threads_and_forked_children_write_side_by_side_without_mixing(session: Session, sink: Kept) -> None:
    owner = Listener()
    start(session, owner, "write_side_by_side")
    end_of(owner)
    found: dict[str, list[int]] = defaultdict(list)
    for _, record in sink.records:
        assert isinstance(record, NoteAdded)
        writer, number, text = record.text.split()
        assert set(text) == {writer}
        found[writer].append(int(number))
    assert dict(found) == {writer: list(range(200)) for writer in "abcd"}


def test_a_process_that_writes_what_it_may_not_is_refused_with_one_message_for_it(session: Session, sink: Kept) -> None:
    owner = Listener()
    id = start(session, owner, "overreach")
    end_of(owner)
    assert sink.records == [("run", metrics(2))]
    (problem,) = sink.problems
    assert id in problem and "'another', which it was not given" in problem


def inner(number: int) -> int:
    here().put("run", metrics(number))
    return os.getpid()


def outer(num: int) -> tuple[int, set[int]]:
    here().put("run", metrics(-1))
    with rw.Pool(2) as pool:
        return os.getpid(), set(pool.map(inner, range(num), chunksize=1))


def test_records_of_a_pool_inside_a_worker_come_in_the_name_of_the_worker(session: Session, sink: Kept) -> None:
    with rw.Pool(1, session=session) as pool:
        worker, pids = pool.apply(outer, (40,))
    wait_until(lambda: len(sink.records) == 41)
    assert sorted(sink.steps) == list(range(-1, 40))
    assert {batch.pid for batch in sink.batches if batch.data} == {worker}
    assert len({batch.source for batch in sink.batches if batch.data}) == len(pids | {worker})


def asked_of(owner: Listener) -> int:
    """The word that the only process of an owner finds in its page."""
    (link,) = owner.links.values()
    link.send(Word("?"))
    return int(owner.next("message"))


def test_a_word_for_a_process_is_found_in_its_page(session: Session) -> None:
    owner = Listener()
    id = start(session, owner, "tell_requests")
    owner.next("link")
    assert asked_of(owner) == 0
    for word in (7, -(1 << 63)):
        session.processes.request(id, word)
        wait_until(lambda word=word: asked_of(owner) == word)
    session.processes.retire(id)
    end_of(owner)


@pytest.mark.cold
def test_a_word_for_a_process_that_has_no_host_yet_is_there_when_it_begins() -> None:
    owner = Listener()
    with Session() as session:
        id = start(session, owner, "tell_requests")
        session.processes.request(id, 6)
        session.processes.request(id, 7)
        owner.next("link")
        assert asked_of(owner) == 7
        session.processes.retire(id)
        end_of(owner)


def log_and_wait(counter: str) -> None:
    seen = Counter(counter)
    for number in range(500):
        here().put("run", metrics(number))
        seen.value = number + 1
    time.sleep(600)


def keep_worker_that_logs(counter: str) -> None:
    with rw.Pool(1) as pool:
        pool.apply(log_and_wait, (counter,))


def test_what_a_pool_inside_a_worker_has_logged_arrives_when_the_worker_is_killed(
    session: Session, sink: Kept, tmp_path: Path
) -> None:
    counter = Counter(tmp_path / "counter")
    with rw.Pool(1, session=session, at_most_once=True) as pool:
        result = pool.apply_async(keep_worker_that_logs, (str(tmp_path / "counter"),))
        wait_until(lambda: counter.value == 500)
        (id,) = [id for id, process in session.processes._processes.items() if process.spec.group == pool.name]
        os.kill(session.processes.pid_of(id), signal.SIGKILL)
        with pytest.raises(rw.WorkerLost):
            result.get()
    wait_until(lambda: len(sink.records) == 500)
    assert sink.steps == list(range(500))
    counter.close()


class Slow(Kept):
    """A sink that cannot store anything until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def settle(self, timeout_s: float) -> bool:
        return self.may.wait()


def test_a_process_waits_while_the_sink_of_its_launcher_does_not_keep_up(session: Session, tmp_path: Path) -> None:
    counter, owner, sink = Counter(tmp_path / "counter"), Listener(), Slow()
    records = LauncherRecords(session.records.listen, sink, sink.runs_of)
    start(session, owner, "count", COUNTER=str(tmp_path / "counter"), RECORDS="60000")  # 15 MB

    def stays() -> bool:
        before = counter.value
        time.sleep(0.3)
        return 0 < before == counter.value

    wait_until(stays)
    size = sum(len(batch.data) for batch in sink.batches)
    assert counter.value < 60_000 and size < 4 << 20, f"{size} bytes came although none was stored"
    sink.may.set()
    wait_until(lambda: counter.value == 60_000)
    owner.next("link").close()
    end_of(owner)
    assert sink.steps == list(range(60_000))
    records.close()
    counter.close()


@pytest.mark.cold
def test_what_processes_have_written_when_their_session_ends_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, owner, sink = Counter(tmp_path / "counter"), Listener(), Kept()
    settled: list[bool] = []
    with Session() as session:
        records = LauncherRecords(session.records.listen, sink, sink.runs_of)
        settle = session.records.settle
        monkeypatch.setattr(session.records, "settle", lambda timeout_s: settled.append(settle(timeout_s)))  # type: ignore[arg-type]
        start(session, owner, "count", COUNTER=str(tmp_path / "counter"), RECORDS="1000000")
        wait_until(lambda: counter.value > 300)
        num_written = counter.value
    records.close()
    assert settled == [True], "the agents were not asked while they were up"
    assert len(sink.steps) >= num_written and sink.steps == list(range(len(sink.steps)))
    counter.close()
