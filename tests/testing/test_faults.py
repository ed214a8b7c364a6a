"""Faults happen where, when and as often as a test says, in real workers and agents, and nothing else happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

import ropewalk as rw
from ropewalk import injection
from ropewalk.testing import faults
from tests.testing.tasks import pid_of_worker, slow_square, square


@pytest.fixture
def session() -> Iterator[rw.Session]:
    """A session of its own, opened by its first pool, so that its agent obeys faults entered before."""
    session = rw.Session()
    yield session
    session.close()


WORKER_POINTS = [point for point in injection.POINTS if point.startswith("worker.")]


@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_worker_killed_at_any_point_loses_no_task_and_repeats_none_that_was_sent(
    point: str, session: rw.Session
) -> None:
    with faults.at(point, faults.kill()) as fault:
        with rw.Pool(2, session=session, name="victims") as pool:
            assert pool.map(slow_square, range(20), chunksize=2) == [x * x for x in range(20)]
            fault.wait()
            deadline = time.monotonic() + 120
            while not pool.status().num_deaths:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert pool.status().num_deaths == 1
    assert fault.num_fired == 1
    assert fault.fired[0][1].startswith("victims.")


def test_a_fault_happens_as_often_as_said_in_all_processes_together(session: rw.Session) -> None:
    with faults.at("worker.before_task", faults.kill(), times=3) as fault:
        with rw.Pool(2, session=session, max_deaths=5) as pool:
            assert pool.map(square, range(10), chunksize=1) == [x * x for x in range(10)]
    assert fault.num_fired == 3
    assert len({pid for pid, _ in fault.fired}) == 3


def test_only_the_process_that_is_named_obeys_and_only_after_so_many_visits(session: rw.Session) -> None:
    with faults.at("worker.before_task", faults.delay(0.0), times=0, after=4, process="some.1") as fault:
        with rw.Pool(2, session=session, name="some") as pool:
            pids = pool.map(pid_of_worker, range(40), chunksize=1)
            by_rank = {worker.name: worker.pid for worker in pool.status().workers}
    visits = pids.count(by_rank["some.1"])
    assert fault.num_fired == max(0, visits - 4)
    assert {name for _, name in fault.fired} <= {"some.1"}


def test_a_stopped_worker_goes_on_by_itself(session: rw.Session) -> None:
    with faults.at("worker.after_task", faults.stop(0.3)) as fault:
        with rw.Pool(1, session=session) as pool:
            began = time.monotonic()
            assert pool.map(square, range(3)) == [0, 1, 4]
            assert time.monotonic() - began > 0.25
            assert pool.status().num_deaths == 0
    assert fault.num_fired == 1


def test_the_agent_killed_before_it_reports_a_death_costs_no_task(session: rw.Session) -> None:
    with (
        faults.at("worker.before_task", faults.kill(), after=3) as death,
        faults.at("agent.before_exit_report", faults.kill(), process="agent") as silence,
    ):
        with rw.Pool(2, session=session) as pool:
            assert pool.map(slow_square, range(30), chunksize=1) == [x * x for x in range(30)]
            assert silence.num_fired == 1
    assert death.num_fired == 1


def test_a_message_of_one_type_can_be_delayed(session: rw.Session) -> None:
    with faults.at("link.send", faults.delay(0.3), detail="TasksDone") as fault:
        with rw.Pool(1, session=session) as pool:
            began = time.monotonic()
            assert pool.apply(square, (3,)) == 9
            assert time.monotonic() - began > 0.25
    assert fault.num_fired == 1


def test_messages_of_the_launcher_can_be_dropped_when_it_is_named(session: rw.Session) -> None:
    """Pings are not needed while the agent has samples to tell."""
    with faults.at("link.send", faults.drop(), detail="Ping", process="launcher", times=2) as fault:
        with rw.Pool(1, session=session) as pool:
            fault.wait(2)
            assert pool.apply(square, (4,)) == 16


def test_the_launcher_obeys_no_pattern_so_that_a_test_cannot_end_itself() -> None:
    with faults.at("link.send", faults.kill(), times=0):
        assert injection.visit is None


def test_nothing_is_left_behind_and_nothing_happens_without_a_test(session: rw.Session) -> None:
    with faults.at("worker.before_task", faults.kill()) as fault:
        folder = fault.folder
        assert folder.exists()
        with faults.at("worker.after_task", faults.kill()) as inner:
            assert inner.folder == folder
        assert folder.exists()
    assert not folder.exists()
    assert injection.VARIABLE not in os.environ
    assert injection.visit is None
    assert fault.num_fired == 0
    with rw.Pool(1, session=session) as pool:
        assert pool.apply(square, (2,)) == 4


def test_a_pool_started_after_the_block_in_the_same_session_is_not_touched(session: rw.Session) -> None:
    with faults.at("worker.before_task", faults.kill(), times=0):
        with rw.Pool(1, session=session):
            pass
    with rw.Pool(1, session=session) as pool:
        assert pool.apply(square, (2,)) == 4
        assert pool.status().num_deaths == 0


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'worker.before_task'\?"):
        faults.at("worker.before_tusk", faults.kill()).__enter__()
    with pytest.raises(ValueError, match="nothing can be dropped"):
        faults.at("worker.before_task", faults.drop()).__enter__()
    with faults.at("worker.before_task", faults.kill()) as fault:
        with pytest.raises(TimeoutError, match="0 of 1 times"):
            fault.wait(timeout_s=0.01)


# --- from outside -----------------------------------------------------------------------------------------------------


def test_kill_worker_ends_that_one(session: rw.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    with rw.Pool(2, session=session, name="kill") as pool:
        before = set(pool.map(pid_of_worker, range(20), chunksize=1))
        pid = faults.kill_worker(pool, 1)
        assert pid in before or len(before) < 2
        assert pool.map(square, range(10)) == [x * x for x in range(10)]
        assert pid not in pool.map(pid_of_worker, range(20), chunksize=1)
        monkeypatch.setattr(faults, "_DEADLINE_S", 0.05)
        with pytest.raises(LookupError, match="no running worker of rank 7"):
            faults.kill_worker(pool, 7)


def test_workers_killed_every_so_often_cost_no_task(session: rw.Session) -> None:
    with rw.Pool(3, session=session, max_deaths=100) as pool:
        with faults.workers_killed_every(pool, 0.15) as killed:
            assert pool.map(slow_square, range(40), chunksize=1) == [x * x for x in range(40)]
        assert killed
        at_the_end = len(killed)
        time.sleep(0.15)
        assert len(killed) == at_the_end


def test_a_process_is_stopped_for_as_long_as_the_block_runs() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with faults.stopped(process.pid):
            assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        deadline = time.monotonic() + 120
        while psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline
        with faults.stopped(process.pid):
            process.send_signal(signal.SIGKILL)
            process.wait()
    finally:
        process.kill()
        process.wait()
    with pytest.raises(ProcessLookupError):
        faults.stopped(process.pid).__enter__()


@pytest.mark.timing
def test_points_cost_nothing_to_speak_of() -> None:
    """The hot loop of a worker has none at all; elsewhere it is one look at a variable."""

    def loop_s(passes: bool) -> float:
        began = time.thread_time()  # of this thread alone: others may want the processor, too
        if passes:
            for _ in range(100_000):
                if injection.visit and injection.visit("link.send", ""):
                    raise AssertionError
        else:
            for _ in range(100_000):
                len("link.send")
        return time.thread_time() - began

    assert min(loop_s(True) for _ in range(5)) < 2 * min(loop_s(False) for _ in range(5))  # as much as calling nothing
