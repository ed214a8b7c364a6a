"""Whatever goes wrong in a training, it comes to what it would have come to, or says what went wrong.

Stages are killed at chosen actions, stopped, and made to raise; who hosts them and who launched them is killed, too.
All share one session, so that processes are forked from one that has imported torch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk.errors import StageFailed, StageLost, StageStalled, TrainerFailed
from ropewalk.pipeline.schedules import SCHEDULES
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.testing import faults
from ropewalk.training.checkpoint import read_manifest
from ropewalk.training.step_handle import StepHandle
from ropewalk.training.timeouts import TrainerTimeouts
from ropewalk.training.trainer_options import Snapshots
from tests import conftest
from tests.foreign_frames import foreign_frames
from tests.forked_process import ForkedProcess
from tests.left_behind import Snapshot
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.launchers import launcher, wait_until_gone
from tests.shared_session import kept
from tests.training.faulty_training import (
    PATIENCE,
    WIDTH,
    InBackward,
    InForward,
    InLoss,
    InStep,
    Job,
    Learnt,
    Once,
    adam,
    assert_near,
    assert_same,
    assert_trained,
    batch,
    go_through,
    go_wrong,
    hang,
    nothing_left,
    nums_updates,
    pids,
    sgd,
    undisturbed,
    use_all_memory,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left(trainings: rw.Session) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """In place of the one for every test, which would end the session that all share: at the end of this module."""
    before = Snapshot.take()
    yield
    conftest._end_sessions()
    left = before.what_stays(exempt=kept.own_processes)
    assert not left, left.describe()


@pytest.fixture(scope="module")
def shared(_nothing_is_left: None, trainings: rw.Session) -> rw.Session:
    return trainings


@pytest.fixture
def session(shared: rw.Session) -> Generator[rw.Session]:
    """After each test no stage process, descriptor or shared memory is left."""
    with nothing_left(shared):
        yield shared


def at_action(pattern: str, action: faults.FaultAction | None = None, **when: Any) -> Any:
    return faults.at("stage.before_action", action or faults.kill(), detail=pattern, **when)


@contextmanager
def all_of(patterns: list[tuple[str, int]]) -> Generator[list[faults.Injected]]:
    with ExitStack() as stack:
        yield [stack.enter_context(at_action(pattern, after=after)) for pattern, after in patterns]


# --- deaths -----------------------------------------------------------------------------------------------------------

#: Of a schedule, what is killed in one run: the action, and how many like it each process does first.
KILLED_AT = {
    "one_f_one_b": [("F0:*v1", 2), ("R1:*", 14), ("B1:2v3", 0), ("A0v5/norm", 0), ("S0:1>*", 4), ("U1v6", 0)],
    "pipedream": [("F0:5*", 0), ("S1:*", 7), ("B0:12*", 0), ("U1v18", 0), ("F1:23*", 0), ("R0:*", 5)],
    "zb_h1": [("I0:1v1", 0), ("W1:3v2", 0), ("W0:0v3", 0), ("I1:2v5", 0)],
}


@pytest.mark.parametrize("schedule", [pytest.param("one_f_one_b", marks=pytest.mark.soak), "pipedream", "zb_h1"])
def test_stages_that_are_killed_at_any_kind_of_action_change_nothing(session: rw.Session, schedule: str) -> None:
    job = Job(schedule, clip_norm=0.5 if schedule == "one_f_one_b" else None)
    with all_of(KILLED_AT[schedule]) as injected, job.trainer(session) as trainer:
        found = go_through(trainer, job)
        assert len(trainer.events) == len(injected)
        assert all("was lost" in event and "; training goes on with " in event for event in trainer.events)
    assert [one.num_fired for one in injected] == [1] * len(injected)
    assert_same(found, undisturbed(job))


def kinds_of(job: Job) -> dict[str, int]:
    """By kind and stage, such as "F0:", how often a worker does it in a step."""
    plan = job.plan_of(job.graph)
    options = TrainingOptions(clip_norm=job.clip_norm)
    stream = options.schedule(job.schedule).stream(plan)
    stream.admit(plan.micro_batches)
    lists = stream.admit(plan.micro_batches).values()
    codes = [f"{action.kind.value}{action.stage}" for actions in lists for action in actions]
    return {code: -(-codes.count(code) // plan.stages[int(code[1:])].replicas) for code in codes}


@pytest.mark.soak
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_stage_killed_at_every_kind_of_action_of_every_schedule(
    shared: rw.Session, schedule: str, replicas: int
) -> None:
    clip_norm = None if SCHEDULES[schedule].refuses_norm else 0.5
    job = Job(schedule, replicas=replicas, num_steps=7, clip_norm=clip_norm, optimizer=adam if replicas == 1 else sgd)
    for number, (code, per_step) in enumerate(kinds_of(job).items()):
        after = per_step * (number % 5) + number % per_step
        with at_action(f"{code}[:v]*", after=after) as fault, nothing_left(shared), job.trainer(shared) as trainer:
            found = go_through(trainer, job)
            assert len(trainer.events) >= 1, code
            counted = nums_updates(trainer)
            same_plan = trainer.plan.workers == job.plan_of(job.graph).workers
        assert fault.num_fired == 1
        if same_plan:
            assert_same(found, undisturbed(job))
        elif SCHEDULES[schedule].flushes:
            assert_near(found, undisturbed(job))
        else:
            assert_trained(found, job)
            assert all(counted), counted


def test_a_stage_that_stops_answering_is_killed_and_replaced(session: rw.Session) -> None:
    job = Job(num_steps=5)
    timeouts = TrainerTimeouts(quiet_s=0.3, silent_s=1.0, max_deaths=8)
    with at_action("B0:1v3", faults.stop()) as fault, job.trainer(session, timeouts=timeouts) as trainer:
        found = go_through(trainer, job)
        assert any("it has not answered for 1 s" in event for event in trainer.events)
    assert fault.num_fired == 1
    assert_same(found, undisturbed(job))


def test_a_lost_replica_is_dropped_and_its_samples_are_redone_and_one_may_join_again(session: rw.Session) -> None:
    job = Job(replicas=(1, 2), optimizer=sgd, num_steps=8)
    # The first stage's only process must stay. Where it stands in the step the other replica shares is all the same.
    with at_action("F1:3v2") as fault, job.trainer(session) as trainer:
        handles = [trainer.step(*batch(step)) for step in range(4)]
        trainer.drain()
        assert [stage.replicas for stage in trainer.plan.stages] == [1, 1]
        trainer.resize(1, 2)
        assert [stage.replicas for stage in trainer.plan.stages] == [1, 2]
        found = go_through(trainer, job, first=4)
        found.losses[:0] = [[float(loss) for loss in handle.metrics().losses] for handle in handles]
        assert [event.partition(":")[0] for event in trainer.events] == [
            "the process of stage 1 was lost",
            "training goes on with 2 workers",
        ]
    assert fault.num_fired == 1
    assert_near(found, undisturbed(job))


def test_with_fewer_processes_than_before_neighbours_take_over_stages(session: rw.Session) -> None:
    job = Job(num_groups=3, num_steps=10)
    timeouts = TrainerTimeouts(replace_s=0.3, max_restarts=0)
    # The plan that follows counts its micro-batches and versions from the snapshot on.
    with all_of([("B1:2v3", 0), ("B0:1*", 7)]) as injected, job.trainer(session, timeouts=timeouts) as trainer:
        found = go_through(trainer, job)
        assert len(trainer.plan.stages) == 1
    assert [one.num_fired for one in injected] == [1, 1]
    assert_same(found, undisturbed(job))


def test_a_stage_that_is_slow_is_waited_for_when_another_one_dies(session: rw.Session) -> None:
    job = Job(num_steps=5)
    timeouts = TrainerTimeouts(quiet_s=0.2, silent_s=0.8, max_deaths=8)
    with at_action("F0:3v3", faults.delay(2.0)) as slow, at_action("F1:1v3") as fault:
        with job.trainer(session, timeouts=timeouts) as trainer:
            found = go_through(trainer, job)
            assert [event.partition(":")[0] for event in trainer.events] == ["the process of stage 1 was lost"]
    assert (slow.num_fired, fault.num_fired) == (1, 1)
    assert_same(found, undisturbed(job))


def test_a_worker_and_its_keeper_who_die_at_once_are_lost_and_the_training_says_so(session: rw.Session) -> None:
    job = Job(num_steps=6)
    with job.trainer(session, snapshots=Snapshots(2, copy=None)) as trainer:
        for step in range(5):
            trainer.step(*batch(step)).metrics()
        fleet = trainer._run._controller._fleet  # pyright: ignore
        wait_until(lambda: all(map(fleet.kept().get, (0, 1))))  # without any, training begins again with step 0
        for pid in pids(trainer):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            StageLost, match=r"the snapshot of stage .* was kept by processes that are gone as well"
        ) as lost:
            trainer.step(*batch(5)).metrics()
        # Whichever is heard of first: the end of the process, or that of a link to it.
        assert re.search("SIGKILL|closed the link", lost.value.cause)
        with pytest.raises(TrainerFailed, match="StageLost"):
            trainer.step(*batch(5))


def end_all(trainer: rw.Trainer) -> None:
    for seat in (0, 1):
        end_at(trainer, seat)


def end_at(trainer: rw.Trainer, seat: int) -> None:
    """Kill the process at a seat, whatever it does, and see it gone."""
    fleet = trainer._run._controller._fleet  # pyright: ignore
    pid = next(one.pid for one in fleet._running.status().nodes if one.replica == seat and one.state == "running")
    process = psutil.Process(pid)
    process.kill()
    process.wait(PATIENCE_S)


@pytest.mark.parametrize("where", ["launcher", "folder"])
def test_with_a_further_copy_all_may_die_at_once(session: rw.Session, tmp_path: Path, where: str) -> None:
    job = Job("pipedream", num_steps=10)
    with job.trainer(session, snapshots=Snapshots(2, copy=tmp_path if where == "folder" else where)) as trainer:
        handles = [trainer.step(*batch(step)) for step in range(5)]
        handles[2].metrics()
        for step in range(5, job.num_steps):
            if step == 6:
                end_all(trainer)
            handles.append(trainer.step(*batch(step)))
        state = trainer.state_dict()
        found = Learnt([[float(loss) for loss in handle.metrics().losses] for handle in handles], state)
        assert len(trainer.events) >= 1
        assert sorted(path.name[:19] for path in tmp_path.iterdir()) == ["ropewalk-snapshots-"] * (where == "folder")
    assert list(tmp_path.iterdir()) == []
    assert_same(found, undisturbed(job))


def test_a_second_death_finds_what_the_first_one_had_kept(session: rw.Session) -> None:
    # The snapshot of stage 1 was kept by stage 0, which is killed and replaced. It was brought to the new process
    # beside the work, so that stage 1 took it along when it was killed before that.
    job = Job(num_steps=8)
    with (
        faults.at("stage.before_keeping", faults.delay(3.0), times=0, detail="1"),
        at_action("F0:2v5") as first,
        at_action("F1:1v[45]", after=2, process="*.1") as second,
        job.trainer(session, snapshots=Snapshots(2, copy=None)) as trainer,
    ):
        found = go_through(trainer, job)
        assert len(trainer.events) == 2
    assert (first.num_fired, second.num_fired) == (1, 1)
    assert_same(found, undisturbed(job))


#: By schedule, at which seats processes are killed, each after the recovery from the death before.
IN_A_ROW = {"one_f_one_b": [0, 1, 1, 0], "pipedream": [1, 0, 1]}


@pytest.mark.parametrize("schedule", ["one_f_one_b", pytest.param("pipedream", marks=pytest.mark.soak)])
def test_deaths_one_after_the_other_change_nothing(session: rw.Session, schedule: str) -> None:
    killed_one_by_one(session, Job(schedule), IN_A_ROW[schedule])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_any_deaths_one_after_the_other_change_nothing(session: rw.Session, schedule: str, seed: int) -> None:
    killed_one_by_one(session, Job(schedule, num_groups=2 + seed % 2), random.Random(seed).choices((0, 1), k=10))


def killed_one_by_one(session: rw.Session, job: Job, order: list[int]) -> None:
    """Kill at one seat after the other, as soon as the one before has been replaced, however old the last cut is."""
    timeouts = replace(PATIENCE, max_restarts=len(order))
    with job.trainer(session, snapshots=Snapshots(3, copy=None), timeouts=timeouts) as trainer:
        handles: list[StepHandle] = []

        def step() -> None:
            handles.append(trainer.step(*batch(len(handles))))

        while len(handles) < 5:
            step()
        for number, seat in enumerate(order, 1):
            end_at(trainer, seat)
            while len(trainer.events) < number:
                step()
        step()
        state = trainer.state_dict()
        found = Learnt([[float(loss) for loss in handle.metrics().losses] for handle in handles], state)
        assert len(trainer.events) == len(order)
    assert_same(found, undisturbed(replace(job, num_steps=len(handles))))


MOST_KILLED = 30


@pytest.mark.soak
def test_a_storm_of_kills_changes_nothing() -> None:
    """Whatever there is of the run is killed, fork servers as well, and nobody waits until anything has recovered.

    Not more often than `MOST_KILLED`: where processes start more slowly than they are killed, it would never end.
    """
    job = Job(num_steps=200)
    calm, killed = threading.Event(), 0
    timeouts = replace(PATIENCE, replace_s=PATIENCE_S, max_deaths=1000)  # going on with fewer, they add up otherwise
    with rw.Session() as session, job.trainer(session, timeouts=timeouts) as trainer:
        trainer.step(*batch(0)).metrics()

        def kill() -> None:
            nonlocal killed
            while killed < MOST_KILLED and not calm.wait(0.4):
                agents = map(psutil.Process, session.agent_pids())  # not those of the session that other tests share
                alive = [one for agent in agents for one in agent.children(recursive=True)]
                if len(alive) > 1:
                    alive.sort(key=lambda process: process.create_time())
                    with contextlib.suppress(psutil.Error):
                        alive[killed % len(alive)].kill()
                        killed += 1

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for step in range(1, 150):
                trainer.step(*batch(step))
                time.sleep(0.01)
        finally:
            calm.set()
            killer.join()
        found = go_through(trainer, job, first=150)
    assert killed >= 5
    expected = undisturbed(job)
    assert_same(found, Learnt(expected.losses[150:], expected.state))


def test_after_a_death_that_nobody_came_for_there_may_be_another_one(session: rw.Session) -> None:
    # Three stages became two, and a snapshot that only one of them had was never copied before the next whole cut.
    job = Job(num_groups=3)
    timeouts = replace(PATIENCE, replace_s=0.3, max_restarts=0)
    with job.trainer(session, snapshots=Snapshots(4, copy=None), timeouts=timeouts) as trainer:
        for step in range(6):
            trainer.step(*batch(step)).metrics()
        end_at(trainer, 1)
        trainer.step(*batch(6)).metrics()
        assert len(trainer.plan.stages) == 2
        end_at(trainer, 2)
        found = go_through(trainer, job, first=7)
        assert len(trainer.plan.stages) == 1
    expected = undisturbed(job)
    assert_same(found, Learnt(expected.losses[7:], expected.state))


def test_what_was_lost_is_named_by_the_plan_that_it_was_lost_from(session: rw.Session) -> None:
    # The plan without it was in force already when it turned out that nobody has its snapshot: an IndexError.
    job = Job(num_groups=3)
    timeouts = replace(PATIENCE, replace_s=0.3, max_restarts=0)
    with job.trainer(session, snapshots=Snapshots(2, copy=None), timeouts=timeouts) as trainer:
        for step in range(5):
            trainer.step(*batch(step)).metrics()
        for seat in (1, 2):
            end_at(trainer, seat)
        with pytest.raises(
            StageLost, match=r"the process of stage [12] was lost .* the snapshot of stage 1 was"
        ) as lost:
            trainer.step(*batch(5)).metrics()
        assert lost.value.stages in ((1,), (2,))


def test_a_process_that_only_keeps_snapshots_may_die_before_the_one_that_trains(session: rw.Session) -> None:
    # Nobody waits for it, so nobody heard of it, and the snapshots that it had kept were not brought to the next one.
    job = Job(num_groups=1)
    with job.trainer(session, snapshots=Snapshots(4, copy=None)) as trainer:
        for step in range(5):
            trainer.step(*batch(step)).metrics()
        trainer._run._controller._points.pace._fixed = 1 << 30  # pyright: ignore  # this was the last one
        fleet, step = trainer._run._controller._fleet, 5  # pyright: ignore
        wait_until(lambda: bool(fleet.kept().get(1)))  # one that is lost on its way is not sent again
        end_at(trainer, 1)
        while not fleet.kept().get(1):  # until another one has come in its place, and has them
            time.sleep(0.05)
            trainer.step(*batch(step)).metrics()
            step += 1
        end_at(trainer, 0)
        found = go_through(trainer, replace(job, num_steps=step + 2), first=step)
    expected = undisturbed(replace(job, num_steps=step + 2))
    assert_same(found, Learnt(expected.losses[step:], expected.state))


def test_deaths_before_any_snapshot_and_amid_recovery_change_nothing(session: rw.Session) -> None:
    job = Job("pipedream", num_steps=4)
    with ExitStack() as stack:
        injected = [
            stack.enter_context(at_action("F1:1v*")),
            stack.enter_context(faults.at("stage.before_assignment", faults.kill(), detail="1")),
            stack.enter_context(at_action("B1:0v*")),
            stack.enter_context(faults.at("stage.before_keeping", faults.kill(), detail="3")),
        ]
        with job.trainer(session) as trainer:
            found = go_through(trainer, job)
    assert [one.num_fired for one in injected] == [1, 1, 1, 1]
    assert_same(found, undisturbed(job))


def test_a_stage_that_dies_at_the_same_step_each_time_ends_the_training(session: rw.Session) -> None:
    job = Job(num_steps=6)
    # Steps 0 to 3 are done, those behind the snapshot again after each death.
    with at_action("F1:0v5", times=0) as fault, job.trainer(session, timeouts=TrainerTimeouts(max_deaths=2)) as trainer:
        with pytest.raises(StageLost, match=r"3 losses came in a row without a step done between them") as lost:
            go_through(trainer, job)
    assert fault.num_fired in (3, 4)  # a step that is done after the first death begins the count anew
    assert lost.value.stages == (1,)
    assert "SIGKILL" in lost.value.cause


# --- mistakes of the user ---------------------------------------------------------------------------------------------


def with_layer(layer: Callable[[Any], nn.Module], once: Callable[[], None]) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 6), layer(once), nn.Linear(6, 6), nn.Linear(6, 3))


def stepping(once: Callable[[], None], parameters: Any) -> torch.optim.Optimizer:
    return InStep(parameters, once)


def wrong_in(place: str, once: Callable[[], None]) -> Job:
    match place:
        case "forward":
            return Job(model=functools.partial(with_layer, InForward, once), num_steps=6)
        case "backward":
            return Job(model=functools.partial(with_layer, InBackward, once), num_steps=6)
        case "loss":
            return Job(loss_fn=InLoss(once), num_steps=6)
        case _:
            return Job(optimizer=functools.partial(stepping, once), num_steps=6)


@pytest.mark.parametrize("place", ["forward", "backward", "loss", "optimizer"])
def test_what_a_user_raises_in_a_stage_arrives_with_where_it_was(
    session: rw.Session, tmp_path: Path, place: str
) -> None:
    job = wrong_in(place, Once(tmp_path, go_wrong, at=3 if place == "optimizer" else 6))
    with job.trainer(session) as trainer:
        with pytest.raises(StageFailed) as failed:
            go_through(trainer, job)
        with pytest.raises(TrainerFailed, match="StageFailed"):
            trainer.step(*batch(0))
        with pytest.raises(TrainerFailed, match="StageFailed"):
            trainer.state_dict()
    error = failed.value
    assert error.stage == {"optimizer": error.stage}.get(place, 1)
    assert error.micro_batch == (None if place == "optimizer" else 1)
    assert error.operator == ("3:0" if place == "forward" else error.operator)
    shown = "".join(traceback.format_exception(error))
    assert "go_wrong" in shown
    assert "seven is not even" in shown
    assert len(foreign_frames(error)) <= 2, shown  # it was 84 to 96 lines of them


def test_a_stage_that_is_out_of_memory_says_so(session: rw.Session, tmp_path: Path) -> None:
    job = wrong_in("forward", Once(tmp_path, use_all_memory))
    with job.trainer(session) as trainer, pytest.raises(StageFailed, match="allocate") as failed:
        go_through(trainer, job)
    assert failed.value.stage == 1


def test_a_stage_that_answers_but_does_not_go_on_is_named(session: rw.Session, tmp_path: Path) -> None:
    job = wrong_in("loss", Once(tmp_path, hang))
    timeouts = TrainerTimeouts(quiet_s=0.2, silent_s=5.0, stalled_s=1.5)
    with job.trainer(session, timeouts=timeouts) as trainer, pytest.raises(StageStalled) as stalled:
        go_through(trainer, job)
    assert "at F1:1" in str(stalled.value)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_death_while_a_checkpoint_is_written_leaves_the_one_before(session: rw.Session, tmp_path: Path) -> None:
    job = Job(num_steps=6)
    with faults.at("stage.before_saving", faults.kill(), after=1) as fault, job.trainer(session) as trainer:
        trainer.step(*batch(0))
        first = trainer.save(tmp_path).wait()
        trainer.step(*batch(1))
        with pytest.raises(StageLost, match="earlier checkpoints are intact"):
            trainer.save(tmp_path).wait()
        assert fault.num_fired == 1
        assert read_manifest(tmp_path).path == first
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [first.name]
        trainer.step(*batch(2))
        third = trainer.save(tmp_path).wait()
        read_manifest(tmp_path).verify()
        for step in (3, 4, 5):
            trainer.step(*batch(step))
        trainer.load(third)
        found = go_through(trainer, job, first=3)
    assert_same(Learnt(undisturbed(job).losses[:3] + found.losses, found.state), undisturbed(job))


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@contextmanager
def interrupt_when(has_come: Callable[[], bool]) -> Generator[None]:
    """Ctrl-C as soon as something has come; whatever waits then is ended by it."""

    def strike() -> None:
        due = time.monotonic() + 120
        while not has_come() and time.monotonic() < due:
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=strike)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


LAUNCHED = """
    import torch
    import ropewalk as rw
    from tests.training.faulty_training import Job, batch

    if __name__ == "__main__":
        torch.set_num_threads(1)
        with rw.Session() as session, Job(num_steps=1).trainer(session) as trainer:
            trainer.step(*batch(0)).metrics()
            say(*tree())
            step = 1
            while True:
                trainer.step(*batch(step))
"""


@pytest.mark.soak
def test_an_interrupt_of_the_launcher_ends_all(session: rw.Session, tmp_path: Path) -> None:
    path = os.pathsep.join((os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])))
    with launcher(LAUNCHED, tmp_path, PYTHONPATH=path.strip(os.pathsep), OMP_NUM_THREADS="1") as script:
        children = script.numbers()
        assert len(children) >= 3
        script.signal(signal.SIGINT)
        wait_until_gone(children)
        code, _, errors = script.end()
    assert code in (1, -signal.SIGINT) and "KeyboardInterrupt" in errors


def train_for_ever(said: Path) -> None:
    with rw.Session() as session, Job(num_steps=1).trainer(session) as trainer:
        trainer.step(*batch(0)).metrics()
        said.with_suffix(".new").write_text(" ".join(str(one.pid) for one in psutil.Process().children(recursive=True)))
        said.with_suffix(".new").rename(said)
        for step in itertools.count(1):
            trainer.step(*batch(step))


def test_nothing_runs_on_without_the_launcher(session: rw.Session, tmp_path: Path) -> None:
    said = tmp_path / "children"
    with ForkedProcess(
        lambda: train_for_ever(said)
    ) as launching:  # a script would take 5 s of CPU time to import torch
        wait_until(said.exists, what="a step that is done")
        children = [int(pid) for pid in said.read_text().split()]
        assert len(children) >= 3
        launching.kill()
        wait_until_gone(children)


@pytest.mark.parametrize("where", ["step", "metrics", "recovery"])
def test_an_interrupt_arrives_and_the_block_ends_all_processes(session: rw.Session, where: str) -> None:
    job = Job(num_steps=8)
    with ExitStack() as stack:
        slow = stack.enter_context(
            faults.at("stage.before_assignment", faults.delay(3600), detail="1")
            if where == "recovery"
            else at_action("B1:0v3", faults.delay(3600))
        )
        if where == "recovery":
            stack.enter_context(at_action("B1:0v3"))
        trainer = stack.enter_context(job.trainer(session))
        handle = trainer.step(*batch(0))
        with interrupt_when(lambda: slow.num_fired > 0):
            for step in range(1, 4 if where == "metrics" else 8):
                handle = trainer.step(*batch(step))
            handle.metrics()
        trainer.close(0.5)


@pytest.mark.parametrize("schedule", ["one_f_one_b", pytest.param("pipedream", marks=pytest.mark.soak)])
def test_after_an_interrupt_training_goes_on_as_if_there_had_been_none(session: rw.Session, schedule: str) -> None:
    job = Job(schedule, num_steps=8)
    handles: list[StepHandle] = []
    with at_action("B1:*v4", faults.delay(0.5)) as slow, job.trainer(session) as trainer:
        with interrupt_when(lambda: slow.num_fired > 0):
            while True:  # the step that is interrupted was not admitted
                handles.append(trainer.step(*batch(len(handles) % job.num_steps)))
                if len(handles) == job.num_steps:
                    handles[-1].metrics()
                    time.sleep(30)
        handles += [trainer.step(*batch(step)) for step in range(len(handles), job.num_steps)]
        found = Learnt([[float(loss) for loss in one.metrics().losses] for one in handles], trainer.state_dict())
        assert trainer.events == ()
    assert_same(found, undisturbed(job))


def test_a_mini_batch_that_is_refilled_while_it_is_retained_is_done_again_as_it_was(session: rw.Session) -> None:
    job = Job(num_steps=8)
    x, y = (one.clone() for one in batch(0))
    with at_action("U1v6"), job.trainer(session, snapshots=Snapshots(100)) as trainer:
        handles: list[StepHandle] = []
        for step in range(job.num_steps):
            for own, new in zip((x, y), batch(step), strict=True):
                own.copy_(new)
            handles.append(trainer.step(x, y))
        found = Learnt([[float(loss) for loss in one.metrics().losses] for one in handles], trainer.state_dict())
        assert len(trainer.events) == 1
    assert_same(found, undisturbed(job))


def test_snapshots_go_on_after_a_drain(session: rw.Session) -> None:
    job = Job("pipedream")
    with job.trainer(session, snapshots=Snapshots(2)) as trainer:
        for step in itertools.count():  # a snapshot is left out while the one before is being kept
            trainer.step(*batch(step))
            if step % 3 == 0:
                trainer.drain()
                if all(worker.num_snapshots >= 3 for worker in trainer.report().workers):
                    break


def test_without_snapshots_nothing_is_retained_and_a_death_is_the_end(session: rw.Session) -> None:
    job = Job(num_steps=6)
    with at_action("U1v4"), job.trainer(session, snapshots=None) as trainer:
        with pytest.raises(StageLost, match="no snapshots are taken"):
            go_through(trainer, job)
        with pytest.raises(TrainerFailed, match="StageLost"):
            trainer.step(*batch(0))
