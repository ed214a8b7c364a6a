"""Faults of experiments, each with real processes: what goes on, what ends, and what is said.

fault                                   test, in this module if no other is named
actor killed                            test_experiment: test_lock_step_gives_the_same_bits_though_actors_are_killed,
                                        test_an_asynchronous_run_is_repeated_from_its_record
actor killed while its block waits      test_actors_that_die_while_their_blocks_wait_leave_nothing_behind
learner killed                          test_a_learner_that_dies_twice_goes_on_with_newer_versions_and_the_whole_record
replay killed (it is in the learner)    the same; replay/test_service: test_after_replay_was_killed_...
inference server killed                 inference/test_experiments, inference/test_remote_policy
slow actor                              test_a_slow_actor_holds_nobody_up_and_its_stale_blocks_are_dropped_and_counted
environment hangs, crashes              test_an_isolated_environment_that_is_lost_costs_one_episode
environment raises                      test_experiment: test_an_actor_that_fails_for_good_ends_the_program_...,
                                        environments/test_serial: test_an_error_truncates_the_episode_if_that_is_asked
NaN reward or observation               test_a_reward_that_is_nan_..., test_an_actor_begins_anew_after_nan
NaN loss                                test_a_loss_that_is_not_finite_ends_the_run_with_keys_and_actors
stale weights                           test_actors_stop_feeding_while_the_learner_stands_still
limiter blocks both sides               test_limiters_that_block_both_sides_end_the_run
learner slower than actors              test_actors_that_die_while_their_blocks_wait_leave_nothing_behind
evaluator fails                         test_an_evaluator_that_fails_is_said_and_training_goes_on
logger fails, disk full                 test_a_logger_that_raises_..., test_a_checkpoint_that_cannot_be_written_...,
                                        test_decision_log
Ctrl-C, SIGTERM                         test_a_script_that_is_interrupted_leaves_a_checkpoint_and_no_process
wrong configuration                     test_experiment: test_what_does_not_fit_is_said_before_anything_starts, and
                                        test_what_cannot_work_is_refused_before_anything_starts
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import ropewalk as rw
from ropewalk import rl
from ropewalk.errors import LimiterDeadlock, NotFinite
from ropewalk.rl import distributed
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous import AsyncLearner
from ropewalk.rl.distributed import ProcessCounts, build_program
from ropewalk.rl.round_learner import LimiterStuck
from ropewalk.rl.seeds import derived_seed
from tests.patience import PATIENCE_S, wait_until
from tests.rl.environments import hostile
from tests.rl.environments.hostile import MakesHostile
from tests.rl.faulty import Counted, FailsIn, PausedIMPALA, Rewards, StuckIMPALA, size_of
from tests.scenarios.services import pid_of, status_of

pytestmark = pytest.mark.usefixtures("shared_session")

CARTPOLE = rl.Gymnasium("CartPole-v1")
IMPALA = rl.IMPALA(unroll=8, envs=2, batch_size=2)
SMALL = rl.Experiment(IMPALA, CARTPOLE, rl.MLP((16,)), steps=800, seed=3, digest_every=5)
STEPS_OF_A_BLOCK = 16


@contextlib.contextmanager
def running_experiment(experiment: rl.Experiment, actors: int, mode: Any = "async", **others: int) -> Generator[Any]:
    groups = experiment.groups or actors
    program = build_program(Assembly(experiment, groups), ProcessCounts(actors, mode, **others), hold=True)
    with program.launch() as running:
        yield running


def outcome_of(running: Any) -> Any:
    learner = running.client("learner", on_lost="retry")
    wait_until(lambda: paused(learner.status()).done, what="the end of the experiment")
    return learner.outcome()


def paused(value: Any) -> Any:
    threading.Event().wait(0.02)
    return value


def settled(steps: str) -> int:
    """The number of steps that were taken, when no other one has come for half a second."""
    last, still = -1, 0
    while still < 25:
        still = still + 1 if paused(size_of(steps)) == last else 0
        last = size_of(steps)
    return last


def check_record(experiment: rl.Experiment, counters: Any) -> list[Any]:
    """The steps that were counted are those of the blocks that came into replay, each once; returns the decisions."""
    assert experiment.record is not None
    decisions = [json.loads(line) for line in Path(experiment.record).read_text().splitlines()]
    blocks = [(each[1], each[2]) for each in decisions if each[0] in ("insert", "stale")]
    assert len(set(blocks)) == len(blocks), "no block came twice"
    for run_id in {run_id for run_id, _ in blocks}:
        numbers = [n for each, n in blocks if each == run_id]
        assert numbers == list(range(len(numbers))), "none is left out"
    assert experiment.repeat(experiment.record, log="silent").counters == counters
    return decisions


class ShownLearner(AsyncLearner):
    """Shows how many blocks wait at the limiter."""

    @rw.concurrent(4)
    @rw.idempotent
    def waiting(self) -> int:
        return self._replay.waiting()["insert"]


def test_actors_that_die_while_their_blocks_wait_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "AsyncLearner", ShownLearner)
    gate = tmp_path / "gate"
    gate.touch()
    agent = PausedIMPALA(unroll=8, envs=2, batch_size=2, gate=str(gate))
    steps = str(tmp_path / "steps")
    experiment = dataclasses.replace(
        SMALL, agent=agent, environment=Counted(steps), steps=500, record=tmp_path / "record"
    )
    with running_experiment(experiment, 3) as running:
        learner = running.client("learner", on_lost="retry")

        def blocks() -> int:
            return sum(facts.blocks for facts in learner.status().actors.values())

        # One batch of 2 is being learned from, and the queue has room for 2 + 3 - 1. Of each actor one block waits at
        # the limiter, and the next one for that one.
        wait_until(lambda: paused(blocks()) == 6 and learner.waiting() == 3, what="full queues")
        # Two blocks of each actor are under way, and it has one more, that waits.
        assert 0 < settled(steps) <= (6 + 3 * 3) * STEPS_OF_A_BLOCK, "memory is bounded"
        for actor in range(3):
            running.kill("actors", actor)
            if actor == 0:
                wait_until(lambda: paused(learner.waiting()) < 3, what="the end of the dead actor's calls")
        wait_until(
            lambda: all(status_of(running, "actors", actor).restarts == 1 for actor in range(3)), what="new actors"
        )
        wait_until(lambda: paused(learner.waiting()) == 3, what="the blocks of the new actors")
        assert blocks() == 6, "nothing of what waited was taken"
        gate.unlink()
        outcome = outcome_of(running)
    decisions = check_record(experiment, outcome.counters)
    assert len({each[1] for each in decisions if each[0] == "insert"}) >= 4, "new actors are new lives"


def test_a_learner_that_dies_twice_goes_on_with_newer_versions_and_the_whole_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_CHECKPOINT_S", 0.01)
    experiment = dataclasses.replace(
        SMALL, steps=1_500, record=tmp_path / "record", checkpoint=tmp_path / "run", checkpoint_s=0.2
    )
    versions = [-1]
    with running_experiment(experiment, 2) as running:
        learner = running.client("learner", on_lost="retry")

        def seen() -> int:
            newest = paused(learner.newest_variables(versions[-1]))
            if newest is not None:
                versions.append(newest.version)
            return learner.status().counters.updates

        wait_until(lambda: seen() >= 5, what="updates")
        running.kill("learner", 0)
        wait_until(lambda: seen() and status_of(running, "learner").restarts == 1, what="the next learner")
        running.kill("learner", 0)
        wait_until(lambda: seen() >= 20 and status_of(running, "learner").restarts == 2, what="more updates")
        outcome = outcome_of(running)
        assert [status_of(running, "actors", actor).restarts for actor in range(2)] == [0, 0], "no cascade"
        actors = learner.status().actors
    assert versions == sorted(versions) and len({version >> 40 for version in versions}) >= 2
    assert max(facts.lag_max for facts in actors.values()) < 1_000, "lives of the learner do not count as updates"
    check_record(experiment, outcome.counters)


def test_a_slow_actor_holds_nobody_up_and_its_stale_blocks_are_dropped_and_counted(tmp_path: Path) -> None:
    environment = Counted(str(tmp_path / "steps"), behind=20)
    experiment = dataclasses.replace(SMALL, environment=environment, steps=2_500, max_lag=6, record=tmp_path / "record")
    with running_experiment(experiment, 2) as running:
        outcome = outcome_of(running)
        status = running.client("learner").status()
    slow, fast = status.actors[0], status.actors[1]
    assert fast.blocks > 5 * (slow.blocks + slow.stale)
    assert (fast.stale, fast.lag_max <= 6) == (0, True)
    assert slow.stale > 0 and slow.lag_max > 6, "the lag of each actor is shown"
    assert outcome.counters.stale_steps > 0
    assert {"policy_lag", "policy_lag_max"} <= status.metrics.keys()
    decisions = check_record(experiment, outcome.counters)  # in this process, no step waits for others
    assert {each[1][0] for each in decisions if each[0] == "stale"} == {"0"}


@pytest.mark.parametrize(
    "fault",
    [  # environments/test_isolated has each of them
        hostile.be_killed,
        pytest.param(hostile.segfault, marks=pytest.mark.soak),
        pytest.param(hostile.sleep, marks=pytest.mark.soak),
    ],
)
def test_an_isolated_environment_that_is_lost_costs_one_episode(
    fault: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    fatal = (derived_seed(3, "episode", 0, 0, 1),)
    environment = rl.Isolated(MakesHostile(fault, fatal), step_timeout_s=5.0 if fault is hostile.sleep else 60.0)
    agent = dataclasses.replace(IMPALA, batch_size=1)
    result = dataclasses.replace(SMALL, agent=agent, environment=environment, steps=40).run(log="silent")
    assert result.counters.steps >= 40 and result.counters.episodes >= 8
    losses = [record.getMessage() for record in caplog.records if "is truncated" in record.getMessage()]
    assert len(losses) == 1 and f"seeded with {fatal[0]}" in losses[0]


def test_a_reward_that_is_nan_ends_lock_step_and_names_its_environment() -> None:
    experiment = dataclasses.replace(SMALL, environment=Rewards(float("nan"), (5,)), groups=1)
    for actors in (0, 1):
        with pytest.raises(NotFinite, match="reward of environment 0 is nan at step 4 of run 0#0"):
            experiment.run(actors, mode="lockstep", log="silent")


def test_an_actor_begins_anew_after_nan(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rare = dataclasses.replace(SMALL, environment=Rewards(float("nan"), (100,)), steps=700, record=tmp_path / "record")
    with running_experiment(rare, 1) as running:
        outcome = outcome_of(running)
        status = running.client("learner").status()
        assert status_of(running, "actors").restarts == 0
    # The learner may complete its steps while the actor still starts over after the last refusal.
    assert status.actors[0].refused >= 1 and status.actors[0].lives - status.actors[0].refused in (0, 1)
    assert "is nan at step" in status.problems[0]
    check_record(rare, outcome.counters)
    always = dataclasses.replace(rare, environment=Rewards(float("nan"), (5,)), record=None)
    with pytest.raises(NotFinite, match="reward of environment 0 is nan at step 4"):
        always.run(1, mode="async", log="silent")
    assert sum("reward of environment 0 is nan" in record.getMessage() for record in caplog.records) >= 1


@pytest.mark.parametrize("mode", ["lockstep", pytest.param("async", marks=pytest.mark.soak)])
def test_a_loss_that_is_not_finite_ends_the_run_with_keys_and_actors(mode: Any, tmp_path: Path) -> None:
    experiment = dataclasses.replace(SMALL, environment=Rewards(3e38))
    with pytest.raises(
        NotFinite, match=r"the loss is (nan|inf)[\s\S]*keys \[\d+, \d+\][\s\S]*actors \['0#0'"
    ) as raised:
        experiment.run(1, mode=mode, log="silent")
    assert len(raised.value.keys) == 2 and set(raised.value.run_ids) == {"0#0"}
    alone = dataclasses.replace(experiment, checkpoint=tmp_path / "run").program(1, mode=mode)
    with pytest.raises(rw.ProgramFailed, match="NotFinite: the loss is") as failed:
        alone.launch().wait()
    assert len(failed.value.deaths) == 1, "a restart would fail in the same way"


def test_actors_stop_feeding_while_the_learner_stands_still(tmp_path: Path) -> None:
    steps = str(tmp_path / "steps")
    experiment = dataclasses.replace(SMALL, environment=Counted(steps), steps=2_000, record=tmp_path / "record")
    with running_experiment(experiment, 2) as running:
        learner = running.client("learner", on_lost="retry")
        wait_until(lambda: paused(learner.status()).counters.updates >= 5, what="updates")
        pid = pid_of(running, "learner")
        os.kill(pid, signal.SIGSTOP)
        try:
            before = size_of(steps)
            # A block in the making, two under way, and one that waits for a place.
            assert settled(steps) - before <= 2 * 4 * STEPS_OF_A_BLOCK
        finally:
            os.kill(pid, signal.SIGCONT)
        outcome = outcome_of(running)
        assert [status_of(running, "actors", actor).restarts for actor in range(2)] == [0, 0]
    check_record(experiment, outcome.counters)


class ImpatientLearner(AsyncLearner):
    """Takes for a deadlock what has stood still for a second, not for ten."""

    def __init__(self, assembly: Assembly, **others: Any) -> None:
        super().__init__(assembly, **others)
        self._replay._deadlock_s = 1.0


def test_limiters_that_block_both_sides_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "AsyncLearner", ImpatientLearner)
    experiment = dataclasses.replace(SMALL, agent=StuckIMPALA(unroll=8, envs=2, batch_size=2))
    with pytest.raises(LimiterStuck, match="cannot go on"):
        experiment.run(log="silent")
    with pytest.raises(LimiterDeadlock, match="insert"):
        experiment.run(1, mode="async", log="silent")


def test_an_evaluator_that_fails_is_said_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    gone = dataclasses.replace(SMALL, environment=FailsIn("evaluators"), steps=3_000)
    result = gone.run(1, mode="async", evaluators=1, log="silent")
    assert result.counters.steps >= 3_000 and not result.evaluations
    told = [record.getMessage() for record in caplog.records if "an evaluation failed" in record.getMessage()]
    assert told == ["an evaluation failed with OverflowError: the table is too small"]


def test_a_logger_that_raises_is_said_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def no_space(label: str, row: Any) -> None:
        raise OSError(28, "No space left on device")

    result = SMALL.run(log=no_space)
    assert result.counters.steps >= SMALL.steps and result.timeline[-1]["steps"] == result.counters.steps
    told = [record for record in caplog.records if "the logger failed" in record.getMessage()]
    assert "No space left on device" in told[0].getMessage()
    assert [bool(record.exc_info) for record in told[:3]] == [True, False, False], "one traceback is enough"


@pytest.mark.parametrize("actors", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_a_checkpoint_that_cannot_be_written_is_said_and_training_goes_on(
    actors: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"

    def take_the_folder_away(label: str, row: Any) -> None:
        if not folder.exists():
            folder.touch()  # a file: nothing can be written into it

    experiment = dataclasses.replace(SMALL, groups=1, checkpoint=folder, checkpoint_s=0.05)
    result = experiment.run(actors, mode="lockstep", log=take_the_folder_away)
    assert result.counters.steps >= SMALL.steps
    if not actors:
        assert any(
            "checkpoint" in record.getMessage() and "not saved" in record.getMessage() for record in caplog.records
        )


SCRIPT = """
import sys
from ropewalk import rl

def tell(label, row):
    print(row["steps"], row["updates"], flush=True)

experiment = rl.Experiment(
    rl.IMPALA(unroll=8, envs=2, batch_size=2), rl.Gymnasium("CartPole-v1"), rl.MLP((16,)), steps=10_000_000, seed=3,
    groups={groups}, checkpoint={folder!r}, checkpoint_s=1e6,
)
experiment.run({arguments}, log=tell)
"""


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ("0", signal.SIGINT),
        # 12 s of CPU time, to import torch twice; the test below has the same in the processes that there are.
        pytest.param('2, mode="async"', signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param("0", signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param('2, mode="lockstep"', signal.SIGINT, marks=pytest.mark.soak),
    ],
)
def test_a_script_that_is_interrupted_leaves_a_checkpoint_and_no_process(
    arguments: str, number: signal.Signals, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    groups = None if "async" in arguments else 2
    script = SCRIPT.format(groups=groups, folder=str(folder), arguments=arguments)
    errors = tmp_path / "errors.txt"
    with errors.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=file, text=True)
    assert process.stdout
    steps = updates = 0
    with process:
        for line in process.stdout:
            steps, updates = map(int, line.split())
            if updates >= 10:
                break
        others = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(PATIENCE_S) == (-number if number == signal.SIGINT else 128 + number)
    assert psutil.wait_procs(others, timeout=PATIENCE_S)[1] == [], "no process is left"
    more = dataclasses.replace(SMALL, groups=groups, checkpoint=folder, steps=steps, digest_every=0)
    check_goes_on(more, "async" in arguments, updates, errors.read_text())


def test_an_asynchronous_run_that_is_terminated_leaves_a_checkpoint_and_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    log = logging.FileHandler(tmp_path / "log")  # in which the processes of the run write as well
    shown: list[tuple[int, int]] = []

    def tell(label: str, row: Any) -> None:
        shown.append((int(row["steps"]), int(row["updates"])))
        if row["updates"] >= 10:
            os.kill(os.getpid(), signal.SIGTERM)

    experiment = dataclasses.replace(SMALL, steps=10_000_000, checkpoint=folder, checkpoint_s=1e6, digest_every=0)
    logging.getLogger().addHandler(log)
    try:
        with pytest.raises(SystemExit) as ended:
            experiment.run(2, mode="async", log=tell)
    finally:
        logging.getLogger().removeHandler(log)
        log.close()
    assert ended.value.code == 128 + signal.SIGTERM
    steps, updates = shown[-1]
    check_goes_on(dataclasses.replace(experiment, steps=steps), True, updates, (tmp_path / "log").read_text())


def check_goes_on(more: rl.Experiment, is_async: bool, updates: int, said: str) -> None:
    """An interrupted run said so, and goes on with all the steps and updates that it had shown."""
    found = re.search(r"was interrupted after [\d,]+ of 10,000,000 steps; it is saved in (\S+),", said)
    assert found and found[1] == str(more.checkpoint)
    if is_async:
        with pytest.raises(ValueError, match=r"is of an asynchronous run, and this is lock-step"):
            more.run(log="silent")
        result = more.run(2, mode="async", log="silent")
    else:
        result = more.run(log="silent")
    first = result.timeline[0]
    assert int(first["steps"] or 0) >= more.steps and int(first["updates"] or 0) >= updates, "it has all that was shown"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"agent": rl.DQN(), "environment": rl.Gymnasium("Pendulum-v1")}, "discrete"),
        ({"agent": rl.SAC()}, "continuous"),
        ({"network": lambda spec: 7}, "network"),
        ({"environment": rl.Gymnasium("CartPole-v7")}, "CartPole"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    changes: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rw.Program, "launch", None)
    with pytest.raises(Exception, match=complaint):
        dataclasses.replace(SMALL, **changes).run(2, mode="async", log="silent")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: rl.R2D2(unroll=8, period=12), "not a multiple of unroll"),
        (lambda: rl.R2D2(learning_starts=100, replay_size=50), "updates would never begin"),
        (lambda: rl.IMPALA(batch_size=0), "batch_size"),
        (lambda: dataclasses.replace(SMALL, max_lag=-1), "max_lag"),
        (lambda: dataclasses.replace(SMALL, steps=0), "steps must be a whole number, 1 or more, not 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_where_they_are_made(
    make: Callable[[], Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()


def test_actors_are_added_to_an_asynchronous_run_and_taken_away(tmp_path: Path) -> None:
    agent = rl.R2D2(
        unroll=8, envs=2, batch_size=4, burn_in=0, trace=8, period=8, learning_starts=64, samples_per_insert=1.0
    )
    experiment = dataclasses.replace(
        SMALL, agent=agent, network=rl.LSTM(rl.MLP((8,)), 8), steps=2_000, record=tmp_path / "record"
    )
    with running_experiment(experiment, 1) as running:
        learner = running.client("learner", on_lost="retry")

        def delivering() -> set[int]:
            return {group for group, facts in paused(learner.status()).actors.items() if facts.blocks}

        wait_until(lambda: delivering() == {0}, what="the first actor")
        running.scale("actors", 3)
        wait_until(lambda: delivering() == {0, 1, 2}, what="three actors")
        running.scale("actors", 1)
        outcome = outcome_of(running)
    check_record(experiment, outcome.counters)


def test_actors_are_added_in_lock_step_and_taken_away_without_a_change_of_bits() -> None:
    experiment = dataclasses.replace(SMALL, groups=2, steps=3_000)
    with running_experiment(experiment, 2, "lockstep") as running:
        learner = running.client("learner", on_lost="retry")

        def wait_for(updates: int) -> None:
            wait_until(lambda: paused(learner.status()).counters.updates >= updates, what=f"update {updates}")

        for size, updates in ((1, 10), (3, 20), (0, 30)):
            wait_for(updates)
            running.scale("actors", size)
        running.scale("actors", 2)
        outcome = outcome_of(running)
    expected = experiment.run(log="silent")
    assert outcome.digests == expected.digests and outcome.counters == expected.counters


def test_the_lag_is_shown_by_all_agents() -> None:
    agent = rl.DQN(unroll=4, envs=2, batch_size=8, learning_starts=32, samples_per_insert=0.5)
    result = dataclasses.replace(SMALL, agent=agent, steps=200, groups=1).run(log="silent")
    shown = [row["policy_lag_max"] for row in result.timeline if "policy_lag_max" in row]
    assert shown and all(float(lag or 0) >= 0 for lag in shown) and np.max(np.array(shown, float)) >= 1
