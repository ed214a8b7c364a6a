"""Any sequence of single deaths, each after the last one's recovery, leaves a snapshot of every stage.

What decides is the code of the product: stores, keepers, copies, and the plans that follow. What is played here is the
order in which things happen: snapshots that arrive at some and not at others, processes and hosts that go, with others
in their place or none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.plans import Plan, PlanWorker, Stage
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.training.plan_repair import merged, without_workers
from ropewalk.training.snapshot_places import (
    WholeCut,
    copies_of,
    holders_of,
    keepers_of,
    missing_groups,
    nearest,
    one_per_group,
)
from ropewalk.training.snapshot_store import SnapshotStore


@dataclass
class Snapshot:
    worker: PlanWorker
    cut: Cut
    size_bytes: int = 1

    def release(self) -> None:
        pass

    def pin(self) -> None:
        pass


Shelf = SnapshotStore[Snapshot]


@dataclass
class Training:
    """What the controller and the processes of a trainer do about snapshots, without anything that computes."""

    plan: Plan
    #: By seat.
    hosts: dict[int, str]
    shelves: dict[int, Shelf] = field(default_factory=dict[int, Shelf])
    seats: dict[PlanWorker, int] = field(default_factory=dict[PlanWorker, int])
    epoch: int = 0
    number: int = 0
    cut: WholeCut | None = None

    def __post_init__(self) -> None:
        self.shelves = {seat: Shelf() for seat in self.hosts}
        self.deploy()

    def take_snapshots(self, num_delivered: int | None = None) -> None:
        """All of them, or the first `num_delivered`, before something goes wrong."""
        self.number += 1
        cut, keepers = Cut(0, self.number, (self.number,) * len(self.plan.stages)), keepers_of(self.hosts)
        for worker in self.plan.workers[:num_delivered]:
            for seat in {self.seats[worker], keepers[self.seats[worker]]}:
                self.shelves[seat].put(self.epoch, Snapshot(worker, cut))
        if num_delivered is None:
            self.cut = WholeCut(cut, self.epoch, self.plan)

    def lose(self, lost: set[int], replaced: bool, *, before_copies: bool) -> None:
        """Processes go at once, and what follows goes on to its end."""
        hosts = {seat: self.hosts[seat] for seat in lost}
        for seat in lost:
            del self.hosts[seat], self.shelves[seat]
        if before_copies:  # a replacement is long in coming
            self.copy()
        gone = {worker for worker, seat in self.seats.items() if seat in lost}
        if replaced:
            for seat, host in hosts.items():
                self.hosts[seat], self.shelves[seat] = f"{host}'", Shelf()
        self.plan = self.plan_without(gone)
        self.deploy()
        self.copy()

    def plan_without(self, gone: set[PlanWorker]) -> Plan:
        if gone and (fewer := without_workers(self.plan, gone)) is not None:
            return fewer
        plan = self.plan
        while len(plan.workers) > len(self.hosts):
            try:
                plan = merged(plan, len(plan.stages) - 1)
            except PlanInvalid:
                break
        while len(plan.workers) > len(self.hosts):
            plan = without_workers(plan, [plan.workers[-1]]) or plan
        return plan

    def deploy(self) -> None:
        self.epoch += 1
        self.seats = dict(zip(self.plan.workers, sorted(self.hosts), strict=False))
        cut = self.cut
        if cut is None:
            for shelf in self.shelves.values():
                shelf.begin(self.epoch, None)
            return
        same_plan = cut.plan is self.plan
        self.number = cut.cut.num_since if same_plan else 0
        holders = holders_of(self.contents, cut.epoch, cut.cut)
        assert missing_groups(cut.plan, holders, same_plan=same_plan) == [], "training cannot go on"
        for shelf in self.shelves.values():
            shelf.begin(self.epoch, (cut.epoch, cut.cut))
        places = nearest(holders, self.seats)
        found = {
            worker: self.shelves[places[worker]].get(worker, cut.cut, cut.epoch)
            for worker in (self.plan.workers if same_plan else one_per_group(places))
        }
        if same_plan:
            for worker, seat in self.seats.items():
                self.shelves[seat].put(cut.epoch, found[worker])

    def copy(self) -> None:
        cut = self.cut
        if cut is None:
            return
        same_plan = cut.plan is self.plan
        holders = holders_of(self.contents, cut.epoch, cut.cut)
        for worker, source, target in copies_of(cut.plan, holders, self.hosts, self.seats, same_plan=same_plan):
            self.shelves[target].put(cut.epoch, self.shelves[source].get(worker, cut.cut, cut.epoch))

    @property
    def contents(self) -> dict[int, list[tuple[int, PlanWorker, Cut]]]:
        return {seat: shelf.contents() for seat, shelf in self.shelves.items()}


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    replicas = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    stages: list[Stage] = []
    for number, num in enumerate(replicas):
        first = sum(replicas[:number])
        stages.append(Stage(number, (f"operator {number}",), tuple(range(first, first + num))))
    num_seats = max(2, sum(replicas)) + draw(st.integers(0, 1))
    hosts = draw(st.lists(st.sampled_from("ABC"), min_size=num_seats, max_size=num_seats))
    return Training(Plan(tuple(stages), (), (), "one_f_one_b", 4), dict(enumerate(hosts)))


@settings(max_examples=60)
@given(trainings(), st.data())
def test_any_sequence_of_single_deaths_is_survived(training: Training, data: st.DataObject) -> None:
    play(training, data)


@pytest.mark.soak
@settings(max_examples=5000)
@given(trainings(), st.data())
def test_many_sequences_of_single_deaths_are_survived(training: Training, data: st.DataObject) -> None:
    play(training, data)


def play(training: Training, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 8), label="events")):
        match data.draw(st.sampled_from(["snapshots", "process", "host"]), label="event"):
            case "snapshots":
                training.take_snapshots()
            case "process":
                lost = {data.draw(st.sampled_from(sorted(training.hosts)), label="seat")}
                lose(training, lost, data)
            case _:
                host = data.draw(st.sampled_from(sorted(set(training.hosts.values()))), label="host")
                lose(training, {seat for seat, of in training.hosts.items() if of == host}, data)


def lose(training: Training, lost: set[int], data: st.DataObject) -> None:
    """Perhaps in the middle of snapshots. Where nobody else is, nobody can keep anything."""
    if lost == training.hosts.keys():
        return
    if data.draw(st.booleans(), label="amid snapshots"):
        training.take_snapshots(data.draw(st.integers(0, len(training.plan.workers) - 1), label="delivered"))
    # One process alone would be the only one that keeps its own snapshots.
    replaced = len(training.hosts) - len(lost) < 2 or data.draw(st.booleans(), label="replaced")
    training.lose(lost, replaced, before_copies=data.draw(st.booleans(), label="copies before"))
