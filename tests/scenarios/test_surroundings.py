"""Pools where something else is odd: a full disk, few descriptors, other pools, forks, Ctrl-C, and floods of output."""

from __future__ import annotations

import collections
import contextlib
import functools
import multiprocessing
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

import ropewalk
from ropewalk.errors import PoolClosed, ProcessLimit
from ropewalk.pool import dispatcher, job_submitter
from ropewalk.pool import pool as pool_module
from ropewalk.pool.results import AsyncResult
from ropewalk.processes.open_sessions import close_all
from tests.patience import wait_until
from tests.scenarios.launchers import (
    agent_of,
    fork_server_of,
    is_alive,
    kill,
    launcher,
    pids_of,
    wait_until_asleep,
    wait_until_gone,
)
from tests.scenarios.tasks import note, noted, pid, square, wait_for_file

pytestmark = pytest.mark.usefixtures("shared_session")

# --- the disk, descriptors, processes ---


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    folder = Path(os.environ["TMPDIR"]) / "tiny"
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("needs the right to mount a tmpfs")
        yield folder
        close_all()
        subprocess.run(["umount", str(folder)], check=True)
    finally:
        folder.rmdir()


def print_much(number: int) -> int:
    for _ in range(10):
        print(f"{number} " + "x" * 4000)
    return number


@pytest.mark.cold  # settings of its own
def test_a_disk_that_is_full_from_the_beginning_hinders_no_work(
    tiny_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROPEWALK_RUN_FOLDER", str(tiny_disk))
    with contextlib.suppress(OSError), open(tiny_disk / "ballast", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with ropewalk.Pool(2) as pool:
        assert pool.map(print_much, range(4), chunksize=1) == [0, 1, 2, 3]
        assert len(pool.map(functools.partial(len), [bytes(2 << 20)] * 4)) == 4
        wait_until(lambda: pool.status().events)
        assert pool.status().events == pool.status().events[:1]
        assert "No space left" in pool.status().events[0] and "output" in pool.status().events[0]
    close_all()
    assert len(re.findall(r"(?m)^\[pool-", capsys.readouterr().out)) == 40  # shown all the same
    assert [entry.name for entry in tiny_disk.iterdir()] == ["ballast"]


@pytest.mark.cold  # settings of its own
def test_a_disk_that_becomes_full_hinders_no_work(tiny_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_RUN_FOLDER", str(tiny_disk))
    with ropewalk.Pool(2) as pool:
        assert pool.map(print_much, range(16), chunksize=1) == list(range(16))
        wait_until(lambda: pool.status().events)
        kill(pids_of(pool)[0])
        wait_until(lambda: pool.status().num_deaths == 1)
        assert len(pids_of(pool)) == 2
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
        assert len(pool.status().events) == 1


FEW_DESCRIPTORS = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
    try:
        with ropewalk.Pool(8) as pool:
            results = pool.map(lambda number: bytes([number]) * 1_000_000, range(60), chunksize=1)
            say("right" if [(len(r), r[0]) for r in results] == [(1_000_000, n) for n in range(60)] else "wrong")
            results = pool.map(lambda data: len(data), [bytes(1_000_000) for _ in range(60)], chunksize=1)
            say("right" if results == [1_000_000] * 60 else "wrong")
    except (ropewalk.RopewalkError, OSError) as error:
        say(type(error).__name__, error)
    say(*tree())
"""


@pytest.mark.parametrize(
    "limit", [16, 64, *(pytest.param(limit, marks=pytest.mark.soak) for limit in (24, 32, 48, 96, 256))]
)
def test_too_few_descriptors_give_right_answers_or_a_clear_error(tmp_path: Path, limit: int) -> None:
    with launcher(FEW_DESCRIPTORS.format(limit=limit), tmp_path, ROPEWALK_SESSION_IDLE_S="0") as script:
        code, out, errors = script.end()
    assert code == 0, errors
    *said, _ = out.splitlines()
    if limit >= 96:
        assert said == ["right", "right"]
    else:
        assert "wrong" not in said
        assert said == ["right", "right"] or "open files" in out or "descriptors" in out, out


# --- several pools ---


#: As `pool/constants.py` names the memory file of a constant.
BLOB = re.compile(r"memfd:ropewalk-[0-9a-f]{12}")


def look_up(table: bytes, number: int) -> int:
    return table[number]


def blobs_of(pids: list[int]) -> set[int]:
    """The memory files with constants that some processes hold open or mapped, by inode."""
    inodes: set[int] = set()
    for folder in (Path(f"/proc/{holder}") for holder in pids):
        for fd in (folder / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if BLOB.search(os.readlink(fd)):
                    inodes.add(os.stat(fd).st_ino)
        for line in (folder / "maps").read_text().splitlines():
            if BLOB.search(line):
                inodes.add(int(line.split()[4]))
    return inodes


def test_two_pools_share_one_agent_and_one_copy_of_a_constant() -> None:
    table = bytes(range(256)) * 8192
    with ropewalk.Pool(2) as first, ropewalk.Pool(3) as second:
        expected = list(range(50))
        for pool in (first, second):
            assert pool.map(functools.partial(look_up, table), range(50), chunksize=1) == expected
        assert agent_of(first) == agent_of(second)
        workers = pids_of(first) + pids_of(second)
        assert {psutil.Process(pid).ppid() for pid in workers} == {agent_of(first).pid}
        assert len(blobs_of([os.getpid(), agent_of(first).pid, *workers])) == 1
        assert len(blobs_of([os.getpid()])) == 1
        first.terminate()
        first.join()
        assert len(blobs_of([os.getpid(), agent_of(second).pid])) == 1  # the other one still needs it
        kill(pids_of(second)[0])
        assert second.map(functools.partial(look_up, table), range(50), chunksize=1) == expected
        agent = agent_of(second).pid
    wait_until(lambda: not blobs_of([os.getpid(), agent]))


def test_pools_made_by_several_threads_at_once_share_one_session() -> None:
    pools: list[ropewalk.Pool] = []
    gate = threading.Barrier(4)

    def make() -> None:
        gate.wait()
        pools.append(ropewalk.Pool(1))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert [pool.apply(square, (3,)) for pool in pools] == [9] * 4
        assert len({agent_of(pool).pid for pool in pools}) == 1
    finally:
        for pool in pools:
            pool.terminate()
            pool.join()


def gated(folder: str, number: int) -> int:
    note(f"{folder}/inner", os.getpid())
    if number == 5:
        wait_for_file(f"{folder}/gate")
    return number * number


def map_in_a_pool(folder: str, count: int) -> list[int]:
    note(f"{folder}/outer", os.getpid())
    with ropewalk.Pool(2) as pool:
        return pool.map(functools.partial(gated, folder), range(count), chunksize=1)


@pytest.mark.cold  # counts the processes of the agent
def test_a_pool_inside_a_worker_survives_the_death_of_that_worker_and_leaves_no_orphan(tmp_path: Path) -> None:
    with ropewalk.Pool(1) as pool:
        result = pool.apply_async(map_in_a_pool, (str(tmp_path), 8))
        wait_until(lambda: len(pids := noted(f"{tmp_path}/inner")) >= 6 and len(set(pids)) == 2)
        (outer,) = map(int, noted(f"{tmp_path}/outer"))
        inner = set(map(int, noted(f"{tmp_path}/inner")))
        assert len(inner) == 2 and all(psutil.Process(pid).ppid() == agent_of(pool).pid for pid in inner)
        kill(outer)
        wait_until_gone(inner)
        (tmp_path / "gate").touch()
        assert result.get(120) == [number * number for number in range(8)]
        assert pool.status().num_deaths == 1
        wait_until(lambda: len(agent_of(pool).children()) == 2)  # the fork server and the outer worker


def test_a_worker_of_an_inner_pool_is_replaced_like_any_other(tmp_path: Path) -> None:
    with ropewalk.Pool(1) as pool:
        result = pool.apply_async(map_in_a_pool, (str(tmp_path), 8))
        wait_until(lambda: len(noted(f"{tmp_path}/inner")) >= 6)
        for inner in set(map(int, noted(f"{tmp_path}/inner"))):
            kill(inner)
        (tmp_path / "gate").touch()
        assert result.get(120) == [number * number for number in range(8)]
        assert pool.status().num_deaths == 0


def test_inner_pools_end_with_their_tasks_agent_too(tmp_path: Path) -> None:
    with ropewalk.Pool(1) as pool:
        result = pool.apply_async(map_in_a_pool, (str(tmp_path), 8))
        wait_until(lambda: len(noted(f"{tmp_path}/inner")) >= 6)
        inner = set(map(int, noted(f"{tmp_path}/inner")))
        agent_of(pool).kill()
        wait_until_gone(inner)
        (tmp_path / "gate").touch()
        assert result.get(120) == [number * number for number in range(8)]


def make_a_pool(size: int) -> int:
    with ropewalk.Pool(size) as pool:
        return sum(pool.map(square, range(3)))


@pytest.mark.cold  # settings of its own
def test_the_limit_of_processes_is_an_error_that_names_the_nesting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_MAX_PROCESSES", "4")
    with ropewalk.Pool(2, name="outer") as pool:
        assert pool.apply(make_a_pool, (2,)) == 5
        with pytest.raises(ProcessLimit, match=r"limit is 4 .*outer has 2.*Pools inside pools multiply.*max_processes"):
            pool.apply(make_a_pool, (3,))
        assert pool.apply(make_a_pool, (2,)) == 5
    with ropewalk.Pool(5) as pool, pytest.raises(ProcessLimit, match="limit is 4"):
        pool.map(square, range(100))


# --- forks of the user's ---


def sum_in_a_child(numbers: list[int]) -> int:
    """What a DataLoader does: a child of the task computes, and says the result over a pipe."""
    reader, writer = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: writer.send(sum(numbers)), daemon=True)
    child.start()
    total = reader.recv()
    child.join()
    assert child.exitcode == 0
    return total


def test_tasks_may_fork() -> None:
    with ropewalk.Pool(2, max_deaths=1) as pool:
        workers = pids_of(pool)
        assert pool.map(sum_in_a_child, [list(range(n)) for n in range(20)]) == [n * (n - 1) // 2 for n in range(20)]
        assert pids_of(pool) == workers


def fork_and_stay(folder: str) -> int:
    child = os.fork()
    if child == 0:
        wait_for_file(f"{folder}/gate")
        os._exit(0)
    return os.getpid()


def test_a_child_that_outlives_its_task_keeps_nobody_from_noticing_the_workers_death(tmp_path: Path) -> None:
    with ropewalk.Pool(1) as pool:
        worker = pool.apply(fork_and_stay, (str(tmp_path),))
        kill(worker)
        wait_until(lambda: pool.status().num_deaths == 1)
        assert pool.apply(square, (3,)) == 9


def in_a_fork(action: Callable[[], object]) -> str:
    """What an action says in a forked child of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, repr(action()).encode())
        except BaseException as error:
            os.write(writer, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, closefd=True) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def own_pool() -> list[int]:
    with ropewalk.Pool(2) as pool:
        results = pool.map(square, range(5))
    close_all()
    return results


def test_a_forked_launcher_may_make_pools_of_its_own_and_must_leave_its_parents_alone() -> None:
    with ropewalk.Pool(2) as pool:
        workers = pids_of(pool)
        assert in_a_fork(own_pool) == "[0, 1, 4, 9, 16]"
        assert in_a_fork(lambda: pool.map(square, range(5))) == PoolClosed.__name__
        assert in_a_fork(pool.terminate) == "None"
        assert in_a_fork(close_all) == "None"
        assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
        assert pids_of(pool) == workers


def test_descriptors_that_a_forked_child_opens_are_not_closed_behind_its_back() -> None:
    """Sockets that were closed by number in a forked child were closed again by their objects' destructors."""

    def open_and_collect() -> str:
        import gc

        pipes = [os.pipe() for _ in range(30)]
        gc.collect()
        for reader, writer in pipes:
            os.write(writer, b"x")
            assert os.read(reader, 2) == b"x"
        return "fine"

    with ropewalk.Pool(2) as pool:
        pool.map(square, range(4))
        assert in_a_fork(open_and_collect) == "'fine'"
        assert pool.apply(open_and_collect_in_a_fork) == "'fine'"


def open_and_collect_in_a_fork() -> str:
    def act() -> str:
        pipes = [os.pipe() for _ in range(30)]
        for reader, writer in pipes:
            os.write(writer, b"x")
            assert os.read(reader, 2) == b"x"
        return "fine"

    return in_a_fork(act)


# --- Ctrl-C ---

INTERRUPTED = """
    def work(seconds):
        signal.signal(signal.SIGTERM, signal.SIG_IGN) if {stubborn} else None
        time.sleep(seconds)
    with ropewalk.Pool(2) as pool:
        pool.wait_until_ready()
        result = pool.map_async(work, [3600, 3600], chunksize=1)
        while not all(worker.state == "running" for worker in pool.status().workers):
            time.sleep(0.01)
        say(pool._session.folder)
        say(*tree())
        {wait}
"""


@pytest.mark.parametrize(
    ("wait", "stubborn"),
    [
        ("result.get()", True),
        pytest.param("next(pool.imap(work, [3600]))", False, marks=pytest.mark.soak),
        ("pool.map(work, [3600] * 9)", False),
        pytest.param("result.get()", False, marks=pytest.mark.soak),
        pytest.param("next(pool.imap(work, [3600]))", True, marks=pytest.mark.soak),
        pytest.param("pool.map(work, [3600] * 9)", True, marks=pytest.mark.soak),
    ],
)
def test_ctrl_c_in_a_script_is_a_keyboard_interrupt_and_leaves_nothing(
    tmp_path: Path, wait: str, stubborn: bool
) -> None:
    with launcher(INTERRUPTED.format(wait=wait, stubborn=stubborn), tmp_path) as script:
        folder, pids = Path(script.line()), script.numbers()
        assert len(pids) >= 4
        wait_until_asleep(script.pid)
        script.signal(signal.SIGINT)
        code, out, errors = script.end()
    assert code == -signal.SIGINT and out == ""
    assert re.search(r"\nKeyboardInterrupt\n2 tasks of pool-1 run \(.*\), \d+ ha\w+ not begun, 0 done\n$", errors), (
        errors
    )
    assert errors.count("Traceback") == 1
    wait_until_gone(pids)
    assert not folder.exists()


def test_workers_do_not_see_the_terminals_ctrl_c(tmp_path: Path) -> None:
    with ropewalk.Pool(2) as pool:
        pids_of(pool)
        for process in [agent_of(pool), *agent_of(pool).children()]:
            assert os.getpgid(process.pid) != os.getpgid(0) and os.getsid(process.pid) != os.getsid(0)


def interrupt_main_thread_after(delay_s: float) -> threading.Timer:
    timer = threading.Timer(delay_s, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    return timer


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_notebook_cell_leaves_the_pool_usable() -> None:
    with ropewalk.Pool(2, max_deaths=1) as pool:
        workers = pids_of(pool)
        calls: list[Callable[[], object]] = [
            lambda: pool.map(time.sleep, [0.4] * 4, chunksize=1),
            lambda: pool.apply(time.sleep, (0.4,)),
            lambda: list(pool.imap(time.sleep, [0.4] * 4)),
            lambda: pool.map_async(time.sleep, [0.4] * 4, chunksize=1).wait(),
            lambda: pool.map_async(time.sleep, [0.4] * 4, chunksize=1).get(120),
        ]
        for call in calls:
            timer = interrupt_main_thread_after(0.1)
            with pytest.raises(KeyboardInterrupt):
                call()
            timer.join()
            assert pool.map(square, range(20)) == [number * number for number in range(20)]
        assert pids_of(pool) == workers


def spin(path: str) -> None:
    note(path, os.getpid())
    while True:
        pass


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_endless_task_does_not_keep_its_worker(tmp_path: Path) -> None:
    """In a notebook, the next cell would wait for it for ever."""
    ran = str(tmp_path / "ran")

    def interrupt_once_both_run() -> None:
        wait_until(lambda: len(noted(ran)) == 2)
        interrupt_main_thread_after(0.0).join()

    with ropewalk.Pool(2, max_deaths=1) as pool:
        pool.map(square, range(20))  # known to be short, so that the next ones are sent behind those that run
        interrupt = threading.Thread(target=interrupt_once_both_run)
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            pool.map(spin, [ran] * 4, chunksize=1)
        interrupt.join()
        assert pool.map(square, range(20)) == [number * number for number in range(20)]
        wait_until_gone({int(pid) for pid in noted(ran)})
        status = pool.status()
        assert (status.failed, status.retried, status.num_deaths) == (0, 0, 0), "nobody is to blame"
        assert len(noted(ran)) == 2, "tasks that had not begun did not begin"


def note_and_wait(path: str) -> None:
    note(path, os.getpid())
    time.sleep(3600)


@pytest.mark.parametrize("method", ["map", "apply"])
def test_an_interrupt_at_any_moment_of_a_call_that_waits_ends_its_tasks(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left them to run for ever where it came after they were sent, and before the wait had begun."""
    monkeypatch.setattr(dispatcher, "_UNWANTED_S", 0.0)
    places = [pool_module.__file__, job_submitter.__file__]

    class Interrupter:
        """Raises KeyboardInterrupt at the n-th step of this thread in these modules, or as soon as it would wait."""

        def __init__(self, at: int) -> None:
            self.left = at

        def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
            if event == "call" and frame.f_code is AsyncResult.wait.__code__:
                raise KeyboardInterrupt
            if frame.f_code.co_filename not in places:
                return None
            self.left -= event in ("call", "line")
            if self.left == 0:
                raise KeyboardInterrupt
            return self

    with ropewalk.Pool(1) as pool:
        pool.apply(pid)
        at, interrupter = 0, None
        while interrupter is None or interrupter.left <= 0:
            at += 1
            interrupter, before, ran = Interrupter(at), sys.gettrace(), str(tmp_path / f"ran{at}")
            sys.settrace(interrupter)
            try:
                pool.map(note_and_wait, [ran]) if method == "map" else pool.apply(note_and_wait, (ran,))
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            wait_until(lambda: (pool.status().running, pool.status().queued) == (0, 0))
        assert 20 < at < 200


@pytest.mark.usefixtures("interruptible")
# An interrupt may strike in a callback of a weak reference, too, where Python can only report it.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment_leave_the_pool_usable() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed: {seed}")
    delays = random.Random(seed)
    num_interrupts = 0
    with ropewalk.Pool(2) as pool:
        pool.wait_until_ready(120)
        for _ in range(60):
            try:
                timer = interrupt_main_thread_after(delays.uniform(0.0, 0.01))
                while timer.is_alive():
                    pool.map(square, range(300), chunksize=3)
                    pool.apply(square, (2,))
                timer.join()
                time.sleep(0.001)
            except KeyboardInterrupt:
                num_interrupts += 1
            assert pool.map_async(square, range(40), chunksize=2).get(120) == [number * number for number in range(40)]
        assert num_interrupts > 30


# --- what others can see ---


@pytest.mark.cold  # counts the processes of the agent
def test_a_pool_on_one_host_opens_no_port_and_shows_no_secret() -> None:
    with ropewalk.Pool(2) as pool:
        pool.map(square, range(4))
        agent = agent_of(pool)
        wait_until(lambda: len(agent.children()) == 3)  # the process between fork server and worker has gone
        tree = [psutil.Process(), agent, *agent.children(recursive=True)]
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):  # a process of the fork server, on its way
                families = {connection.family for connection in process.net_connections(kind="inet")}
                assert not families, f"{process} has a port"
        session = pool._session
        assert stat.S_IMODE(session.folder.stat().st_mode) == 0o700
        for path in session.folder.rglob("*"):
            assert not stat.S_IMODE(path.lstat().st_mode) & 0o077, path
        sockets = [path for path in session.folder.iterdir() if stat.S_ISSOCK(path.lstat().st_mode)]
        # That of the launcher, of the agent, and the one by which other terminals see the pool.
        kinds = {re.sub(r"[\d-]+", "", path.name) for path in sockets}
        assert kinds <= {"launcher.sock", "agent.sock", "c.sock"} and len(sockets) <= 3, sockets
        secrets = {process.credentials.secret.encode() for process in session.processes._processes.values()}
        secrets |= set(session._members._secrets.values())
        assert len(secrets) == 3 and all(len(secret) == 64 for secret in secrets)
        for process in tree:
            for file in ("cmdline", "environ"):
                try:
                    shown = Path(f"/proc/{process.pid}/{file}").read_bytes()
                except FileNotFoundError:
                    assert not process.is_running()
                    continue
                assert not any(secret in shown for secret in secrets)
        for path in session.folder.rglob("*"):
            if path.is_file():
                assert not any(secret in path.read_bytes() for secret in secrets)


# --- output ---

PRINTING = """
    def work(number):
        print("out", number)
        print("err", number, file=sys.stderr)
        sys.stdout.write("no end of line")
    with ropewalk.Pool(1) as pool:
        pool.map(work, range(3))
"""


def test_what_workers_print_appears_with_their_names_and_is_kept_in_files(tmp_path: Path) -> None:
    with launcher(PRINTING, tmp_path, ROPEWALK_LOGS=str(tmp_path / "logs")) as script:
        code, out, errors = script.end()
    host = socket.gethostname()
    assert code == 0
    assert out.splitlines() == [
        f"[pool-1 0@{host}] out 0",
        f"[pool-1 0@{host}] no end of lineout 1",
        f"[pool-1 0@{host}] no end of lineout 2",
        f"[pool-1 0@{host}] no end of line",
    ]
    assert errors.splitlines() == [f"[pool-1 0@{host}] err {number}" for number in range(3)]
    (file,) = (tmp_path / "logs").iterdir()
    assert file.name == "pool-1.0.log" and stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = file.read_text().splitlines()
    assert [line for line in kept if line.startswith("err")] == ["err 0", "err 1", "err 2"]
    assert [line for line in kept if not line.startswith("err")] == [
        "out 0",
        "no end of lineout 1",
        "no end of lineout 2",
        "no end of line",
    ]


NOT_UTF8 = """
    def seen():
        import neighbour
        return os.environ.get("ODD"), os.getcwd(), __file__, sys.argv[0], neighbour.WORD

    def tell(queue):
        queue.put(seen())

    sys.path.append(os.getcwd())
    expected = os.environ.get("ODD"), os.getcwd(), __file__, sys.argv[0], "next door"
    with ropewalk.Pool(1) as pool:
        assert pool.apply(seen) == expected, pool.apply(seen)
    queue = ropewalk.Queue()
    process = ropewalk.Process(target=tell, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == expected
    process.join()
    print("the same")
"""


def test_folders_and_variables_need_not_be_utf8(tmp_path: Path) -> None:
    # No agent stayed up, and a `Process` was waited for without end: no message could carry the Latin-1 of old systems.
    folder = tmp_path / os.fsdecode(b"l\xe4uft")
    folder.mkdir()
    (folder / "neighbour.py").write_text("WORD = 'next door'")
    with launcher(NOT_UTF8, folder, ODD=os.fsdecode(b"M\xfcller")) as script:
        code, out, errors = script.end()
    assert (code, out) == (0, "the same\n"), errors


def test_a_folder_for_output_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    # Nothing was kept, and nothing was said: the output was looked for after the run.
    (tmp_path / "file").touch()
    with launcher(PRINTING, tmp_path, ROPEWALK_LOGS=str(tmp_path / "file" / "logs")) as script:
        code, out, errors = script.end()
    assert code == 0
    assert "out 0" in out, "it is shown all the same"
    (problem,) = [line for line in errors.splitlines() if "is no longer kept in a file" in line]
    assert str(tmp_path / "file") in problem


FLOOD = """
    def flood(number):
        for line in range(4000):
            print(number, line, "x" * 50)
        return number
    with ropewalk.Pool(4) as pool:
        result = pool.map_async(flood, range(8), chunksize=1)
        {before}
        assert result.get() == list(range(8))
        pool.close()
        pool.join()
    say("end")
"""


@pytest.mark.parametrize("reads_late", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_flood_of_output_loses_no_line_and_mixes_none(tmp_path: Path, reads_late: bool) -> None:
    # What the script says itself tears no line of theirs either, whether Python buffers its streams or not.
    talks, unbuffered = "while not result.ready(): say('end')", "1" if reads_late else ""
    logs = str(tmp_path / "logs")
    with launcher(FLOOD.format(before=talks), tmp_path, ROPEWALK_LOGS=logs, PYTHONUNBUFFERED=unbuffered) as script:
        if reads_late:
            time.sleep(1.0)
        code, out, errors = script.end(120)
    assert (code, errors) == (0, "")
    lines = [line.split("] ", 1)[1] for line in out.splitlines() if line != "end"]
    by_task: dict[int, list[int]] = collections.defaultdict(list)
    for line in lines:
        number, at, filling = line.split(" ")
        assert filling == "x" * 50
        by_task[int(number)].append(int(at))
    assert by_task == {number: list(range(4000)) for number in range(8)}
    kept = [line for path in (tmp_path / "logs").iterdir() for line in path.read_text().splitlines()]
    assert sorted(kept) == sorted(lines)


def test_processes_can_be_told_apart_in_lists() -> None:
    with ropewalk.Pool(1, name="crew") as pool:
        (worker,) = pids_of(pool)
        assert psutil.Process(worker).name() == "rw:crew.0"
        assert Path(f"/proc/{agent_of(pool).pid}/comm").read_text() == "rw-agent\n"
        assert is_alive(fork_server_of(pool).pid)
        assert pool.apply(pid) == worker
