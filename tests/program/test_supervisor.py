"""Which replicas run, by comparing lists of instructions; then any order of events."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.program.instructions import (
    Completed,
    EndReplica,
    Failed,
    Instruction,
    NodeRule,
    ProgramOutcome,
    ReplicaState,
    ReplicaStatus,
    Start,
)
from ropewalk.program.restart_rule import Restart
from ropewalk.program.supervisor import Supervisor

ON_FAILURE = Restart("on_failure", max_restarts=2, backoff_s=1, backoff_max_s=4, jitter=0)
TOGETHER = Restart("on_failure", max_restarts=2, backoff_s=1, backoff_max_s=4, jitter=0, strategy="together")


def begun(*rules: NodeRule) -> Supervisor:
    supervisor = Supervisor(rules)
    supervisor.begin(0.0)
    return supervisor


def states(supervisor: Supervisor) -> dict[str, str]:
    return {f"{replica.name}/{replica.replica}": replica.state.value for replica in supervisor.replicas}


def ends(instructions: list[Instruction]) -> list[tuple[str, int, int]]:
    assert all(isinstance(instruction, EndReplica) for instruction in instructions), instructions
    return [(said.name, said.replica, said.generation) for said in instructions if isinstance(said, EndReplica)]


# --- the whole life ---------------------------------------------------------------------------------------------------


def test_everything_is_started_in_order_and_services_end_when_the_work_is_done() -> None:
    supervisor = Supervisor([NodeRule(name="server"), NodeRule(name="worker", replicas=2, finite=True)])
    assert supervisor.begin(0.0) == [Start("server", 0, 0), Start("worker", 0, 0), Start("worker", 1, 0)]
    assert supervisor.ready("server", 0, 0, 0.1) == []
    assert supervisor.ended("worker", 1, 0, True, "", 1.0) == []
    assert supervisor.outcome is ProgramOutcome.RUNNING
    assert supervisor.ended("worker", 0, 0, True, "", 2.0) == [
        Completed(),
        EndReplica("server", 0, 0, "the program has completed"),
    ]
    assert supervisor.outcome is ProgramOutcome.COMPLETED and not supervisor.done
    assert supervisor.ended("server", 0, 0, False, "was killed by SIGTERM", 2.1) == []
    assert supervisor.done and supervisor.failure is None
    assert states(supervisor) == {"server/0": "stopped", "worker/0": "completed", "worker/1": "completed"}


def test_a_program_without_finite_nodes_runs_until_it_is_stopped() -> None:
    supervisor = begun(NodeRule(name="a"), NodeRule(name="b"))
    assert supervisor.stop_reason == ""
    why = "the program stops: ropewalk.stop() in a/0"
    assert supervisor.stop(1.0, "ropewalk.stop() in a/0") == [EndReplica("a", 0, 0, why), EndReplica("b", 0, 0, why)]
    assert supervisor.stop(1.1, "again") == []
    assert supervisor.stop_reason == "ropewalk.stop() in a/0"
    supervisor.ended("b", 0, 0, False, "exited with code 1", 1.2)
    assert not supervisor.done
    supervisor.ended("a", 0, 0, True, "", 1.3)
    assert supervisor.done and supervisor.outcome is ProgramOutcome.STOPPED and supervisor.failure is None


def test_finite_nodes_that_are_not_essential_do_not_hold_up_the_end() -> None:
    supervisor = begun(NodeRule(name="learner", finite=True), NodeRule(name="plotter", finite=True, essential=False))
    assert supervisor.ended("learner", 0, 0, True, "", 1.0) == [
        Completed(),
        EndReplica("plotter", 0, 0, "the program has completed"),
    ]


def test_who_waits_for_the_stop_is_stopped_when_the_others_have_completed() -> None:
    supervisor = begun(NodeRule(name="monitor", finite=True), NodeRule(name="actor", finite=True))
    assert [status.name for status in supervisor.awaited] == ["monitor", "actor"]
    assert supervisor.ended("actor", 0, 0, True, "", 1.0) == [] and supervisor.outcome is ProgramOutcome.RUNNING
    assert supervisor.waits_for_stop("monitor", 0, 0, 1.0) == [
        Completed(),
        EndReplica("monitor", 0, 0, "the program has completed"),
    ]


def test_if_all_wait_for_the_stop_somebody_has_to_stop_them() -> None:
    supervisor = begun(NodeRule(name="actor", replicas=2, finite=True))
    for replica in range(2):
        assert supervisor.waits_for_stop("actor", replica, 0, 1.0) == []
    assert supervisor.awaited == [] and supervisor.outcome is ProgramOutcome.RUNNING
    assert supervisor.ended("actor", 0, 0, True, "", 2.0) == []
    assert supervisor.ended("actor", 1, 0, True, "", 2.0) == [Completed()]


def test_what_was_started_again_is_awaited_until_it_waits_for_the_stop_again() -> None:
    supervisor = begun(NodeRule(name="monitor", finite=True, restart=ON_FAILURE), NodeRule(name="actor", finite=True))
    supervisor.waits_for_stop("monitor", 0, 0, 1.0)
    supervisor.ended("monitor", 0, 0, False, "killed", 1.0)
    assert supervisor.ended("actor", 0, 0, True, "", 2.0) == [] and supervisor.outcome is ProgramOutcome.RUNNING
    assert supervisor.waits_for_stop("monitor", 0, 0, 2.0) == [], "an earlier one"
    assert supervisor.waits_for_stop("monitor", 0, 1, 2.0)[0] == Completed()


def test_a_program_of_which_nothing_is_left_has_ended() -> None:
    supervisor = begun(NodeRule(name="a", finite=True, essential=False), NodeRule(name="b", essential=False))
    assert supervisor.ended("a", 0, 0, True, "", 1.0) == []
    assert supervisor.ended("b", 0, 0, False, "killed", 1.0) == [Completed()]
    assert supervisor.done


def test_a_program_that_was_stopped_before_it_began_starts_nothing() -> None:
    supervisor = Supervisor([NodeRule(name="a")])
    assert supervisor.stop(0.0) == [] and supervisor.begin(1.0) == []
    assert supervisor.done and supervisor.next_due is None


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [ON_FAILURE, TOGETHER, Restart("always")])
def test_a_failure_that_a_restart_would_repeat_ends_the_program_whatever_the_rule(rule: Restart) -> None:
    supervisor = begun(NodeRule(name="learner", replicas=2, restart=rule))
    said = supervisor.ended("learner", 1, 0, False, "raised FailedForGood: other weights", 1.0, for_good=True)
    assert isinstance(said[0], Failed) and said[0].reason == "a restart would fail in the same way"
    assert said[0].deaths == ("raised FailedForGood: other weights",) and ends(said[1:]) == [("learner", 0, 0)]
    assert supervisor.outcome is ProgramOutcome.FAILED


def test_the_first_failure_of_an_essential_node_ends_the_program_and_is_the_one_told() -> None:
    supervisor = begun(NodeRule(name="server"), NodeRule(name="worker", replicas=2, finite=True))
    failed = Failed("worker", 1, 0, "ZeroDivisionError", 'its restart rule is "never"', ("ZeroDivisionError",))
    why = "the program has failed: worker/1 failed: ZeroDivisionError"
    assert supervisor.ended("worker", 1, 0, False, "ZeroDivisionError", 1.0) == [
        failed,
        EndReplica("server", 0, 0, why),
        EndReplica("worker", 0, 0, why),
    ]
    supervisor.ended("worker", 0, 0, False, "LinkClosed", 1.0)  # what the first failure brings about
    supervisor.ended("server", 0, 0, False, "killed", 1.0)
    assert supervisor.done and supervisor.failure == failed
    assert states(supervisor) == {"server/0": "stopped", "worker/0": "stopped", "worker/1": "failed"}


def test_what_follows_a_failure_is_known_with_its_numbers() -> None:
    supervisor = begun(NodeRule(name="actor", replicas=2, restart=ON_FAILURE, essential=False), NodeRule(name="store"))

    def words_after_death(generation: int, now: float) -> str:
        supervisor.ended("actor", 1, generation, False, "killed", now)
        return supervisor.sequel("actor", 1).in_words()

    assert words_after_death(0, 1.0) == "it starts again (restart 1 of at most 2 in 60 s)"
    assert words_after_death(1, 2.0) == "it starts again in 1 s (restart 2 of at most 2 in 60 s)"
    supervisor.tick(3.0)
    assert words_after_death(2, 4.0) == (
        "it is not started again (it failed 3 times within 3.0 s; max_restarts=2 allows 2 restarts in 60 s), and the "
        "program goes on without it"
    )
    supervisor.restart("actor", 5.0, 1)
    assert words_after_death(3, 6.0) == "it starts again (restart 1 of at most 2 in 60 s)", "a new budget"


def test_the_seconds_until_a_replica_starts_again_are_none_when_it_may_start_now() -> None:
    supervisor = gang()
    assert supervisor.sequel("ranks", 0).wait_s == 0.0, "it runs"
    for generation, now in enumerate((1.0, 2.0)):
        supervisor.ended("ranks", 0, generation, False, "killed", now)
        supervisor.ended("ranks", 1, generation, False, "killed", now)
        if generation == 0:
            supervisor.ended("store", 0, generation, True, "", now)
    supervisor.tick(2.75)
    assert supervisor.sequel("ranks", 0).wait_s == 0.25
    supervisor.tick(100.0)
    assert supervisor.sequel("ranks", 0).wait_s == 0.0, "it waits for its gang alone"


def test_a_replica_has_the_cause_of_its_last_failure_until_it_is_ready_again() -> None:
    supervisor = begun(NodeRule(name="a", restart=ON_FAILURE))
    (a,) = supervisor.replicas
    assert (a.cause, a.healed) == ("", False)
    for generation, cause in enumerate(("killed", "no memory")):
        supervisor.ended("a", 0, generation, False, cause, 1.0 + generation)
        supervisor.tick(10.0 + generation)
        (a,) = supervisor.replicas
        assert (a.cause, a.healed, a.generation) == (cause, False, generation + 1)
        supervisor.ready("a", 0, generation + 1, 20.0 + generation)
        (a,) = supervisor.replicas
        assert (a.cause, a.healed) == (cause, True)


def test_waits_are_drawn_from_the_seed_which_is_0_if_none_is_given() -> None:
    def due(**options: int) -> float | None:
        supervisor = Supervisor([NodeRule(name="a", restart=Restart("on_failure", jitter=0.5))], **options)
        supervisor.begin(0.0)
        for generation in range(2):
            supervisor.ended("a", 0, generation, False, "killed", 1.0)
        return supervisor.next_due

    assert due() == due(seed=0) and len({due(seed=seed) for seed in (-1, 0, 1)}) == 3


def test_what_restarts_together_is_counted() -> None:
    supervisor = begun(NodeRule(name="rank", replicas=3, restart=TOGETHER))
    supervisor.ended("rank", 1, 0, False, "killed", 1.0)
    for rank in (0, 2):
        supervisor.ended("rank", rank, 0, True, "", 1.0)
    supervisor.ended("rank", 1, 1, False, "killed", 2.0)
    words = supervisor.sequel("rank", 1).in_words("ranks")
    assert words == "all 3 ranks start again in 1 s (restart 2 of at most 2 in 60 s)"


def test_a_failed_node_that_is_not_essential_stays_away_and_the_program_goes_on() -> None:
    supervisor = begun(NodeRule(name="server"), NodeRule(name="plotter", replicas=2, essential=False))
    assert supervisor.ended("plotter", 0, 0, False, "no display", 1.0) == []
    assert supervisor.outcome is ProgramOutcome.RUNNING
    assert states(supervisor) == {"server/0": "starting", "plotter/0": "failed", "plotter/1": "starting"}


def test_a_service_that_ends_by_itself_has_failed_even_if_it_ended_well() -> None:
    supervisor = begun(NodeRule(name="server"))
    supervisor.ended("server", 0, 0, True, "", 1.0)
    assert supervisor.failure and supervisor.failure.cause == "ended although it serves until the program stops"


def test_a_killed_service_comes_back_at_once_and_then_later_and_later() -> None:
    supervisor = begun(NodeRule(name="server", restart=ON_FAILURE))
    supervisor.ready("server", 0, 0, 1.0)
    assert supervisor.ended("server", 0, 0, False, "killed", 5.0) == [Start("server", 0, 1)]
    supervisor.ready("server", 0, 1, 5.1)
    assert supervisor.ended("server", 0, 1, False, "killed again", 6.0) == []
    assert supervisor.next_due == 7.0
    assert supervisor.replicas[0].due == 7.0 and supervisor.replicas[0].num_failures == 2
    assert supervisor.tick(6.9) == []
    assert supervisor.tick(7.0) == [Start("server", 0, 2)]
    assert supervisor.next_due is None


def test_a_crash_loop_ends_with_its_first_cause_and_generation() -> None:
    supervisor = begun(NodeRule(name="server", restart=ON_FAILURE))
    supervisor.ended("server", 0, 0, False, "first", 1.0)
    supervisor.ended("server", 0, 1, False, "second", 2.0)
    supervisor.tick(3.0)
    supervisor.ended("server", 0, 2, False, "third", 3.5)
    assert supervisor.failure == Failed(
        "server",
        0,
        0,
        "first",
        "it failed 3 times within 2.5 s; max_restarts=2 allows 2 restarts in 60 s",
        ("first", "second", "third"),
    )
    assert supervisor.done


def test_each_replica_has_a_budget_of_its_own() -> None:
    supervisor = begun(NodeRule(name="server", replicas=4, restart=ON_FAILURE))
    for replica in range(4):
        supervisor.ended("server", replica, 0, False, "killed", 1.0)
        supervisor.ended("server", replica, 1, False, "killed", 1.0)
    assert supervisor.outcome is ProgramOutcome.RUNNING
    assert supervisor.tick(2.0) == [Start("server", replica, 2) for replica in range(4)]


def test_a_stop_during_a_wait_leaves_nothing_to_wait_for() -> None:
    supervisor = begun(NodeRule(name="server", restart=ON_FAILURE))
    for generation in range(2):
        supervisor.ended("server", 0, generation, False, "killed", 1.0)
    assert supervisor.next_due == 2.0
    assert supervisor.stop(1.5) == []
    assert supervisor.done and supervisor.next_due is None and supervisor.tick(9.0) == []
    assert states(supervisor) == {"server/0": "stopped"}


def test_always_restarts_after_success_too_and_never_completes() -> None:
    always = Restart("always", max_restarts=0, backoff_s=1)
    supervisor = begun(NodeRule(name="cleaner", finite=True, restart=always), NodeRule(name="work", finite=True))
    for generation in range(20):
        now = 10.0 * generation
        assert supervisor.ended("cleaner", 0, generation, True, "", now) == []
        assert supervisor.next_due == now + 1
        assert supervisor.tick(now + 1) == [Start("cleaner", 0, generation + 1)]
    assert supervisor.ended("work", 0, 0, True, "", 500.0)[0] == Completed()


def test_ranks_that_always_restart_do_so_when_the_last_of_them_has_completed() -> None:
    always = Restart("always", strategy="together", backoff_s=1)
    supervisor = begun(NodeRule(name="rank", replicas=2, finite=True, restart=always), NodeRule(name="other"))
    assert supervisor.ended("rank", 1, 0, True, "", 1.0) == [] and supervisor.next_due is None
    assert supervisor.ended("rank", 0, 0, True, "", 2.0) == [] and supervisor.next_due == 3.0
    assert supervisor.tick(3.0) == [Start("rank", 0, 1), Start("rank", 1, 1)]


def test_a_service_that_always_restarts_does_so_with_its_gang_whether_or_not_the_work_of_it_is_done() -> None:
    always = Restart("always", strategy="together", backoff_s=1)
    supervisor = begun(
        NodeRule(name="work", finite=True, gang="g", restart=always), NodeRule(name="store", gang="g", restart=always)
    )
    assert ends(supervisor.ended("store", 0, 0, True, "", 1.0)) == [("work", 0, 0)]


# --- gangs ------------------------------------------------------------------------------------------------------------


def gang(**more: Any) -> Supervisor:
    return begun(
        NodeRule(name="ranks", replicas=2, finite=True, gang="train", restart=TOGETHER, **more),
        NodeRule(name="store", gang="train", restart=TOGETHER, **more),
        NodeRule(name="other"),
    )


def test_one_death_in_a_gang_ends_the_others_and_all_start_with_the_next_generation() -> None:
    supervisor = gang()
    assert ends(supervisor.ended("ranks", 0, 0, False, "killed", 1.0)) == [("ranks", 1, 0), ("store", 0, 0)]
    assert supervisor.ended("store", 0, 0, True, "", 1.1) == []
    assert supervisor.next_due is None  # a rank still lives
    assert supervisor.ended("ranks", 1, 0, False, "was killed by SIGTERM", 1.2) == [
        Start("ranks", 0, 1),
        Start("ranks", 1, 1),
        Start("store", 0, 1),
    ]


def test_a_member_that_fails_while_its_gang_is_being_ended_is_no_second_failure() -> None:
    supervisor = gang()
    for _ in range(2):  # three failures would be one too many
        generation = supervisor.replicas[0].generation
        supervisor.ended("ranks", 0, generation, False, "killed", 1.0)
        supervisor.ended("ranks", 1, generation, False, "connection reset by peer", 1.0)
        supervisor.ended("store", 0, generation, False, "connection reset by peer", 1.0)
    assert supervisor.outcome is ProgramOutcome.RUNNING
    assert [replica.num_failures for replica in supervisor.replicas] == [2, 0, 0, 0]
    assert len(supervisor.tick(supervisor.next_due or 0.0)) == 3


def test_a_member_that_had_completed_restarts_with_its_gang() -> None:
    supervisor = gang()
    assert supervisor.ended("ranks", 1, 0, True, "", 1.0) == []
    assert ends(supervisor.ended("ranks", 0, 0, False, "killed", 1.1)) == [("store", 0, 0)]
    assert [said for said in supervisor.ended("store", 0, 0, True, "", 1.2) if isinstance(said, Start)] == [
        Start("ranks", 0, 1),
        Start("ranks", 1, 1),
        Start("store", 0, 1),
    ]
    for replica in range(2):
        supervisor.ended("ranks", replica, 1, True, "", 2.0)
    assert supervisor.outcome is ProgramOutcome.COMPLETED


def test_the_members_of_a_gang_share_one_budget_and_its_first_failure_is_told() -> None:
    supervisor = gang()
    for generation, (name, replica) in enumerate([("ranks", 1), ("store", 0), ("ranks", 0)]):
        supervisor.ended(name, replica, generation, False, f"{name} {replica} broke", 1.0)
        for other in supervisor.replicas:
            if other.state is ReplicaState.ENDING and supervisor.outcome is ProgramOutcome.RUNNING:
                supervisor.ended(other.name, other.replica, generation, True, "", 1.0)
        supervisor.tick(1.0 + 10 * (generation + 1))
    assert supervisor.failure
    assert (supervisor.failure.name, supervisor.failure.replica, supervisor.failure.generation) == ("ranks", 1, 0)
    assert supervisor.failure.deaths == ("ranks 1 broke", "store 0 broke", "ranks 0 broke")


@pytest.mark.parametrize("num_ready", [0, 1, 2, 3])
def test_a_gang_has_started_when_all_of_it_is_ready_and_only_then_old_failures_are_forgotten(num_ready: int) -> None:
    supervisor = gang()
    members = [("ranks", 0), ("ranks", 1), ("store", 0)]
    said: list[Instruction] = []
    for generation, now in enumerate((1.0, 1000.0)):
        for name, replica in members[: num_ready if generation else 0]:
            supervisor.ready(name, replica, generation, now)
        for name, replica in members:
            said = supervisor.ended(name, replica, generation, False, "killed", now)
    starts_at_once = [Start(name, replica, 2) for name, replica in members]
    assert said == (starts_at_once if num_ready == 3 else [])
    assert supervisor.next_due == (None if num_ready == 3 else 1001.0)


def test_a_gang_has_started_when_those_that_are_not_ready_have_completed() -> None:
    supervisor = gang()
    members = [("ranks", 0), ("ranks", 1), ("store", 0)]
    said: list[Instruction] = []
    for generation, now in enumerate((1.0, 1000.0)):
        if generation:
            supervisor.ready("ranks", 0, 1, now)
            supervisor.ready("store", 0, 1, now)
            supervisor.ended("ranks", 1, 1, True, "", now)
        for name, replica in members:
            if not generation or (name, replica) != ("ranks", 1):
                said = supervisor.ended(name, replica, generation, False, "killed", now)
    assert said == [Start(name, replica, 2) for name, replica in members], "at once: the first failure is forgotten"


def test_a_gang_that_is_not_essential_and_fails_is_ended_as_one() -> None:
    never = Restart("never", strategy="together")
    supervisor = begun(NodeRule(name="a", replicas=2, restart=never, essential=False), NodeRule(name="server"))
    assert ends(supervisor.ended("a", 0, 0, False, "killed", 1.0)) == [("a", 1, 0)]
    supervisor.ended("a", 1, 0, True, "", 1.1)
    assert states(supervisor) == {"a/0": "failed", "a/1": "stopped", "server/0": "starting"}
    assert supervisor.outcome is ProgramOutcome.RUNNING


def test_a_gang_waits_for_its_last_member_also_when_the_wait_is_over() -> None:
    supervisor = gang()
    supervisor.ended("ranks", 0, 0, False, "killed", 1.0)
    supervisor.ended("ranks", 1, 0, False, "killed", 1.0)
    assert supervisor.tick(100.0) == []
    assert len(supervisor.ended("store", 0, 0, True, "", 101.0)) == 3


def test_two_restart_rules_in_one_gang_are_refused() -> None:
    other = Restart("always", strategy="together")
    with pytest.raises(ValueError, match="gang g restart together and need one restart rule"):
        Supervisor([NodeRule(name="a", gang="g", restart=TOGETHER), NodeRule(name="b", gang="g", restart=other)])
    same = [NodeRule(name=name, gang="g", restart=TOGETHER) for name in ("a", "b")]
    with pytest.raises(ValueError, match=r"but 'c' has .* and 'a' has "):
        Supervisor([*same, NodeRule(name="c", gang="g", restart=other)])


# --- what the user asks for -------------------------------------------------------------------------------------------


def test_scaling_down_ends_the_highest_replicas_and_scaling_up_starts_new_ones() -> None:
    supervisor = begun(NodeRule(name="a", replicas=3))
    assert ends(supervisor.scale("a", 1, 1.0)) == [("a", 1, 0), ("a", 2, 0)]
    assert supervisor.ended("a", 2, 0, False, "was killed by SIGTERM", 1.1) == []
    assert states(supervisor) == {"a/0": "starting", "a/1": "ending"}
    # Replica 2 comes back with a new generation; replica 1 still has to end first.
    assert supervisor.scale("a", 4, 1.2) == [Start("a", 2, 1), Start("a", 3, 0)]
    assert supervisor.ended("a", 1, 0, True, "", 1.3) == [Start("a", 1, 1)]


def test_one_replica_can_be_looked_at_until_it_was_scaled_away_and_has_ended() -> None:
    supervisor = begun(NodeRule(name="b"), NodeRule(name="a", replicas=3))
    supervisor.scale("a", 1, 1.0)
    supervisor.ended("a", 2, 0, True, "", 1.1)
    looked = [supervisor.replica("a", replica) for replica in range(3)]
    assert looked == [*(status for status in supervisor.replicas if status.name == "a"), None]
    with pytest.raises(ValueError, match="'c'"):
        supervisor.replica("c", 0)


def test_a_replica_that_is_not_there_is_refused_with_the_first_ten_that_run() -> None:
    supervisor = begun(NodeRule(name="a", replicas=12))
    supervisor.check_replica("a", 11)
    with pytest.raises(ValueError, match=r"a has no replica 12; it has 12, from 0; running now: 0, .*, 9 and 2 more$"):
        supervisor.check_replica("a", 12)


def test_scaling_away_a_replica_that_waits_forgets_its_start() -> None:
    supervisor = begun(NodeRule(name="a", replicas=2, restart=ON_FAILURE))
    for generation in range(2):
        supervisor.ended("a", 1, generation, False, "killed", 1.0)
    assert supervisor.scale("a", 1, 1.1) == []
    assert supervisor.next_due is None and supervisor.tick(99.0) == []
    assert states(supervisor) == {"a/0": "starting"}


def test_scaling_away_the_last_worker_that_was_waited_for_completes_the_program() -> None:
    supervisor = begun(NodeRule(name="a", replicas=2, finite=True))
    supervisor.ended("a", 0, 0, True, "", 1.0)
    assert supervisor.scale("a", 1, 2.0) == [
        EndReplica("a", 1, 0, "a is scaled from 2 to 1"),
        Completed(),
    ]


def test_a_node_without_replicas_does_not_end_the_program() -> None:
    supervisor = begun(NodeRule(name="a", replicas=0))
    assert supervisor.tick(1.0) == [] and supervisor.outcome is ProgramOutcome.RUNNING
    assert supervisor.scale("a", 1, 2.0) == [Start("a", 0, 0)]


def test_scaling_a_gang_restarts_it_since_its_size_is_part_of_it() -> None:
    supervisor = begun(NodeRule(name="a", replicas=2, restart=TOGETHER))
    assert ends(supervisor.scale("a", 3, 1.0)) == [("a", 0, 0), ("a", 1, 0)]
    supervisor.ended("a", 0, 0, True, "", 1.0)
    assert supervisor.ended("a", 1, 0, True, "", 1.0) == [Start("a", replica, 1) for replica in range(3)]


def test_making_a_gang_smaller_that_had_failed_does_not_revive_it() -> None:
    never = Restart("never", strategy="together")
    supervisor = begun(NodeRule(name="a", replicas=3, restart=never, essential=False), NodeRule(name="server"))
    supervisor.ended("a", 0, 0, False, "killed", 1.0)
    for replica in (1, 2):
        supervisor.ended("a", replica, 0, True, "", 1.0)
    assert supervisor.scale("a", 2, 2.0) == []
    assert states(supervisor) == {"a/0": "failed", "a/1": "stopped", "server/0": "starting"}
    assert supervisor.scale("a", 3, 3.0) == [Start("a", replica, 1) for replica in range(3)]


def test_a_replica_that_was_scaled_away_does_not_come_back_with_its_gang() -> None:
    supervisor = begun(NodeRule(name="a", replicas=2, restart=TOGETHER))
    supervisor.scale("a", 1, 1.0)
    for replica in range(2):
        supervisor.ended("a", replica, 0, True, "", 1.0)
    assert states(supervisor) == {"a/0": "starting"}
    supervisor.restart("a", 2.0)
    assert states(supervisor) == {"a/0": "ending"}
    assert supervisor.ended("a", 0, 1, True, "", 2.0) == [Start("a", 0, 2)]


def test_a_restart_of_a_healthy_replica_does_not_touch_its_budget() -> None:
    supervisor = begun(NodeRule(name="a", restart=Restart(max_restarts=0)))
    for generation in range(10):
        assert ends(supervisor.restart("a", float(generation))) == [("a", 0, generation)]
        assert supervisor.restart("a", float(generation)) == []  # it is under way
        assert supervisor.ended("a", 0, generation, False, "killed", float(generation)) == [
            Start("a", 0, generation + 1)
        ]


def test_a_replica_that_has_to_leave_its_host_starts_again_whatever_its_rule_and_no_budget_is_touched() -> None:
    supervisor = begun(NodeRule(name="a", replicas=2, finite=True))  # its rule is "never"
    for generation in range(10):
        supervisor.ready("a", 1, generation, generation)
        assert ends(supervisor.leaves("a", 1, generation, "SIGTERM", generation + 0.1)) == [("a", 1, generation)]
        assert supervisor.leaves("a", 1, generation, "SIGTERM", generation + 0.2) == [], "it was said already"
        again = supervisor.ended("a", 1, generation, False, "was killed by SIGKILL", generation + 0.3)
        assert again == [Start("a", 1, generation + 1)]
        assert supervisor.leaves("a", 1, generation, "SIGTERM", generation + 0.4) == [], "its successor has moved"
    assert [replica.num_failures for replica in supervisor.replicas] == [0, 0]
    supervisor.stop(20.0)
    assert supervisor.leaves("a", 0, 0, "SIGTERM", 20.1) == []


def test_a_gang_of_which_one_has_to_leave_its_host_starts_again_as_one() -> None:
    supervisor = begun(NodeRule(name="rank", replicas=2, restart=TOGETHER, finite=True))
    assert ends(supervisor.leaves("rank", 1, 0, "SIGTERM", 1.0)) == [("rank", 0, 0), ("rank", 1, 0)]
    assert supervisor.leaves("rank", 0, 0, "SIGTERM", 1.1) == []
    assert supervisor.ended("rank", 1, 0, True, "", 1.2) == []
    assert supervisor.ended("rank", 0, 0, True, "", 1.3) == [Start("rank", 0, 1), Start("rank", 1, 1)]


def test_a_restart_cuts_a_wait_short_and_revives_what_had_failed() -> None:
    never = Restart("never")
    supervisor = begun(NodeRule(name="a", restart=ON_FAILURE), NodeRule(name="b", restart=never, essential=False))
    for generation in range(2):
        supervisor.ended("a", 0, generation, False, "killed", 1.0)
    assert supervisor.restart("a", 1.1) == [Start("a", 0, 2)]
    supervisor.ended("b", 0, 0, False, "killed", 2.0)
    assert supervisor.restart("b", 2.1) == [Start("b", 0, 1)]


def test_a_replica_that_a_node_does_not_have_cannot_be_restarted() -> None:
    supervisor = begun(NodeRule(name="a", replicas=2))
    for replica in (-1, 2):
        with pytest.raises(ValueError, match=f"a has no replica {replica}; it has 2, from 0; running now: 0, 1"):
            supervisor.restart("a", 1.0, replica)
    for replica in (0, 1):
        assert ends(supervisor.restart("a", 1.0, replica)) == [("a", replica, 0)]


def test_nothing_is_scaled_or_restarted_after_the_end() -> None:
    supervisor = begun(NodeRule(name="a"))
    supervisor.stop(1.0)
    assert supervisor.scale("a", 5, 1.0) == [] and supervisor.restart("a", 1.0) == []
    supervisor.ended("a", 0, 0, True, "", 1.0)
    assert supervisor.done


def test_a_misspelt_name_and_a_wrong_number_are_refused() -> None:
    supervisor = begun(NodeRule(name="actor"))
    with pytest.raises(ValueError, match="no node has the name 'actors'; did you mean 'actor'"):
        supervisor.scale("actors", 2, 1.0)
    with pytest.raises(ValueError, match="replicas must be a whole number, 0 or more, not -1"):
        supervisor.scale("actor", -1, 1.0)
    with pytest.raises(ValueError, match="two nodes have the name 'a'"):
        Supervisor([NodeRule(name="a"), NodeRule(name="a")])


@pytest.mark.parametrize("number", [-1, True, 1.5, "2", None])
def test_a_number_of_replicas_is_a_whole_number(number: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^replicas .* a whole number, 0 or more"):
        Supervisor([NodeRule(name="a", replicas=number)])
    with pytest.raises((TypeError, ValueError), match=r"^replicas .* a whole number, 0 or more"):
        begun(NodeRule(name="a")).scale("a", number, 1.0)


# --- events out of order ----------------------------------------------------------------------------------------------


def test_news_of_an_older_generation_change_nothing() -> None:
    supervisor = begun(NodeRule(name="a", restart=ON_FAILURE))
    supervisor.ended("a", 0, 0, False, "killed", 1.0)
    assert supervisor.ready("a", 0, 0, 1.1) == []
    assert supervisor.ended("a", 0, 0, False, "killed", 1.2) == []
    assert states(supervisor) == {"a/0": "starting"} and supervisor.replicas[0].num_failures == 1


def test_becoming_ready_too_late_changes_nothing() -> None:
    supervisor = begun(NodeRule(name="a", essential=False), NodeRule(name="b"))
    supervisor.ended("a", 0, 0, False, "killed", 1.0)
    assert supervisor.ready("a", 0, 0, 1.1) == []
    supervisor.stop(2.0)
    assert supervisor.ready("b", 0, 0, 2.1) == []
    assert states(supervisor) == {"a/0": "failed", "b/0": "ending"}


def test_an_impossible_event_tells_the_history_of_the_replica() -> None:
    supervisor = begun(NodeRule(name="a", essential=False), NodeRule(name="b"))
    supervisor.ready("a", 0, 0, 0.5)
    supervisor.ended("a", 0, 0, False, "no display", 1.0)
    message = """a/0, generation 0: failed (again); this cannot happen while it is failed in generation 0. \
What happened to it:
  0.000 waiting -> starting: generation 0 is started
  0.500 starting -> ready: ready
  1.000 ready -> failed: failed: no display"""
    with pytest.raises(RuntimeError, match=re.escape(message)):
        supervisor.ended("a", 0, 0, False, "again", 2.0)
    with pytest.raises(RuntimeError, match="b/0, generation 1: ready; this cannot happen"):
        supervisor.ready("b", 0, 1, 2.0)
    for replica in (-1, 1, 7):
        with pytest.raises(RuntimeError, match=f"b/{replica}, generation 0: ready; there never was such a replica"):
            supervisor.ready("b", replica, 0, 2.0)
    with pytest.raises(RuntimeError, match="has begun already"):
        supervisor.begin(3.0)


def test_the_history_has_the_time_of_each_event() -> None:
    supervisor = begun(NodeRule(name="monitor", finite=True), NodeRule(name="actor", finite=True))
    supervisor.ended("actor", 0, 0, True, "", 1.0)
    supervisor.waits_for_stop("monitor", 0, 0, 2.0)
    with pytest.raises(RuntimeError, match=r"2\.000 starting -> ending: the program has completed"):
        supervisor.ready("monitor", 0, 1, 3.0)
    supervisor = begun(NodeRule(name="a"))
    supervisor.stop(4.0)
    with pytest.raises(RuntimeError, match=r"4\.000 starting -> ending: the program stops"):
        supervisor.ready("a", 0, 1, 5.0)


# --- any order of events ----------------------------------------------------------------------------------------------


ENDED = (ReplicaState.COMPLETED, ReplicaState.FAILED, ReplicaState.STOPPED)


def without_due(status: ReplicaStatus) -> ReplicaStatus:
    return dataclasses.replace(status, due=None)


class World:
    """Carries instructions out without any process, and checks what must hold after each of them."""

    def __init__(self, rules: list[NodeRule]) -> None:
        self.rules = {rule.name: rule for rule in rules}
        self.supervisor = Supervisor(rules)
        self.now = 0.0
        self.alive: dict[tuple[str, int], int] = {}
        self.ending: set[tuple[str, int]] = set()
        self.generations: dict[tuple[str, int], int] = {}
        self.over = False
        self.known: dict[tuple[str, int], ReplicaStatus] = {}
        """What `take_changes` has told."""

    def obey(self, instructions: list[Instruction]) -> None:
        for said in instructions:
            match said:
                case Start(name, replica, generation):
                    assert not self.over, "started after the end"
                    assert (name, replica) not in self.alive, "two live generations of one replica"
                    assert generation > self.generations.get((name, replica), -1)
                    self.alive[name, replica] = self.generations[name, replica] = generation
                case EndReplica(name, replica, generation):
                    assert self.alive[name, replica] == generation
                    assert (name, replica) not in self.ending, "ended twice"
                    self.ending.add((name, replica))
                case Failed() | Completed():
                    assert not self.over, "two outcomes"
                    self.over = True
        self.check()

    def check(self) -> None:
        supervisor = self.supervisor
        self.over = self.over or supervisor.outcome is not ProgramOutcome.RUNNING
        assert supervisor.done == (self.over and not self.alive)
        assert supervisor.next_due is None or (supervisor.next_due > self.now and not self.over)
        assert self.alive == {
            (replica.name, replica.replica): replica.generation
            for replica in supervisor.replicas
            if replica.state in (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.ENDING)
        }
        self.known |= {(status.name, status.replica): status for status in supervisor.take_changes()}
        told = [without_due(status) for status in self.known.values() if status.state is not ReplicaState.REMOVED]
        assert sorted(told, key=str) == sorted(map(without_due, supervisor.replicas), key=str)
        assert supervisor.take_changes() == []
        coming = (ReplicaState.WAITING, ReplicaState.STARTING, ReplicaState.ENDING)
        assert supervisor.is_ready == (not any(status.state in coming for status in told))
        assert set(supervisor.awaited_nodes) == {status.name for status in supervisor.awaited}
        if not self.over and supervisor.awaited_nodes == set():
            still = [status for status in supervisor.replicas if status.state not in ENDED]
            assert still or not supervisor.replicas, "it should have completed"
        if self.over:
            assert self.ending == set(self.alive), "something goes on after the end"
        gangs: dict[str, set[int]] = {}
        for (name, _), generation in self.alive.items():
            if self.rules[name].restart.strategy == "together":
                gangs.setdefault(self.rules[name].gang or name, set()).add(generation)
        assert all(len(generations) == 1 for generations in gangs.values()), "a gang of two generations"

    def end(self, key: tuple[str, int], ok: bool) -> None:
        generation = self.alive.pop(key)
        self.ending.discard(key)
        self.obey(self.supervisor.ended(*key, generation, ok, "" if ok else f"cause {self.now}", self.now))

    def act(self, data: st.DataObject) -> None:
        supervisor = self.supervisor
        self.now += data.draw(st.sampled_from([0.0, 0.1, 1.0, 100.0]))
        event = data.draw(
            st.sampled_from(["ready", "ok", "failed", "failed", "waits", "leaves", "old", "scale", "restart", "tick"])
        )
        name = data.draw(st.sampled_from(sorted(self.rules)))
        if event == "tick":
            self.obey(supervisor.tick(self.now))
        elif event == "scale":
            self.obey(supervisor.scale(name, data.draw(st.integers(0, 3)), self.now))
        elif event == "restart":
            self.obey(supervisor.restart(name, self.now))
        elif event == "old" and self.generations:
            key = data.draw(st.sampled_from(sorted(self.generations)))
            for generation in range(self.generations[key]):
                self.obey(supervisor.tick(self.now))
                assert supervisor.ready(*key, generation, self.now) == []
                assert supervisor.ended(*key, generation, False, "old news", self.now) == []
        elif self.alive:
            key = data.draw(st.sampled_from(sorted(self.alive)))
            if event == "ready":
                self.obey(supervisor.ready(*key, self.alive[key], self.now))
            elif event == "waits":
                self.obey(supervisor.waits_for_stop(*key, self.alive[key], self.now))
            elif event == "leaves":
                self.obey(supervisor.leaves(*key, self.alive[key], "SIGTERM", self.now))
            else:
                self.end(key, event == "ok")


RESTARTS = [
    Restart("never"),
    Restart("on_failure", max_restarts=1),
    Restart("always", max_restarts=2),
    Restart("never", strategy="together"),
    Restart("on_failure", max_restarts=2, strategy="together"),
    Restart("always", max_restarts=1, strategy="together"),
]


@st.composite
def programs(draw: st.DrawFn) -> list[NodeRule]:
    rules: list[NodeRule] = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        restart = draw(st.integers(0, len(RESTARTS) - 1))
        rules.append(
            NodeRule(
                name=name,
                replicas=draw(st.integers(0, 3)),
                restart=RESTARTS[restart],
                gang=draw(st.sampled_from(["", f"gang {restart}"])),  # one gang has one rule
                essential=draw(st.booleans()),
                finite=draw(st.booleans()),
            )
        )
    return rules


@given(rules=programs(), num_events=st.integers(0, 30), data=st.data())
def test_after_any_events_a_stop_ends_everything_that_was_started(
    rules: list[NodeRule], num_events: int, data: st.DataObject
) -> None:
    world = World(rules)
    world.obey(world.supervisor.begin(0.0))
    for _ in range(num_events):
        world.act(data)
    before = world.supervisor.outcome
    world.obey(world.supervisor.stop(world.now))
    assert world.supervisor.outcome is (ProgramOutcome.STOPPED if before is ProgramOutcome.RUNNING else before)
    for key in data.draw(st.permutations(sorted(world.alive))):
        world.end(key, data.draw(st.booleans()))
    assert world.supervisor.done
    assert (world.supervisor.failure is not None) == (world.supervisor.outcome is ProgramOutcome.FAILED)


@given(rules=programs(), num_events=st.integers(0, 20), data=st.data())
def test_after_any_events_a_program_in_which_everything_fails_reaches_an_outcome(
    rules: list[NodeRule], num_events: int, data: st.DataObject
) -> None:
    world = World(rules)
    world.obey(world.supervisor.begin(0.0))
    for _ in range(num_events):
        world.act(data)
    for _ in range(100):
        if world.supervisor.next_due is not None:
            world.now = world.supervisor.next_due
            world.obey(world.supervisor.tick(world.now))
        for key in list(world.alive):
            if key in world.alive:
                world.end(key, ok=False)
    nothing_is_wanted = not world.supervisor.replicas
    assert world.supervisor.done or nothing_is_wanted, [str(replica) for replica in world.supervisor.replicas]
