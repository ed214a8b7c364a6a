"""Processes as multiprocessing has them, on agents: from `start` to the exit code, also when they die."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from ropewalk.compat.context import set_forkserver_preload
from ropewalk.compat.process import Process, ProcessSource, active_children, current_process, parent_process
from ropewalk.errors import NotPicklable, StartFailed
from ropewalk.pool.pool import Pool
from ropewalk.processes.open_sessions import close_all
from ropewalk.processes.session import Session
from ropewalk.settings import current as current_settings
from ropewalk.sharing.connections import Connection, Pipe
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("shared_session")


def ended(process: Process) -> int | None:
    process.start()
    process.join()
    return process.exitcode


def write(path: Path, text: str) -> None:
    """A whole file at once: whoever sees it can read it."""
    (path.parent / f"{path.name}.new").write_text(text)
    os.rename(path.parent / f"{path.name}.new", path)


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.01)
    return path.read_text()


# What a process runs and how it ends


class Adder(Process):
    def __init__(self, path: Path, *numbers: int) -> None:
        super().__init__(name="adder")
        self.path, self.numbers = path, numbers

    def run(self) -> None:
        write(self.path, str(sum(self.numbers)))


def describe(path: Path, *args: Any, **kwargs: Any) -> None:
    process, parent = current_process(), parent_process()
    assert parent is not None
    facts = [process.name, process.pid == os.getpid(), process.daemon, process.authkey.hex()]
    write(path, repr([args, kwargs, facts, parent.name, parent.pid, parent.is_alive()]))


def test_a_process_knows_itself_its_parent_and_its_arguments(tmp_path: Path) -> None:
    process = Process(target=describe, args=(tmp_path / "f", 1), kwargs={"a": [2]}, name="some name", daemon=True)
    assert ended(process) == 0
    facts = ["some name", True, True, current_process().authkey.hex()]
    assert wait_for(tmp_path / "f") == repr([(1,), {"a": [2]}, facts, current_process().name, os.getpid(), True])
    assert process.failure is None


def test_modules_to_preload_that_are_not_there_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "_preload", ())
    set_forkserver_preload(["no_such_module", "colorsys", "xml.no_such_module"])
    process = Process(target=lambda: write(tmp_path / "f", str("colorsys" in sys.modules)))
    assert ended(process) == 0
    assert wait_for(tmp_path / "f") == "True"


def identity(_: int = 0) -> tuple[tuple[int, ...], str, str | None, bool]:
    process: Any = current_process()
    parent = parent_process()
    return process._identity, process.name, parent and parent.name, parent is not None and parent.is_alive()


def identities_of_children() -> list[Any]:
    with Pool(1) as pool:
        (child,) = pool.map(identity, range(1))
    return [child, identity()]


def test_workers_of_a_pool_are_numbered_like_processes_and_know_their_parent() -> None:
    """Programs choose a GPU, or a seed, by `current_process()._identity[0]` or the end of its name."""
    name = current_process().name
    with Pool(2) as pool, Pool(1) as other:
        other.wait_until_ready()
        found = {each[0] for each in pool.map(identity, range(20), chunksize=1)} | {other.apply(identity)[0]}
        first = Process()._identity[0] - 3  # type: ignore[attr-defined]
        assert found <= {(first,), (first + 1,), (first + 2,)}
        child, worker = other.apply(identities_of_children)
    assert worker == ((first + 2,), f"SpawnPoolWorker-{first + 2}", name, True)
    assert child == ((first + 2, 1), f"SpawnPoolWorker-{first + 2}:1", worker[1], True)


def test_a_subclass_runs_its_run(tmp_path: Path) -> None:
    assert ended(Adder(tmp_path / "sum", 1, 2, 3)) == 0
    assert wait_for(tmp_path / "sum") == "6"


def test_a_class_of_a_function_and_a_closure_are_welcome(tmp_path: Path) -> None:
    class Local(Process):
        def run(self) -> None:
            super().run()
            write(tmp_path / "local", type(self).__name__)

    assert ended(Local(target=lambda: write(tmp_path / "lambda", "ran"))) == 0
    assert (wait_for(tmp_path / "local"), wait_for(tmp_path / "lambda")) == ("Local", "ran")


@pytest.mark.parametrize(
    ("call", "argument", "code"),
    [(sys.exit, None, 0), (sys.exit, 7, 7), (sys.exit, True, 1), (sys.exit, "words", 1), (os._exit, 3, 3)],
)
def test_exit_codes_are_those_of_multiprocessing(call: Any, argument: Any, code: int) -> None:
    assert ended(Process(target=call, args=(argument,))) == code


def kill_myself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def test_a_death_is_explained_once(caplog: pytest.LogCaptureFixture) -> None:
    process = Process(target=kill_myself, args=(signal.SIGKILL,), name="victim")
    assert ended(process) == -signal.SIGKILL
    assert process.failure is not None
    assert f"victim on host {os.uname().nodename} (pid {process.pid}) was killed by SIGKILL" in process.failure
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [process.failure]


def test_an_exception_prints_its_traceback_and_gives_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    process = Process(target=divmod, args=(1, 0))
    assert ended(process) == 1
    assert process.failure is not None and "ZeroDivisionError" in process.failure
    close_all()  # everything is printed by then
    printed = capfd.readouterr().err
    assert "Process Process-" in printed and "ZeroDivisionError" in printed


def test_a_process_waits_for_its_threads(tmp_path: Path) -> None:
    def work() -> None:
        threading.Thread(target=lambda: (time.sleep(0.2), write(tmp_path / "late", "done"))).start()

    assert ended(Process(target=work)) == 0
    assert (tmp_path / "late").exists()


def test_what_execs_another_program_is_no_lost_process() -> None:
    assert ended(Process(target=os.execvp, args=("sleep", ["sleep", "2.5"]))) == 0


# Waiting and ending


def test_the_sentinel_is_ready_when_the_process_is_gone() -> None:
    long, short = (Process(target=time.sleep, args=(seconds,)) for seconds in (60, 0.05))
    long.start()
    short.start()
    assert wait([long.sentinel], timeout=0) == []
    assert wait([long.sentinel, short.sentinel], timeout=PATIENCE_S) == [short.sentinel]
    assert set(active_children()) >= {long}
    long.kill()
    assert wait([long.sentinel], timeout=PATIENCE_S) == [long.sentinel]
    long.join()
    assert long not in active_children()


def test_join_ends_with_its_time() -> None:
    process = Process(target=time.sleep, args=(60,))
    process.start()
    for timeout in (0, -1, 0.05):
        assert process.join(timeout) is None
    assert process.is_alive() and process.exitcode is None
    process.terminate()
    process.join()
    assert (process.is_alive(), process.exitcode) == (False, -signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_is_ended_before_it_is_up_runs_nothing(tmp_path: Path, number: int) -> None:
    assert ended(Process(target=time.sleep, args=(0,))) == 0  # the agent is up: the next ones have a host at once
    processes = [Process(target=write, args=(tmp_path / str(index), "ran")) for index in range(8)]
    for process in processes:
        process.start()
        process.terminate() if number == signal.SIGTERM else process.kill()
    for process in processes:
        process.join(120)
        assert process.exitcode == -number
    assert list(tmp_path.iterdir()) == []


def test_a_process_is_forgotten_after_its_end() -> None:
    process = Process(target=time.sleep, args=(0,))
    ended(process)
    process.close()
    process.close()
    for use in ("join", "is_alive", "terminate", "sentinel", "failure", "exitcode", "pid"):
        with pytest.raises(ValueError, match="closed"):
            getattr(process, use)()
    known = weakref.ref(process)
    del process
    gc.collect()
    assert known() is None


def test_one_that_runs_cannot_be_closed() -> None:
    process = Process(target=time.sleep, args=(60,))
    process.start()
    with pytest.raises(ValueError, match="still running"):
        process.close()
    process.kill()
    process.join()


def test_misuse_is_answered_as_in_multiprocessing() -> None:
    process = Process(target=time.sleep, args=(0,))
    with pytest.raises(AssertionError, match="can only join a started process"):
        process.join()
    with pytest.raises(ValueError, match="not started"):
        _ = process.sentinel
    assert (process.pid, process.exitcode, process.is_alive()) == (None, None, False)
    ended(process)
    with pytest.raises(AssertionError, match="cannot start a process twice"):
        process.start()


def test_starting_waits_for_nothing() -> None:
    with Session():
        first = Process(target=time.sleep, args=(3600,))
        first.start()
        forks_them = psutil.Process(first.pid).parent()
        assert forks_them
        processes = [Process(target=time.sleep, args=(0,)) for _ in range(32)]
        forks_them.suspend()  # so that none of them can be there
        for process in processes:
            process.start()
        forks_them.resume()
        assert not all(process.pid is None for process in processes)  # which does wait
        for process in processes:
            process.join()
        assert {process.exitcode for process in processes} == {0}
        first.terminate()
        first.join()


# Children of children


def have_child(path: Path) -> None:
    child = Process(target=time.sleep, args=(60,))
    child.start()
    write(path, str(child.pid))
    child.join()


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 120
    while os.path.exists(f"/proc/{pid}"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_children_end_with_the_process_that_dies(tmp_path: Path) -> None:
    process = Process(target=have_child, args=(tmp_path / "pid",))
    process.start()
    grandchild = int(wait_for(tmp_path / "pid"))
    process.kill()
    process.join()
    assert is_gone(grandchild)


def leave_children(folder: Path) -> None:
    Process(target=lambda: (time.sleep(0.2), write(folder / "waited", current_process().name))).start()
    daemon = Process(target=time.sleep, args=(60,), daemon=True)
    daemon.start()
    write(folder / "daemon", str(daemon.pid))


def test_at_its_end_a_process_waits_for_its_children_and_ends_daemonic_ones(tmp_path: Path) -> None:
    process = Process(target=leave_children, args=(tmp_path,))
    assert ended(process) == 0
    assert wait_for(tmp_path / "waited") == f"{process.name}:1"
    assert is_gone(int(wait_for(tmp_path / "daemon")))


def try_to_have_child(path: Path) -> None:
    with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children"):
        Process(target=time.sleep).start()
    write(path, "refused")


def test_a_daemonic_process_has_no_children(tmp_path: Path) -> None:
    assert ended(Process(target=try_to_have_child, args=(tmp_path / "f",), daemon=True)) == 0
    assert wait_for(tmp_path / "f") == "refused"


def start_in_worker(code: int) -> tuple[int | None, int]:
    process = Process(target=os._exit, args=(code,))
    process.start()
    known = len(active_children())
    process.join()
    return process.exitcode, known - len(active_children())


def test_workers_of_a_pool_may_have_processes() -> None:
    with Pool(2) as pool:
        assert pool.map(start_in_worker, [3, 4]) == [(3, 1), (4, 1)]


# What cannot be


def test_the_place_of_what_cannot_be_sent_is_named() -> None:
    process = Process(target=print, args=(1,), kwargs={"model": [threading.Lock()]})
    with pytest.raises(NotPicklable, match=r"kwargs\['model'\]\[0\] cannot be sent") as caught:
        process.start()
    assert caught.value.path == "kwargs['model'][0]"
    assert process.authkey == current_process().authkey  # it is whole, and may be started without the lock
    assert not process.is_alive()


@pytest.mark.parametrize("name", ["Lock", "Queue", "SimpleQueue", "Event", "Barrier", "Value"])
def test_objects_of_multiprocessing_are_refused_with_ours(name: str) -> None:
    arguments = {"Barrier": (2,), "Value": ("i", 0)}.get(name, ())
    theirs = getattr(multiprocessing, name)(*arguments)
    with pytest.raises(NotPicklable, match=rf"args\[0\].*ropewalk\.{name}\b"):
        Process(target=print, args=(theirs,)).start()


def test_a_process_whose_session_fails_before_its_id_is_known_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner was told between the two, in another thread, which raised; `pid` and `join` waited for ever."""
    with Session() as session:

        class Late(Process):
            _source = ProcessSource(session=session)

        ask, held, asked, told = session.processes.start, threading.Event(), threading.Event(), threading.Event()

        def fail() -> None:
            held.set()
            asked.wait(PATIENCE_S)
            session.processes.fail(StartFailed("no agent stays up"))
            told.set()

        def asked_too_late(*request: Any) -> str:
            session.loop.call_soon(fail)
            assert held.wait(PATIENCE_S)
            id = ask(*request)
            asked.set()
            assert told.wait(PATIENCE_S)
            return id

        monkeypatch.setattr(session.processes, "start", asked_too_late)
        late = Late(target=time.sleep, args=(60,), name="late")
        late.start()
        assert wait([late.sentinel], timeout=PATIENCE_S)
        with pytest.raises(StartFailed, match="late could not be started: no agent stays up"):
            late.join()
        wait_until(lambda: not len(session.processes), "that it is not left running")


def test_a_failure_to_start_is_said_at_once_and_raised_by_who_asks(caplog: pytest.LogCaptureFixture) -> None:
    with Session(settings=current_settings(max_processes=1)) as session:

        class Small(Process):
            _source = ProcessSource(session=session)

        first, second = Small(target=time.sleep, args=(60,)), Small(target=time.sleep, args=(60,), name="second")
        first.start()
        assert first.pid
        second.start()
        with pytest.raises(StartFailed, match=r"second could not be started: .*max_processes"):
            second.join()
        with pytest.raises(StartFailed):
            _ = second.exitcode
        with pytest.raises(StartFailed):
            _ = second.pid
        assert not second.is_alive() and second not in active_children()
        assert wait([second.sentinel], timeout=0) and "second could not be started" in caplog.text
        second.close()
        first.kill()
        first.join()


def refuse_to_load() -> None:
    raise RuntimeError("not here")


class NeverLoaded:
    def __reduce__(self) -> Any:
        return refuse_to_load, ()


def send_hello(*arguments: Any) -> None:
    for argument in arguments:
        if isinstance(argument, Connection):
            argument.send("hello")


@pytest.mark.parametrize("is_first", [True, False])
def test_the_end_of_a_pipe_that_a_process_could_not_load_is_closed(is_first: bool) -> None:
    # The depot waited for the handle to arrive, as the sender lived, and the reader waited for ever.
    reader, writer = Pipe(duplex=False)
    arguments = (writer, NeverLoaded()) if is_first else (NeverLoaded(), writer)
    process = Process(target=send_hello, args=arguments)
    process.start()
    del arguments
    writer.close()
    process.join()
    assert process.exitcode == 1
    assert "RuntimeError: not here" in str(process.failure)
    del process  # and with it the arguments
    gc.collect()
    assert reader.poll(60)
    with pytest.raises(EOFError, match="nobody holds the other end"):
        reader.recv()


def test_the_end_of_a_pipe_on_its_way_to_a_process_that_is_killed_is_closed() -> None:
    reader, writer = Pipe(duplex=False)
    process = Process(target=send_hello, args=(writer,))
    process.start()
    process.kill()
    writer.close()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    del process
    gc.collect()
    while reader.poll(60):  # it may have come to its hello
        try:
            assert reader.recv() == "hello"
        except EOFError:
            return
    raise AssertionError("the reader still waits")


def test_the_end_of_a_pipe_given_to_a_process_that_loads_it_stays_open_until_it_ends() -> None:
    reader, writer = Pipe(duplex=False)
    process = Process(target=send_hello, args=(writer,))
    process.start()
    writer.close()
    assert reader.recv() == "hello"
    process.join()
    with pytest.raises(EOFError):
        reader.recv()
    assert process.exitcode == 0


@pytest.mark.parametrize("size", [10_000, 2_000_000])
def test_arguments_are_those_of_the_moment_of_the_start(tmp_path: Path, size: int) -> None:
    np = pytest.importorskip("numpy")

    def total(array: Any) -> None:
        array += 0  # it is the process's own
        write(tmp_path / "sum", str(int(array.sum())))

    array = np.ones(size)
    process = Process(target=total, args=(array,))
    process.start()
    array[:] = 5
    process.join()
    assert wait_for(tmp_path / "sum") == str(size)
