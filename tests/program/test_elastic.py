"""Groups with bounds begin with the ranks for which there is room."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from ropewalk.program import conductor as conductor_module
from ropewalk.program.elastic import LAST_CALL_S
from ropewalk.program.instructions import ProgramOutcome, ReplicaState
from ropewalk.program.messages import StopUnit
from ropewalk.program.node import NodeSpec
from ropewalk.program.nodes.rank_group import RankGroup
from ropewalk.program.restart_rule import Restart
from tests.program.recording import name_of, work
from tests.program.test_conductor import Run


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    clock = SimpleNamespace(monotonic=lambda: Run.now(), strftime=lambda _format: "")
    monkeypatch.setattr(conductor_module, "time", clock)


def group(size: tuple[int, int], max_restarts: int = 0) -> Run:
    rule = Restart("on_failure", max_restarts=max_restarts, strategy="together")
    node = RankGroup(work, size)
    return Run([NodeSpec(name="train", node=node, unit="train", gang="train", replicas=size[1], restart=rule)])


def generation_of(run: Run) -> tuple[int, int]:
    """The number of ranks that are there or being started, and their generation."""
    states = [each for each in run.conductor.supervisor.replicas if each.state is not ReplicaState.REMOVED]
    (generation,) = {each.generation for each in states}
    return len(states), generation


def ends(run: Run) -> None:
    """Those that were asked to end do."""
    for message in run.hosting.heard(StopUnit):
        if message.name in run.hosting.live:
            run.hosting.exits(message.name, 0)


def cannot_start(run: Run, replica: int, generation: int = 0) -> None:
    name = name_of("train", replica, generation)
    run.hosting.live.pop(name)
    run.conductor.ended(name, None, "could not be started: all CPUs of the allocation are in use")


def test_a_group_begins_without_the_ranks_that_have_not_come_up_after_the_last_call() -> None:
    run = group((2, 4))
    for replica in (0, 1, 3):
        run.hosting.up(name_of("train", replica))
    run.time.advance(LAST_CALL_S - 1)
    assert generation_of(run) == (4, 0)
    run.time.advance(1)
    ends(run)
    for name in list(run.hosting.live):  # the one that waited
        if name.generation == 0:
            run.hosting.exits(name, -signal.SIGKILL)
    assert generation_of(run) == (3, 1)
    assert [run.hosting.message(name_of("train", each, 1)).nodes[0].replicas for each in range(3)] == [3, 3, 3]
    assert "train begins with 3 of 4 ranks" in run.conductor.events[0]


def test_there_is_no_last_call_with_fewer_than_the_least_number_or_with_all() -> None:
    run = group((2, 3))
    run.hosting.up(name_of("train", 0))
    run.time.advance(3 * LAST_CALL_S)
    assert generation_of(run) == (3, 0)
    for replica in (1, 2):
        run.hosting.up(name_of("train", replica))
    run.time.advance(3 * LAST_CALL_S)
    assert generation_of(run) == (3, 0) and run.hosting.heard(StopUnit) == []


def test_a_rank_that_cannot_be_started_is_no_failure_while_enough_remain() -> None:
    run = group((2, 3))
    for replica in (0, 2):
        run.hosting.up(name_of("train", replica))
    cannot_start(run, 1)
    ends(run)
    assert run.outcome is ProgramOutcome.RUNNING and generation_of(run) == (2, 1)
    run.hosting.up(name_of("train", 0, 1))
    cannot_start(run, 1, generation=1)
    assert run.outcome is ProgramOutcome.FAILED, "two are the least"
    assert "all CPUs of the allocation" in str(run.conductor.error)


def test_a_group_of_one_size_fails_when_a_rank_cannot_be_started() -> None:
    run = group((3, 3), max_restarts=0)
    cannot_start(run, 1)
    assert run.outcome is ProgramOutcome.FAILED


def test_a_restart_after_a_failure_tries_the_upper_bound_again() -> None:
    run = group((1, 2), max_restarts=5)
    run.hosting.up(name_of("train", 0))
    cannot_start(run, 1)
    ends(run)
    assert generation_of(run) == (1, 1)
    run.hosting.run(name_of("train", 0, 1))
    run.hosting.exits(name_of("train", 0, 1), -signal.SIGKILL)
    run.hosting.exits(name_of("train", 0, 2), -signal.SIGKILL)  # it had been started again alone, and is ended
    assert generation_of(run) == (2, 3)


def test_a_group_that_has_met_is_left_alone_while_its_ranks_end_one_by_one() -> None:
    # A group that had all of its ranks was restarted after the last call, because one of them had completed by then.
    run = group((2, 4))
    for replica in range(4):
        run.hosting.run(name_of("train", replica))
    run.hosting.returns(name_of("train", 3))
    run.time.advance(2 * LAST_CALL_S)
    assert run.hosting.heard(StopUnit) == [] and run.conductor.units.sizes == {"train": 4}
    for replica in range(3):
        run.hosting.returns(name_of("train", replica))
    assert run.outcome is ProgramOutcome.COMPLETED


def test_a_last_call_is_over_when_the_group_restarts() -> None:
    run = group((2, 4), max_restarts=5)
    for replica in range(3):
        run.hosting.up(name_of("train", replica))
    run.time.advance(LAST_CALL_S - 0.5)
    run.hosting.exits(name_of("train", 0), -signal.SIGKILL)  # the others are asked to end, and take a moment
    run.time.advance(0.6)
    assert run.conductor.units.sizes == {"train": 4}
