"""The parts of a session by themselves: blobs of hosts, retirements, placement, output."""

from __future__ import annotations

import dataclasses
import errno
import gc
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError
from ropewalk.processes import code_sender
from ropewalk.processes.blob_directory import FAN_OUT_MIN_BYTES, BlobDirectory
from ropewalk.processes.code_bundle import CodeBundle
from ropewalk.processes.code_sender import CodeSender
from ropewalk.processes.fan_out import FetchProblem
from ropewalk.processes.managed_process import ManagedProcess
from ropewalk.processes.messages import (
    BlobAbsent,
    BlobFetched,
    BlobNotFetched,
    DropBlob,
    FetchBlob,
    NotStarted,
    PutBlob,
    PutCode,
    ReadBlob,
    Retired,
)
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.placement import Placement
from ropewalk.processes.retirements import Retirements
from ropewalk.transport.blobs import BlobRef, pack
from ropewalk.transport.link import Codec
from ropewalk.transport.tokens import key_of_agent, key_of_host, token_of


class PretendLoop:
    """Keeps what it is asked to call."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def call_soon(self, call: Callable[[], object]) -> None:
        self.calls.append(call)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> None:
        self.calls.append(call)

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


class PretendLink:
    def __init__(self, *, carries_fds: bool = True) -> None:
        self.stream = SimpleNamespace(carries_fds=carries_fds)
        self.closed = False
        self.sent: list[Any] = []
        self.parts: list[bytes] = []
        self.when_sent: Callable[[], object] = lambda: None

    def send(self, message: Any, parts: Any = None, fds: Any = None) -> None:
        self.sent.append(message)
        self.parts += [bytes(part) for part in parts or ()]
        self.when_sent()

    send_if_open = send


def agent(name: str = "agent-0", *, is_far: bool = False) -> Any:
    return SimpleNamespace(
        id=name,
        link=PretendLink(carries_fds=not is_far),
        blobs={},
        codes=set[str](),
        up=True,
        services=set[str](),
        processes=dict[str, Resources](),
        leaving=set[str](),
        idle_since=1.0,
        blob_address=f"tls:10.0.0.1:1/{name}" if is_far else "",
        certificate=SimpleNamespace(fingerprint=f"of {name}") if is_far else None,
    )


# --- blobs ------------------------------------------------------------------------------------------------------------


class PretendProcesses:
    def __init__(self, places: dict[str, tuple[Any, Any]]) -> None:
        self.loop = PretendLoop()
        self._places = places

    def hosted(self, id: str) -> tuple[Any, Any] | None:
        return self._places.get(id)


def directory(places: dict[str, tuple[Any, Any]]) -> BlobDirectory:
    processes: Any = PretendProcesses(places)
    return BlobDirectory(processes, lambda: {id(one): one for one, _ in places.values()}.values(), "key")


def test_a_host_gets_a_blob_once_and_forgets_it_with_its_last_owner() -> None:
    host, first, second = agent(), object(), object()
    blobs = directory({"a": (host, first), "b": (host, first), "c": (host, second)})
    for id in ("a", "b", "c", "nobody"):
        blobs.provide(id, BlobRef("x", (3,)), 0)
    assert [type(one) for one in host.link.sent] == [PutBlob]
    owner: Any
    for owner, left in ((first, 1), (first, 1), (second, 2)):
        blobs.drop("x", owner)
        assert len(host.link.sent) == left
    assert host.link.sent[1] == DropBlob("x") and host.blobs == {}


def test_a_pool_that_the_collector_frees_while_blobs_are_dropped_drops_its_own() -> None:
    # The lock was not reentrant: the thread that held it waited for itself, and the loop for it.
    host = agent()
    owners: list[Any] = [object(), object()]
    blobs = directory({"a": (host, owners[0]), "b": (host, owners[1])})
    blobs.provide("a", BlobRef("x", (3,)), 0)
    blobs.provide("b", BlobRef("y", (3,)), 0)

    class Freed:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            blobs.drop("y", owners[1])

    Freed()
    host.link.when_sent = gc.collect
    blobs.drop("x", owners[0])
    assert sorted(one.id for one in host.link.sent[2:]) == ["x", "y"]


LARGE = 3 * FAN_OUT_MIN_BYTES


@pytest.fixture
def far() -> Iterator[FarHosts]:
    hosts = FarHosts()
    yield hosts
    hosts.blobs.close()
    os.close(hosts.fd)


class FarHosts:
    """Six hosts of a network, with a process on each that needs one large blob."""

    def __init__(self) -> None:
        self.content = os.urandom(LARGE)
        self.ref = BlobRef("large", (LARGE,))
        self.fd = pack([self.content])
        self.owner: Any = object()
        self.agents = {str(number): agent(f"agent-{number}", is_far=True) for number in range(6)}
        self.places = {id: (one, self.owner) for id, one in self.agents.items()}
        self.blobs = directory(self.places)
        for id in self.agents:
            self.blobs.provide(id, self.ref, self.fd)
            self.blobs.provide(id, self.ref, self.fd)

    def orders(self, id: str) -> list[FetchBlob]:
        return [each for each in self.agents[id].link.sent if isinstance(each, FetchBlob)]

    def say(self, id: str, news: Any) -> None:
        self.blobs.heard(self.agents[id], news)

    def has(self, id: str) -> None:
        self.say(id, BlobFetched("large", self.orders(id)[-1].number))


def test_a_large_blob_goes_from_host_to_host_with_a_token_for_each_two(far: FarHosts) -> None:
    assert [[order.source for order in far.orders(id)] for id in far.agents] == [
        [""], [""], ["agent-0"], ["agent-1"], ["agent-2"], ["agent-3"],
    ]  # fmt: skip
    (order,) = far.orders("2")
    key = key_of_agent(key_of_host("key", "agent-0"))
    assert order.address == "tls:10.0.0.1:1/agent-0" and order.token == token_of(key, "agent-2", "of agent-2")
    assert b"".join(far.agents["0"].link.parts) == far.content[: far.orders("0")[0].ahead_bytes] != b""
    assert not far.agents["2"].link.parts


def test_a_host_reads_from_the_launcher_what_was_promised_to_it_and_nothing_else(far: FarHosts) -> None:
    before = len(far.agents["0"].link.parts)
    far.say("0", ReadBlob("large", LARGE - 10, 10))
    assert far.agents["0"].link.parts[before:] == [far.content[-10:]]
    stranger = agent("agent-9", is_far=True)
    far.blobs.heard(stranger, ReadBlob("large", 0, 10))
    assert stranger.link.sent == [BlobAbsent("large")] and not stranger.link.parts
    far.say("0", ReadBlob("other", 0, 10))
    assert far.agents["0"].link.sent[-1] == BlobAbsent("other")


def test_answers_to_an_order_before_the_last_do_not_count(far: FarHosts) -> None:
    first = far.orders("2")[0].number
    far.say("2", BlobNotFetched("large", first, FetchProblem.LOST))
    assert [order.source for order in far.orders("2")][1:] == ["agent-5"]
    far.say("2", BlobNotFetched("large", first, FetchProblem.LOST))
    assert len(far.orders("2")) == 2


def test_a_host_that_was_given_back_without_a_word_serves_nobody(far: FarHosts) -> None:
    far.agents["0"].link.closed = True
    processes: Any = far.blobs._processes  # pyright: ignore[reportPrivateUsage]
    processes.loop.calls.pop(0)()  # the first look is asked for
    processes.loop.calls.pop(0)()
    assert [order.source for order in far.orders("2")] == ["agent-0", "agent-5"]


def test_a_large_blob_is_dropped_everywhere_with_its_last_owner_and_its_memory_freed(far: FarHosts) -> None:
    other: Any = object()
    far.places["other"] = (far.agents["5"], other)
    far.blobs.provide("other", far.ref, far.fd)
    for id in far.agents:
        far.has(id)
    num_open = psutil.Process().num_fds()
    far.blobs.drop("large", far.owner)
    dropped = [id for id, one in far.agents.items() if DropBlob("large") in one.link.sent]
    assert dropped == list("01234")
    far.places["late"] = (far.agents["0"], other)
    far.blobs.provide("late", far.ref, far.fd)
    assert far.orders("0")[-1].source == "agent-5", "who still has it"
    assert psutil.Process().num_fds() == num_open
    far.blobs.drop("large", other)
    assert psutil.Process().num_fds() == num_open - 1
    assert DropBlob("large") in far.agents["5"].link.sent


def code(size: int) -> CodeBundle:
    return CodeBundle("code", os.urandom(size), "/project", size)


def test_small_project_files_are_sent_to_each_host_and_large_ones_from_host_to_host(far: FarHosts) -> None:
    small, large = CodeSender(code(1000), far.blobs), CodeSender(code(LARGE), far.blobs)
    try:
        for one in far.agents.values():
            small.send(one)
            small.send(one)
            assert one.link.sent.count(PutCode("code")) == 1
            one.codes.clear()
        for id in ("0", "5", "5"):
            large.send(far.agents[id])
        (order,) = [each for each in far.agents["5"].link.sent if isinstance(each, PutCode) and each.blob]
        assert order.blob == far.orders("5")[-1].ref.id != "large"
        assert far.orders("0")[-1].ref.id == order.blob
    finally:
        small.close()
        large.close()


def no_descriptors(*args: Any, **more: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_project_files_that_cannot_be_sent_now_are_sent_with_the_next_process(
    far: FarHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They counted as sent, and later processes of that host began without them.
    large, one = CodeSender(code(LARGE), far.blobs), far.agents["0"]
    try:
        with monkeypatch.context() as patch:
            patch.setattr(code_sender, "pack", no_descriptors)
            with pytest.raises(OSError, match="Too many open files"):
                large.send(one)
        assert not any(isinstance(each, PutCode) for each in one.link.sent)
        large.send(one)
        assert sum(isinstance(each, PutCode) for each in one.link.sent) == 1
    finally:
        large.close()


def test_a_blob_that_cannot_be_sent_now_is_sent_to_the_next_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    host, owner = agent(), object()
    blobs = directory({"a": (host, owner)})
    with monkeypatch.context() as patch:
        patch.setattr(host.link, "send_if_open", no_descriptors)
        with pytest.raises(OSError, match="Too many open files"):
            blobs.provide("a", BlobRef("x", (3,)), 0)
    assert host.blobs == {}
    blobs.provide("a", BlobRef("x", (3,)), 0)
    assert host.link.sent == [PutBlob(BlobRef("x", (3,)))]


def test_a_blob_that_a_host_could_not_keep_is_sent_to_the_next_who_needs_it() -> None:
    host, owner, ref = agent(), object(), BlobRef("x", (3,))
    blobs = directory({"a": (host, owner), "b": (host, owner)})
    blobs.provide("a", ref, 0)
    blobs.heard(host, BlobNotFetched("x", 0, FetchProblem.NO_MEMORY))
    blobs.provide("b", ref, 0)
    assert host.link.sent == [PutBlob(ref)] * 2


# --- retirements ------------------------------------------------------------------------------------------------------


def test_processes_that_go_in_one_moment_are_told_together_and_once() -> None:
    loop: Any = PretendLoop()
    retirements = Retirements(loop)
    heard: list[Retired] = []
    passed_on: list[Retired] = []
    stop = retirements.listen(heard.append)
    retirements.pass_on(passed_on.append)
    for id in ("a", "b", "a"):
        retirements.note(id, None, is_cut=id == "b")
    loop.run()
    assert [[(one.id, one.is_cut) for one in news.processes] for news in heard] == [[("a", False), ("b", True)]]
    assert passed_on == heard and retirements.ids == {"a", "b"}
    retirements.tell_listeners(Retired([]))
    assert len(heard) == 2 and len(passed_on) == 1, "news from elsewhere is not passed on"
    stop()
    retirements.note("c", None, is_cut=False)
    loop.run()
    assert len(heard) == 2 and len(passed_on) == 2


# --- placement --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class PretendHosts:
    room: int
    most: int = 1000
    problem: EngineError | None = None
    agents: dict[str, Any] = dataclasses.field(default_factory=lambda: {"agent-0": agent()})
    wanted: list[int] = dataclasses.field(default_factory=list[int])

    def prepare(self, resources: Resources, then: Callable[[EngineError | None], object]) -> None:
        then(self.problem)

    def place(self, id: str, resources: Resources, total: int, beside: Any = None) -> Any:
        if not self.room:
            return None
        self.room -= 1
        return beside or self.agents["agent-0"]

    def refusal(self, processes: Any) -> str:
        return f"{len(processes())} are too many" if len(processes()) > self.most else ""

    def want(self, waiting: list[Resources]) -> None:
        self.wanted.append(len(waiting))


class Placed:
    """A placement over pretended hosts, and what came of it."""

    def __init__(self, hosts: PretendHosts) -> None:
        self.processes: dict[str, ManagedProcess] = {}
        self.begun: list[str] = []
        self.refused: list[NotStarted] = []
        self.loop: Any = PretendLoop()
        self.owner: Any = object()
        fleet: Any = hosts
        self.placement = Placement(self.processes, fleet, self.loop, lambda id, _: self.begun.append(id), self._refuse)

    def _refuse(self, failure: NotStarted) -> None:
        self.refused.append(failure)
        self.processes.pop(failure.id)

    def ask(self, rank: int, **options: Any) -> None:
        spec = ProcessSpec("pool", rank, "module:function", Codec(NotStarted), **options)
        credentials: Any = None
        process = ManagedProcess(spec, self.owner, credentials, {})
        self.processes[f"p{rank}"] = process
        self.placement.ask(f"p{rank}", process)


def test_processes_without_room_wait_and_ask_for_agents_together() -> None:
    hosts = PretendHosts(room=1)
    placed = Placed(hosts)
    for rank in range(3):
        placed.ask(rank)
    assert placed.begun == ["p0"] and hosts.wanted == []
    placed.loop.run()
    assert hosts.wanted == [2]
    hosts.room = 2
    placed.placement.place_waiting()
    assert placed.begun == ["p0", "p1", "p2"]
    placed.placement.place_waiting()
    placed.loop.run()
    assert hosts.wanted == [2], "nothing waits"


def test_no_agents_are_asked_for_while_their_user_is_still_asking() -> None:
    # A thread that lost its core for 20 ms between two workers got an agent for each of them.
    hosts = PretendHosts(room=0)
    placed = Placed(hosts)
    placed.placement.hold()
    placed.ask(0)
    for _ in range(100):
        placed.loop.calls.pop(0)()
    assert hosts.wanted == []
    placed.ask(1)
    placed.placement.go_on()
    placed.loop.run()
    assert hosts.wanted == [2]


def test_an_owner_that_asks_for_more_than_there_ever_is_hears_which_are_refused_and_how_many_it_wanted() -> None:
    placed = Placed(PretendHosts(room=9, most=2))
    for rank in range(4):
        placed.ask(rank)
    placed.loop.run()
    assert [(one.id, one.reason, one.limit) for one in placed.refused] == [
        ("p2", "4 are too many", True),
        ("p3", "4 are too many", True),
    ]
    assert sorted(placed.begun) == ["p0", "p1"]


def test_a_process_that_leaves_makes_room_for_its_successor() -> None:
    placed = Placed(PretendHosts(room=9, most=1))
    placed.ask(0)
    placed.placement.leaves("p0")
    placed.ask(1)
    assert placed.begun == ["p0", "p1"] and not placed.refused


def test_what_the_engine_cannot_give_is_refused_in_its_words() -> None:
    placed = Placed(PretendHosts(room=9, problem=EngineError("no such partition")))
    placed.ask(0)
    [refused] = placed.refused
    assert (refused.id, refused.reason, refused.limit, refused.by_engine) == ("p0", "no such partition", False, True)


def test_a_service_goes_to_its_own_host_or_is_refused() -> None:
    hosts = PretendHosts(room=0)
    placed = Placed(hosts)
    placed.ask(0, agent="agent-0")
    placed.ask(1, agent="agent-7")
    assert placed.begun == ["p0"] and hosts.agents["agent-0"].services == {"p0"}
    assert hosts.agents["agent-0"].idle_since is None
    assert [(one.id, one.limit) for one in placed.refused] == [("p1", False)] and "agent-7" in placed.refused[0].reason


def test_processes_that_belong_together_share_a_host() -> None:
    hosts = PretendHosts(room=9)
    hosts.agents["agent-1"] = other = agent("agent-1")
    placed = Placed(hosts)
    placed.ask(0, beside="group")
    placed.processes["p0"].agent = other
    placed.ask(1, beside="group")
    assert placed.processes["p1"].agent is other
