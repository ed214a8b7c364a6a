"""Of the ranks that fail together, the one that failed first is named, and the others' tracebacks are not printed."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from ropewalk.errors import StartFailed
from ropewalk.program import conductor as conductor_module
from ropewalk.program.instructions import ProgramOutcome, ReplicaState
from ropewalk.program.messages import UnitEnded
from ropewalk.program.node import NodeSpec
from ropewalk.program.nodes.rank_group import RankGroup
from ropewalk.program.rank_failures import HOLD_S
from ropewalk.program.restart_rule import Restart
from tests.program.recording import as_failure, name_of, work
from tests.program.test_conductor import Run

FIRST, SECOND = name_of("train", 0), name_of("train", 1)
CLOSED = ConnectionError("connection closed by peer")


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    clock = SimpleNamespace(monotonic=lambda: Run.now(), strftime=lambda _format: "")
    monkeypatch.setattr(conductor_module, "time", clock)


def two_ranks(max_restarts: int = 0) -> Run:
    rule = Restart("on_failure", max_restarts=max_restarts, window_s=float("inf"), strategy="together")
    run = Run([NodeSpec(name="train", node=RankGroup(work, 2), unit="train", gang="train", replicas=2, restart=rule)])
    for name in (FIRST, SECOND):
        run.hosting.run(name)
    return run


def failure_of_second_then_first(run: Run) -> None:
    """The second rank raises, then the first one because of it, whose process ends sooner."""
    run.hosting.says(SECOND, UnitEnded(SECOND, "train", as_failure(ValueError("its own fault"))))
    run.time.advance(0.01)
    run.hosting.raises(FIRST, CLOSED)
    run.time.advance(0.1)
    assert run.outcome is ProgramOutcome.RUNNING, "the end of the first is held"
    run.hosting.exits(SECOND, 1)
    run.time.advance(HOLD_S)


def test_the_rank_that_reported_first_is_the_cause_though_its_process_ended_last() -> None:
    run = two_ranks()
    failure_of_second_then_first(run)
    error = run.conductor.error
    assert error and error.replica == 1 and "its own fault" in str(error) and error.exit_code == 1


def test_a_rank_that_was_killed_is_the_cause_and_is_told_at_once() -> None:
    run = two_ranks()
    run.hosting.raises(FIRST, CLOSED)
    run.hosting.exits(SECOND, -signal.SIGKILL)
    error = run.conductor.error
    assert error and error.replica == 1 and error.exit_code == 128 + signal.SIGKILL
    assert run.conductor.supervisor.done, "the first one's end is told with it"


def test_a_rank_that_fails_alone_is_told_when_the_moment_is_over() -> None:
    run = two_ranks()
    run.hosting.raises(FIRST, ValueError("alone"))
    run.time.advance(0.9 * HOLD_S)
    assert run.outcome is ProgramOutcome.RUNNING
    run.time.advance(0.2 * HOLD_S)
    assert run.outcome is ProgramOutcome.FAILED and "alone" in str(run.conductor.error)


def test_the_restart_of_a_group_is_told_with_its_cause_and_what_followed_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = two_ranks(max_restarts=2)
    failure_of_second_then_first(run)
    states = {each.generation: each.state for each in run.conductor.supervisor.replicas}
    assert states == {1: ReplicaState.STARTING}
    (told,) = caplog.messages
    assert told.startswith("train.1 on host here (pid 7) raised ValueError: its own fault; all 2 ranks start again (re")
    assert not any("closed by peer" in text for _, text in run.hosting.shown)


def test_a_rank_whose_end_is_held_ends_once_if_the_session_is_lost_meanwhile() -> None:
    # A host took its ranks along: the first one raised, and its end was told again when the session was lost.
    run = two_ranks()
    run.hosting.raises(FIRST, CLOSED)
    run.hosting.pids.clear()
    run.conductor.lost(StartFailed("no hosts are left"))
    assert run.conductor.supervisor.done and run.outcome is ProgramOutcome.STOPPED
    run.time.advance(2 * HOLD_S)
    assert run.num_over == 1
