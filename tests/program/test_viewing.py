"""What a program shows of itself: pure where it can be, and of a program whose process is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import ropewalk as rw
from ropewalk.control.launchers import find_launchers
from ropewalk.control.server import Act, ActionDone, Look, ViewIs
from ropewalk.control.view import ProcessView, View
from ropewalk.program.running import RunningProgram
from ropewalk.program.status import NodeCall, NodeStatus
from ropewalk.program.viewing import graph_edges, graph_nodes, processes_of
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("shared_session")

T = TypeVar("T")


def node(replica: int, **facts: object) -> NodeStatus:
    facts = {"state": "running", **facts}
    return NodeStatus(name="store", replica=replica, kind="service", **facts)  # type: ignore[arg-type]


def test_a_replica_shows_its_longest_calls_first() -> None:
    calls = (NodeCall("store.get", 0.5), NodeCall("store.put", 2.5), *(NodeCall("store.look", 0.1) for _ in range(3)))
    (shown,) = processes_of([node(0, calls_running=calls, calls_done=7, calls_waiting=2)], [0.0], [1.5])
    assert (shown.doing, shown.doing_s) == ("store.put, store.get, store.look and 2 more", 2.5)
    assert (shown.name, shown.group, shown.done, shown.waiting, shown.silent_s) == ("store.0", "store", 7, 2, 1.5)


@pytest.mark.parametrize(
    ("waiting", "busy_s", "expected"),
    [
        ([1, 0, 10], [1.0, 1.0, 1.0], [False, False, True]),
        ([1, 0, 8], [1.0, 1.0, 1.0], [False, False, False]),
        ([0, 0, 0], [1.0, 1.0, 2.5], [False, False, True]),
        ([0, 0, 0], [0.001, 0.001, 0.01], [False, False, False]),
    ],
)
def test_a_replica_on_which_calls_pile_up_or_drag_on_is_a_straggler(
    waiting: list[int], busy_s: list[float], expected: list[bool]
) -> None:
    nodes = [node(number, calls_waiting=each, calls_done=10) for number, each in enumerate(waiting)]
    assert [shown.straggler for shown in processes_of(nodes, busy_s, [0.0] * 3)] == expected


def test_the_graph_has_the_sums_over_replicas() -> None:
    replicas = [node(0, calls_done=3, calls_waiting=1), node(1, calls_done=1), node(2, state="completed")]
    (store, actor) = graph_nodes({"store": "service", "actor": "worker"}, replicas, [1.0, 1.0, 0.0])
    assert store == {
        "name": "store", "kind": "service", "replicas": 3, "running": 2, "over": 1, "calls_done": 4, "calls_waiting": 1,
        "mean_call_s": 0.5,
    }  # fmt: skip
    assert (actor["replicas"], actor["mean_call_s"]) == (0, None)


def test_an_edge_has_the_calls_of_all_replicas_of_its_caller_and_no_others() -> None:
    made = [("actor", {"store": 3, "log": 1}), ("actor", {"store": 4}), ("critic", {"store": 2}), ("critic", {})]
    assert graph_edges([("actor", "store"), ("critic", "store"), ("actor", "clock")], made) == [
        {"from": "actor", "to": "store", "calls": 7},
        {"from": "critic", "to": "store", "calls": 2},
        {"from": "actor", "to": "clock", "calls": 0},
    ]


class Store:
    def add(self, number: int) -> int:
        time.sleep(0.002)
        return number

    def items(self) -> Iterator[int]:
        yield from range(2)

    def die(self) -> None:
        os.abort()


def call(store: Store) -> None:
    for number in range(5):
        store.add(number)
    rw.wait_for_stop(PATIENCE_S)


def launched() -> RunningProgram:
    program = rw.Program("seen")
    store = program.add(rw.Service(Store), name="store", restart="always")
    program.add(rw.Worker(call, store), name="actor")
    return program.launch()


def test_a_look_from_another_terminal_is_what_the_program_shows_and_a_replica_can_be_killed_and_restarted() -> None:
    with launched() as running:
        running.wait_ready(PATIENCE_S)
        (launcher,) = [each for each in find_launchers([running._hosting.folder.parent]) if each.id == running.id]
        assert (launcher.kind, launcher.name, launcher.pid) == ("program", "seen", os.getpid())
        with launcher.connect() as conversation:

            def look() -> View:
                return conversation.ask(Look({"graph": 0, "painting": 3}), ViewIs).view

            edges = [{"from": "actor", "to": "store", "calls": 5}]  # as counted by the caller, which tells it by itself
            view = wait_until(
                look, wanted=lambda view: of(view, "store.0").done == 5 and view.panels["graph"]["edges"] == edges
            )
            assert (view.kind, view.id, view.state, view.offers) == ("program", running.id, "running", ("graph",))
            store = view.panels["graph"]["nodes"][0]
            assert (store["calls_done"], store["running"]) == (5, 1) and 0.002 <= store["mean_call_s"] < PATIENCE_S
            assert view.facts["restarts"] == 0 and view.last_failure == ""
            first = of(view, "store.0").pid

            text = conversation.ask(Act("kill", "store.0"), ActionDone).text
            assert text == "store.0 is killed; its restart rule decides whether it starts again"
            view = wait_until(look, wanted=lambda view: of(view, "store.0").pid not in (0, first))
            assert view.last_failure.startswith("store.0 was killed by SIGKILL") and view.facts["restarts"] == 1
            death, restart = [event for event in view.events if event.kind]
            assert (death.kind, death.process, death.text) == ("death", "store.0", view.last_failure)
            assert (restart.kind, restart.text) == ("restart", "store.0 starts again")
            assert view.started <= death.at <= restart.at <= view.at

            second = of(view, "store.0").pid
            wait_until(look, wanted=lambda view: of(view, "store.0").state == "running")
            assert conversation.ask(Act("restart", "store.0"), ActionDone).text.endswith("and starts again")
            view = wait_until(look, wanted=lambda view: of(view, "store.0").pid not in (0, second))
            assert view.facts["restarts"] == 1  # on request, which is no failure
    assert running.view().state == "stopped" and running.view().has_ended


def call_in_all_ways(store: Any, times: int) -> None:
    for _ in range(times):
        store.add(1)
        store.add.future(1).result()
        store.add.send(1)
        list(store.items())
    rw.wait_for_stop(PATIENCE_S)


def test_each_caller_of_a_service_counts_the_calls_that_it_makes() -> None:
    program = rw.Program("counted")
    store = program.add(rw.Service(Store), name="store")
    for name, times in (("actor", 2), ("critic", 1)):
        program.add(rw.Worker(call_in_all_ways, store, times), name=name)

    def calls(view: View) -> dict[str, int]:
        return {edge["from"]: edge["calls"] for edge in view.panels["graph"]["edges"]}

    with program.launch(mode="threads") as running:
        wait_until(lambda: running.view({"graph": 0}), wanted=lambda view: calls(view) == {"actor": 8, "critic": 4})


class Fragile:
    """Calls a service ten times in each life, and dies after the first one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self) -> None:
        for number in range(10):
            self._store.add(number)
        rw.wait_for_stop(PATIENCE_S)

    def die(self) -> None:
        os.abort()


def test_the_calls_of_a_caller_are_those_of_all_its_lives() -> None:
    program = rw.Program("lives")
    store = program.add(rw.Service(Store), name="store")
    program.add(rw.Service(Fragile, store), name="actor", restart="always")

    def calls(view: View) -> int:
        return view.panels["graph"]["edges"][0]["calls"]

    with program.launch() as running:
        wait_until(lambda: running.view({"graph": 0}), wanted=lambda view: calls(view) == 10)
        with pytest.raises(rw.RopewalkError):
            running.client("actor").die()
        seen: list[int] = []
        wait_until(lambda: seen.append(calls(running.view({"graph": 0}))) or seen[-1], wanted=lambda now: now == 20)
        assert seen == sorted(seen), "a restart takes nothing away"


def states_of_threads(pid: int) -> set[str]:
    return {path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")}


def test_a_replica_that_does_not_answer_is_silent_and_the_others_are_not() -> None:
    with launched() as running:
        running.wait_ready(PATIENCE_S)
        pid = of(running.view(), "store.0").pid
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: states_of_threads(pid) == {"T"})  # until then it may still answer
        try:
            first = running.view()
            again = running.view()  # the silence counts from the first question
            assert of(again, "store.0").silent_s > of(first, "store.0").silent_s + 0.4  # a look waits for 0.5 s
        finally:
            os.kill(pid, signal.SIGCONT)
        asked_at = time.monotonic()
        wait_until(running.view, wanted=lambda view: of(view, "store.0").silent_s <= time.monotonic() - asked_at)


@pytest.mark.parametrize(
    ("action", "process", "message"),
    [
        ("kill", "shop.0", "program 'seen' has no replica 'shop.0'; its nodes are store, actor"),
        ("kill", "store.1", "has no replica 'store.1'"),
        ("kill", "store.-1", "has no replica 'store.-1'"),
        ("restart", "store", "has no replica 'store'"),
        ("paint", "store.0", "a replica can be asked to kill or restart, not to 'paint'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(action: str, process: str, message: str) -> None:
    program = rw.Program("seen")
    store = program.add(rw.Service(Store), name="store")
    program.add(rw.Worker(call, store), name="actor")
    with program.launch("threads") as running:
        with pytest.raises(ValueError, match=message):
            running.act(action, process)
        with pytest.raises(ValueError, match=r"store\.0 has no process that could be killed: its program runs as"):
            running.act("kill", "store.0")
        assert running.view().process_actions == ("restart", "stack")


def of(view: View, name: str) -> ProcessView:
    (process,) = [process for process in view.processes if process.name == name]
    return process
