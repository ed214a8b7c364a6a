"""The conductor, with hosts that the test speaks for: what is started, told, ended, and how the program ends."""

from __future__ import annotations

import gc
import io
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import ServiceLost, StartFailed
from ropewalk.program import checkpoints, reporting
from ropewalk.program import conductor as conductor_module
from ropewalk.program.conductor import Conductor
from ropewalk.program.directory import DirectoryView
from ropewalk.program.endings import GRACE_S
from ropewalk.program.instructions import ProgramOutcome
from ropewalk.program.messages import (
    CallsHeldUp,
    CallStatus,
    FindState,
    HostStatus,
    Locate,
    NodeCalls,
    NodeReady,
    NodeStart,
    Note,
    OfferRendezvous,
    Placed,
    ReadState,
    RendezvousAt,
    SaveState,
    SetStateAside,
    Sizes,
    StateAnswer,
    StopProgram,
    StopUnit,
    UnitEnded,
    UnitName,
    UnitUp,
    WaitsAre,
    WaitsForStop,
)
from ropewalk.program.node import NodeSpec
from ropewalk.program.nodes.service import Service
from ropewalk.program.packing import PackedProgram
from ropewalk.program.reporting import await_answers, put_question, report, state_of
from ropewalk.program.restart_rule import Restart
from ropewalk.program.state_archive import StateArchive
from ropewalk.supervision.failure import DeathRecord
from ropewalk.transport.passport import Passport
from ropewalk.transport.serialization import dumps
from tests.program.recording import RecordingHosting, as_failure, name_of, service, worker

STORE, ACTOR = name_of("store"), name_of("actor")
SPINS = CallStatus("store.spin", 2.34, "a.py:7 in spin")
NEVER_MORE = Restart(max_restarts=1000, backoff_s=0.0)


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """The supervisor lives in the time of the loop that stands still."""
    clock = SimpleNamespace(monotonic=lambda: Run.now(), strftime=time.strftime)
    monkeypatch.setattr(conductor_module, "time", clock)


class Run:
    """A program that has begun, on hosts that the test speaks for."""

    latest: Run

    @classmethod
    def now(cls) -> float:
        return cls.latest.time.now

    def __init__(self, specs: Sequence[NodeSpec], *, threads: bool = False, passport: Passport | None = None) -> None:
        Run.latest = self
        self.num_over = 0
        self.view = DirectoryView(lambda _name: None, lambda: None)
        self.conductor = Conductor("demo", specs, PackedProgram(specs), self.view, self._over)
        self.hosting = RecordingHosting(Path("/nowhere"), shares_host=threads)
        self.hosting.target = self.conductor
        self.hosting.passport = passport
        self.time = self.hosting.time
        self.conductor.begin(self.hosting)
        self.time.turn()

    def _over(self) -> None:
        self.num_over += 1
        assert self.conductor.supervisor.done and not self.conductor.units

    @property
    def outcome(self) -> ProgramOutcome:
        return self.conductor.supervisor.outcome

    @property
    def asked(self) -> list[UnitName]:
        """Who was told to stop, in order."""
        return [message.name for message in self.hosting.heard(StopUnit)]

    def stop(self, grace_s: float | None = None) -> None:
        self.conductor.stop("it was asked to", grace_s)


def store_and_actor(**facts: Any) -> list[NodeSpec]:
    return [service("store", **facts), worker("actor", **facts)]


def test_every_unit_is_started_with_what_its_host_must_know() -> None:
    colocated = [service("table", unit="host", checkpoint_s=3.0), worker("learner", unit="host")]
    run = Run([*colocated, worker("actor", replicas=2)])
    assert run.hosting.starts == [name_of("host"), name_of("actor", 0), name_of("actor", 1)]
    start = run.hosting.message(name_of("host"))
    assert (start.program, start.run_id, start.host_id) == ("demo", "run-1", "host.0#0")
    assert start.key == run.hosting.key_of(name_of("host")) and start.checkpoints.startswith("/nowhere/checkpoints-")
    assert start.nodes == [NodeStart("table", 1, 0, 3.0, 0), NodeStart("learner", 1, 0, None, 0)]
    assert run.hosting.message(name_of("actor", 1)).nodes == [NodeStart("actor", 2, 0, None, 0)]


def test_two_programs_of_one_name_keep_their_states_apart() -> None:
    # The folder was named after the conductor's address in memory, which the next program may be given.
    folders: set[str] = set()
    for _ in range(4):
        folders.add(Run(store_and_actor()).hosting.message(STORE).checkpoints)
        gc.collect()  # what is left of the one before
    assert len(folders) == 4


def test_a_program_is_ready_when_all_of_its_nodes_are() -> None:
    run = Run([service("table", unit="host"), service("cache", unit="host"), worker("actor")])
    assert not run.conductor.is_ready and state_of(run.conductor) == "starting"
    run.hosting.run(ACTOR)
    run.hosting.up(name_of("host"))
    run.hosting.ready(name_of("host"), "cache")
    assert not run.conductor.is_ready and state_of(run.conductor) == "running"
    run.hosting.ready(name_of("host"), "table")
    assert run.conductor.is_ready


def test_a_node_of_a_unit_can_be_called_before_its_neighbours_are_ready() -> None:
    run = Run([service("table", unit="host"), service("cache", unit="host"), worker("actor")])
    run.hosting.up(ACTOR)
    run.hosting.says(ACTOR, Locate("table"))
    run.hosting.up(name_of("host"))
    run.hosting.ready(name_of("host"), "table", target=5)
    assert [(news.state, news.target) for news in run.hosting.heard(Placed, ACTOR)] == [("waiting", 0), ("up", 5)]


def test_when_the_last_worker_completes_services_are_ended_and_then_it_is_over() -> None:
    run = Run([service("store"), worker("actor", replicas=2)])
    for name in (STORE, ACTOR, name_of("actor", 1)):
        run.hosting.run(name)
    run.hosting.returns(ACTOR)
    assert run.asked == [] and run.outcome is ProgramOutcome.RUNNING
    run.hosting.returns(name_of("actor", 1))
    assert run.asked == [STORE] and run.outcome is ProgramOutcome.COMPLETED and not run.num_over
    run.hosting.returns(STORE)
    assert run.num_over == 1 and run.conductor.error is None
    run.time.advance(100)
    assert run.hosting.signals == [] and run.num_over == 1


@pytest.mark.parametrize("in_one_node", [True, False])
def test_thousands_of_replicas_take_no_longer_each_than_a_few(in_one_node: bool) -> None:
    # Each end took a look at all others, four times: the launcher was busy for 8 s when 2,000 workers completed.
    def num_steps(num: int) -> int:
        workers = [worker("actor", replicas=num)] if in_one_node else [worker(f"actor{each}") for each in range(num)]
        names = [name_of("actor", each) if in_one_node else name_of(f"actor{each}") for each in range(num)]
        run, counted = Run([service("store"), *workers]), 0
        for name in (STORE, *names):
            run.hosting.up(name)

        def count(frame: FrameType, event: str, _: object) -> Any:
            nonlocal counted
            counted += event == "line" and "program" in frame.f_code.co_filename
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            for name in (STORE, *names):
                run.hosting.ready(name, name.unit)
            for name in names:
                run.hosting.returns(name)
        finally:
            sys.settrace(before)
        assert run.outcome is ProgramOutcome.COMPLETED
        return counted

    assert num_steps(80) < 2.3 * num_steps(40)


def test_what_waits_for_the_stop_does_not_keep_a_program_alive() -> None:
    # A monitor, whose `run` looped on `rw.wait_for_stop`, kept a program alive after its workers had completed.
    run = Run([worker("monitor"), worker("actor")])
    monitor = name_of("monitor")
    run.hosting.run(monitor)
    run.hosting.run(ACTOR)
    run.hosting.says(monitor, WaitsForStop(monitor))
    run.hosting.says(name_of("monitor", 0, 5), WaitsForStop(name_of("monitor", 0, 5)))
    assert run.outcome is ProgramOutcome.RUNNING and run.asked == []
    run.hosting.returns(ACTOR)
    assert run.outcome is ProgramOutcome.COMPLETED and run.asked == [monitor]


class Learner:
    def run(self) -> None: ...

    def step(self) -> None: ...


def test_a_program_that_goes_on_after_its_workers_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    learner = NodeSpec(name="learner", node=Service(Learner), unit="learner", gang="learner")
    run = Run([learner, worker("actor", replicas=2)])
    for name in (name_of("learner"), ACTOR, name_of("actor", 1)):
        run.hosting.run(name)
    run.hosting.returns(ACTOR)
    run.time.advance(20)
    assert caplog.messages == []
    run.hosting.returns(name_of("actor", 1))
    run.time.advance(9)
    assert caplog.messages == []
    run.time.advance(1)
    (message,) = caplog.messages
    assert "it waits until run() of learner returns" in message and "essential=False" in message
    run.hosting.returns(name_of("learner"))
    assert run.outcome is ProgramOutcome.COMPLETED


def test_the_first_failure_is_the_error_with_its_own_exception_and_last_output() -> None:
    run = Run([service("store"), worker("actor"), worker("other")])
    for name in (STORE, ACTOR, name_of("other")):
        run.hosting.run(name)
    run.hosting.raises(ACTOR, ValueError("broken"))
    assert run.outcome is ProgramOutcome.FAILED and run.asked == [name_of("other")], (
        "services answer until workers ended"
    )
    run.hosting.raises(name_of("other"), RuntimeError("because of the end"))
    run.hosting.exits(STORE, -9)
    error = run.conductor.error
    assert run.num_over == 1 and error
    assert (error.node, error.replica, error.reason) == ("actor", 0, "raised ValueError: broken")
    assert str(error).startswith("program 'demo' failed: node actor raised ValueError: broken. It is not started again")
    assert repr(error.__cause__) == "ValueError('broken')"


def test_a_failure_is_either_raised_or_printed(caplog: pytest.LogCaptureFixture) -> None:
    # One TypeError was printed by its node, by the exception that the launcher raised, and again as that one's cause.
    run = Run([worker("actor", restart=Restart(max_restarts=3, jitter=0)), worker("other")])
    run.hosting.run(ACTOR)
    run.hosting.run(name_of("other"))
    run.hosting.raises(ACTOR, ValueError("broken"))
    ((name, text),) = run.hosting.shown
    assert name == ACTOR and "in as_failure\n    raise error\nValueError: broken\n" in text
    run.time.advance(1)
    run.hosting.run(name_of("actor", 0, 1))
    run.hosting.raises(name_of("actor", 0, 1), ValueError("broken"))
    assert len(run.hosting.shown) == 1, "the same traceback once"
    assert [message.rpartition("; ")[2] for message in caplog.messages] == [
        "it starts again (restart 1 of at most 3 in 60 s)",
        "it starts again in 100 ms (restart 2 of at most 3 in 60 s)",
    ]
    run.hosting.raises(name_of("other"), RuntimeError("fatal"))
    assert run.outcome is ProgramOutcome.FAILED and len(run.hosting.shown) == 1 and len(caplog.messages) == 2
    error = run.conductor.error
    assert error and "in as_failure" in str(error.__cause__ and error.__cause__.__cause__)


def test_each_death_that_a_program_survives_is_told_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    # Actors were killed and came back without a word; who saw the returns fall did not see why.
    run = Run([service("store", restart="on_failure"), worker("actor", replicas=2, essential=False), worker("main")])
    for name in (STORE, ACTOR, name_of("actor", 1), name_of("main")):
        run.hosting.run(name)
    run.hosting.exits(STORE, -9, last_output="reading\x1b[2J")
    run.hosting.exits(name_of("actor", 1), -11)
    assert caplog.messages == [
        "store on host here (pid 7) was killed by SIGKILL; last output: reading\\x1b[2J; "
        "it starts again (restart 1 of at most 5 in 60 s)",
        "actor on host here (pid 7) was killed by SIGSEGV (segmentation fault); it printed nothing; "
        'it is not started again (its restart rule is "never"), and the program goes on without it',
    ]
    run.stop()
    run.hosting.exits(ACTOR, -9)
    assert len(caplog.messages) == 2, "it was asked to end"


def test_a_host_of_which_nothing_is_known_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([worker("actor", restart="on_failure")])
    run.hosting.live.pop(ACTOR)
    lost = DeathRecord(name="actor.0", host="", pid=0)
    run.hosting.target.ended(ACTOR, lost, "went with its host: the agent on n2 (pid 571) is gone")
    assert caplog.messages[0].startswith(
        "actor.0 went with its host: the agent on n2 (pid 571) is gone; it starts again"
    )


def test_a_death_that_ends_the_program_or_is_told_by_the_trainer_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([service("store"), worker("actor", restart="on_failure")])
    run.conductor.death_lines.is_quiet = True
    run.hosting.run(STORE)
    run.hosting.exits(ACTOR, -9)
    run.conductor.death_lines.is_quiet = False
    run.hosting.exits(STORE, -9)
    assert run.outcome is ProgramOutcome.FAILED and caplog.messages == []


def test_many_deaths_of_a_node_are_told_in_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    run = Run([worker("actor", replicas=64, restart="on_failure"), worker("main")])
    for replica in range(64):
        run.hosting.exits(name_of("actor", replica), -9)
    assert len(caplog.messages) == 5
    run.time.advance(10)
    assert len(caplog.messages) == 6
    assert caplog.messages[5].startswith("59 more deaths of actor within 10 s; the last one: actor on host here")


def test_that_a_service_is_gone_is_no_news_when_the_program_has_come_to_its_end(tmp_path: Path) -> None:
    # A learner whose run() had returned ended the program, and each actor printed 22 lines, because its next call was
    # quicker than the news that it should stop.
    run = Run([worker("learner"), worker("actor", essential=False, replicas=2)])
    run.hosting.log_file = lambda unit, replica: tmp_path / f"{unit}.{replica}"  # type: ignore[method-assign]
    (tmp_path / "actor.0").touch()
    for name in (name_of("learner"), ACTOR, name_of("actor", 1)):
        run.hosting.run(name)
    run.hosting.returns(name_of("learner"))
    assert run.outcome is ProgramOutcome.COMPLETED
    run.hosting.raises(ACTOR, ServiceLost("learner has completed", service="learner"))
    assert run.hosting.shown == [] and "learner has completed" in (tmp_path / "actor.0").read_text()
    run.hosting.raises(name_of("actor", 1), ValueError("could not save"))
    assert [name for name, _ in run.hosting.shown] == [name_of("actor", 1)]


def test_tracebacks_stand_in_the_logs(tmp_path: Path) -> None:
    run = Run([worker("actor")])
    run.hosting.log_file = lambda unit, replica: tmp_path / f"{unit}.{replica}"  # type: ignore[method-assign]
    (tmp_path / "actor.0").write_text("before\n")
    run.hosting.run(ACTOR)
    run.hosting.raises(ACTOR, ValueError("broken"))
    lines = (tmp_path / "actor.0").read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "ValueError: broken"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            NodeCalls(STORE, "store", 1, 0, [CallStatus("store.go", 0.1), SPINS], "", True),
            "it has been in store.spin() for 2.3 s, at a.py:7 in spin",
        ),
        (
            NodeCalls(STORE, "store", 1, 0, [], "a.py:9 in run", True),
            "its own work goes on, at a.py:9 in run; let it look at rw.stopping(), or wait with rw.wait_for_stop()",
        ),
        (NodeCalls(STORE, "store", 1, 0, [SPINS], "", False), "it does not answer"),
        (None, "it does not answer"),
    ],
)
def test_a_stop_says_in_a_sentence_what_did_not_end_and_why(
    caplog: pytest.LogCaptureFixture, answer: NodeCalls | None, words: str
) -> None:
    # A service that spun took the whole grace, and was killed without a word.
    run = Run([service("store")])
    run.hosting.run(STORE)
    run.conductor.stop("it was asked to", 2.0)
    run.time.advance(1.9)
    if answer:
        run.hosting.says(STORE, HostStatus(0, [answer]))
    assert caplog.messages == []
    run.time.advance(0.1)
    text = f"store.0 has not ended 2 s after it was asked to: {words}; its process is ended"
    assert caplog.messages == [f"program 'demo': {text}"] and run.conductor.events[-1].endswith(text)


@pytest.mark.parametrize(
    ("code", "words", "reason"),
    [
        (0, False, "exited with code 0"),
        (3, True, "exited with code 3"),
        (-11, True, "was killed by SIGSEGV (segmentation fault)"),
    ],
)
def test_a_process_ends_well_if_it_said_so_and_exited_with_0(code: int, words: bool, reason: str) -> None:
    run = Run([worker("actor")])
    run.hosting.run(ACTOR)
    if words:
        run.hosting.says(ACTOR, UnitEnded(ACTOR, "", None))
    run.hosting.exits(ACTOR, code, "last words")
    error = run.conductor.error
    assert error and error.last_output == "last words"
    assert error.reason == f"{reason} (pid 7 on host here); last output: last words"


def test_a_failed_part_of_a_unit_is_named() -> None:
    run = Run([service("table", unit="host"), worker("learner", unit="host")])
    run.hosting.up(name_of("host"))
    run.hosting.raises(name_of("host"), KeyError("x"), node="learner")
    assert run.conductor.error and run.conductor.error.node == "learner"


def test_a_failed_replica_is_named_with_its_number() -> None:
    run = Run([worker("actor", replicas=2)])
    run.hosting.raises(name_of("actor", 1), KeyError("x"))
    run.hosting.exits(ACTOR, -9)
    error = run.conductor.error
    assert error and (error.node, error.replica) == ("actor", 1) and "node actor.1 raised" in str(error)


def test_a_restarted_service_has_the_next_generation_and_its_callers_follow() -> None:
    run = Run([service("store", restart=NEVER_MORE), worker("actor")])
    run.hosting.run(STORE)
    run.hosting.run(ACTOR)
    run.hosting.says(ACTOR, Locate("store"))
    run.hosting.exits(STORE, -9)
    second = name_of("store", 0, 1)
    assert run.hosting.starts[-1] == second and run.hosting.message(second).nodes[0].attempt == 1
    run.hosting.run(second)
    assert [(news.state, news.generation) for news in run.hosting.heard(Placed)] == [
        ("up", 0),
        ("waiting", 1),
        ("up", 1),
    ]
    assert run.hosting.heard(Placed)[-1].address == run.hosting.address(second)


def test_what_an_older_generation_says_late_changes_nothing() -> None:
    run = Run([service("store", restart=NEVER_MORE), worker("actor")])
    run.hosting.run(ACTOR)
    run.hosting.says(ACTOR, Locate("store"))
    run.hosting.up(STORE)
    run.hosting.exits(STORE, -9)  # between UnitUp and NodeReady
    run.hosting.told.clear()
    second = name_of("store", 0, 1)
    for late in (UnitUp(STORE, "unix:/late"), NodeReady(STORE, "store", 9), UnitEnded(STORE, "", None)):
        run.conductor.heard(STORE, late)
    run.conductor.ended(STORE, None, "late")
    unit = run.conductor.units.find(second)
    assert unit and not unit.address and not unit.ending and unit.missing == {"store"}
    assert run.hosting.told == [] and run.outcome is ProgramOutcome.RUNNING and not run.conductor.is_ready


def test_a_restart_waits_for_its_time() -> None:
    run = Run([worker("actor", restart=Restart(backoff_s=2.0, jitter=0.0))])
    run.hosting.exits(ACTOR, 1)
    run.hosting.exits(name_of("actor", 0, 1), 1)
    assert len(run.hosting.starts) == 2 and state_of(run.conductor) == "starting"
    run.time.advance(1.99)
    assert len(run.hosting.starts) == 2
    run.time.advance(0.02)
    assert run.hosting.starts[-1] == name_of("actor", 0, 2)


def test_nothing_starts_again_while_the_program_stops() -> None:
    run = Run([worker("actor", restart=Restart(backoff_s=2.0)), worker("other", restart=NEVER_MORE)])
    run.hosting.exits(ACTOR, 1)
    run.hosting.exits(name_of("actor", 0, 1), 1)  # waits for its restart
    run.stop()
    run.conductor.restart("other")
    run.conductor.scale("other", 5)
    run.hosting.exits(name_of("other"), 1)
    run.time.advance(100)
    assert run.num_over == 1 and run.outcome is ProgramOutcome.STOPPED and len(run.hosting.starts) == 3
    assert run.conductor.units.sizes["other"] == 1, "what was not done is not shown"


def test_a_program_can_be_stopped_before_anything_of_it_is_up() -> None:
    run = Run(store_and_actor())
    run.stop()
    assert run.asked == [ACTOR]
    run.hosting.exits(ACTOR, -9)
    assert run.asked == [ACTOR, STORE]
    run.hosting.exits(STORE, -9)
    assert run.num_over == 1 and run.conductor.error is None


def test_a_second_stop_with_a_shorter_grace_hurries_and_a_third_with_a_longer_one_does_not() -> None:
    run = Run(store_and_actor())
    run.stop(60.0)
    run.time.advance(10)
    run.stop(1.0)
    run.stop(30.0)
    run.stop(None)
    assert run.asked == [ACTOR, STORE]
    run.time.advance(1)
    assert {number for _, number in run.hosting.signals} == {signal.SIGTERM}
    run.time.advance(1)
    assert {number for _, number in run.hosting.signals} == {signal.SIGTERM, signal.SIGKILL}
    run.hosting.exits(ACTOR, -9)
    run.hosting.exits(STORE, -9)
    run.stop(0.0)
    assert run.num_over == 1


def test_a_stop_shortens_the_grace_of_what_is_ending_already() -> None:
    # What had been scaled away went on for its five seconds, whatever the grace of the stop.
    run = Run([worker("actor", replicas=2)])
    for replica in range(2):
        run.hosting.run(name_of("actor", replica))
    run.conductor.scale("actor", 1)
    run.time.advance(1)
    run.stop(0.5)
    run.time.advance(0.5)
    assert sorted(run.hosting.signals, key=str) == [(name_of("actor", replica), signal.SIGTERM) for replica in range(2)]


def test_a_node_can_stop_the_program_and_the_first_one_counts() -> None:
    run = Run(store_and_actor())
    run.hosting.says(ACTOR, StopProgram("done"))
    run.hosting.says(STORE, StopProgram("me too"))
    assert run.conductor.supervisor.stop_reason == "done" and run.asked == [ACTOR]


def test_a_node_that_returns_while_the_program_fails_does_not_complete_it() -> None:
    run = Run([worker("actor"), worker("other")])
    run.hosting.exits(ACTOR, 1)
    run.hosting.returns(name_of("other"))
    assert run.num_over == 1 and run.outcome is ProgramOutcome.FAILED


def test_a_restart_that_is_asked_for_ends_the_old_one_first() -> None:
    run = Run([service("store"), worker("actor")])
    run.hosting.run(STORE)
    run.conductor.restart("store")
    assert run.asked == [STORE] and run.hosting.starts == [STORE, ACTOR]
    run.hosting.exits(STORE, -9)
    assert run.hosting.starts[-1] == name_of("store", 0, 1)
    assert run.hosting.message(name_of("store", 0, 1)).nodes[0].attempt == 0, "it has not failed"


def test_services_come_and_go_with_scale_down_to_none() -> None:
    run = Run(store_and_actor())
    run.hosting.run(STORE)
    run.hosting.run(ACTOR)
    run.hosting.says(ACTOR, Locate("store"))
    run.hosting.told.clear()
    run.conductor.scale("store", 0)
    assert run.asked == [STORE] and run.hosting.heard(Sizes) == [Sizes("store", 0)]
    run.hosting.exits(STORE, -9)
    assert [(news.state, news.cause) for news in run.hosting.heard(Placed)] == [("failed", "it was scaled away")]
    assert run.outcome is ProgramOutcome.RUNNING and run.conductor.is_ready, "nothing is waited for"
    run.hosting.told.clear()
    run.conductor.scale("store", 2)
    new = [name for name in run.hosting.starts if name.unit == "store"][1:]
    assert [(name.replica, name.generation) for name in new] == [(0, 1), (1, 0)]
    assert run.hosting.message(new[1]).nodes[0].replicas == 2
    assert run.hosting.heard(Sizes) == [Sizes("store", 2)]


def test_who_is_not_essential_does_not_keep_a_program_from_being_ready() -> None:
    # wait_ready() waited for ever for one that had failed for good.
    run = Run([worker("actor"), worker("extra", essential=False)])
    run.hosting.run(ACTOR)
    run.hosting.exits(name_of("extra"), 1)
    assert run.outcome is ProgramOutcome.RUNNING and run.conductor.is_ready


def test_a_unit_that_cannot_be_started_has_failed_with_the_reason() -> None:
    run = Run([worker("actor", restart=NEVER_MORE)])
    run.hosting.problem = OSError("no descriptors")
    run.hosting.exits(ACTOR, 1)
    assert run.hosting.starts[-1] == name_of("actor", 0, 2), "tried again"
    (event,) = [event for event in run.conductor.events if "descriptors" in event]
    assert event.endswith("actor.0 could not be started: no descriptors")


def test_a_lost_session_ends_what_waits_for_its_start_and_what_runs() -> None:
    run = Run([service("store"), worker("actor", restart=NEVER_MORE)])
    run.hosting.run(STORE)
    error = StartFailed("no agent stays up")
    run.conductor.lost(error)
    run.conductor.lost(StartFailed("again"))
    assert not run.num_over, "the process of the store is still there"
    run.hosting.exits(STORE, -9)
    assert run.num_over == 1 and run.conductor.session_error is error
    assert run.hosting.starts == [STORE, ACTOR]


def test_a_session_that_is_lost_before_the_program_began_ends_it() -> None:
    specs = store_and_actor()
    run = Run(specs)
    conductor = Conductor("demo", specs, PackedProgram(specs), run.view, lambda: None)
    hosting = RecordingHosting()
    conductor.begin(hosting)
    conductor.lost(StartFailed("gone"))
    hosting.time.turn()
    assert hosting.starts == [] and conductor.supervisor.done


def test_threads_that_do_not_end_are_left_alone_and_told_of() -> None:
    run = Run(store_and_actor(), threads=True)
    run.stop(1.0)
    run.time.advance(1)
    words = "actor.0 has not ended 1 s after it was asked to: it was still starting; a thread cannot be killed"
    assert words in run.conductor.events[0]
    run.time.advance(1)
    assert run.num_over == 1
    run.conductor.heard(ACTOR, UnitEnded(ACTOR, "", None))
    run.conductor.ended(ACTOR, None, "")
    assert run.num_over == 1, "what they say later comes too late"


def test_a_unit_whose_host_is_taken_away_is_asked_to_end_and_started_again_with_an_event() -> None:
    run = Run(store_and_actor())
    run.hosting.run(STORE)
    run.conductor.leaving(STORE, "the engine sent SIGTERM")
    (told,) = run.hosting.heard(StopUnit, STORE)
    assert told.program_stays and told.grace_s == GRACE_S, "it gets its whole grace, and its callers are seen off"
    assert "store.0 moves to another host" in run.conductor.events[-1]
    run.conductor.leaving(STORE, "the engine sent SIGTERM")
    assert len(run.hosting.heard(StopUnit)) == 1
    run.hosting.returns(STORE)
    assert run.hosting.starts[-1] == name_of("store", 0, 1) and run.outcome is ProgramOutcome.RUNNING
    run.stop(1.0)
    assert not run.hosting.heard(StopUnit)[-1].program_stays


def test_states_are_kept_here_for_units_that_may_be_elsewhere(tmp_path: Path) -> None:
    run = Run(store_and_actor())
    assert run.hosting.message(STORE).checkpoints, "on this host they keep their states themselves"
    run = Run(store_and_actor(), passport=Passport("launcher"))
    assert not run.hosting.message(STORE).checkpoints
    run.conductor.states.close()
    answers: list[StateAnswer] = []
    run.conductor.states = StateArchive(tmp_path, lambda _name, answer, _parts: answers.append(answer))
    run.hosting.run(STORE)
    written = io.BytesIO()
    checkpoints.write(written, checkpoints.Header("store", 0, {}), dumps("state"))
    run.conductor.heard(STORE, SaveState(1, STORE, "store", "begin"))
    run.conductor.heard(STORE, SaveState(2, name_of("store", 0, 7), "store", "begin"))  # of another generation
    run.conductor.heard(STORE, SaveState(3, STORE, "store", "go on"), [written.getvalue()])
    run.conductor.heard(STORE, SaveState(4, STORE, "store", "keep"))
    run.conductor.states.close()
    assert [(answer.number, answer.failure) for answer in answers] == [(1, None), (3, None), (4, None)]
    saved = checkpoints.load(tmp_path, "store", 0)
    assert saved and saved.state == "state"
    assert not list(tmp_path.glob("*.previous"))


def test_ranks_hear_where_to_meet_through_the_first_one() -> None:
    run = Run([worker("rank", replicas=2)])
    at = RendezvousAt("rank", 0, "", "127.0.0.1", 4711)
    run.hosting.up(name_of("rank"))
    run.hosting.says(name_of("rank"), OfferRendezvous(at))
    run.hosting.up(name_of("rank", 1))
    assert [(told.port, told.local_rank) for told in run.hosting.heard(RendezvousAt)] == [(4711, 0), (4711, 1)]


def test_notes_become_events_and_messages_that_nobody_knows_do_no_harm() -> None:
    run = Run([worker("actor")])
    run.hosting.says(ACTOR, Note("look here"))
    run.conductor.heard(ACTOR, object())
    assert run.conductor.events[0].endswith("look here") and "an unknown message" in run.conductor.events[1]


# Status


def test_the_status_puts_together_what_supervisor_and_hosts_know() -> None:
    run = Run([service("store", restart=NEVER_MORE), worker("actor")])
    run.hosting.run(STORE)
    assert put_question(run.conductor, 1) == 1
    calls = NodeCalls(STORE, "store", 12, 3, [CallStatus("store.get", 0.5)])
    run.hosting.says(STORE, HostStatus(1, [calls]))
    assert run.conductor.reports.answers == {1: 1}
    store, actor = report(run.conductor, "run-1", 17.0).nodes
    assert (store.state, store.pid, store.calls_done, store.calls_waiting) == ("running", 1000, 12, 3)
    assert [(call.method, call.running_s) for call in store.calls_running] == [("store.get", 0.5)]
    assert (actor.state, actor.pid, actor.calls_done) == ("starting", 0, 0)
    run.hosting.exits(STORE, -9)
    store = report(run.conductor, "run-1", 17.0).nodes[0]
    assert (store.state, store.restarts, store.generation, store.calls_done) == ("restarting", 1, 1, 0)
    assert store.last_cause.startswith("was killed by SIGKILL")


def test_answers_that_come_too_late_are_not_kept() -> None:
    run = Run([service("store")])
    run.hosting.run(STORE)
    for number in range(100):
        put_question(run.conductor, number)
        del run.conductor.reports.answers[number]  # as whoever asked does when it waits no longer
        run.hosting.says(STORE, HostStatus(number, []))
    assert run.conductor.reports.answers == {}


@pytest.mark.parametrize(
    ("ends", "state"),
    [(lambda run: run.stop(), "stopped"), (lambda run: run.hosting.exits(ACTOR, 1), "failed")],
    ids=["stopped", "failed"],
)
def test_a_program_is_stopping_until_everything_has_ended(ends: Any, state: str) -> None:
    run = Run([worker("actor"), worker("other")])
    ends(run)
    assert state_of(run.conductor) == "stopping"
    for name in list(run.hosting.live):
        run.hosting.exits(name, 0)
    assert state_of(run.conductor) == state


# Any order of events


def test_nothing_grows_with_the_number_of_restarts() -> None:
    run = Run([service("store", restart=Restart(max_restarts=10**6, backoff_s=0.0)), worker("actor")])
    run.hosting.run(ACTOR)
    for generation in range(1200):
        name = name_of("store", 0, generation)
        run.hosting.up(name)
        run.hosting.says(name, Locate("store"))
        run.hosting.ready(name)
        run.hosting.exits(name, -9)
        run.time.advance(0.001)
    assert len(run.hosting.starts) == 1202
    conductor = run.conductor
    parts = (
        conductor,
        conductor.units,
        conductor.announcer,
        conductor.endings,
        conductor.reports,
        conductor.failure_lines,
    )
    sizes = {
        f"{type(part).__name__}.{name}": len(value)
        for part in parts
        for name, value in vars(part).items()
        if hasattr(value, "__len__") and not isinstance(value, str)
    }
    assert len(run.conductor.log.views()) == 1000
    assert sizes.pop("Conductor._records") == 1000
    assert sizes.pop("Conductor.events") == 200
    assert max(sizes.values()) <= 4, sizes
    assert run.time.num_planned <= 1


@given(st.data())
def test_whatever_hosts_do_the_program_ends_once_with_nothing_left(data: st.DataObject) -> None:
    longest_grace_s = 2 * GRACE_S
    rule = st.sampled_from(["never", "on_failure", "always", Restart(strategy="together", backoff_s=0.1)])
    run = Run(
        [
            service("store", restart=data.draw(rule), replicas=data.draw(st.integers(1, 2))),
            worker("actor", restart=data.draw(rule), essential=data.draw(st.booleans()), replicas=2),
        ],
        threads=data.draw(st.booleans()),
    )
    for _ in range(data.draw(st.integers(0, 20))):
        deeds = ["up", "ready", "returns", "exits", "scale", "restart", "time", "stop", "stop", "locate"]
        deed = data.draw(st.sampled_from(deeds[: 7 + 3 * data.draw(st.booleans())]))
        live = sorted(run.hosting.live, key=str)
        if deed == "scale":
            run.conductor.scale(data.draw(st.sampled_from(["store", "actor"])), data.draw(st.integers(0, 3)))
        elif deed == "restart":
            run.conductor.restart(data.draw(st.sampled_from(["store", "actor"])))
        elif deed == "time":
            run.time.advance(data.draw(st.floats(0, 3)))
        elif deed == "stop":
            run.stop(data.draw(st.none() | st.floats(0, longest_grace_s)))
        elif live:
            name = data.draw(st.sampled_from(live))
            match deed:
                case "up":
                    run.hosting.up(name)
                case "ready":
                    run.hosting.ready(name)
                case "returns":
                    run.hosting.returns(name)
                case "exits":
                    run.hosting.exits(name, -9)
                case _:
                    run.hosting.says(name, Locate("store"))
    run.stop()
    run.time.advance(2 * longest_grace_s + 2)
    if run.hosting.shares_host:
        assert run.num_over == 1
    killed = {name for name, number in run.hosting.signals if number == signal.SIGKILL}
    assert run.hosting.shares_host or set(run.hosting.live) <= killed, "nobody would end these"
    for name in list(run.hosting.live):
        run.hosting.exits(name, -9)
    run.time.advance(100)
    assert run.num_over == 1 and not run.conductor.units


# --- who says what ---


def forged_by_actor() -> dict[str, Any]:
    """What the process of an actor might say in the name of a store."""
    return {
        "where the store is": UnitUp(STORE, "unix:/mine"),
        "that the store is served by it": NodeReady(ACTOR, "store", 1),
        "that the store is ready": NodeReady(STORE, "store", 1),
        "that the store has failed": UnitEnded(STORE, "store", as_failure(ValueError("forged"))),
        "that the store waits for the end": WaitsForStop(STORE),
        "a state for the store": SaveState(1, ACTOR, "store", "begin"),
        "a state in the name of the store": SaveState(1, STORE, "store", "begin"),
        "for the state of the store": FindState(1, STORE, "store"),
        "for a piece of it": ReadState(1, ACTOR, "store", checkpoints.CheckpointFile("", 1, True), 0, 1),
        "that it is damaged": SetStateAside(1, ACTOR, "store", checkpoints.CheckpointFile("", 1, True)),
        "that calls of the store wait": CallsHeldUp(STORE),
        "which calls of the store wait": WaitsAre(1, STORE, []),
        "what the store does": HostStatus(1, [NodeCalls(STORE, "store", 7, 7, [])]),
        "where ranks of another unit meet": OfferRendezvous(RendezvousAt("store", 0, "", "10.0.0.1", 1)),
        "where its ranks meet, though it is not the first": OfferRendezvous(
            RendezvousAt("actor", 9, "", "10.0.0.1", 1)
        ),
    }


@pytest.mark.parametrize("what", forged_by_actor())
def test_the_process_of_a_unit_says_nothing_in_the_name_of_another_one(what: str) -> None:
    """An actor could say that the learner is with it, or have its own pickle loaded as the learner's state."""
    run = Run(store_and_actor())
    saved: list[Any] = []
    run.conductor.states.hear = lambda order, parts: saved.append(order)  # type: ignore[method-assign]
    run.hosting.up(STORE)
    told = list(run.hosting.told)
    run.hosting.says(ACTOR, forged_by_actor()[what])
    assert any("actor.0 said" in text and "it was not acted on" in text for text in run.conductor.events)
    assert run.hosting.told == told and saved == [] and run.conductor.reports.calls == {}
    unit = run.conductor.units.find(STORE)
    assert unit and unit.address == run.hosting.address(STORE) and unit.missing == {"store"} and unit.ending is None


def test_an_answer_that_comes_when_nobody_waits_any_more_finds_what_it_is_counted_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The waiting thread removed the count while the loop was between the look whether it is there and its change.
    monkeypatch.setattr(reporting, "_ANSWER_S", 0.0)
    run = Run([service("store")])
    run.hosting.run(STORE)
    await_answers(run.conductor, 7, put_question(run.conductor, 7))
    assert run.conductor.reports.answers == {7: 0}, "only the loop changes it"
    run.time.turn()
    assert run.conductor.reports.answers == {}
    run.hosting.says(STORE, HostStatus(7, []))
    assert run.conductor.reports.answers == {}
