"""Sessions lease processes from agents, and tell their owners what becomes of them."""

from __future__ import annotations

import errno
import json
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import ropewalk
from ropewalk.engines.resources import Resources
from ropewalk.errors import LinkClosed, PoolClosed, SettingsError, StartFailed, TransportRefused
from ropewalk.processes.messages import Exited, NotStarted, TaskReport
from ropewalk.processes.open_sessions import close_all
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import default_session
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.link import Link, Received
from tests.patience import PATIENCE_S, wait_until
from tests.processes.entries import WORDS, Word
from tests.scenarios.launchers import is_alive, wait_until_gone


class Listener:
    """An owner that notes all it hears, as (what, id, fact)."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[str, str, Any]] = queue.Queue()
        self.links: dict[str, Link] = {}

    def on_link(self, id: str, link: Link) -> None:
        self.links[id] = link
        self.heard.put(("link", id, link))

    def on_message(self, id: str, received: Received) -> None:
        self.heard.put(("message", id, received.message.text))

    def on_report(self, id: str, report: TaskReport) -> None:
        self.heard.put(("report", id, report))

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        self.heard.put(("lost" if host_lost else "exited", id, exited))

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        self.heard.put(("not started", id, failure))

    def on_draining(self, id: str, why: str, left_s: float) -> None:
        self.heard.put(("draining", id, why))

    def on_event(self, text: str, kind: str = "") -> None:
        self.heard.put(("event", "", text))

    def on_failed(self, error: Exception) -> None:
        self.heard.put(("failed", "", error))

    def next(self, what: str) -> Any:
        """The fact of the next thing heard, which must be this."""
        kind, _, fact = self.heard.get(timeout=120)
        assert kind == what, (kind, fact)
        return fact


@pytest.fixture
def session() -> Iterator[Session]:
    with Session() as session:
        yield session


def start(session: Session, owner: Listener, entry: str, **options: Any) -> str:
    spec = ProcessSpec("crew", 0, f"tests.processes.entries:{entry}", WORDS, **options)
    return session.processes.start(spec, owner)


def test_a_process_speaks_with_its_owner_and_its_end_is_reported_after_its_words(session: Session) -> None:
    owner = Listener()
    id = start(session, owner, "echo")
    link = owner.next("link")
    for number in range(100):
        link.send(Word(str(number)))
    for number in range(100):
        assert owner.next("message") == str(number)
    wait_until(lambda: session.processes.pid_of(id))
    assert session.processes.host_of(id) == os.uname().nodename
    os.kill(session.processes.pid_of(id), signal.SIGKILL)
    exited: Exited = owner.next("exited")
    assert (exited.id, exited.exit_code, exited.ended_by, exited.out_of_memory) == (id, -9, "", "")
    assert (
        session.processes.pid_of(id) == 0
        and session.processes.host_of(id) == ""
        and session.processes.sample_of(id) is None
    )


def test_an_owner_is_told_that_the_projects_files_cannot_be_sent_to_the_host(session: Session) -> None:
    # A launcher without descriptors: the process was not asked for, and its owner waited for it for ever.
    owner = Listener()
    start(session, owner, "echo")
    owner.next("link")

    class Sender:
        def send(self, agent: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    session.processes._code_sender = Sender()  # type: ignore[assignment]
    start(session, owner, "echo")
    failure: NotStarted = owner.next("not started")
    assert "the project's files cannot be sent to" in failure.reason
    assert "Too many open files" in failure.reason and "ulimit -Hn" in failure.reason


def test_a_process_that_is_killed_before_the_loop_has_placed_it_does_not_live_on(session: Session) -> None:
    """It had no host when the signal was sent, and had one when the loop came to withdraw it: neither was done."""
    first = Listener()
    start(session, first, "echo")
    first.next("link")  # there is an agent, on which the next process is placed at once
    owner = Listener()
    held, over = threading.Event(), threading.Event()
    session.loop.call_soon(lambda: (held.set(), over.wait(PATIENCE_S)))
    assert held.wait(PATIENCE_S)
    try:
        id = start(session, owner, "echo")
        session.processes.signal(id, signal.SIGKILL)
    finally:
        over.set()
    wait_until(lambda: session.processes.known(id) is None)


def test_words_said_just_before_death_are_heard_before_it(session: Session) -> None:
    for _ in range(3):
        owner = Listener()
        start(session, owner, "speak_and_die")
        owner.next("link")
        assert [owner.next("message") for _ in range(1000)] == [str(number) for number in range(1000)]
        assert owner.next("exited").exit_code == -signal.SIGKILL


def test_a_process_starts_in_a_clean_place(session: Session, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    owner = Listener()
    id = start(session, owner, "facts", resources=Resources(cpus=2), environment={"EXTRA": "yes"})
    owner.next("link")
    facts = json.loads(owner.next("message"))
    assert facts["leads"] and facts["stdin"] == "" and not facts["ignores SIGINT"]
    assert (facts["extra"], facts["name"], facts["folder"]) == ("yes", "crew.0", str(tmp_path))
    assert facts["threads"] == "2"
    assert len(facts["fds"]) <= 3 + 3, "descriptors of others were inherited"  # page, records, and the listing itself
    secret = session.processes._processes[id].credentials.secret
    assert secret not in facts["context"] and "crew.0" in facts["context"]
    wait_until(lambda: session.processes.pid_of(id) == facts["pid"])
    session.processes.signal(id, signal.SIGTERM)
    assert owner.next("exited").exit_code == -signal.SIGTERM


def test_a_large_environment_arrives_and_holds_up_no_other_start(session: Session) -> None:
    # The request was larger than the kernel takes at once, and it and all later ones of the host waited for ever.
    value = "x" * 300_000
    owner = Listener()
    start(session, owner, "facts", environment={"EXTRA": value}, resources=Resources(cpus=2))
    owner.next("link")
    assert json.loads(owner.next("message"))["extra"] == value
    other = Listener()
    start(session, other, "leave")
    assert other.next("exited").exit_code == 3


@pytest.mark.parametrize(
    ("entry", "exit_code", "words"),
    [("fail", 1, "LookupError: nothing to do"), ("leave", 3, "bye"), ("absent", 1, "absent")],
)
def test_a_process_that_ends_by_itself_says_how(session: Session, entry: str, exit_code: int, words: str) -> None:
    owner = Listener()
    start(session, owner, entry)
    exited = owner.next("exited")
    assert exited.exit_code == exit_code and words in exited.last_output and exited.page.current == -1


def test_a_module_that_cannot_be_imported_fails_the_start_with_its_reason_and_spoils_no_other(session: Session) -> None:
    owner = Listener()
    session.processes.start(ProcessSpec("crew", 0, "tests.no_such_module:main", WORDS), owner)
    kind, _, fact = owner.heard.get(timeout=120)
    assert "no_such_module" in (fact.reason if kind == "not started" else fact.last_output)
    start(session, owner, "leave")
    while (heard := owner.heard.get(timeout=120))[0] == "event":
        pass
    assert heard[2].exit_code == 3


def test_a_preload_that_cannot_be_imported_is_the_reason_why_nothing_starts(session: Session) -> None:
    owner = Listener()
    start(session, owner, "echo", preload=("no_such_module",))
    failure = owner.next("not started")
    assert "preload='no_such_module'" in failure.reason and "ModuleNotFoundError" in failure.reason
    start(session, owner, "leave")
    assert owner.next("exited").exit_code == 3


def test_a_retired_process_is_not_heard_any_more_and_not_let_in_again(session: Session) -> None:
    owner = Listener()
    id = start(session, owner, "chatter")
    owner.next("link")
    owner.next("message")
    credentials: Credentials = session.processes._processes[id].credentials
    wait_until(lambda: session.processes.pid_of(id))
    (agent,) = map(psutil.Process, session.agent_pids())
    agent.suspend()  # so that the process speaks on for a while
    session.processes.retire(id)
    gate = threading.Event()
    session.loop.call_soon(gate.set)
    assert gate.wait(120)
    while not owner.heard.empty():
        owner.next("message")
    with pytest.raises((TransportRefused, LinkClosed)):
        dial(session._listener.address, credentials, WORDS)
    time.sleep(0.05)
    assert owner.heard.empty()
    agent.resume()
    assert owner.next("exited").id == id


def test_a_process_whose_link_closes_but_which_stays_is_ended(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.processes.process_manager._SILENT_S", 0.1)
    owner = Listener()
    start(session, owner, "speak_late")
    link = owner.next("link")
    link.send(Word("speak"))  # it says its word, and returns from its entry
    owner.next("message")
    assert owner.next("exited").exit_code in (0, -signal.SIGKILL)


def test_a_killed_agent_is_one_event_and_its_processes_are_lost_with_the_host(session: Session) -> None:
    owner = Listener()
    ids = [start(session, owner, "echo") for _ in range(3)]
    for _ in ids:
        owner.next("link")
    wait_until(lambda: all(session.processes.pid_of(id) for id in ids))
    pids = [session.processes.pid_of(id) for id in ids]
    (agent,) = session.agent_pids()
    os.kill(agent, signal.SIGKILL)
    assert "3 processes" in owner.next("event")
    for _ in ids:
        assert str(agent) in owner.next("lost").ended_by
    wait_until_gone([agent, *pids])
    start(session, owner, "echo")
    owner.next("link")
    assert session.agent_pids() != [agent]


def test_memory_and_processor_time_are_sampled(session: Session) -> None:
    owner = Listener()
    id = start(session, owner, "echo")
    owner.next("link")
    wait_until(lambda: session.processes.sample_of(id))
    sample = session.processes.sample_of(id)
    assert sample and sample.memory_bytes > 1 << 20 and sample.cpu_s >= 0


# --- opening and ending ---


def test_making_and_printing_a_session_starts_nothing() -> None:
    before = set(threading.enumerate())
    session = Session()
    assert repr(session) == "<Session engine='local' new, 0 processes>"
    assert "engine local" in session._repr_html_() and "<table" not in session._repr_html_()
    assert session.agent_pids() == [] and set(threading.enumerate()) <= before
    session.close()
    session.close()
    with pytest.raises(PoolClosed, match="ended"):
        session.lease()


def test_a_session_ends_with_its_last_user_after_its_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_SESSION_IDLE_S", "0.3")
    with ropewalk.Pool(1) as pool:
        pool.apply(abs, (-1,))
        session, (agent,) = pool._session, pool._session.agent_pids()
    with ropewalk.Pool(1) as pool:
        assert pool._session is session
        pool.apply(abs, (-1,))
    assert not session.closed and is_alive(agent)
    wait_until(lambda: session.closed)
    session.close()  # waits for the end that has begun
    assert not is_alive(agent) and not session.folder.exists()
    with ropewalk.Pool(1) as pool:
        assert pool._session is not session


def test_a_named_session_stays_open_between_its_pools_and_ends_with_its_block() -> None:
    with ropewalk.Session() as session:
        for _ in range(2):
            with ropewalk.Pool(1, session=session) as pool:
                assert pool.apply(abs, (-1,)) == 1
        (agent,) = session.agent_pids()
    assert session.closed and not is_alive(agent)
    with pytest.raises(PoolClosed):
        ropewalk.Pool(1, session=session)


def test_a_killed_session_leaves_no_folder_where_its_agent_writes_into_it_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its folder could not be removed then, and stayed: nothing claims the folder of a launcher that has an agent.
    session = Session(engine="local")
    session.lease()
    rmtree, late = shutil.rmtree, [session.folder / "late.1", session.folder / "late.2"]

    def remove_while_written(folder: Any, **options: Any) -> None:
        rmtree(folder, **options)
        if late:
            session.folder.mkdir()
            late.pop().touch()

    monkeypatch.setattr(shutil, "rmtree", remove_while_written)
    session.kill()
    monkeypatch.undo()
    assert not late and not session.folder.exists()
    session.close()


def test_a_run_folder_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_RUN_FOLDER", "/proc/nowhere")
    with pytest.raises(SettingsError, match="/proc/nowhere"):
        ropewalk.Pool(1)
    monkeypatch.delenv("ROPEWALK_RUN_FOLDER")
    with ropewalk.Pool(1) as pool:
        assert pool.apply(abs, (-1,)) == 1


def test_an_agent_that_cannot_start_fails_the_pool_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.processes.fleet._TICK_S", 0.02)
    monkeypatch.setattr("sys.executable", "/bin/false")
    with ropewalk.Pool(1) as pool, pytest.raises(ropewalk.StartFailed, match=r"no agent stays up.*exit code 1"):
        pool.map(abs, [1])


def test_the_default_session_is_one_until_it_is_closed() -> None:
    first = default_session()
    assert default_session() is first
    close_all()
    assert first.closed and default_session() is not first


def test_a_session_that_is_closed_tells_every_owner_and_then_the_end_of_each_process() -> None:
    # It ended its agents and its loop without a word: a program waited for the ends of its processes for ever, and
    # the interpreter's exit with it. One owner has no process at that moment, as when it waits before a restart.
    busy, idle = Listener(), Listener()
    with Session() as session:
        id = start(session, busy, "echo")
        busy.next("link")
        start(session, idle, "leave")
        while idle.heard.get(timeout=120)[0] != "exited":
            pass
    for owner in (busy, idle):
        failure = owner.next("failed")
        assert isinstance(failure, PoolClosed) and "the session was closed while" in str(failure)
    kind, ended, _ = busy.heard.get(timeout=120)
    assert kind in ("lost", "exited") and ended == id
    with pytest.raises(StartFailed, match="starts no more processes: the session was closed"):
        start(session, idle, "echo")


def test_a_session_whose_agents_do_not_stay_up_refuses_at_once_what_it_could_never_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ropewalk.processes.fleet._TICK_S", 0.02)
    # Such starts were put among those that wait for an agent, and waited for ever.
    monkeypatch.setattr("sys.executable", "/bin/false")
    session = default_session()
    session.lease()
    owner = Listener()
    start(session, owner, "echo")
    while (heard := owner.heard.get(timeout=120))[0] == "event":
        pass
    assert heard[0] == "failed" and "no agent stays up" in str(heard[2])
    for again in (lambda: start(session, owner, "echo"), session.lease):
        with pytest.raises(StartFailed, match="starts no more processes: no agent stays up"):
            again()
    assert session.has_failed and default_session() is not session
    session.release()
    session.close()


def test_who_waits_for_a_service_hears_of_the_end_of_the_session() -> None:
    session = Session()
    session.lease()
    session.close()  # right before the question: nobody is left to answer it
    with pytest.raises(StartFailed, match="session"):
        session.find_service("tests.processes.entries:nothing")
