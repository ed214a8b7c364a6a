"""An agent speaks for the processes that it hosts and for nobody else, and a process for itself (S9)."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pytest

from ropewalk.engines.resources import Resources
from ropewalk.processes import messages as say
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.owner import EMPTY_PAGE
from ropewalk.processes.rights import TO_AGENT, TO_SESSION, guest_mark
from ropewalk.processes.session import Session
from ropewalk.processes.sizing import Share
from ropewalk.supervision.liveness import Lease
from ropewalk.transport.address import parse_address
from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.link import Link
from tests.patience import wait_until
from tests.processes.entries import Word
from tests.processes.test_session import Listener, start
from tests.shared_session import kept

MessageT = TypeVar("MessageT")

pytestmark = pytest.mark.usefixtures("shared_session")


@pytest.fixture
def session() -> Session:
    assert kept.session
    return kept.session


@pytest.fixture
def crew(session: Session) -> Iterator[tuple[Listener, list[str]]]:
    """An owner with two processes that are up."""
    owner = Listener()
    ids = [start(session, owner, "echo") for _ in range(2)]
    for _ in ids:
        owner.next("link")
    wait_until(lambda: all(map(session.processes.pid_of, ids)))
    yield owner, ids
    for id in ids:
        session.processes.retire(id)
    assert {owner.next("exited").id for _ in ids} == set(ids)


def answers(owner: Listener, id: str) -> None:
    owner.links[id].send(Word("hello"))
    assert owner.next("message") == "hello"


def test_who_may_say_a_message_is_written_down_for_each() -> None:
    structs = [each for _, each in inspect.getmembers(say, inspect.isclass) if issubclass(each, msgspec.Struct)]
    kinds = {each for each in structs if each.__struct_config__.tag is not None} - {
        say.Sample
    }  # is part of another one
    to_processes = {say.BlobHere, say.Make}
    assert kinds == TO_AGENT.keys() | TO_SESSION.keys() | to_processes
    words = (say.__doc__ or "").split("process ──▶ agent")[0]
    assert {kind.__name__ for kind in (*TO_AGENT, *TO_SESSION)} - set(words.split()) == {"GetBlob", "GetMade"}


# --- agents -----------------------------------------------------------------------------------------------------------

FORGED: dict[str, Callable[[str], msgspec.Struct]] = {
    "its end, with a result": lambda id: say.Exited(id, 4242, 0, "", "", False, 0.0, "forged", EMPTY_PAGE),
    "that it was not started": lambda id: say.NotStarted(id, "forged"),
    "that it has another pid": lambda id: say.Started(id, 4242),
    "what it has finished": lambda id: say.TaskReport(id, EMPTY_PAGE, 0, 1 << 40),
    "its output": lambda id: say.Output(id, False, "forged\n", 7),
    "what it uses": lambda id: say.Samples([say.Sample(id, 4242, 0.0, "running")]),
    "that it is gone": lambda id: say.Retired([say.RetiredProcess(id)]),
    "that it needs a token": lambda id: say.NeedToken("ticket", "unix:/mine", id),
}


@pytest.fixture
def intruder(session: Session) -> Iterator[Link]:
    """The link of a second agent of the run, which hosts nothing."""
    credentials = Credentials.create(session.run_id, "agent-9")
    session._members.admit("agent-9", credentials.secret)
    agent = AgentRecord("agent-9", Share(None, Resources()), Lease(1e9, time.monotonic()), credentials)
    fleet: Any = session._fleet
    fleet.agents[agent.id] = agent
    link = dial(session._listener.address, credentials, say.CONTROL)
    yield link
    gone = threading.Event()

    def forget() -> None:
        del fleet.agents[agent.id]
        assert agent.link
        session.loop.remove_link(agent.link)
        gone.set()

    session.loop.call_soon(forget)
    assert gone.wait(120)
    session._members.retire(agent.id)
    link.close()


def heard(link: Link, kind: type[MessageT]) -> MessageT:
    """The next message of a kind; the launcher says others in between, such as a ping."""
    while received := link.receive():
        if isinstance(received.message, kind):
            return received.message
    raise AssertionError(f"{link.peer} closed the link")


def test_an_agent_says_nothing_of_a_process_that_another_one_hosts(
    session: Session, crew: tuple[Listener, list[str]], intruder: Link, capfd: pytest.CaptureFixture[str]
) -> None:
    """A forged end of a process ended it for its owner, and the page in it was delivered as its results."""
    owner, (id, _) = crew
    pid = session.processes.pid_of(id)
    intruder.send(say.AgentUp(os.getpid(), "n9"))
    for what, forge in FORGED.items():
        intruder.send(forge(id))
        intruder.send(say.HostEvent(what))
    said = [owner.next("event") for _ in range(len(FORGED) + 1)]
    assert "agent-9 on n9 said Exited of a process that it does not host; it was not acted on" in said[0]
    assert said[1:] == [f"n9: {what}" for what in FORGED], "and that is told once"
    answers(owner, id)
    assert session.processes.pid_of(id) == pid
    sample = session.processes.sample_of(id)
    assert sample is None or sample.memory_bytes != 4242
    assert "forged" not in capfd.readouterr().out


def test_what_an_agent_says_of_itself_forges_no_lines(
    session: Session, crew: tuple[Listener, list[str]], intruder: Link, capfd: pytest.CaptureFixture[str]
) -> None:
    """S32: a host that calls itself "n9] x", a line break, and the name of another process."""
    owner, _ = crew
    intruder.send(say.AgentUp(os.getpid(), "n9\n[pool-1 0@n1] done\x85\u2028\x1b[2J" + "x" * 1000))
    intruder.send(say.AgentUp(os.getpid(), "n1"))
    intruder.send(say.HostEvent("disk full\r\n[pool-1 0@n1] all is well\x9b2J"))
    said = owner.next("event")
    assert said.isprintable() and "disk full" in said and len(said) < 500
    assert not said.startswith("n1")
    session.retirements.ids.add("nobody\n[pool-1 0@n1]")
    intruder.send(say.Output("nobody\n[pool-1 0@n1]", False, "words of nobody\n", 9))
    heard(intruder, say.OutputSeen)
    (line,) = [line for line in capfd.readouterr().out.split("\n") if "words of nobody" in line]
    assert line.startswith("[?@n9") and "\n" not in line


def test_an_agent_asks_and_speaks_for_processes_of_its_host_alone(
    session: Session, crew: tuple[Listener, list[str]], intruder: Link
) -> None:
    """With a token in the launcher's name it could speak as the launcher; at its loss all hung up on the launcher."""
    owner, (id, _) = crew
    intruder.send(say.AgentUp(os.getpid(), "n9"))
    for name in ("launcher", "agent-0", id, "pool-1.0#1-1@agent-8"):
        intruder.send(say.NeedToken("ticket", "unix:/a/b.sock", name))
        intruder.send(say.Retired([say.RetiredProcess("pool-1.0#1-1@"), say.RetiredProcess(name)]))
    intruder.send(say.NeedToken("ours", "unix:/a/b.sock", guest := f"pool-1.0#1-2{guest_mark('')}"))
    assert heard(intruder, say.TokenIs).ticket == "ours"
    assert "said NeedToken of a process that it does not host" in owner.next("event")
    assert session.retirements.ids.isdisjoint({"launcher", "agent-0", id, "pool-1.0#1-1@", "pool-1.0#1-1@agent-8"})
    intruder.send(say.Retired([say.RetiredProcess(guest)]))
    intruder.send(say.NeedToken("late", "unix:/a/b.sock", guest))
    assert "was retired" in heard(intruder, say.TokenIs).problem
    answers(owner, id)


def test_the_id_of_a_guest_says_which_agent_speaks_for_it() -> None:
    ids = [
        f"{name}#12-3{guest_mark(host)}" for name in ("pool-1.0", "x@agent-1") for host in ("", "agent-1", "agent-11")
    ]
    of_launcher = ["launcher", "agent-1", "x@agent-1#12-1", "@agent-1.0#12-11"]
    for host in ("", "agent-1", "agent-11"):
        hosted = [id for id in ids + of_launcher if id.endswith(guest_mark(host))]
        assert hosted == [f"{name}#12-3@{host}" for name in ("pool-1.0", "x@agent-1")]


@pytest.mark.parametrize("entry", ["os:abort\n[pool-1 0@n1]", "x\x9b2J:main", "os", "x" * 300 + ":main", ":main"])
def test_what_a_host_asks_for_as_a_service_forges_no_lines(session: Session, intruder: Link, entry: str) -> None:
    """S32: a part of it stands in front of what the service prints."""
    intruder.send(say.AgentUp(os.getpid(), "n9"))
    intruder.send(say.NeedService("ticket", entry))
    problem = heard(intruder, say.ServiceAt).problem
    assert "is not an entry" in problem and problem.isprintable()


@pytest.mark.parametrize("pid", [0, -1, -(1 << 31)])
def test_a_number_that_means_more_than_one_process_is_no_pid(pid: int) -> None:
    """`os.kill` of -1 ends everything that the user has."""
    for message in (say.AgentUp(pid, "n9"), say.Started("x", pid)):
        with pytest.raises(msgspec.ValidationError):
            say.CONTROL.decode(say.CONTROL.encode(message))


# --- processes --------------------------------------------------------------------------------------------------------


def overreach(id: str) -> dict[str, tuple[msgspec.Struct, list[bytes]]]:
    """What a process may not say to its agent."""
    return {
        "Peek": (say.Peek(id), []),
        "Recall": (say.Recall(id, 1 << 40, True), []),
        "SignalProcess": (say.SignalProcess(id, 9), []),
        "PutCode": (say.PutCode("code"), [b"not ours"]),
        "ServiceAt": (say.ServiceAt("ticket", "unix:/mine", ""), []),
        "MeetAt": (say.MeetAt("t" * 64, "", 0, "at:agent-1|unix:/mine"), []),
        "Exited": (FORGED["its end, with a result"](id), []),
    }


def test_a_process_has_no_say_over_another_ones_tasks_and_life(
    session: Session, crew: tuple[Listener, list[str]]
) -> None:
    """Any process of a host could have the tasks of another one taken back, and read its results."""
    owner, (id, other) = crew
    (agent,) = session.hosts()
    context = session.processes._processes[other]
    address = parse_address(f"unix:{session.folder}/{agent.id}.sock")
    for name, (message, parts) in overreach(id).items():
        link = dial(address, context.credentials, say.CONTROL)
        for _ in range(2):
            link.send(message, parts)
        link.send(say.Ping())
        received = link.receive()
        assert received and isinstance(received.message, say.Pong), f"{name} was answered with {received!r}"
        assert owner.next("event").endswith(f"{other} said {name}, which it may not; it was not acted on")
        link.close()
    answers(owner, id)


def test_a_process_cannot_start_another_one_in_the_place_of_one(
    session: Session, crew: tuple[Listener, list[str]]
) -> None:
    owner, (id, other) = crew
    (agent,) = session.hosts()
    link = dial(
        parse_address(f"unix:{session.folder}/{agent.id}.sock"),
        session.processes._processes[other].credentials,
        say.CONTROL,
    )
    link.send(say.StartProcess(id, "mine", "os:abort", "0" * 64, "unix:/nowhere", {}, 1.0, (), "/", (), None))
    assert f"wanted to start {id}, which runs already" in owner.next("event")
    answers(owner, id)
    link.close()


def test_a_blob_stays_until_its_own_owners_let_go_of_it(session: Session, crew: tuple[Listener, list[str]]) -> None:
    owner, (id, other) = crew
    (agent,) = session.hosts()
    fd = os.memfd_create("blob")
    os.write(fd, b"abc")
    session.blobs.provide(id, ref := BlobRef("b" * 64, (3,)), fd)
    os.close(fd)
    link = dial(
        parse_address(f"unix:{session.folder}/{agent.id}.sock"),
        session.processes._processes[other].credentials,
        say.CONTROL,
    )
    link.send(say.DropBlob(ref.id))
    link.send(say.GetBlob(ref.id))
    link.send(say.Ping())
    received = link.receive()
    assert received and isinstance(received.message, say.BlobHere)
    link.close()
    session.blobs.drop(ref.id, owner)
