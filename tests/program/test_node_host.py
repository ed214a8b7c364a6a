"""A host with a real loop and a real socket; the test is its launcher."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.calls.caller import Caller
from ropewalk.calls.client import Client
from ropewalk.calls.markers import concurrent, methods_of
from ropewalk.errors import ProgramStopped, TransportError
from ropewalk.processes.messages import Retired, RetiredProcess
from ropewalk.program import checkpoints, node_context, node_host
from ropewalk.program.directory import DirectoryView
from ropewalk.program.handle import Handle, Vertex
from ropewalk.program.messages import (
    AskStatus,
    HostStatus,
    Locate,
    NodeReady,
    NodeStart,
    Note,
    OfferRendezvous,
    Placed,
    RendezvousAt,
    Sizes,
    StartUnit,
    StopProgram,
    StopUnit,
    UnitEnded,
    UnitName,
    UnitUp,
    WaitsForStop,
)
from ropewalk.program.node import Node
from ropewalk.program.node_context import NodeContext, current_node
from ropewalk.program.node_host import NodeHost
from ropewalk.program.nodes.service import Service
from ropewalk.program.nodes.worker import Worker
from ropewalk.program.running_unit import RunningUnit
from ropewalk.transport.credentials import create_run_folder
from ropewalk.transport.frames import Part
from ropewalk.transport.loop import Loop
from ropewalk.transport.tokens import token_of
from tests.patience import PATIENCE_S, wait_until
from tests.program.recording import name_of

KEY, RUN = "key of the host", "run-1"


class Counter:
    """A service with a state."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Broken:
    def __init__(self) -> None:
        raise ValueError("broken")

    def get(self) -> None: ...


class Context(Node[Any]):
    """A node that does what the test says."""

    kind = "context"

    def __init__(self, work: Callable[[NodeContext], object], *, finite: bool = True) -> None:
        self._work = work
        self._finite = finite

    @property
    def label(self) -> str:
        return "context"

    def arguments(self) -> dict[str, Any]:
        return {}

    @property
    def finite(self) -> bool:
        return self._finite

    def run(self, context: NodeContext) -> None:
        self._work(context)


class Launcher:
    """One host, and what it said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.host = NodeHost(str(folder), "h.sock", RUN, "host", KEY, self._hear)
        self.host.loop.start("test-host")
        self.threads: list[threading.Thread] = []

    def start(self, name: UnitName, *, checkpoint_s: float | None = None, **nodes: Node[Any]) -> RunningUnit:
        facts = [NodeStart(node, 1, 0, checkpoint_s, 0) for node in nodes]
        start = StartUnit(name, RUN, "demo", "host", KEY, str(self.folder / "states"), b"", [], facts)
        unit = self.host.prepare(start, list(nodes.values()))
        self.threads.append(threading.Thread(target=self.host.run_unit, args=(unit,), name=name.unit))
        self.threads[-1].start()
        return unit

    def unit(self, name: str) -> Any:
        """The unit that runs under a name."""
        return self.host._units[name_of(name)]

    def _hear(self, message: Any, parts: Sequence[Part] = ()) -> None:
        self.said.put(message)

    def next(self, kind: type[Any]) -> Any:
        """The next message, which is of that kind."""
        message = self.said.get(timeout=PATIENCE_S)
        assert isinstance(message, kind), message
        return message

    def comes_up(self, num_nodes: int = 1) -> tuple[UnitUp, NodeReady]:
        """A unit is up, and its nodes are ready."""
        return self.next(UnitUp), [self.next(NodeReady) for _ in range(num_nodes)][-1]

    def tell(self, message: Any) -> None:
        self.host.loop.call_soon(lambda: self.host.hear(message))

    def stop(self, name: UnitName, grace_s: float = 5.0) -> None:
        self.tell(StopUnit(name, "over", grace_s))

    @contextlib.contextmanager
    def client(
        self, up: UnitUp, ready: NodeReady, token: str = "", process_id: str = "test", kind: type[Any] = Counter
    ) -> Generator[Any]:
        """A client of a node of this host, as in another process."""
        view = DirectoryView(lambda _name: None, lambda: None)
        token = token or token_of(KEY, process_id)
        view.hear(Placed(ready.node, 0, "up", up.address, ready.target, token, 0, ""))
        view.hear(Sizes(ready.node, 1))
        loop = Loop()
        loop.start("test-client")
        caller = Caller(loop, view, RUN, process_id)
        try:
            yield Client(caller, ready.node, "any", methods_of(kind))
        finally:
            caller.close()
            loop.stop()
            loop.ended.wait(PATIENCE_S)

    def close(self) -> None:
        # What a failed test left running ends, too.
        self.host.loop.call_soon(lambda: self.host.launcher_lost("the test is over"))
        for thread in self.threads:
            thread.join(1.0)
        self.host.close()
        self.host.close()
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    folder = create_run_folder()
    launcher = Launcher(folder)
    try:
        yield launcher
    finally:
        launcher.close()
        shutil.rmtree(folder)
    # Threads of nodes say that they have ended, and then end.
    wait_until(lambda: vars(node_context)["_all"] == [])
    assert vars(launcher.host)["_units"] == {}


def test_a_service_is_up_then_ready_then_called_and_ends_when_it_is_told_to(launcher: Launcher) -> None:
    name = name_of("store")
    launcher.start(name, store=Service(Counter))
    up = launcher.next(UnitUp)
    ready = launcher.next(NodeReady)
    assert up.name == ready.name == name and ready.node == "store" and ready.target
    with launcher.client(up, ready) as store:
        assert [store.add(1), store.add(2)] == [1, 3]
        launcher.stop(name)
        assert launcher.next(UnitEnded) == UnitEnded(name, "", None)


def test_nobody_calls_a_service_without_a_token_of_its_own(launcher: Launcher) -> None:
    launcher.start(name_of("store"), store=Service(Counter))
    up, ready = launcher.comes_up()
    for process_id, token in (("test", "0" * 64), ("test", token_of(KEY, "other")), ("test", token_of("x", "test"))):
        with launcher.client(up, ready, token, process_id) as store:
            caller = vars(store)["_caller"]
            with pytest.raises(TransportError):
                caller.connection_to("store", caller.directory.find("store", 0))
    launcher.stop(name_of("store"))
    launcher.next(UnitEnded)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_process_that_is_gone_is_not_let_in_again_and_one_that_is_lost_is_hung_up_on(
    launcher: Launcher, is_cut: bool
) -> None:
    """S4: what is gone may have calls under way, which are still heard; what was lost with its host says nothing."""
    launcher.start(name_of("store"), store=Service(Counter))
    up, ready = launcher.comes_up()
    with (
        launcher.client(up, ready, process_id="gone") as store,
        launcher.client(up, ready, process_id="other") as other,
    ):
        assert [store.add(1), other.add(1)] == [1, 2]
        caller = vars(store)["_caller"]
        first = caller.known(up.address)
        launcher.tell(Retired([RetiredProcess("gone", "", is_cut)]))
        assert other.add(1) == 3
        if is_cut:
            wait_until(lambda: bool(first.closed))
        else:
            assert store.add(1) == 4
            first.close("it is gone")
        with pytest.raises(TransportError, match="retired"):
            caller.connection_to("store", caller.directory.find("store", 0))
        assert other.add(0) > 0
    launcher.stop(name_of("store"))
    launcher.next(UnitEnded)


def test_a_worker_is_ready_before_it_works_and_the_unit_ends_with_it(launcher: Launcher) -> None:
    go = threading.Event()
    launcher.start(name_of("actor"), actor=Worker(lambda: go.wait(PATIENCE_S)))
    launcher.next(UnitUp)
    assert launcher.next(NodeReady) == NodeReady(name_of("actor"), "actor", 0)
    go.set()
    assert launcher.next(UnitEnded) == UnitEnded(name_of("actor"), "", None)


@pytest.mark.parametrize(
    "error", [ValueError("broken"), SystemExit(3), ProgramStopped("it was not"), KeyboardInterrupt()]
)
def test_a_node_that_raises_ends_its_unit_with_its_failure(
    launcher: Launcher, error: BaseException, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise error

    launcher.start(name_of("actor"), actor=Worker(work))
    launcher.comes_up()
    ended = launcher.next(UnitEnded)
    assert ended.node == "actor" and ended.failure.type_name.endswith(type(error).__qualname__)
    assert "in work" in ended.failure.traceback and "/node_host.py" not in ended.failure.traceback
    assert capfd.readouterr().err == "", "the launcher raises it, or prints it"


def test_of_several_failures_in_a_unit_those_that_do_not_travel_are_printed(
    launcher: Launcher, capfd: pytest.CaptureFixture[str]
) -> None:
    def work(context: NodeContext) -> None:
        context.wait_for_stop(PATIENCE_S)
        raise ValueError("after the other one")

    def break_down() -> None:
        raise ZeroDivisionError("first")

    launcher.start(name_of("both"), actor=Context(work), other=Worker(break_down))
    launcher.comes_up(2)
    ended = launcher.next(UnitEnded)
    assert ended.node == "other" and "first" in ended.failure.traceback
    text = capfd.readouterr().err
    assert text.endswith("ValueError: after the other one\n") and "first" not in text


@pytest.mark.parametrize("code", [None, 0])
def test_a_node_that_exits_without_an_error_ends_well(launcher: Launcher, code: int | None) -> None:
    def work() -> None:
        raise SystemExit(code)

    launcher.start(name_of("actor"), actor=Worker(work))
    launcher.comes_up()
    assert launcher.next(UnitEnded).failure is None


@pytest.mark.parametrize("error", [ProgramStopped("over"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_node_raises_because_it_is_ended_is_no_failure(launcher: Launcher, error: BaseException) -> None:
    def work(context: NodeContext) -> None:
        context.wait_for_stop(PATIENCE_S)
        raise error

    launcher.start(name_of("actor"), actor=Context(work))
    launcher.comes_up()
    launcher.stop(name_of("actor"))
    assert launcher.next(UnitEnded).failure is None


class Monitor:
    def run(self) -> None:
        while not node_context.wait_for_stop(0.001):
            pass

    def get(self) -> None: ...


@pytest.mark.parametrize(
    ("node", "waits"),
    [
        (Service(Monitor), True),
        (Worker(lambda: node_context.wait_for_stop()), True),
        (Worker(lambda: [node_context.wait_for_stop(0.001), node_context.wait_for_stop(0.001)]), False),
        (Service(Counter), False),
    ],
    ids=["monitor", "worker", "pauses", "service"],
)
def test_a_node_with_an_end_of_its_own_tells_once_that_it_waits_for_the_stop_instead(
    launcher: Launcher, node: Node[Any], waits: bool
) -> None:
    launcher.start(name_of("node"), node=node)
    launcher.comes_up()
    if waits:
        assert launcher.next(WaitsForStop) == WaitsForStop(name_of("node"))
    launcher.stop(name_of("node"))
    assert launcher.next(UnitEnded).failure is None


def test_a_monitor_ends_with_the_worker_that_shares_its_process(launcher: Launcher) -> None:
    go = threading.Event()
    launcher.start(name_of("both"), monitor=Service(Monitor), actor=Worker(lambda: go.wait(PATIENCE_S)))
    launcher.comes_up(2)
    go.set()
    assert launcher.next(UnitEnded).failure is None


class Stuck(Counter):
    """Waits in a way of its own, which nobody can end."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        STUCK.append(self)

    def add(self, number: int) -> int:
        self.gate.wait(PATIENCE_S)
        return number


STUCK: list[Stuck] = []


def test_a_method_that_outlives_its_caller_is_told_of_once(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_host, "_OUTLIVES_S", 0.05)
    launcher.start(name_of("stuck"), stuck=Service(Stuck))
    with launcher.client(*launcher.comes_up()) as client:
        future = client.add.future(1)
        wait_until(lambda: launcher.unit("stuck").nodes[0].served.running)
        future.cancel()
        note = launcher.next(Note)
        assert note.text.startswith(
            "stuck.add() still runs 0.05 s after its caller gave it up, and keeps its turn from"
        )
        assert "rw.wait_for(" in note.text and caplog.messages == [note.text]
    STUCK.pop().gate.set()
    launcher.stop(name_of("stuck"))
    launcher.next(UnitEnded)


def test_a_unit_that_was_told_to_stop_before_it_was_there_stops_when_it_comes(launcher: Launcher) -> None:
    launcher.stop(name_of("store", 0, 1))
    launcher.stop(name_of("store", 0, 1))
    launcher.tell(AskStatus(1))
    launcher.next(HostStatus)  # the wishes before it were heard
    launcher.start(name_of("store", 0, 1), store=Service(Counter))
    launcher.comes_up()
    assert launcher.next(UnitEnded) == UnitEnded(name_of("store", 0, 1), "", None)


def test_wishes_for_units_that_have_ended_are_not_kept_without_end(launcher: Launcher) -> None:
    for generation in range(500):
        launcher.stop(name_of("store", 0, generation))
    launcher.tell(AskStatus(1))
    launcher.next(HostStatus)
    assert len(vars(launcher.host)["_early_wishes"]) <= 100


def test_a_node_that_waits_for_a_service_that_never_comes_can_be_stopped(launcher: Launcher) -> None:
    handle: Handle[Any] = Handle("nowhere", Vertex(None, sent_methods=methods_of(Counter)))
    launcher.start(name_of("actor"), actor=Worker(lambda store: store.add(1), handle))
    launcher.comes_up()
    assert launcher.next(Locate) == Locate("nowhere")
    launcher.tell(Placed("nowhere", 0, "waiting", "", 0, "", 0, ""))
    launcher.tell(Sizes("nowhere", 1))
    launcher.stop(name_of("actor"), 0.2)
    assert launcher.next(UnitEnded) == UnitEnded(name_of("actor"), "", None)


def test_one_unit_that_stops_leaves_the_calls_of_its_neighbours_alone(launcher: Launcher) -> None:
    go = threading.Event()
    handle: Handle[Any] = Handle("store", Vertex(None, sent_methods=methods_of(Counter)))
    results: list[int] = []

    def call(store: Any) -> None:
        go.wait(PATIENCE_S)
        results.append(store.add(5))

    launcher.start(name_of("store"), store=Service(Counter))
    up, ready = launcher.comes_up()
    for unit in ("one", "two"):
        launcher.start(name_of(unit), caller=Worker(call, handle))
        launcher.comes_up()
    launcher.stop(name_of("one"), 0.0)
    launcher.tell(AskStatus(1))
    launcher.next(HostStatus)
    go.set()
    ended: list[UnitEnded] = []
    while len(ended) < 2:
        message = launcher.said.get(timeout=PATIENCE_S)
        if isinstance(message, Locate):
            launcher.tell(Placed("store", 0, "up", up.address, ready.target, token_of(KEY, "host"), 0, ""))
            launcher.tell(Sizes("store", 1))
        else:
            ended.append(message)
    assert {message.name.unit: message.failure for message in ended}["two"] is None and 5 in results
    launcher.stop(name_of("store"))
    launcher.next(UnitEnded)


# Several nodes in one unit


def test_a_unit_is_over_when_its_finite_nodes_are_and_its_services_end_with_them(launcher: Launcher) -> None:
    go = threading.Event()
    work = Worker(lambda: go.wait(PATIENCE_S))
    launcher.start(name_of("host"), table=Service(Counter), learner=work)
    launcher.next(UnitUp)
    assert {launcher.next(NodeReady).node for _ in range(2)} == {"table", "learner"}
    go.set()
    assert launcher.next(UnitEnded) == UnitEnded(name_of("host"), "", None)


@pytest.mark.parametrize("first", [True, False])
def test_one_node_that_fails_ends_the_others(launcher: Launcher, first: bool) -> None:
    def work(context: NodeContext) -> None:
        assert context.wait_for_stop(PATIENCE_S)

    nodes: list[tuple[str, Any]] = [("store", Service(Broken)), ("actor", Context(work))]
    launcher.start(name_of("host"), **dict(nodes if first else reversed(nodes)))
    launcher.comes_up()
    ended = launcher.next(UnitEnded)
    assert ended.node == "store" and ended.failure.message == "broken"


def test_a_node_in_the_main_thread_is_not_waited_for_when_another_one_has_failed(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker before a broken service of its own unit waited for that service for ever, and nobody was told.
    monkeypatch.setattr(node_host, "_CALLS_S", 0.05)
    monkeypatch.setattr(node_host, "_DRAIN_S", 0.05)
    go, left = threading.Event(), threading.Event()
    launcher.host.leave = left.set
    launcher.start(name_of("host"), actor=Worker(lambda: go.wait(PATIENCE_S)), store=Service(Broken))
    launcher.comes_up()
    assert launcher.next(UnitEnded).node == "store"
    assert left.wait(PATIENCE_S)
    go.set()
    launcher.threads[0].join(PATIENCE_S)
    assert launcher.said.empty(), "it is told once"


# What hosts are asked


def test_a_host_tells_what_its_nodes_do(launcher: Launcher) -> None:
    launcher.start(name_of("store"), store=Service(Counter))
    up, ready = launcher.comes_up()
    with launcher.client(up, ready) as store:
        store.add(1)
        launcher.tell(AskStatus(7))
        (status,) = (answer := launcher.next(HostStatus)).nodes
    assert answer.number == 7 and (status.unit, status.node, status.num_done) == (name_of("store"), "store", 1)
    launcher.stop(name_of("store"))
    launcher.next(UnitEnded)


def test_a_host_does_not_take_what_is_not_for_hosts(launcher: Launcher) -> None:
    with pytest.raises(RuntimeError, match="cannot do anything with"):
        launcher.host.hear(Note("hello"))


def test_the_loss_of_the_launcher_ends_all_nodes(launcher: Launcher) -> None:
    launcher.start(name_of("store"), store=Service(Counter))
    launcher.comes_up()
    launcher.host.loop.call_soon(lambda: launcher.host.launcher_lost("it is gone"))
    assert launcher.next(UnitEnded).failure is None


def test_the_first_rank_says_where_to_meet_and_the_others_wait_for_it(launcher: Launcher) -> None:
    found: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    meet = Context(lambda context: found.put(context.rendezvous()))
    second = UnitName("rank", 1, 3)
    launcher.start(second, rank=meet)
    launcher.comes_up()
    launcher.tell(RendezvousAt("rank", 2, "", "127.0.0.1", 1))  # of the generation before
    launcher.start(UnitName("rank", 0, 3), rank=meet)
    launcher.comes_up()
    offer = launcher.next(OfferRendezvous)
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", offer.at.port))  # the port is kept until they meet
    assert found.empty(), "all wait for all"
    launcher.tell(msgspec.structs.replace(offer.at, rank=5, local_rank=1, local_size=4))
    environments = sorted((found.get(timeout=PATIENCE_S) for _ in range(2)), key=lambda found: found["RANK"])
    for _ in range(2):
        launcher.next(UnitEnded)
    assert [environment["RANK"] for environment in environments] == ["5", "5"]
    assert (
        environments[1].items()
        >= {
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(offer.at.port),
            "TORCHELASTIC_RESTART_COUNT": "3",
        }.items()
    )


def test_ranks_on_hosts_without_addresses_are_told_that_they_cannot_meet(launcher: Launcher) -> None:
    # They waited for a connection to their own host until torch gave up.
    launcher.tell(RendezvousAt("rank", 0, "agent-7", "127.0.0.1", 4711))
    launcher.start(UnitName("rank", 1, 0), rank=Context(lambda context: context.rendezvous()))
    launcher.comes_up()
    failure = launcher.next(UnitEnded).failure
    assert failure and "the ranks of rank are on several hosts (agent-7 and" in failure.message
    assert "hosts=1" in failure.message


def test_a_rank_that_waits_for_the_first_one_can_be_stopped(launcher: Launcher) -> None:
    # It waited for a minute, and was killed after its grace.
    launcher.start(UnitName("rank", 1, 0), rank=Context(lambda context: context.rendezvous()))
    launcher.comes_up()
    launcher.stop(UnitName("rank", 1, 0))
    assert launcher.next(UnitEnded).failure is None


# What nodes know


def test_a_node_knows_itself_and_its_stop_callbacks_are_called_once(launcher: Launcher) -> None:
    called: queue.SimpleQueue[str] = queue.SimpleQueue()

    def work(context: NodeContext) -> None:
        assert current_node() is context and not context.stopping and not context.wait_for_stop(0.001)
        assert repr(context) == "<node actor, generation 2>" and context.program == "demo"
        context.on_stop(lambda: called.put("before"))
        context.on_stop(lambda: 1 / 0)
        context.stop_program("done")
        assert context.wait_for_stop(PATIENCE_S) and context.stopping
        context.on_stop(lambda: called.put("after"))

    launcher.start(name_of("actor", 0, 2), actor=Context(work))
    launcher.comes_up()
    assert launcher.next(StopProgram) == StopProgram("done")
    launcher.stop(name_of("actor", 0, 2))
    launcher.stop(name_of("actor", 0, 2))
    assert launcher.next(UnitEnded).failure is None
    assert {called.get(timeout=PATIENCE_S) for _ in range(2)} == {"before", "after"} and called.empty()


def test_outside_of_nodes_there_is_no_current_one_and_among_several_it_must_be_said() -> None:
    with pytest.raises(RuntimeError, match="does not run inside a node"):
        current_node()
    with pytest.raises(RuntimeError, match="does not run inside a node"):
        node_context.stop()


def test_a_thread_of_a_node_belongs_to_it_unless_there_are_several(launcher: Launcher) -> None:
    go = threading.Event()
    work = Worker(lambda: go.wait(PATIENCE_S))
    launcher.start(name_of("one"), one=work)
    launcher.comes_up()
    assert current_node().name == "one"
    launcher.start(name_of("two"), two=work)
    launcher.comes_up()
    with pytest.raises(RuntimeError, match=r"any of the nodes of this process \(one, two\)"):
        current_node()
    node_context.stop()
    assert launcher.next(StopProgram).reason == "one asked for it"
    go.set()
    launcher.next(UnitEnded)
    launcher.next(UnitEnded)


# States


def test_a_service_that_ends_is_started_again_with_its_state(launcher: Launcher) -> None:
    for generation, total in enumerate((5, 10, 15)):
        name = name_of("store", 0, generation)
        launcher.start(name, store=Service(Counter))
        up, ready = launcher.comes_up()
        with launcher.client(up, ready) as store:
            assert store.add(5) == total
        launcher.stop(name)
        launcher.next(UnitEnded)


class Steps(Counter):
    """Two numbers that are equal between its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = 0
        self.saved: list[tuple[int, int, bool]] = []
        self.in_call = False

    def run(self) -> None:
        while not node_context.stopping():
            self.a += 1
            for _ in range(100):
                pass
            self.b += 1
            self.say()

    def say(self) -> None:
        node_context.checkpoint_here()

    def add(self, number: int) -> int:
        self.in_call = True
        value = super().add(number)
        self.in_call = False
        return value

    def state_dict(self) -> dict[str, int]:
        self.saved.append((self.a, self.b, self.in_call))
        return {"value": self.value, "a": self.a}

    @concurrent(1)
    def all_saved(self) -> list[tuple[int, int, bool]]:
        return self.saved


class StepsInSilence(Steps):
    def say(self) -> None: ...


def test_a_service_with_work_of_its_own_is_saved_where_it_says_whether_it_is_called_or_not(launcher: Launcher) -> None:
    # 31 of 31 checkpoints were taken in the middle of a step, and none while nobody called.
    launcher.start(name_of("steps"), checkpoint_s=0.01, steps=Service(Steps))
    with launcher.client(*launcher.comes_up(), kind=Steps) as client:
        num_saved = len(client.all_saved())
        wait_until(lambda: len(client.all_saved()) > num_saved + 3)  # no call that would count: it takes no turn
        for _ in range(200):
            client.add(1)
        saved = client.all_saved()
        assert [step for step in saved if step[0] != step[1] or step[2]] == []
    launcher.stop(name_of("steps"))
    launcher.next(UnitEnded)
    kept = checkpoints.load(launcher.folder / "states", "steps", 0)
    assert kept and kept.state["value"] == 200 and kept.state["a"] >= saved[-1][0]


def test_where_a_state_may_be_saved_is_asked_for_if_nobody_says_it(
    launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    launcher.start(name_of("steps"), checkpoint_s=0.01, steps=Service(StepsInSilence))
    with launcher.client(*launcher.comes_up(), kind=Steps) as client:
        note = launcher.next(Note)
        assert "Call rw.checkpoint_here() in run()" in note.text and caplog.messages == [note.text]
        assert client.all_saved() == []
    launcher.stop(name_of("steps"))
    launcher.next(UnitEnded)
    assert checkpoints.load(launcher.folder / "states", "steps", 0), "it is saved when run() has ended"


def test_only_a_service_with_a_state_can_be_saved(launcher: Launcher) -> None:
    def ask() -> None:
        with pytest.raises(RuntimeError, match="worker is a worker, and only services have a state that is saved"):
            node_context.checkpoint_here()

    launcher.start(name_of("worker"), worker=Worker(ask))
    launcher.comes_up()
    assert launcher.next(UnitEnded).failure is None


def test_a_state_is_saved_while_the_service_works(launcher: Launcher) -> None:
    launcher.start(name_of("store"), checkpoint_s=0.05, store=Service(Counter))
    up, ready = launcher.comes_up()
    states = launcher.folder / "states"
    with launcher.client(up, ready) as store:
        store.add(5)
        waits = threading.Event()
        while not (states.is_dir() and any(name.endswith(".checkpoint") for name in os.listdir(states))):
            waits.wait(0.01)
    launcher.stop(name_of("store"))
    launcher.next(UnitEnded)


class Slow(Counter):
    """A service with a call that goes on after the service was asked to stop."""

    latest: Slow

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        Slow.latest = self

    def stay(self) -> None:
        self.value += 1
        self.goes_on.wait(PATIENCE_S)


class SlowAndSafe(Slow):
    @concurrent(1)
    def state_dict(self) -> dict[str, int]:
        return super().state_dict()


@pytest.mark.parametrize("kind", [Slow, SlowAndSafe])
def test_a_state_that_is_not_saved_because_of_a_call_is_told_of(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, kind: type[Slow]
) -> None:
    # The end of a service left out its last checkpoint if a call ran longer than a second, and nobody learned of it.
    monkeypatch.setattr(node_host, "_DRAIN_S", 0.05)
    unit = launcher.start(name_of("store"), store=Service(kind))
    up, ready = launcher.comes_up()
    with launcher.client(up, ready, kind=kind) as store:
        store.stay.send()
        wait_until(lambda: unit.nodes[0].served and unit.nodes[0].served.running)
        launcher.stop(name_of("store"))
        said = launcher.said.get(timeout=PATIENCE_S)
        if kind is Slow:
            assert isinstance(said, Note) and "the state of store was not saved again at its end" in said.text
            said = launcher.said.get(timeout=PATIENCE_S)
        assert isinstance(said, UnitEnded)
        Slow.latest.goes_on.set()
    saved = checkpoints.load(launcher.folder / "states", "store", 0)
    assert saved is None if kind is Slow else saved and saved.state == {"value": 1}
