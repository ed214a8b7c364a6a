"""Tasks and initializers that raise, die, hang or leave things behind: each ends by name, its neighbours finish."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

import ropewalk
from ropewalk.errors import (
    CrashLoop,
    InitializerFailed,
    PoolClosed,
    RemoteError,
    TaskPoisoned,
    TaskTimeout,
    WorkerLost,
)
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.tasks import (
    LostError,
    OwnError,
    note,
    noted,
    pid,
    raise_lost_error,
    raise_own_error,
    raise_value_error,
    square,
    wait_for_file,
)

pytestmark = pytest.mark.usefixtures("shared_session")


def is_running(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- exceptions ---


def test_an_exception_of_the_users_arrives_as_itself_below_the_remote_traceback() -> None:
    with ropewalk.Pool(1) as pool:
        calls: list[Callable[[], Any]] = [
            lambda: pool.apply(raise_own_error, (7,)),
            lambda: pool.map(raise_own_error, [7]),
            lambda: pool.starmap(raise_own_error, [(7,)]),
            lambda: next(pool.imap(raise_own_error, [7])),
            lambda: next(pool.imap_unordered(raise_own_error, [7])),
        ]
        for call in calls:
            with pytest.raises(OwnError, match="7: because") as info:
                call()
            assert (info.value.code, info.value.reason) == (7, "because")
            remote = str(info.value.__cause__)
            assert "in raise_own_error" in remote and 'raise OwnError(code, reason="because")' in remote
            assert "ropewalk/pool/worker.py" not in remote, "our own frames say nothing to the user"
            assert any("pool-" in words for words in info.value.__notes__)


def test_the_cause_of_a_remote_exception_is_shown_with_it() -> None:
    def chained() -> None:
        try:
            raise_value_error("inner")
        except ValueError as error:
            raise KeyError("outer") from error

    with ropewalk.Pool(1) as pool:
        with pytest.raises(KeyError, match="outer") as info:
            pool.apply(chained)
        remote = str(info.value.__cause__)
        assert remote.index("inner") < remote.index("direct cause") < remote.index("outer")


def test_an_exception_that_cannot_be_unpickled_arrives_as_its_text() -> None:
    with ropewalk.Pool(1) as pool:
        for call in (
            lambda: pool.apply(raise_lost_error, (7,)),
            lambda: pool.map(raise_lost_error, [7]),
            lambda: next(pool.imap(raise_lost_error, [7])),
        ):
            with pytest.raises(RemoteError, match="LostError: 7: because") as info:
                call()
            assert info.value.type_name == f"{LostError.__module__}.LostError"
            assert "raise_lost_error" in str(info.value.__cause__)


def test_exceptions_that_are_hard_to_handle_arrive_all_the_same() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Rigid(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    def fail(make: Callable[[], BaseException]) -> None:
        raise make()

    def circular() -> BaseException:
        error = KeyError("round")
        error.__cause__ = error
        return error

    cases: list[tuple[Callable[[], BaseException], type[BaseException]]] = [
        (lambda: Speechless(3), Speechless),
        (lambda: Rigid(3), Rigid),
        (circular, KeyError),
        (lambda: StopIteration(3), StopIteration),
        (lambda: asyncio.CancelledError(3), asyncio.CancelledError),
        (lambda: ExceptionGroup("many", [ValueError(1), KeyError(2)]), ExceptionGroup),
    ]
    with ropewalk.Pool(1) as pool:
        for make, kind in cases:
            with pytest.raises(kind) as info:
                pool.apply_async(fail, (make,)).get(120)
            assert "in fail" in str(info.value.__cause__)
            assert "ropewalk/pool/worker.py" not in str(info.value.__cause__)
        assert pool.status().num_deaths == 0


def test_what_ends_a_worker_is_shown_without_our_own_frames() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with ropewalk.Pool(1, max_deaths=1) as pool:
        with pytest.raises(TaskPoisoned) as info:
            pool.apply(interrupted)
    assert "in interrupted" in info.value.last_output and "/pool/worker.py" not in info.value.last_output


def test_of_several_exceptions_of_a_map_the_first_in_order_is_raised_after_all_have_ended(tmp_path: Path) -> None:
    seen = str(tmp_path / "seen")

    def odd_ones_raise(number: int) -> int:
        note(seen, number)
        if number % 2:
            raise ValueError(number)
        return number

    with ropewalk.Pool(2) as pool:
        with pytest.raises(ValueError, match=r"^1\b"):
            pool.map(odd_ones_raise, range(20), chunksize=1)
        assert sorted(map(int, noted(seen))) == list(range(20))  # and none of them twice: errors are no deaths
        assert pool.status().num_deaths == 0


# --- deaths ---


def exit_softly(_: object = None) -> None:
    sys.exit(3)


def exit_hard(_: object = None) -> None:
    os._exit(5)


def segfault(_: object = None) -> None:
    ctypes.string_at(0)


def abort(_: object = None) -> None:
    os.abort()


@pytest.mark.parametrize(
    ("death", "words"),
    [
        (exit_softly, "exited with code 3"),
        (exit_hard, "exited with code 5"),
        (segfault, r"was killed by SIGSEGV \(segmentation fault\)"),
        (abort, r"was killed by SIGABRT \(abort\)"),
    ],
)
def test_a_task_that_kills_its_workers_is_poisoned_and_its_neighbours_finish(
    death: Callable[[object], None], words: str
) -> None:
    def die_at_five(number: int) -> int:
        if number == 5:
            print("my last words", file=sys.stderr)
            death(None)
        return number

    with ropewalk.Pool(2, max_deaths=2) as pool:
        results = pool.imap(die_at_five, range(10))
        values: list[Any] = []
        for _ in range(10):
            try:
                values.append(results.next(PATIENCE_S))
            except TaskPoisoned as error:
                values.append(error)
        error = values[5]
        assert [*values[:5], *values[6:]] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert isinstance(error, TaskPoisoned) and error.index == 5 and len(error.deaths) == 2
        assert re.search(words, str(error)) and "my last words" in error.last_output
        assert "task 5 killed 2 workers" in str(error) and "max_deaths=2" in str(error)
        status = pool.status()
        assert (status.num_deaths, status.failed, status.retried) == (2, 1, 1)
        assert all(record.task_index == 5 for record in status.deaths)
        assert pool.map(square, range(4)) == [0, 1, 4, 9]


def test_the_stack_of_a_segfault_is_in_the_error() -> None:
    with ropewalk.Pool(1, max_deaths=1) as pool:
        with pytest.raises(TaskPoisoned, match="Segmentation fault") as info:
            pool.apply(segfault)
        assert "segfault" in info.value.last_output and info.value.index is None
        assert "the task killed 1 worker and is not tried again" in str(info.value)


def test_a_worker_out_of_memory_says_so_and_goes_on() -> None:
    def greedy() -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (64 << 20), hard))
        try:
            return len(bytearray(1 << 30))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    with ropewalk.Pool(1) as pool:
        before = pool.apply(pid)
        with pytest.raises(MemoryError) as info:
            pool.apply(greedy)
        assert "in greedy" in str(info.value.__cause__)
        assert pool.apply(pid) == before


def test_a_task_that_runs_at_most_once_is_lost_with_its_worker_and_never_started_again(tmp_path: Path) -> None:
    started = str(tmp_path / "started")

    def die_at_five(number: int) -> int:
        note(started, number)
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with ropewalk.Pool(2, at_most_once=True) as pool:
        with pytest.raises(WorkerLost, match=r"task 5 was lost .* at_most_once.*SIGKILL") as info:
            pool.map(die_at_five, range(100))
        assert not isinstance(info.value, TaskPoisoned) and info.value.index == 5
        assert sorted(map(int, noted(started))) == list(range(100)), "each started exactly once"
        with pytest.raises(WorkerLost):
            pool.apply(exit_hard)


class Deadly:
    """Kills whoever unpickles it, as a library does that does not survive its import."""

    padding = b"x" * 20_000

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return os._exit, (7,)


@pytest.mark.parametrize("how", ["a part of the function", "a reference", "an argument"])
def test_what_kills_workers_while_they_load_it_poisons_the_tasks_that_need_it_and_no_other(how: str) -> None:
    with ropewalk.Pool(2) as pool:
        deadly: Any = pool.put(Deadly()) if how == "a reference" else Deadly()
        if how == "an argument":
            poisoned = pool.map_async(square, [deadly])
        else:
            poisoned = pool.map_async(functools.partial(max, deadly), [1])
        with pytest.raises(TaskPoisoned, match="exited with code 7"):
            poisoned.get(PATIENCE_S)
        assert pool.status().num_deaths == 3
        assert pool.map(square, range(10)) == [number * number for number in range(10)]


def test_with_max_deaths_of_one_the_first_death_poisons() -> None:
    with ropewalk.Pool(2, max_deaths=1) as pool:
        with pytest.raises(TaskPoisoned, match="killed 1 worker"):
            pool.map(lambda number: os._exit(1) if number == 3 else number, range(50))
        assert pool.status().num_deaths == 1


def test_a_task_is_tried_again_after_deaths_that_are_not_its_own_doing(tmp_path: Path) -> None:
    lives = str(tmp_path / "lives")

    def die_twice(number: int) -> int:
        if number == 5:
            note(lives, "x")
            if len(noted(lives)) < 3:
                os._exit(1)
        return number

    with ropewalk.Pool(2) as pool:
        assert pool.map(die_twice, range(50)) == list(range(50))
        assert (pool.status().num_deaths, pool.status().retried) == (2, 2)


def test_one_killer_among_ten_thousand_ends_exactly_its_share_of_workers_and_nothing_else(tmp_path: Path) -> None:
    ran = str(tmp_path / "ran")
    killer = 5000

    def run(number: int) -> int:
        note(ran, number)
        if number == killer:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with ropewalk.Pool(4, max_deaths=3) as pool:
        with pytest.raises(TaskPoisoned) as info:
            pool.map(run, range(10_000))
        status = pool.status()
    assert info.value.index == killer and len(info.value.deaths) == 3
    assert (status.num_deaths, status.failed, status.done) == (3, 1, 9_999)
    counts = Counter(map(int, noted(ran)))
    assert counts.pop(killer) == 3
    assert counts == dict.fromkeys((number for number in range(10_000) if number != killer), 1)


def test_results_that_wait_in_a_worker_survive_its_death(tmp_path: Path) -> None:
    """Those before the killer in its own chunk were finished, and may not have been sent."""
    ran = str(tmp_path / "ran")

    def run(number: int) -> object:
        note(ran, number)
        if number == 9:
            os._exit(1)
        return [None, number, number / 2, bool(number % 2), f"text {number}", ("tuple", number)][number % 6]

    with ropewalk.Pool(1, max_deaths=2) as pool:
        results = pool.imap(run, range(12), chunksize=12)
        values = [next(results) for _ in range(9)]
        assert values == [None, 1, 1.0, True, "text 4", ("tuple", 5), None, 7, 4.0]
        with pytest.raises(TaskPoisoned):
            next(results)
        assert list(results) == ["text 10", ("tuple", 11)]
    assert Counter(map(int, noted(ran))) == {**dict.fromkeys(range(12), 1), 9: 2}


def test_a_value_that_kills_while_it_is_unpickled_is_poisoned_too() -> None:
    class Killer:
        def __reduce__(self) -> tuple[Any, ...]:
            return os._exit, (9,)

    with ropewalk.Pool(1, max_deaths=2) as pool:
        with pytest.raises(TaskPoisoned, match="exited with code 9"):
            pool.map_async(square, cast("list[int]", [Killer()])).get(120)
        assert pool.map(square, [3]) == [9]


# --- tasks that never return ---


def test_a_task_that_never_returns_times_out_with_its_stacks() -> None:
    def stuck_here(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    with ropewalk.Pool(2, task_timeout_s=2.0) as pool:
        with pytest.raises(TaskTimeout, match=r"task 1 ran longer than task_timeout_s=2") as info:
            pool.map(stuck_here, [0, 1000, 0, 0])
        assert (info.value.index, info.value.timeout_s) == (1, 2.0)
        assert "in stuck_here" in str(info.value)
        with pytest.raises(TaskTimeout, match="the task ran longer"):
            pool.apply(stuck_here, (1000,))
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
        status = pool.status()
        assert (status.failed, status.retried) == (2, 0), "time that ran out is no death to try again"


def test_a_task_that_holds_the_gil_for_ever_times_out_and_those_behind_it_finish_elsewhere(tmp_path: Path) -> None:
    started = str(tmp_path / "started")

    def hold(number: int) -> int:
        note(started, number)
        if number == 0:
            library = ctypes.PyDLL(None)  # PyDLL keeps the GIL: no thread of that process runs again
            mutex = ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)  # for ever, and no signal ends it
        return number

    with ropewalk.Pool(2, task_timeout_s=4.0) as pool:
        pool.wait_until_ready()
        results = pool.imap_unordered(hold, range(40), chunksize=20)  # 19 wait in the pickle of the one that hangs
        finished = {results.next(PATIENCE_S) for _ in range(39)}
        assert finished == set(range(1, 40))
        with pytest.raises(TaskTimeout, match="task 0 ran longer"):
            results.next(PATIENCE_S)
        assert Counter(noted(started)) == dict.fromkeys(map(str, range(40)), 1)


def test_the_time_limit_is_for_each_task_and_not_for_all() -> None:
    with ropewalk.Pool(1, task_timeout_s=2.0) as pool:
        assert pool.map(lambda number: time.sleep(0.5) or number, range(5), chunksize=5) == list(range(5))
        time.sleep(2.1)  # an idle worker has no task that could run out of time
        assert pool.apply(square, (3,)) == 9
        assert pool.status().num_deaths == 0


# --- what a task leaves behind ---


@pytest.mark.parametrize("how", ["os._exit", "SIGKILL", "time limit", "terminate"])
def test_children_of_a_task_end_with_its_worker(tmp_path: Path, how: str) -> None:
    pids = str(tmp_path / "pids")

    def with_children(_: object) -> None:
        child = subprocess.Popen(["sleep", "1000"])
        own_group = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        forked = os.fork()  # as a DataLoader's: it holds every descriptor of the worker
        if forked == 0:
            grandchild = subprocess.Popen(["sleep", "1000"])
            note(pids, grandchild.pid)
            time.sleep(1000)
            os._exit(0)
        for each in (child.pid, own_group.pid, forked, os.getpid()):
            note(pids, each)
        wait_until(lambda: len(noted(pids)) == 5)
        if how == "os._exit":
            os._exit(1)
        if how == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)

    limit_s = 1.0 if how == "time limit" else None
    with ropewalk.Pool(1, max_deaths=1, task_timeout_s=limit_s) as pool:
        result = pool.apply_async(with_children, (None,))
        if how == "terminate":
            wait_until(lambda: len(noted(pids)) == 5)
            pool.terminate()
            pool.join()
        else:
            with pytest.raises((TaskPoisoned, TaskTimeout)):
                result.get(120)
            assert pool.apply(square, (3,)) == 9
        children = [int(each) for each in noted(pids)]
        assert len(children) == 5
        wait_until(lambda: not any(is_running(child) for child in children), f"{children} end")


def test_children_of_a_dataloader_end_with_the_worker_that_is_killed(tmp_path: Path) -> None:
    pids = str(tmp_path / "pids")

    def load(_: object) -> None:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        for _ in range(2):
            context.Process(target=lambda: (queue.put(os.getpid()), time.sleep(1000)), daemon=True).start()
        for _ in range(2):
            note(pids, queue.get())
        note(pids, os.getpid())
        time.sleep(1000)

    with ropewalk.Pool(1, max_deaths=1) as pool:
        result = pool.apply_async(load, (None,))
        wait_until(lambda: len(noted(pids)) == 3)
        os.kill(int(noted(pids)[-1]), signal.SIGKILL)
        with pytest.raises(TaskPoisoned, match="SIGKILL"):
            result.get(120)
        children = [int(each) for each in noted(pids)]
        wait_until(lambda: not any(is_running(child) for child in children), f"{children} end")


def test_a_child_that_outlives_its_task_does_no_harm(tmp_path: Path) -> None:
    """Its worker lives on, so it is the user's business until the pool ends."""
    gate = str(tmp_path / "gate")

    def leave_a_child() -> int:
        forked = os.fork()
        if forked == 0:
            wait_for_file(gate)
            os._exit(0)
        return forked

    with ropewalk.Pool(1) as pool:
        child = pool.apply(leave_a_child)
        assert pool.map(square, range(100)) == [number**2 for number in range(100)]
        assert is_running(child)
    wait_until(lambda: not is_running(child))


# --- initializers ---


def test_an_initializer_that_raises_ends_the_pool_by_name(tmp_path: Path) -> None:
    tries = str(tmp_path / "tries")

    def initialize() -> None:
        note(tries, "x")
        raise OwnError(7, reason="no licence")

    with ropewalk.Pool(2, initialize) as pool:
        calls: list[Callable[[], Any]] = [
            lambda: pool.map(square, range(10)),
            lambda: pool.apply(square, (1,)),
            lambda: next(pool.imap(square, range(10))),
            lambda: pool.apply_async(square, (1,)).get(120),
            pool.wait_until_ready,
        ]
        for call in calls:
            with pytest.raises(InitializerFailed, match=r"OwnError.*7: no licence") as info:
                call()
            cause = info.value.__cause__
            assert isinstance(cause, OwnError) and cause.code == 7 and "in initialize" in str(cause.__cause__)
        wait_until(lambda: not pool.status().workers, what="nobody is started again")
    assert len(noted(tries)) <= 2


def test_a_pool_that_broke_before_its_block_is_entered_and_ends_with_it() -> None:
    """Its `with` raised the error where the host was busy, and nothing ended the pool."""

    def initialize() -> None:
        raise ValueError("no licence")

    pool = ropewalk.Pool(1, initialize)
    with pytest.raises(InitializerFailed):
        pool.wait_until_ready()
    with pool, pytest.raises(InitializerFailed, match="no licence"):
        pool.map(square, range(10))
    with pytest.raises(PoolClosed, match="was terminated"), pool:
        raise AssertionError("a pool that has ended is not entered")


def test_an_initializer_that_raises_a_builtin_exception_names_it_as_python_does() -> None:
    def initialize() -> None:
        raise OSError("no licence")

    with ropewalk.Pool(1, initialize) as pool:
        with pytest.raises(InitializerFailed, match="initializer raised OSError: no licence"):
            pool.wait_until_ready()


def test_tasks_that_wait_for_an_initializer_hear_that_it_raised(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    def initialize() -> None:
        wait_for_file(gate)
        raise ValueError("no licence")

    with ropewalk.Pool(1, initialize) as pool:
        mapped = pool.map_async(square, range(10))
        results = pool.imap(square, iter(int, 1))
        Path(gate).touch()
        with pytest.raises(InitializerFailed, match="no licence"):
            mapped.get(120)
        with pytest.raises(InitializerFailed, match="no licence"):
            results.next(PATIENCE_S)


@pytest.mark.parametrize("how", [exit_hard, pytest.param(exit_softly, marks=pytest.mark.soak), abort])
@pytest.mark.cold  # the stack of a crash ends with a list of all modules
def test_an_initializer_that_dies_ends_in_a_crash_loop_with_its_first_death(how: Callable[[], None]) -> None:
    def initialize() -> None:
        print("no device", file=sys.stderr)
        how()

    with ropewalk.Pool(2, initialize) as pool:
        with pytest.raises(CrashLoop, match=r"failed before the process was ready.*no device"):
            pool.map_async(square, range(10)).get(120)
        with pytest.raises(CrashLoop, match=r"exited with code|SIGABRT") as info:
            pool.apply(square, (1,))
        assert len(info.value.deaths) >= 2 and "no device" in info.value.deaths[0]
        wait_until(lambda: not pool.status().workers)
