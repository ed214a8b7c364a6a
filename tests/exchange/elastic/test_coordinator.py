"""The coordinator, where its workers come and go faster than it hears of them."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future
from typing import Any, cast

import pytest

from ropewalk.errors import ExchangeStalled, MemberLost, ProgramStopped, ServiceLost
from ropewalk.exchange.elastic.coordinator import Coordinator, ExchangeTimeouts
from ropewalk.exchange.elastic.membership import EpochPhase, Expel, Finish, MembershipView
from ropewalk.program import node_context
from ropewalk.transport.failures import failure_of
from tests.exchange.elastic.society import PATIENCE


class NoWorkers:
    """The client of a node that was scaled down meanwhile."""

    def __getitem__(self, replica: int) -> Any:
        raise IndexError(f"workers has 1 replica; there is no number {replica}")


def test_a_worker_that_was_scaled_away_before_its_word_was_heard_is_left_out() -> None:
    # It once ended the whole training: an IndexError of the coordinator.
    coordinator = Coordinator(cast(Any, NoWorkers()), 1, ExchangeTimeouts())
    coordinator.hello("workers.3#0", 3)
    coordinator.join("workers.3#0")
    heard = [instruction for _ in range(2) for instruction in coordinator._events.get()()]
    assert [type(instruction) for instruction in heard] == [Expel]
    assert not coordinator._membership.members


class Workers:
    """The client of a node whose workers hear everything, and do not end."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []
        self.ends: dict[str, Future[None]] = defaultdict(Future)

    def __getitem__(self, replica: int) -> Any:
        return self

    @property
    def stay(self) -> Any:
        return _Method(lambda name: self.ends[name])

    @property
    def hear(self) -> Any:
        return _Method(self._hear)

    def _hear(self, name: str, message: object) -> Future[None]:
        self.heard.append((name, message))
        heard: Future[None] = Future()
        heard.set_result(None)
        return heard


class _Method:
    def __init__(self, future: Any) -> None:
        self.future = future


def handle(coordinator: Coordinator) -> None:
    """Handle all events that have come."""
    while not coordinator._events.empty():
        for instruction in coordinator._events.get()():
            coordinator._do(instruction)


@pytest.fixture
def in_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_context, "on_stop", lambda callback: None)


class WorkersThatCannotStart(Workers):
    """Calls to those with these numbers fail, as of a node that has failed and is not restarted."""

    def __init__(self, *replicas: int) -> None:
        super().__init__()
        self.failing = replicas

    def __getitem__(self, replica: int) -> Any:
        if replica == 2:
            raise IndexError("it was scaled away")
        self.replica = replica
        return self

    @property
    def ping(self) -> Any:
        pinged: Future[None] = Future()
        if self.replica in self.failing:
            pinged.set_exception(ServiceLost("workers has failed", service="workers", replica=self.replica))
        else:
            pinged.set_result(None)
        return _Method(lambda: pinged)


@pytest.mark.usefixtures("in_a_node")
def test_a_training_without_restarts_fails_when_no_worker_can_start() -> None:
    # The program went on without them, and its coordinator waited for their first word for ever.
    coordinator = Coordinator(cast(Any, WorkersThatCannotStart(0, 1)), 2, PATIENCE, restarts=False)
    with pytest.raises(MemberLost, match=r"none is left: worker 1 could not start: workers has failed"):
        coordinator.run()


def test_a_training_without_restarts_begins_with_those_who_can_start() -> None:
    coordinator = Coordinator(cast(Any, WorkersThatCannotStart(0, 2)), 2, PATIENCE, restarts=False)
    coordinator.hello("workers.1#0", 1)
    coordinator.join("workers.1#0")
    handle(coordinator)
    assert not coordinator._membership.members
    for replica in range(3):
        coordinator._notice_if_it_cannot_start(replica)
    handle(coordinator)
    assert coordinator._membership.members == ("workers.1#0",)


def test_the_end_of_a_worker_that_has_started_is_told_once() -> None:
    workers = WorkersThatCannotStart(0)
    coordinator = Coordinator(cast(Any, workers), 2, PATIENCE, restarts=False)
    coordinator.hello("workers.0#0", 0)
    handle(coordinator)
    coordinator._notice_if_it_cannot_start(0)
    handle(coordinator)
    assert coordinator._membership.phase is EpochPhase.GATHERING
    assert coordinator._membership.joins("workers.1#0") == [], "the other one is awaited"


def test_a_program_that_stops_does_not_fail_by_a_worker_that_is_overdue_at_that_moment() -> None:
    coordinator = Coordinator(cast(Any, Workers()), 1, ExchangeTimeouts(quiet_s=0.001, silent_s=0.001))
    coordinator.hello("workers.0#0", 0)
    coordinator.join("workers.0#0")
    handle(coordinator)
    coordinator._do(Finish("the program is stopping"))
    coordinator._silence._asked["workers.0#0"] = 0.0
    coordinator._look(0.0)
    assert coordinator._membership.phase is EpochPhase.OVER
    assert coordinator._finish == Finish("the program is stopping")


@pytest.mark.usefixtures("in_a_node")
def test_a_worker_that_starts_when_the_training_ends_is_told_so() -> None:
    """Its start was in the queue behind the last event that counted: it waited for ever, and the program for it."""
    workers = Workers()
    coordinator = Coordinator(cast(Any, workers), 1, PATIENCE)
    coordinator.hello("workers.0#0", 0)
    coordinator.finished("workers.0#0")
    coordinator.hello("workers.1#1", 1)
    coordinator.join("workers.1#1")
    coordinator.run()
    assert [(name, type(message)) for name, message in workers.heard] == [
        ("workers.0#0", Finish),
        ("workers.1#1", Finish),
    ]
    with pytest.raises(ProgramStopped, match="the training is over: no worker has done a step"):
        coordinator.hello("workers.1#2", 1)


@pytest.mark.usefixtures("in_a_node")
def test_an_error_that_was_told_when_the_training_ended_is_raised() -> None:
    """It was in the queue, and nobody read it."""
    coordinator = Coordinator(cast(Any, Workers()), 1, PATIENCE)
    coordinator.hello("workers.0#0", 0)
    coordinator.finished("workers.0#0")
    coordinator.failed("workers.1#0", failure_of(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        coordinator.run()


@pytest.mark.usefixtures("in_a_node")
def test_a_worker_that_was_taken_for_dead_is_told_so_and_fails_alone() -> None:
    """Its link was lost: it heard of nothing, waited for the others, and its timeout ended the training of all."""
    workers = Workers()
    coordinator = Coordinator(cast(Any, workers), 2, PATIENCE)
    for replica in range(2):
        coordinator.hello(f"workers.{replica}#0", replica)
        coordinator.join(f"workers.{replica}#0")
    handle(coordinator)
    workers.ends["workers.1#0"].set_exception(ServiceLost("its link was lost"))
    coordinator.failed("workers.1#0", failure_of(ExchangeStalled("rank 0 did not come")))
    coordinator.vote("workers.0#0", 1, 0, 0.0, 1.0)
    coordinator.finished("workers.0#0")
    coordinator.run()
    assert [type(message) for name, message in workers.heard if name == "workers.1#0"] == [MembershipView, Expel]
    assert [span.end for span in coordinator.history()] == [0, 1]
