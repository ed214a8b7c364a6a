"""Workers, agents, fork servers and launchers die or stand still at any moment: nothing is lost, nothing is left."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import ropewalk
from ropewalk.errors import TaskPoisoned
from ropewalk.testing import faults
from tests.patience import wait_until
from tests.scenarios.dying_tasks import (
    die_while_sending,
    fork_away,
    gated_pid,
    leave_a_program_behind,
    print_and,
    segfault,
    sleep_in_a_session_of_its_own,
    slow_square,
    weigh,
)
from tests.scenarios.launchers import (
    agent_of,
    fork_server_of,
    is_alive,
    kill,
    launcher,
    pids_of,
    wait_until_gone,
)
from tests.scenarios.tasks import noted, pid, square
from tests.shared_session import one_session

pytestmark = pytest.mark.usefixtures("shared_session")


@pytest.fixture(scope="module")
def shared_session() -> Iterator[None]:
    """Many tests end its agent, and each new one would import all that this module needs."""
    yield from one_session("tests.scenarios.dying_tasks")


#: Large enough to travel as a blob of the host.
WEIGHTS = bytes(range(256)) * 8192


@contextlib.contextmanager
def killer(pool: ropewalk.Pool, every_s: float) -> Generator[Callable[[], int]]:
    """Kill a random worker again and again, 200 of them at most; gives the number of those killed.

    On a machine so busy that workers start more slowly than they are killed, no task would ever end; and a pool gives
    up when workers die before they are ready (`CrashLoop`), so only three of those that start are killed.
    """
    seed = random.randrange(1 << 32)
    print(f"seed of the killer: {seed}")
    choose = random.Random(seed).choice
    stop = threading.Event()
    killed = set[int]()  # a worker may be hit again, before the pool has heard of its death
    kills_of_starting = 0

    def run() -> None:
        nonlocal kills_of_starting
        while len(killed) < 200 and not stop.wait(every_s):
            workers = [worker for worker in pool.status().workers if worker.pid]
            if kills_of_starting >= 3:
                workers = [worker for worker in workers if worker.state != "starting"]
            if workers:
                chosen = choose(workers)
                kill(chosen.pid)
                killed.add(chosen.pid)
                kills_of_starting += chosen.state == "starting"

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: len(killed)
    finally:
        stop.set()
        thread.join()


# --- workers ---


@pytest.mark.parametrize("how", ["map", pytest.param("imap_unordered", marks=pytest.mark.soak)])
def test_workers_killed_every_50_ms_lose_no_task_and_answer_none_twice(how: str) -> None:
    num_tasks, num_rounds = 5_000, 0
    expected = [number * number for number in range(num_tasks)]
    with ropewalk.Pool(8, max_deaths=20) as pool:
        pool.wait_until_ready(120)
        with killer(pool, 0.05) as kills:
            while kills() <= 10:
                if how == "map":
                    results = pool.map(slow_square, range(num_tasks))
                else:
                    results = sorted(pool.imap_unordered(slow_square, range(num_tasks), chunksize=5))
                assert results == expected
                num_rounds += 1
        status = pool.status()
        assert (status.done, status.failed, status.queued, status.running) == (num_rounds * num_tasks, 0, 0, 0)
        wait_until(lambda: pool.status().num_deaths == kills())


def test_the_death_of_an_idle_worker_is_noticed_and_hurts_no_task() -> None:
    with ropewalk.Pool(2, max_deaths=1) as pool:
        for count in range(1, 6):
            kill(pids_of(pool)[0])
            wait_until(lambda count=count: pool.status().num_deaths == count)
        assert pool.map(square, range(10)) == [number * number for number in range(10)]
        assert [death.task_index for death in pool.status().deaths] == [None] * 5


@pytest.mark.timing
def test_the_death_of_an_idle_worker_is_noticed_in_less_time_than_its_successor_takes_to_start() -> None:
    with ropewalk.Pool(1, max_deaths=1) as pool:
        noticed: list[float] = []
        replaced: list[float] = []
        for count in range(1, 10):
            (victim,) = pids_of(pool)
            begun = time.monotonic()
            kill(victim)
            wait_until(lambda count=count: pool.status().num_deaths == count)
            noticed.append(time.monotonic() - begun)
            pids_of(pool)
            replaced.append(time.monotonic() - begun)
        assert statistics.median(noticed) < statistics.median(replaced), (noticed, replaced)


def test_a_worker_killed_in_a_task_is_replaced_and_the_task_runs_again(tmp_path: Path) -> None:
    with ropewalk.Pool(2) as pool:
        result = pool.map_async(functools.partial(gated_pid, str(tmp_path)), range(2), chunksize=1)
        wait_until(lambda: len(noted(f"{tmp_path}/started")) == 2)
        pids = {
            int(number): int(pid) for number, _, pid in (line.partition(":") for line in noted(f"{tmp_path}/started"))
        }
        kill(pids[1])
        wait_until(lambda: len(noted(f"{tmp_path}/started")) == 3)
        (tmp_path / "gate").touch()
        first, second = result.get(120)
        assert first == pids[0] and second != pids[1]
        status = pool.status()
        assert (status.retried, status.num_deaths, status.deaths[0].task_index) == (1, 1, 1)
        assert status.deaths[0].pid == pids[1] and status.deaths[0].signal == signal.SIGKILL


@pytest.mark.parametrize("size_bytes", [1, 400_000, 4_000_000], ids=["page", "frame", "memory file"])
@pytest.mark.parametrize("moment", ["before", "half", "after"])
def test_a_worker_killed_while_it_sends_a_result_loses_nothing(tmp_path: Path, moment: str, size_bytes: int) -> None:
    with ropewalk.Pool(1) as pool:
        task = functools.partial(die_while_sending, str(tmp_path / "flag"), moment)
        (result,) = pool.map(task, [size_bytes])
        assert len(result) == size_bytes
        wait_until(lambda: pool.status().num_deaths)
        assert (pool.status().num_deaths, pool.status().done) == (1, 1)


@pytest.mark.parametrize("start", [sleep_in_a_session_of_its_own, fork_away])
def test_what_a_dead_worker_started_ends_with_it_even_in_sessions_of_its_own(start: Any) -> None:
    with ropewalk.Pool(2) as pool:
        pool.wait_until_ready(120)
        started: dict[int, int] = {}
        while len(started) < 2:
            started.update([pool.apply(start)] if not started else pool.map(start, range(2), chunksize=1))
            # A worker may have started two; those of the last round are looked at.
        victim, other = started
        kill(victim)
        wait_until_gone([started[victim]])
        wait_until(lambda: pool.status().num_deaths == 1)
        pool.wait_until_ready(120)
        assert is_alive(started[other]), "the neighbour's program was ended too"
    wait_until_gone(started.values())


@pytest.mark.cold  # settings of its own
def test_an_agent_looks_once_for_what_many_dead_workers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # It looks through all processes of the host: doing so for each dead worker made 1,000 of them take 106 s to end.
    monkeypatch.setenv("ROPEWALK_LEASE_S", "60")
    with faults.at("agent.before_looking", faults.delay(0), times=0) as look:
        with ropewalk.Session() as session, ropewalk.Pool(12, session=session) as pool:
            pool.wait_until_ready(120)
            workers = pids_of(pool)
            [agent] = session.agent_pids()
            with faults.stopped(agent):
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
                wait_until(lambda: all(not is_alive(worker) for worker in workers))
            wait_until(lambda: pool.status().num_deaths == 12)
            # Once, and once more when those that replace them are known.
            assert look.num_fired <= 2
            assert pool.map(square, range(12)) == [number * number for number in range(12)]


def test_programs_of_living_workers_are_left_alone_when_another_worker_dies() -> None:
    with ropewalk.Pool(2) as pool:
        pids = pids_of(pool)
        worker, program = pool.apply(leave_a_program_behind)
        assert psutil.Process(program).ppid() == agent_of(pool).pid
        (other,) = {*pids} - {worker}
        kill(other)
        wait_until(lambda: pool.status().num_deaths == 1)
        pids_of(pool)
        assert is_alive(program)
        kill(worker)
        wait_until_gone([program])


# --- causes ---


@pytest.mark.parametrize(
    ("action", "exit_code", "number", "words"),
    [
        (functools.partial(os._exit, 7), 7, None, "exited with code 7"),
        (functools.partial(sys.exit, 5), 5, None, "exited with code 5"),
        (os.abort, None, signal.SIGABRT, "SIGABRT"),
        (segfault, None, signal.SIGSEGV, "segmentation fault"),
    ],
    ids=["_exit", "sys.exit", "abort", "segfault"],
)
@pytest.mark.cold  # the stack of a crash ends with a list of all modules
def test_a_death_leaves_a_record_with_its_cause(
    action: Any, exit_code: int | None, number: int | None, words: str
) -> None:
    with ropewalk.Pool(2, max_deaths=1, name="crew") as pool:
        with pytest.raises(TaskPoisoned) as caught:
            pool.map(functools.partial(print_and, action), range(8))
        (record,) = pool.status().deaths
    assert (record.exit_code, record.signal, record.task_index) == (exit_code, number, 3)
    assert record.name.startswith("crew.") and record.host and record.pid
    assert record.ran_s and record.task_ran_s is not None and 0 <= record.task_ran_s < record.ran_s
    assert "last words" in record.last_output
    assert ("print_and" in record.last_output) == (number is not None)  # the stack of a crash
    assert caught.value.index == 3 and words in str(caught.value) and "last words" in str(caught.value)


MEMORY_GROUP = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def memory_group() -> Iterator[Path]:
    group = MEMORY_GROUP / f"ropewalk-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(400 << 20))
    except OSError as error:
        pytest.skip(f"needs a memory cgroup (version 1) that we may write: {error}")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_a_worker_that_the_kernel_kills_for_memory_is_said_to_have_run_out_of_it(
    tmp_path: Path, memory_group: Path
) -> None:
    source = """
        def eat(number):
            if number == 1:
                return len(b"x" * (1 << 30))
            return number
        with ropewalk.Pool(2, max_deaths=2) as pool:
            try:
                pool.map(eat, range(3), chunksize=1)
            except ropewalk.TaskPoisoned as error:
                say(error.index, len(error.deaths))
            for death in pool.status().deaths:
                say(death.signal, death.task_index, death.out_of_memory)
    """

    def join() -> None:
        (memory_group / "cgroup.procs").write_text(str(os.getpid()))

    with launcher(source, tmp_path, prepare=join) as script:
        code, out, errors = script.end()
    assert code == 0, errors
    lines = out.splitlines()
    assert lines[0] == "1 2"
    assert len(lines) == 3
    for line in lines[1:]:
        assert line.startswith("9 1 ") and "cgroup" in line, line


# --- agents and fork servers ---


def test_an_agent_killed_in_mid_map_is_replaced_and_no_task_is_blamed() -> None:
    expected = [WEIGHTS[number % 256] + len(WEIGHTS) for number in range(300)]
    with ropewalk.Pool(4, max_deaths=1) as pool:
        agent, workers = agent_of(pool) if pids_of(pool) else None, pids_of(pool)
        assert agent
        results = pool.imap(functools.partial(weigh, WEIGHTS), range(300))
        values = [next(results) for _ in range(50)]
        agent.kill()
        values += results
        assert values == expected
        status = pool.status()
        assert (status.retried, status.failed, status.num_deaths, status.done) == (0, 0, 0, 300)
        assert len(status.events) == 1 and str(agent.pid) in status.events[0] and "4 processes" in status.events[0]
        assert agent_of(pool).pid != agent.pid
        assert not {worker.pid for worker in status.workers} & set(workers)
    wait_until_gone(workers)


def test_what_tasks_started_ends_with_a_killed_agent() -> None:
    with ropewalk.Pool(2) as pool:
        pool.wait_until_ready(120)
        programs = [program for _, program in pool.map(sleep_in_a_session_of_its_own, range(2), chunksize=1)]
        programs += [child for _, child in pool.map(fork_away, range(2), chunksize=1)]
        assert all(map(is_alive, programs))
        agent_of(pool).kill()
        wait_until_gone(programs)
        assert pool.map(square, range(4)) == [0, 1, 4, 9]


def test_a_fork_server_killed_in_mid_map_is_replaced_and_running_workers_do_not_notice() -> None:
    expected = [WEIGHTS[number % 256] + len(WEIGHTS) for number in range(100)]
    with ropewalk.Pool(4, max_deaths=1) as pool:
        workers = pids_of(pool)
        server = fork_server_of(pool)
        results = pool.imap(functools.partial(weigh, WEIGHTS), range(100))
        values = [next(results) for _ in range(20)]
        server.kill()
        values += results
        assert values == expected
        wait_until(lambda: pool.status().events)
        status = pool.status()
        assert (status.retried, status.num_deaths, len(status.events)) == (0, 0, 1)
        assert "fork server" in status.events[0] and str(server.pid) in status.events[0]
        assert pids_of(pool) == workers
        pool.resize(6)  # the new one works
        assert len(pids_of(pool)) == 6
        assert fork_server_of(pool).pid != server.pid


@pytest.mark.cold  # kills the only fork server
def test_a_fork_server_killed_while_it_forks_leaves_each_worker_once() -> None:
    with ropewalk.Pool(1) as pool:
        pool.wait_until_ready(120)
        for round in range(1, 4):
            pool.resize(8)
            wait_until(lambda round=round: sum(1 for worker in pool.status().workers if worker.pid) > round)
            fork_server_of(pool).kill()
            wait_until(lambda round=round: len(pool.status().events) == round)
            pids = pids_of(pool)
            assert len(set(pids)) == 8
            assert {child.pid for child in agent_of(pool).children()} == {*pids, fork_server_of(pool).pid}
            assert set(pool.map(pid, range(200), chunksize=1)) <= set(pids)
            pool.resize(1)
            wait_until(lambda: len(pool.status().workers) == 1)
        assert pool.status().num_deaths == 0


@pytest.mark.cold  # kills the only fork server
def test_a_fork_server_that_keeps_dying_is_given_up_aloud_and_tried_again_by_the_next_start() -> None:
    with ropewalk.Pool(1) as pool:
        workers = pids_of(pool)
        for round in range(1, 6):
            fork_server_of(pool).kill()
            wait_until(lambda round=round: len(pool.status().events) == round)
        assert "died 5 times" in pool.status().events[-1]
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
        assert pids_of(pool) == workers
        pool.resize(3)
        assert len(pids_of(pool)) == 3


# --- standing still ---


def test_a_worker_stopped_for_a_moment_goes_on() -> None:
    with ropewalk.Pool(2, max_deaths=1) as pool:
        pids = pids_of(pool)
        result = pool.map_async(slow_square, range(500), chunksize=5)
        os.kill(pids[0], signal.SIGSTOP)
        time.sleep(0.7)
        os.kill(pids[0], signal.SIGCONT)
        assert result.get(120) == [number * number for number in range(500)]
        assert pids_of(pool) == pids and pool.status().num_deaths == 0


@pytest.mark.parametrize("seconds", [5, pytest.param(10, marks=pytest.mark.soak)])
def test_a_worker_that_stays_stopped_is_replaced_and_its_task_is_not_blamed(seconds: int) -> None:
    with ropewalk.Pool(2, max_deaths=1) as pool:
        pids = pids_of(pool)
        begun = time.monotonic()
        os.kill(pids[0], signal.SIGSTOP)
        result = pool.map_async(slow_square, range(500), chunksize=5)
        assert result.get(120) == [number * number for number in range(500)]
        time.sleep(max(0.0, seconds - (time.monotonic() - begun)))
        wait_until(lambda: not is_alive(pids[0]))
        with contextlib.suppress(ProcessLookupError):  # it was ended while it stood still: nothing of it comes late
            os.kill(pids[0], signal.SIGCONT)
        assert set(pool.map(pid, range(50), chunksize=1)) <= set(pids_of(pool))
        status = pool.status()
        assert (status.done, status.num_deaths) == (550, 1)
        assert "SIGKILL" in status.deaths[0].describe()


@pytest.mark.parametrize("seconds", [1.5, pytest.param(10, marks=pytest.mark.soak)])
def test_a_stopped_agent_delays_no_task_and_is_no_loss(seconds: float) -> None:
    with ropewalk.Pool(2, max_deaths=1) as pool:
        pids = pids_of(pool)
        agent = agent_of(pool)
        agent.suspend()
        begun = time.monotonic()
        assert pool.map(slow_square, range(500), chunksize=5) == [number * number for number in range(500)]
        time.sleep(max(0.0, seconds - (time.monotonic() - begun)))
        agent.resume()
        kill(pids[0])  # it sees deaths again
        wait_until(lambda: pool.status().num_deaths == 1)
        assert pids_of(pool)[1] == pids[1]
        assert pool.status().events == ()


@pytest.mark.cold  # settings of its own
def test_an_agent_that_stays_stopped_is_replaced_after_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_LEASE_S", "1.5")
    with ropewalk.Pool(2, max_deaths=1) as pool:
        workers = pids_of(pool)
        agent = agent_of(pool)
        agent.suspend()
        results = pool.imap(slow_square, range(100_000), chunksize=10)
        begun = time.monotonic()
        values = [next(results) for _ in range(8000)]
        values += [next(results) for _ in range(500)] if time.monotonic() - begun > 3 else []
        wait_until(lambda: pool.status().events)
        values += [next(results) for _ in range(500)]
        assert values == [number * number for number in range(len(values))]
        wait_until_gone([agent.pid, *workers])
        assert len(pool.status().events) == 1 and "nothing was heard" in pool.status().events[0]
        assert pool.status().retried == 0


STOPPED_LAUNCHER = """
    with ropewalk.Pool(4, max_deaths=1) as pool:
        pool.wait_until_ready()
        result = pool.map_async(square, range(400))
        say("ready")
        assert result.get() == [number * number for number in range(400)]
        before = [worker.pid for worker in pool.status().workers]
        time.sleep(0.5)
        status = pool.status()
        assert before == [worker.pid for worker in status.workers]
        say(status.num_deaths, status.retried, len(status.events))
"""


@pytest.mark.parametrize(("seconds", "lease"), [(2.5, "1.2"), pytest.param(10, "5", marks=pytest.mark.soak)])
def test_a_launcher_that_was_stopped_sees_no_lost_workers(tmp_path: Path, seconds: float, lease: str) -> None:
    with launcher(STOPPED_LAUNCHER, tmp_path, ROPEWALK_LEASE_S=lease) as script:
        assert script.line() == "ready"
        script.signal(signal.SIGSTOP)
        time.sleep(seconds)
        script.signal(signal.SIGCONT)
        code, out, errors = script.end()
    assert (code, out, errors) == (0, "0 0 0\n", "")


# --- launchers ---

KILLED_LAUNCHER = """
    def start(_):
        children = [subprocess.Popen(["sleep", "1000"]), subprocess.Popen(["sleep", "1000"], start_new_session=True)]
        return [child.pid for child in children]
    def fork_away(_):
        child = os.fork()
        if child == 0:
            os.setsid()
            time.sleep(1000)
        return [child]
    pool = ropewalk.Pool(3)
    pool.wait_until_ready()
    pids = sum(pool.map(start, range(3), chunksize=1) + pool.map(fork_away, range(3), chunksize=1), [])
    say(pool._session.folder)
    pids += tree()
    say(*pids)
    if {fork}:
        child = {fork}()
        if child == 0:
            for fd in (0, 1, 2): os.close(fd)
            time.sleep(1000)
        say(child)
    pool.map(square, range(1_000_000))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_everything_is_gone_soon_after_the_launcher(tmp_path: Path, number: int) -> None:
    with launcher(KILLED_LAUNCHER.format(fork=None), tmp_path) as script:
        folder, pids = Path(script.line()), script.numbers()
        assert folder.is_dir() and len(pids) >= 9 + 5
        script.signal(number)
        script.process.wait(120)
        wait_until_gone(pids)
        wait_until(lambda: not folder.exists())


@pytest.mark.parametrize("fork", ["os.fork", "ctypes.CDLL(None).fork"])  # the second one keeps our links open
def test_everything_is_gone_soon_after_the_launcher_although_a_child_of_it_lives(tmp_path: Path, fork: str) -> None:
    with launcher(KILLED_LAUNCHER.format(fork=fork), tmp_path) as script:
        folder, pids, (child,) = Path(script.line()), script.numbers(), script.numbers()
        assert child not in pids
        try:
            script.signal(signal.SIGKILL)
            script.process.wait(120)
            wait_until_gone(pids)
            wait_until(lambda: not folder.exists())
            assert is_alive(child)  # it is the user's, and none of our business
        finally:
            kill(child)


def test_a_launcher_killed_while_its_agent_starts_leaves_nothing(tmp_path: Path) -> None:
    source = """
        pool = ropewalk.Pool(2)
        time.sleep(float(sys.stdin.readline()))
        say(pool._session.folder, *tree())
        time.sleep(1000)
    """
    for delay_s in (0.0, 0.05, 0.1, 0.15, 0.2):
        with launcher(source, tmp_path) as script:
            assert script.process.stdin
            script.process.stdin.write(f"{delay_s}\n")
            script.process.stdin.flush()
            folder, *pids = script.line().split()
            script.signal(signal.SIGKILL)
            script.process.wait(120)
            wait_until_gone(map(int, pids))
            wait_until(lambda folder=folder: not os.path.exists(folder), f"the end of {folder}")
