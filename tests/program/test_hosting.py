"""Hosts of units: processes of a session that only pretends, and threads that are real."""

from __future__ import annotations

import contextlib
import queue
import signal
from pathlib import Path
from typing import Any

import pytest

from ropewalk import settings
from ropewalk.engines.resources import Resources
from ropewalk.errors import LinkClosed
from ropewalk.processes.messages import Exited, NotStarted
from ropewalk.processes.owner import EMPTY_PAGE, ProcessSpec, gone_with_agent
from ropewalk.program.hosting import Hosting, Launch, ProcessHosting, ThreadHosting
from ropewalk.program.messages import NodeReady, NodeStart, StartUnit, StopUnit, UnitEnded, UnitName, UnitUp
from ropewalk.program.node import Node
from ropewalk.program.nodes.worker import Worker
from ropewalk.program.packing import FrozenBytes
from ropewalk.supervision.failure import DeathRecord
from ropewalk.transport.failures import failure_of
from ropewalk.transport.link import Received
from tests.patience import PATIENCE_S
from tests.program.recording import name_of, work

ACTOR = name_of("actor")


class Told:
    """The target of a hosting, and what it was told."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.ends: queue.SimpleQueue[tuple[UnitName, DeathRecord | None, str]] = queue.SimpleQueue()
        self.leaves: list[tuple[UnitName, str]] = []
        self.events: list[str] = []
        self.errors: list[Exception] = []

    def heard(self, name: UnitName, message: Any, parts: Any = ()) -> None:
        self.said.put((name, message))

    def leaving(self, name: UnitName, why: str) -> None:
        self.leaves.append((name, why))

    def ended(self, name: UnitName, record: DeathRecord | None, problem: str) -> None:
        self.ends.put((name, record, problem))

    def happened(self, text: str, kind: str = "") -> None:
        self.events.append(text)

    def lost(self, error: Exception) -> None:
        self.errors.append(error)


def launch_of(hosting: Hosting, name: UnitName, *nodes: Node[Any], **environment: str) -> Launch:
    facts = [NodeStart(name.unit, 1, 0, None, 0) for _ in nodes]
    start = StartUnit(name, "run-1", "demo", hosting.host_id(name), hosting.key_of(name), "", b"", [], facts)
    return Launch(start, [FrozenBytes([b"part"])], list(nodes), Resources(cpus=2), environment)


# Processes


class PretendLink:
    def __init__(self, *, closed: bool = False) -> None:
        self.sent: list[Any] = []
        self.closed = closed

    def send(self, message: Any, parts: Any = ()) -> None:
        if self.closed:
            raise LinkClosed("gone")
        self.sent.append((message, list(parts)))

    def send_if_open(self, message: Any, parts: Any = ()) -> None:
        with contextlib.suppress(LinkClosed):
            self.send(message, parts)

    def close(self) -> None:
        self.closed = True


class PretendSession:
    """Gives ids, and writes down what is wanted of it; it is its own process manager."""

    loop: Any = None
    run_id = "run-1"
    passport = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = settings.current()
        self.leases = 0
        self.specs: list[ProcessSpec] = []
        self.signals: list[tuple[str, int]] = []
        self.leaving: list[str] = []
        self.problem: Exception | None = None
        self.processes = self

    def lease(self) -> None:
        self.leases += 1

    def release(self) -> None:
        self.leases -= 1

    def start(self, spec: ProcessSpec, owner: object) -> str:
        if self.problem:
            raise self.problem
        self.specs.append(spec)
        return f"{spec.name}#{len(self.specs)}"

    def signal(self, id: str, number: int) -> None:
        self.signals.append((id, number))

    def takes_leave(self, id: str) -> None:
        self.leaving.append(id)

    def host_of(self, id: str) -> str:
        return "n17" if id else ""

    def output_group(self, owner: int, group: str) -> str:
        return group


@pytest.fixture
def session(tmp_path: Path) -> PretendSession:
    return PretendSession(tmp_path)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def processes(session: Any, told: Told) -> ProcessHosting:
    return ProcessHosting(session, told)


def exited(id: str, code: int, ended_by: str = "") -> Exited:
    return Exited(id, 4711, code, "", ended_by, False, 1.5, "last words", EMPTY_PAGE)


def remembered(hosting: ProcessHosting) -> dict[str, Any]:
    """What it still knows of units."""
    names = ("_ids", "_names", "_launches", "_links", "_keys", "_unwanted", "_hosts")
    return {name: vars(hosting)[name] for name in names if vars(hosting)[name]}


def test_a_process_is_asked_for_and_told_what_to_run_when_it_is_there(
    processes: ProcessHosting, session: PretendSession, told: Told
) -> None:
    launch = launch_of(processes, ACTOR, environment="1")
    processes.start(launch)
    (spec,) = session.specs
    assert (spec.name, spec.resources.cpus, dict(spec.environment)) == ("actor.0", 2, {"environment": "1"})
    link: Any = PretendLink()
    processes.on_link("actor.0#1", link)
    assert link.sent == [(launch.start, [b"part"])]
    processes.on_message("actor.0#1", Received("words", []))
    assert told.said.get_nowait() == (ACTOR, "words")
    processes.tell(ACTOR, StopUnit(ACTOR, "over", 1.0))
    assert link.sent[1][0] == StopUnit(ACTOR, "over", 1.0) and session.signals == []


def test_a_unit_that_has_ended_well_takes_leave_of_the_session_and_one_that_failed_does_not(
    processes: ProcessHosting, session: PretendSession
) -> None:
    processes.start(launch_of(processes, ACTOR))
    processes.on_message("actor.0#1", Received(UnitEnded(ACTOR, "actor", failure_of(OSError(), __name__)), []))
    assert session.leaving == []
    processes.on_message("actor.0#1", Received(UnitEnded(ACTOR, "", None), []))
    assert session.leaving == ["actor.0#1"]


def test_a_process_that_is_not_there_yet_when_it_shall_stop_is_killed_and_never_told_to_run(
    processes: ProcessHosting, session: PretendSession, told: Told
) -> None:
    processes.start(launch_of(processes, ACTOR))
    processes.tell(ACTOR, StopUnit(ACTOR, "over", 1.0))
    assert session.signals == [("actor.0#1", signal.SIGKILL)]
    link: Any = PretendLink()
    processes.on_link("actor.0#1", link)
    assert link.closed and link.sent == []
    processes.on_exited("actor.0#1", exited("actor.0#1", -9), host_lost=False)
    assert told.ends.get_nowait()[0] == ACTOR and remembered(processes) == {}


def test_the_end_of_a_process_is_told_with_its_record(processes: ProcessHosting, told: Told) -> None:
    endings: list[tuple[int, dict[str, Any]]] = [(3, {"exit_code": 3}), (-9, {"signal": 9})]
    for code, ending in endings:
        processes.start(launch_of(processes, ACTOR))
        (id,) = vars(processes)["_names"]
        processes.on_exited(id, exited(id, code, "because"), host_lost=False)
        record = DeathRecord(
            name="actor.0", host="n17", pid=4711, ended_by="because", ran_s=1.5, last_output="last words", **ending
        )
        assert told.ends.get_nowait() == (ACTOR, record, "")
    assert remembered(processes) == {}


def test_a_lost_host_is_the_cause_of_what_was_lost_with_it(processes: ProcessHosting, told: Told) -> None:
    processes.start(launch_of(processes, ACTOR))
    processes.on_exited("actor.0#1", exited("actor.0#1", -9, "the agent on n17 is gone"), host_lost=True)
    assert told.ends.get_nowait()[2] == "went with its host: the agent on n17 is gone"


def test_a_host_that_is_taken_away_is_told_of_each_unit_on_it(processes: ProcessHosting, told: Told) -> None:
    processes.start(launch_of(processes, ACTOR))
    processes.on_draining("actor.0#1", "the engine sent SIGTERM", 25.0)
    processes.on_draining("unknown", "the engine sent SIGTERM", 25.0)
    assert told.leaves == [(ACTOR, "the engine sent SIGTERM")]


def test_the_record_of_a_death_names_the_host_also_when_the_session_has_forgotten_it(
    processes: ProcessHosting, session: PretendSession, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It named the launcher's host for whatever had died anywhere.
    processes.start(launch_of(processes, ACTOR))
    link: Any = PretendLink()
    processes.on_link("actor.0#1", link)
    monkeypatch.setattr(session, "host_of", lambda _id: "")
    processes.on_exited("actor.0#1", exited("actor.0#1", 1), host_lost=False)
    record = told.ends.get_nowait()[1]
    assert record and record.host == "n17" and remembered(processes) == {}


def test_what_was_lost_with_its_host_before_it_was_up_was_not_on_the_launchers_host(
    processes: ProcessHosting, session: PretendSession, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "evaluators.0 on host launcher (pid 0) went with its host: the agent on n2 (pid 571) is gone"
    processes.start(launch_of(processes, ACTOR))
    monkeypatch.setattr(session, "host_of", lambda _id: "")
    gone = gone_with_agent("actor.0#1", 0, "the agent on n2 (pid 571) is gone")
    processes.on_exited("actor.0#1", gone, host_lost=True)
    record = told.ends.get_nowait()[1]
    assert record and (record.host, record.whereabouts) == ("", "")


def test_what_could_not_be_started_has_ended_with_the_reason(processes: ProcessHosting, told: Told) -> None:
    processes.start(launch_of(processes, ACTOR))
    processes.on_not_started("actor.0#1", NotStarted("actor.0#1", "no memory"))
    assert told.ends.get_nowait() == (ACTOR, None, "could not be started: no memory")
    processes.on_exited("actor.0#1", exited("actor.0#1", 1), host_lost=False)
    assert told.ends.empty() and remembered(processes) == {}


def test_a_start_that_is_refused_leaves_nothing(processes: ProcessHosting, session: PretendSession) -> None:
    session.problem = OSError("no descriptors")
    with pytest.raises(OSError, match="no descriptors"):
        processes.start(launch_of(processes, ACTOR))
    assert remembered(processes) == {}


def test_words_to_one_that_is_gone_are_lost_without_an_error(processes: ProcessHosting) -> None:
    processes.tell(ACTOR, NodeReady(ACTOR, "actor", 1))
    processes.start(launch_of(processes, ACTOR))
    link: Any = PretendLink(closed=True)
    processes.on_link("actor.0#1", link)
    processes.tell(ACTOR, StopUnit(ACTOR, "over", 1.0))


def test_each_start_has_a_key_and_a_name_of_its_own(processes: ProcessHosting) -> None:
    again = UnitName("actor", 0, 1)
    assert processes.key_of(ACTOR) == processes.key_of(ACTOR) != processes.key_of(again)
    assert processes.host_id(ACTOR) != processes.host_id(again)


def test_a_session_is_given_back_once(processes: ProcessHosting, session: PretendSession) -> None:
    assert session.leases == 1
    processes.close()
    processes.close()
    assert session.leases == 0


def test_events_of_the_session_are_passed_on(processes: ProcessHosting, told: Told) -> None:
    error = RuntimeError("gone")
    processes.on_event("look")
    processes.on_failed(error)
    assert told.events == ["look"] and told.errors == [error]


# Threads


@pytest.fixture
def threads(told: Told) -> Any:
    hosting = ThreadHosting(told, settings.current(), copy=True)
    yield hosting
    hosting.close()
    assert not hosting.folder.exists()


def test_a_unit_runs_in_a_thread_and_its_end_is_told_after_its_words(threads: ThreadHosting, told: Told) -> None:
    threads.loop.call_soon(lambda: threads.start(launch_of(threads, ACTOR, Worker(work))))
    kinds = [type(told.said.get(timeout=PATIENCE_S)[1]) for _ in range(3)]
    assert kinds == [UnitUp, NodeReady, UnitEnded]
    assert told.ends.get(timeout=PATIENCE_S) == (ACTOR, None, "")
    assert not threads.signal(ACTOR, signal.SIGKILL) and threads.log_file("actor", 0) is None


@pytest.mark.parametrize("copy", [True, False])
def test_nodes_are_copied_as_between_processes_unless_they_shall_not_be(told: Told, copy: bool) -> None:
    hosting = ThreadHosting(told, settings.current(), copy=copy)
    values: list[int] = []
    hosting.loop.call_soon(lambda: hosting.start(launch_of(hosting, ACTOR, Worker(values.append, 1))))
    assert told.ends.get(timeout=PATIENCE_S)[2] == ""
    assert values == ([] if copy else [1])
    hosting.close()


def test_a_unit_that_cannot_be_prepared_has_ended(
    threads: ThreadHosting, told: Told, capfd: pytest.CaptureFixture[str]
) -> None:
    launch = launch_of(threads, ACTOR, Worker(work))
    launch.start.nodes.clear()
    threads.loop.call_soon(lambda: threads.start(launch))
    name, record, problem = told.ends.get(timeout=PATIENCE_S)
    assert (name, record) == (ACTOR, None) and problem.startswith("could not be started: ValueError")
    assert "ValueError" in capfd.readouterr().err
